"""Transactions on real buses: what commits commits everywhere, what aborts leaves nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.conftest import DEADLINE, eventually
from tests.sites.conftest import Notes, Sites
from txlayer import (
    Access,
    Draft,
    Event,
    Limit,
    MemberTransaction,
    Participant,
    Scope,
    Site,
    Status,
    Transaction,
    all_of,
    at_least,
    at_most,
    named,
    only,
)
from txlayer.errors import CensusUnfulfilled, TransactionAborted, TransactionRefused, UsageError
from txlayer.logs.memory import MemoryDisk
from txlayer.resources.memory import MemoryResource


def three(sites: Sites, notes: Notes, type: str) -> tuple[Site, list[Site]]:
    members = [sites.member(name, type, notes.handler(name)) for name in ("a", "b", "c")]
    publisher = sites.start("p")
    sites.know(publisher, type, *members)
    return publisher, members


def test_every_member_gets_every_event_in_order(sites: Sites, notes: Notes) -> None:
    meetings = sites.name("meetings")
    publisher, _ = three(sites, notes, meetings)
    with publisher.transaction(meetings, {"subject": "DSOnline"}, settle_for=at_least(2), limit=Limit.LOCAL) as tx:
        tx.publish({"time": "15:00"})
        tx.publish({"room": "B2"}, type="meeting.location")
    assert tx.outcome is not None
    assert (tx.outcome.status, tx.outcome.members) == (Status.COMMITTED, 3)
    for member in "abc":
        assert notes.of(member) == [{"time": "15:00"}, {"room": "B2"}]


def test_one_shot(sites: Sites, notes: Notes) -> None:
    meetings = sites.name("meetings")
    publisher, _ = three(sites, notes, meetings)
    outcome = publisher.send(meetings, [{"time": "15:00"}, Draft({"room": "B2"}, "meeting.location")])
    assert (outcome.status, outcome.members) == (Status.COMMITTED, 3)
    assert ("a", "meeting.location", {"room": "B2"}) in notes.seen


def test_a_member_that_fails_aborts_all(sites: Sites, notes: Notes) -> None:
    type = sites.name("meetings")
    rooms = MemoryResource()

    def book(tx: MemberTransaction, event: Event) -> None:
        tx[rooms].put("booked", event.data)

    def refuse(tx: MemberTransaction, event: Event) -> None:
        raise ValueError("no time")

    members = [
        sites.member("a", type, book, resources=[rooms]),
        sites.member("b", type, refuse),
    ]
    publisher = sites.start("p")
    sites.know(publisher, type, *members)
    with pytest.raises(TransactionAborted, match="no time") as caught, publisher.transaction(type) as tx:
        tx.publish({"time": "15:00"})
    assert caught.value.by == members[1].name
    assert "ValueError" in caught.value.reason
    eventually(lambda: not rooms.units and not rooms.prepared)
    assert rooms.values == {}


def _publish_and_fail(tx: Transaction, seen: Callable[[], bool]) -> None:
    tx.publish({})
    eventually(seen)
    raise KeyError("never mind")


def test_an_exception_in_the_block_aborts(sites: Sites) -> None:
    type = sites.name("meetings")
    log: list[str] = []

    class Attend(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None:
            log.append("event")

        def on_commit(self, tx: MemberTransaction) -> None:
            log.append("commit")

        def on_abort(self, tx: MemberTransaction) -> None:
            log.append("abort")

    member = sites.member("a", type, Attend)
    publisher = sites.start("p")
    sites.know(publisher, type, member)
    with pytest.raises(KeyError), publisher.transaction(type) as tx:
        _publish_and_fail(tx, lambda: "event" in log)
    eventually(lambda: log == ["event", "abort"])
    assert tx.outcome is not None
    assert tx.outcome.status is Status.ABORTED


def test_a_participant_hears_of_every_step(sites: Sites) -> None:
    type = sites.name("meetings")
    log: list[Any] = []

    class Attend(Participant):
        def on_join(self, tx: MemberTransaction) -> Scope:
            log.append(("join", dict(tx.attributes)))
            return Scope.DISTRIBUTED

        def on_event(self, tx: MemberTransaction, event: Event) -> None:
            log.append(("event", event.data, event.number))

        def on_prepare(self, tx: MemberTransaction) -> None:
            log.append("prepare")

        def on_commit(self, tx: MemberTransaction) -> None:
            log.append("commit")

    members = [sites.member("a", type, Attend), sites.member("b", type, lambda tx, event: None)]
    publisher = sites.start("p")
    sites.know(publisher, type, *members)
    with publisher.transaction(type, {"subject": "DSOnline"}) as tx:
        tx.publish("one")
        tx.publish("two")
    eventually(lambda: "commit" in log)
    assert log == [("join", {"subject": "DSOnline"}), ("event", "one", 1), ("event", "two", 2), "prepare", "commit"]


def test_settle_for_goes_on_without_a_member_that_drops_out(sites: Sites, notes: Notes) -> None:
    type = sites.name("meetings")

    def refuse(tx: MemberTransaction, event: Event) -> None:
        raise ValueError("no time")

    members = [sites.member(name, type, notes.handler(name)) for name in ("a", "b")]
    members.append(sites.member("c", type, refuse))
    publisher = sites.start("p")
    sites.know(publisher, type, *members)
    with publisher.transaction(type, settle_for=at_least(2)) as tx:
        tx.publish({"time": "15:00"})
    assert tx.outcome is not None
    assert tx.outcome.members == 2
    with pytest.raises(TransactionAborted), publisher.transaction(type, settle_for=at_least(3)) as tx:
        tx.publish({"time": "16:00"})


def test_a_census_that_is_not_fulfilled_begins_nothing(sites: Sites, notes: Notes) -> None:
    type = sites.name("meetings")
    publisher, members = three(sites, notes, type)
    for require in (at_least(4), named("nobody")):
        with (
            pytest.raises(CensusUnfulfilled),
            publisher.transaction(type, require=require, census_within=0.3) as tx,
        ):
            tx.publish({})
    with pytest.raises(CensusUnfulfilled):
        publisher.send(type, [{}], require=at_least(4), census_within=0.3)
    with publisher.transaction(type, require=all_of(only(members[0].name), at_most(1))) as tx:
        assert tx.members == 1
        tx.publish("for a")
    assert "for a" in notes.of("a")
    with (
        pytest.raises(CensusUnfulfilled, match="predicate"),
        publisher.transaction(type, predicate=lambda answers: len(answers) == 2, census_within=0.3),
    ):
        pass
    with (
        pytest.raises(CensusUnfulfilled, match="predicate"),
        publisher.transaction(type, predicate=lambda answers: answers[7], census_within=0.3),  # type: ignore[arg-type,return-value]
    ):
        pass


def test_many_transactions_at_a_time_as_initiator_and_as_member(sites: Sites, notes: Notes) -> None:
    type = sites.name("orders")
    members = [sites.member(name, type, notes.handler(name)) for name in ("a", "b")]
    for site in members:
        sites.know(site, type, *members)

    def run(site: Site, first: int) -> None:
        for number in range(first, first + 10):
            with site.transaction(type) as tx:
                tx.publish(number)

    threads = [threading.Thread(target=run, args=(site, 100 * k)) for k, site in enumerate(members * 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = sorted(100 * k + n for k in range(4) for n in range(10))
    assert sorted(notes.of("a")) == sorted(notes.of("b")) == expected


def test_several_publishers_at_a_hosted_coordinator(sites: Sites, notes: Notes) -> None:
    type = sites.name("meetings")
    host = sites.start("host", hosts=True)
    publisher, members = three(sites, notes, type)
    third = sites.start("third")
    sites.know(host, type, *members)
    eventually(lambda: host.name in publisher._engine.neighbours.hosts())
    subject = {"subject": "DSOnline"}
    with publisher.transaction(type, subject, access=Access.MULTI, coordinator=host.name) as tx:
        assert tx.id.coordinator == host.name
        tx.publish({"time": "15:00"})
        with third.join_transaction(type, subject) as joined:
            assert joined.id == tx.id
            joined.publish({"agenda": "..."})
        with third.join_transaction(id=str(tx.id)) as joined:
            joined.publish({"more": "..."})
    for member in "abc":
        assert notes.of(member) == [{"time": "15:00"}, {"agenda": "..."}, {"more": "..."}]
    here = third._engine
    find = partial(here.neighbours.find_open, here.bus, type, subject, 0.0)
    eventually(lambda: find() is None, "the directory shows it no more")
    with pytest.raises(UsageError, match="no open transaction"), third.join_transaction(type, subject, within=0.1):
        pass


def test_a_census_waits_for_members_that_come_late(sites: Sites, notes: Notes) -> None:
    """Who is present is known with a delay: a condition that is not met yet has the whole window."""
    type = sites.name("meetings")
    first = sites.member("a", type, notes.handler("a"))
    publisher = sites.start("p")
    sites.know(publisher, type, first)
    begun: list[Any] = []

    def run() -> None:
        begun.append(publisher.send(type, ["x"], require=at_least(2), census_within=DEADLINE))

    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: notes.of("a") == ["x"])
    sites.member("b", type, notes.handler("b"))
    thread.join(DEADLINE)
    assert begun[0].members == 2
    assert notes.of("b") == ["x"]


def test_a_site_without_room_for_its_log_takes_on_nothing_new(memory_sites: Sites, notes: Notes) -> None:
    type = memory_sites.name("parcels")
    disk = MemoryDisk(full=True)
    member = memory_sites.member("a", type, notes.handler("a"))
    publisher = memory_sites.start("p", log=disk)
    memory_sites.know(publisher, type, member)
    with pytest.raises(TransactionRefused, match="almost full"):
        publisher.send(type, ["refused"])
    disk.full = False

    def taken_on() -> bool:
        try:
            publisher.send(type, ["there is room again"])
        except TransactionRefused:
            return False
        return True

    eventually(taken_on)
    assert notes.of("a") == ["there is room again"]


def test_the_reason_of_a_no_is_told_in_one_shot_where_some_may_say_no(memory_sites: Sites) -> None:
    sites, type = memory_sites, memory_sites.name("orders")

    def refuse(tx: Any, event: Any) -> None:
        raise ValueError("out of stock")

    members = [sites.member("a", type, lambda tx, event: None), sites.member("b", type, refuse)]
    publisher = sites.start("p")
    sites.know(publisher, type, *members)
    with pytest.raises(TransactionAborted, match="out of stock") as failed:
        publisher.send(type, [1], settle_for=at_least(2))
    assert failed.value.by == members[1].name
    assert publisher.send(type, [1], settle_for=at_least(1)).members == 1
