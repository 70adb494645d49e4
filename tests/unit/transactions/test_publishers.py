"""Several publishers: whose a key is, who may end a transaction, and what each of them is told."""

import pytest

from txlayer.effects import AskCall, BeginCall, CommitCall, JoinCall, PublishCall
from txlayer.messages import Access, Conditions, Item, Limit, Status, Terms, TxId

from .bench import Bench, Site, member

SHOT = Terms("orders", limit=Limit.DISTRIBUTED, one_shot=True, require=Conditions(only=("a",)))
SHARED = Terms("orders", access=Access.MULTI, committers=("q",), limit=Limit.DISTRIBUTED)


def together(terms: Terms = SHARED) -> tuple[Bench, TxId]:
    """`p` has begun a transaction at `c`, `q` has joined it as `j`, `a` is its member."""
    bench = Bench(Site("p"), Site("q"), Site("c"), Site("a", member()))
    bench.give("p", BeginCall("k", terms, "c"))
    tx = bench.sites["p"].opened["k"]
    bench.give("q", JoinCall("j", tx))
    return bench, tx


def publish(bench: Bench, site: str, call: str, payload: bytes) -> None:
    bench.give(site, PublishCall(call, Item("orders", payload)))


def told(bench: Bench, site: str, call: str) -> list[Status]:
    return [outcome.status for outcome in bench.sites[site].outcomes.get(call, [])]


@pytest.mark.parametrize("restarted", [False, True])
def test_key_of_another_site_is_taken(restarted: bool) -> None:
    bench = Bench(Site("p"), Site("q"), Site("c"), Site("a", member()))
    bench.give("p", BeginCall("k", SHOT, "c", (Item("orders", b"of p"),)))
    if restarted:
        bench.restart("c")
    bench.give("q", BeginCall("k", SHOT, "c", (Item("orders", b"of q"),)))
    bench.fire("q", "retry", "p")
    assert told(bench, "q", "k") == [Status.REFUSED]
    assert "a transaction of p has this key" in bench.sites["q"].outcomes["k"][0].reason
    assert list(bench.sites["a"].resource.values) == ["of p"]
    bench.give("q", AskCall("asks", "c", key="k"))
    assert told(bench, "q", "asks") == [Status.COMMITTED], "asking is allowed"


@pytest.mark.parametrize("finishers", [(), ("f",)])
def test_key_stays_with_its_publisher_when_another_one_called_commit(finishers: tuple[str, ...]) -> None:
    bench = Bench(Site("p"), Site("q"), Site("c", finishers=finishers), Site("a", member()), Site("f"))
    bench.give("p", BeginCall("k", SHARED, "c"))
    bench.give("q", JoinCall("j", bench.sites["p"].opened["k"]))
    bench.give("q", CommitCall("j"))
    assert told(bench, "q", "j") == [Status.COMMITTED]
    for name in ("c", "p"):
        bench.restart(name)
    bench.sites["p"].outcomes.clear()
    bench.give("p", BeginCall("k", SHARED, "c"))
    bench.fire("p", "retry", "p")
    assert told(bench, "p", "k") == [Status.COMMITTED]
