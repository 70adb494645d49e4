"""Which subscribers of a site take part: filters, neighbours of other scopes, and who it was after a restart."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import DEADLINE, eventually
from tests.sites.conftest import Notes, Sites
from txlayer import Event, Limit, MemberTransaction, Participant, Scope, Site
from txlayer.effects import CommitUnit, Send, Surface
from txlayer.errors import Closed, TransactionAborted
from txlayer.logs.memory import MemoryDisk
from txlayer.messages import ChainKind, Vote
from txlayer.resources.memory import MemoryResource
from txlayer.transactions.seat import Bounds

NOBODY_THERE = {"census_within": 0.1}
"""A census that nobody answers is not waited for."""
READERS = [{"scope": Scope.FOLLOWER}, {"scope": Scope.LOCAL, "durable": True}]


def registered(publisher: Site, reader: Site, kind: ChainKind = ChainKind.COMMITS) -> None:
    """Wait until the publisher's site has the reader in the registry of a chain."""
    chain = publisher._engine.participant.coordinator.chains[kind]
    eventually(lambda: reader.name in chain.readers)


def applied(publisher: Site) -> None:
    """Wait until every reader has acknowledged all that was committed."""
    chains = publisher._engine.participant.coordinator.chains.values()
    eventually(lambda: not any(chain.entries for chain in chains))


def publish(site: Site, type: str, *subjects: str, **terms: Any) -> None:
    for subject in subjects:
        with site.transaction(type, {"subject": subject}, **terms) as tx:
            tx.publish(subject)


def put(store: MemoryResource, prefix: str) -> Any:
    def handle(tx: MemberTransaction, event: Event) -> None:
        tx[store].put(f"{prefix} {event.data}", tx.attributes["subject"])

    return handle


# Filters


@pytest.mark.parametrize("options", READERS, ids=["follower", "durable local"])
def test_what_comes_by_a_chain_passes_the_filter(sites: Sites, options: dict[str, Any]) -> None:
    type = sites.name("meetings")
    seen: list[Any] = []

    def handle(tx: MemberTransaction, event: Event) -> None:
        seen.append((event.data, dict(tx.attributes), tx.terms is not None and event.tx == tx.id))

    reader = sites.member("f", type, handle, where={"subject": "x"}, **options)
    publisher = sites.start("p")
    sites.know(publisher, type, reader)
    registered(publisher, reader, ChainKind.COMMITS if len(options) == 1 else ChainKind.CALLS)
    publish(publisher, type, "w", "x", "y")
    applied(publisher)
    assert seen == [("x", {"subject": "x"}, True)]


# Neighbours


def test_a_follower_takes_no_vote_from_its_neighbour(sites: Sites) -> None:
    """They share a database, and each does its own work in a unit of its own."""
    type = sites.name("orders")
    store = MemoryResource()
    site = sites.make("m")
    site.subscribe(type, put(store, "member"), resources=[store])
    site.subscribe(type, put(store, "follower"), resources=[store], scope=Scope.FOLLOWER)
    site.start()
    publisher = sites.start("p")
    sites.know(publisher, type, site)
    registered(publisher, site)
    with publisher.transaction(type, {"subject": "x"}) as tx:
        tx.publish("one")
    assert tx.outcome is not None
    assert tx.outcome.members == 1
    eventually(lambda: store.values == {"member one": "x", "follower one": "x"})
    applied(publisher)
    assert not store.units
    eventually(lambda: not store.markers())


def test_what_a_neighbour_refuses_no_follower_applies(memory_sites: Sites, notes: Notes) -> None:
    type = memory_sites.name("orders")

    def refuse(tx: MemberTransaction, event: Event) -> None:
        if event.data == "bad":
            raise ValueError("not here")

    site = memory_sites.make("m")
    site.subscribe(type, refuse)
    site.subscribe(type, notes.handler("follower"), scope=Scope.FOLLOWER)
    site.start()
    publisher = memory_sites.start("p")
    memory_sites.know(publisher, type, site)
    registered(publisher, site)
    with pytest.raises(TransactionAborted, match="not here"):
        publish(publisher, type, "bad")
    publish(publisher, type, "good")
    applied(publisher)
    assert notes.of("follower") == ["good"]


def test_a_listener_beside_a_follower_hears_what_happens_inside(memory_sites: Sites, notes: Notes) -> None:
    type = memory_sites.name("orders")
    heard: list[Any] = []
    site = memory_sites.make("m")
    site.subscribe(type, notes.handler("follower"), scope=Scope.FOLLOWER)
    site.listener(type)(lambda event: heard.append(event.data))
    site.start()
    publisher = memory_sites.start("p")
    memory_sites.know(publisher, type, site)
    registered(publisher, site)
    publish(publisher, type, "x")
    eventually(lambda: heard == ["x"])
    eventually(lambda: notes.of("follower") == ["x"])


