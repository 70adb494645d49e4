"""Which component of which site serves which transaction (TOPS 4.5.2, figure 4-M).

Two transactions of one event type are open at once. T1 is local with one publisher, A, and members A, C and D; T2 is
distributed with several publishers at the rendezvous node R, initiated by B: B and D are distributed members, C and E
local ones. So C and D each serve both, D in two different ways.
"""

from __future__ import annotations

from tests.conftest import eventually
from tests.scenarios.conftest import PATIENT
from tests.sites.conftest import Sites
from txlayer import Access, Event, MemberTransaction, Participant, Scope, Site, Status

SCOPES = {
    "local": {"A": Scope.LOCAL, "C": Scope.LOCAL, "D": Scope.LOCAL},
    "distributed": {"B": Scope.DISTRIBUTED, "C": Scope.LOCAL, "D": Scope.DISTRIBUTED, "E": Scope.LOCAL},
}


def parts(site: Site) -> set[tuple[str, str]]:
    """The transactions that a site has to do with, by their number's coordinator, and its part in each."""
    return {(view.tx.coordinator, view.part) for view in site.transactions()}


def test_components_serve_several_transactions_of_several_kinds(sites: Sites) -> None:
    meetings = sites.name("meetings")
    seen: dict[str, list[str]] = {name: [] for name in "ABCDE"}
    done: dict[str, list[str]] = {name: [] for name in "ABCDE"}

    def client(name: str) -> type[Participant]:
        class Client(Participant):
            def on_join(self, tx: MemberTransaction) -> Scope:
                return SCOPES[tx.attributes["kind"]].get(name, Scope.NONE)

            def on_event(self, tx: MemberTransaction, event: Event) -> None:
                seen[name].append(event.data)

            def on_commit(self, tx: MemberTransaction) -> None:
                done[name].append(tx.attributes["kind"])

        return Client

    r = sites.start("R", hosts=True)
    a, b, c, d, e = clients = [sites.member(name, meetings, client(name)) for name in "ABCDE"]
    for site in (a, b, r):
        sites.know(site, meetings, *clients)
        eventually(lambda site=site: r.name in [view.name for view in site.sites()])

    t1 = a.transaction(meetings, {"kind": "local"}, local=True, **PATIENT).start()
    t2 = b.transaction(meetings, {"kind": "distributed"}, access=Access.MULTI, coordinator=r.name, **PATIENT).start()
    assert (t1.id.coordinator, t2.id.coordinator) == (a.name, r.name)
    assert t2.members == 2
    t1.publish("E1")
    t2.publish("E2")

    eventually(lambda: parts(a) == {(a.name, "coordinator"), (a.name, "local")})
    eventually(lambda: parts(r) == {(r.name, "coordinator")})
    eventually(lambda: parts(b) == {(r.name, "member")})
    eventually(lambda: parts(c) == {(a.name, "local"), (r.name, "local")})
    eventually(lambda: parts(d) == {(a.name, "local"), (r.name, "member")})
    eventually(lambda: parts(e) == {(r.name, "local")})

    assert t1.commit().status is Status.COMMITTED
    assert t2.commit().status is Status.COMMITTED
    eventually(lambda: [sorted(done[name]) for name in "ABE"] == [["local"], ["distributed"], ["distributed"]])
    eventually(lambda: sorted(done["C"]) == sorted(done["D"]) == ["distributed", "local"])
    assert [sorted(seen[name]) for name in "ABCDE"] == [["E1"], ["E2"], ["E1", "E2"], ["E1", "E2"], ["E2"]]
