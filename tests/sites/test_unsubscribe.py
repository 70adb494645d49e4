"""A site that unsubscribes goes on, without the type."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.conftest import DEADLINE, eventually
from tests.sites.conftest import Notes, Sites
from txlayer import Event, MemberTransaction, Scope, Site, Status, named
from txlayer.errors import CensusUnfulfilled, UsageError
from txlayer.messages import ChainKind


def test_a_site_that_unsubscribed_takes_no_part_in_new_transactions(sites: Sites, notes: Notes) -> None:
    type, other = sites.name("orders"), sites.name("others")
    leaving = sites.make("a")
    for name in (type, other):
        leaving.subscribe(name, notes.handler("a"))
    leaving.start()
    staying = sites.member("b", type, notes.handler("b"))
    publisher = sites.start("p")
    sites.know(publisher, type, leaving, staying)
    leaving.unsubscribe(type)
    sites.know(publisher, type, staying)
    assert publisher.send(type, ["x"]).members == 1
    with publisher.transaction(type) as tx:
        tx.publish("y")
    with pytest.raises(CensusUnfulfilled):
        publisher.send(type, ["z"], require=named(leaving.name), census_within=0.2)
    sites.know(publisher, other, leaving)
    assert publisher.send(other, ["of the other type"]).members == 1
    assert notes.of("a") == ["of the other type"]
    eventually(lambda: leaving._engine.wires.control(type) not in leaving._engine.wires.subscription.topics)  # type: ignore[union-attr]
    leaving.subscribe(type, notes.handler("again"))
    sites.know(publisher, type, leaving, staying)
    assert publisher.send(type, ["back"]).members == 2
    assert notes.of("again") == ["back"]


def test_running_transactions_are_finished(sites: Sites) -> None:
    type = sites.name("orders")
    begun, go_on = threading.Event(), threading.Event()
    seen: list[Any] = []

    def slow(tx: MemberTransaction, event: Event) -> None:
        begun.set()
        go_on.wait(DEADLINE)
        seen.append(event.data)

    leaving = sites.member("a", type, slow)
    staying = sites.member("b", type, lambda tx, event: None)
    publisher = sites.start("p")
    sites.know(publisher, type, leaving, staying)
    with publisher.transaction(type) as tx:
        tx.publish("x")
        assert begun.wait(DEADLINE)
        leaving.unsubscribe(type)
        sites.know(publisher, type, staying)
        go_on.set()
        tx.publish("y")
    assert tx.outcome is not None
    assert (tx.outcome.status, tx.outcome.members) == (Status.COMMITTED, 2)
    assert seen == ["x", "y"]


def test_listeners_hear_nothing_more(sites: Sites) -> None:
    type = sites.name("news")
    heard: list[Any] = []
    site, other = sites.make("a"), sites.make("b")
    site.listener(type)(lambda event: heard.append(("a", event.data)))
    other.listener(type)(lambda event: heard.append(("b", event.data)))
    site.start()
    other.start()
    site.publish(type, 1).wait(DEADLINE)
    eventually(lambda: sorted(heard) == [("a", 1), ("b", 1)])
    site.unsubscribe(type)
    site.publish(type, 2).wait(DEADLINE)
    eventually(lambda: ("b", 2) in heard)
    assert ("a", 2) not in heard


@pytest.mark.parametrize(
    ("options", "kind"),
    [({"scope": Scope.FOLLOWER}, ChainKind.COMMITS), ({"scope": Scope.LOCAL, "durable": True}, ChainKind.CALLS)],
)
def test_what_was_kept_for_a_reader_is_given_back(
    sites: Sites, notes: Notes, options: dict[str, Any], kind: ChainKind
) -> None:
    type = sites.name("orders")
    reader = sites.member("f", type, notes.handler("f"), log=sites.file("f"), **options)
    member = sites.member("a", type, lambda tx, event: None)
    publisher = sites.start("p")
    sites.know(publisher, type, reader, member)
    chain = publisher._engine.participant.coordinator.chains[kind]
    _read(reader, publisher, kind)
    publisher.send(type, ["before"])
    eventually(lambda: notes.of("f") == ["before"])
    reader.unsubscribe(type)
    eventually(lambda: not chain.read_by_anyone(), "the coordinator keeps nothing for it")
    eventually(lambda: not _reads(reader, publisher, kind), "and the reader has forgotten it")
    sites.know(publisher, type, member)
    publisher.send(type, ["meanwhile"])
    eventually(lambda: not chain.entries)
    reader.subscribe(type, notes.handler("f"), **options)
    sites.know(publisher, type, reader, member)
    _read(reader, publisher, kind)
    publisher.send(type, ["after"])
    eventually(lambda: notes.of("f") == ["before", "after"])


def _reads(reader: Site, coordinator: Site, kind: ChainKind) -> bool:
    keys = list(reader._engine.participant.subscriber.readers)
    return any((name, of) == (coordinator.name, kind.value) for name, _, of in keys)


def _read(reader: Site, coordinator: Site, kind: ChainKind) -> None:
    """Wait until the coordinator knows its reader."""
    chain = coordinator._engine.participant.coordinator.chains[kind]
    eventually(lambda: bool(getattr(chain.readers.get(reader.name), "types", ())), "the reader is registered")


def test_who_does_not_subscribe_cannot_unsubscribe(memory_sites: Sites) -> None:
    site = memory_sites.make("a")
    site.subscribe("orders", lambda tx, event: None)
    site.unsubscribe("orders")
    site.start()
    assert site.subscribed("orders") == []
    with pytest.raises(UsageError, match="nobody here subscribes to 'orders'"):
        site.unsubscribe("orders")