def test_a_neighbour_too_weak_for_the_limit_is_left_out_alone(memory_sites: Sites, notes: Notes) -> None:
    type = memory_sites.name("orders")
    heard: list[Any] = []
    site = memory_sites.make("m")
    site.subscribe(type, notes.handler("member"))
    site.listener(type)(lambda event: heard.append(event.data))
    site.start()
    publisher = memory_sites.start("p")
    memory_sites.know(publisher, type, site)
    publish(publisher, type, "secret", limit=Limit.LOCAL)
    publish(publisher, type, "known")
    eventually(lambda: heard == ["known"])
    assert notes.of("member") == ["secret", "known"]


def test_a_neighbour_that_asks_for_too_much_is_left_out_alone(memory_sites: Sites, notes: Notes) -> None:
    type = memory_sites.name("orders")
    surfaced: list[Surface] = []
    site = memory_sites.make("m")
    site.subscribe(type, notes.handler("local"), scope=Scope.LOCAL)
    site.subscribe(type, notes.handler("member"), scope=Scope.DISTRIBUTED)
    site.on_surface(surfaced.append)
    site.start()
    publisher = memory_sites.start("p")
    memory_sites.know(publisher, type, site)
    publish(publisher, type, "x", local=True)
    eventually(lambda: notes.of("local") == ["x"])
    eventually(lambda: [surface.what for surface in surfaced] == ["usage error"])
    assert notes.of("member") == []


# Whoever chooses by transaction


def chooser(seen: list[Any]) -> type[Participant]:
    class Chooser(Participant):
        def on_join(self, tx: MemberTransaction) -> Scope:
            seen.append(("asked", tx.attributes["subject"]))
            return Scope.FOLLOWER if tx.attributes["subject"] == "follow" else Scope.DISTRIBUTED

        def on_event(self, tx: MemberTransaction, event: Event) -> None:
            seen.append(event.data)

    return Chooser


def test_on_join_is_asked_of_every_transaction_once(memory_sites: Sites) -> None:
    type = memory_sites.name("orders")
    seen: list[Any] = []
    site = memory_sites.member("m", type, chooser(seen))
    publisher = memory_sites.start("p")
    memory_sites.know(publisher, type, site)
    publish(publisher, type, "follow")  # the first time it is only now registered: this one may pass it by
    registered(publisher, site)
    applied(publisher)
    seen.clear()
    publish(publisher, type, "vote", "follow")
    applied(publisher)
    assert seen == [("asked", "vote"), "vote", ("asked", "follow"), "follow"]


def test_on_join_is_asked_of_what_was_committed_while_its_site_was_away(memory_sites: Sites) -> None:
    type = memory_sites.name("orders")
    seen: list[Any] = []
    options: dict[str, Any] = {"log": MemoryDisk(), "scope": Scope.FOLLOWER}
    first = memory_sites.member("m", type, chooser(seen), **options)
    publisher = memory_sites.start("p")
    memory_sites.know(publisher, type, first)
    registered(publisher, first)
    first.close()
    memory_sites.know(publisher, type)
    publish(publisher, type, "vote", "follow", **NOBODY_THERE)
    assert seen == []
    memory_sites.member("m", type, chooser(seen), **options)
    applied(publisher)
    assert seen == [("asked", "vote"), ("asked", "follow"), "follow"]


# After a restart


def is_vote(thing: object) -> bool:
    return isinstance(thing, Send) and isinstance(thing.message, Vote)


def dies_of(effect: Callable[[str, object], bool]) -> tuple[Callable[[str, object], None], threading.Event]:
    """A probe that ends its site, and what tells that it did."""
    dead = threading.Event()

    def probe(moment: str, thing: object) -> None:
        if effect(moment, thing):
            dead.set()
            raise Closed("killed")

    return probe, dead


def refusing_after(others: threading.Event) -> type[Participant]:
    """Votes no when the others are ready for it."""

    class Refuse(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None: ...

        def on_prepare(self, tx: MemberTransaction) -> None:
            others.wait(DEADLINE)
            raise ValueError("no")

    return Refuse


def undoing(name: str, seen: list[Any], joins: Scope | None = None) -> type[Participant]:
    class Undoing(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None:
            seen.append((name, "event", event.data))

        def on_compensate(self, tx: MemberTransaction, event: Event) -> None:
            seen.append((name, "undo", event.data, dict(tx.attributes), tx.terms is not None))

    class Choosing(Undoing):
        def on_join(self, tx: MemberTransaction) -> Any:
            return joins

    chosen = Undoing if joins is None else Choosing
    chosen.__qualname__ = name
    return chosen


def test_after_a_restart_those_compensate_who_took_part(memory_sites: Sites) -> None:
    type = memory_sites.name("orders")
    seen: list[Any] = []
    probe, dead = dies_of(lambda moment, thing: moment == "performed" and is_vote(thing))

    def start(**options: Any) -> Site:
        site = memory_sites.make("m", log=memory_sites.file("m"), **options)
        site.subscribe(type, undoing("x", seen), where={"subject": "x"}, anonymous=True)
        site.subscribe(type, undoing("y", seen), where={"subject": "y"}, anonymous=True)
        site.subscribe(type, undoing("out", seen, Scope.NONE), anonymous=True)
        site.subscribe(type, undoing("in", seen, Scope.DISTRIBUTED), anonymous=True)
        site.subscribe(type, undoing("follower", seen), scope=Scope.FOLLOWER)
        return site.start()

    first = start(probe=probe)
    other = memory_sites.member("d", type, refusing_after(dead))
    publisher = memory_sites.start("p")
    memory_sites.know(publisher, type, first, other)
    with pytest.raises(TransactionAborted, match="no"):
        publish(publisher, type, "x")
    first.close(timeout=0.0)
    assert sorted(seen) == [("in", "event", "x"), ("x", "event", "x")]
    seen.clear()
    start()
    undone = ["undo", "x", {"subject": "x"}, True]
    eventually(lambda: seen == [("in", *undone), ("x", *undone)])


def test_after_a_restart_those_local_members_go_on_who_took_part(memory_sites: Sites) -> None:
    type = memory_sites.name("orders")
    seen: list[Any] = []
    probe, dead = dies_of(lambda moment, thing: moment == "work" and isinstance(thing, CommitUnit))

    def note(name: str) -> Any:
        def handle(tx: MemberTransaction, event: Event) -> None:
            seen.append((name, event.data, dict(tx.attributes)))

        return handle

    def start(**options: Any) -> Site:
        site = memory_sites.make("m", log=memory_sites.file("m"), **options)
        site.subscribe(type, note("x"), where={"subject": "x"}, scope=Scope.LOCAL)
        site.subscribe(type, note("y"), where={"subject": "y"}, scope=Scope.LOCAL)
        return site.start()

    first = start(probe=probe)
    publisher = memory_sites.start("p")
    memory_sites.know(publisher, type, first)
    publish(publisher, type, "x", local=True)
    eventually(dead.is_set)
    first.close(timeout=0.0)
    seen.clear()
    second = start()
    eventually(lambda: ("x", "x", {"subject": "x"}) in seen)
    eventually(lambda: all(view.state == "done" for view in second.transactions()))
    assert seen == [("x", "x", {"subject": "x"})]


def test_compensation_that_hangs_is_tried_again_by_those_who_took_part(memory_sites: Sites) -> None:
    type = memory_sites.name("orders")
    calls: list[Participant] = []
    voted, release = threading.Event(), threading.Event()

    class Hang(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None: ...

        def on_compensate(self, tx: MemberTransaction, event: Event) -> None:
            calls.append(self)
            if len(calls) == 1:
                release.wait(DEADLINE)

    def probe(moment: str, thing: object) -> None:
        if moment == "performed" and is_vote(thing):
            voted.set()

    member = memory_sites.member("m", type, Hang, handler_within=0.5, probe=probe)
    other = memory_sites.member("d", type, refusing_after(voted))
    publisher = memory_sites.start("p")
    memory_sites.know(publisher, type, member, other)
    with pytest.raises(TransactionAborted, match="no"):
        publish(publisher, type, "x")
    eventually(lambda: len(calls) == 2)
    assert calls[0] is not calls[1]
    release.set()


# Beyond retention


def test_a_follower_that_fell_behind_follows_anew(memory_sites: Sites, notes: Notes) -> None:
    parent, child = memory_sites.name("orders"), memory_sites.name("orders-abroad")
    publisher = memory_sites.start("p", bounds=Bounds(chain_entries=1))
    publisher.advertise(child, parent=parent)
    surfaced: list[str] = []
    log = MemoryDisk()  # the bus keeps nothing for such a site

    def start() -> Site:
        site = memory_sites.make("f", log=log)
        site.subscribe(parent, notes.handler("follower"), scope=Scope.FOLLOWER)
        site.subscribe(parent, notes.handler("local"), scope=Scope.LOCAL)
        site.on_surface(lambda surface: surfaced.append(surface.what))
        return site.start()

    first = start()
    memory_sites.know(publisher, child, first)
    registered(publisher, first)
    first.close()
    memory_sites.know(publisher, child)
    publish(publisher, child, "a", "b", "c", **NOBODY_THERE)
    second = start()
    eventually(lambda: "stale" in surfaced)
    memory_sites.know(publisher, child, second)
    chains = publisher._engine.participant.coordinator.chains
    before = chains[ChainKind.COMMITS].readers[second.name].registration
    second.follow_anew(publisher.name)
    eventually(lambda: chains[ChainKind.COMMITS].readers[second.name].registration > before)
    publish(publisher, child, "d")
    eventually(lambda: notes.of("follower") == ["d"])
    eventually(lambda: notes.of("local") == ["d"])
    assert second.name not in chains[ChainKind.CALLS].readers
    assert all(reader.kind is ChainKind.COMMITS for reader in second._engine.participant.subscriber.readers.values())
