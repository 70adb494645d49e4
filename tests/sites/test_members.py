"""Ways to take part: resources, compensation, local members, followers, listeners."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import DEADLINE, eventually
from tests.sites.conftest import Notes, Sites
from txlayer import Event, Limit, MemberTransaction, Participant, Scope, Site, Status, at_least
from txlayer.effects import AbortCall
from txlayer.errors import ResourceError, TransactionAborted, TransactionRefused, UsageError
from txlayer.messages import TxId
from txlayer.resources.memory import MemoryResource
from txlayer.resources.sqlite import SqliteResource
from txlayer.transactions.executor import State


def put(store: MemoryResource) -> Any:
    def handle(tx: MemberTransaction, event: Event) -> None:
        tx[store].put(event.data["key"], event.data["value"])

    return handle


def refuse(tx: MemberTransaction, event: Event) -> None:
    raise ValueError("not here")


def test_the_work_on_resources_commits_with_the_transaction(sites: Sites) -> None:
    type = sites.name("transfers")
    ledger, audit = MemoryResource(), SqliteResource(sites.folder / "audit.db")
    audit._db.execute("CREATE TABLE entry (value TEXT)")

    def enter(tx: MemberTransaction, event: Event) -> None:
        tx[ledger].put(event.data["key"], event.data["value"])
        tx[audit].execute("INSERT INTO entry VALUES (?)", [event.data["value"]])

    members = [
        sites.member("a", type, enter, resources=[ledger, audit]),
        sites.member("b", type, lambda tx, event: None),
    ]
    publisher = sites.start("p")
    sites.know(publisher, type, *members)
    with publisher.transaction(type) as tx:
        tx.publish({"key": "x", "value": "1"})
        tx.publish({"key": "y", "value": "2"})
    eventually(lambda: ledger.values == {"x": "1", "y": "2"})
    eventually(lambda: audit._db.execute("SELECT value FROM entry ORDER BY 1").fetchall() == [("1",), ("2",)])


def test_a_publisher_that_is_refused_takes_nothing_from_the_member_beside_it(memory_sites: Sites) -> None:
    """The same site takes part with a database, and wants to publish where it may not."""
    sites, type, ledger = memory_sites, memory_sites.name("transfers"), MemoryResource()
    members = [
        sites.member("a", type, put(ledger), resources=[ledger]),
        sites.member("b", type, lambda tx, event: None),
    ]
    publisher = sites.start("p")
    sites.know(publisher, type, *members)
    with publisher.transaction(type) as tx:
        tx.publish({"key": "x", "value": 1})
        eventually(lambda: ledger.has_work(tx.id))
        with pytest.raises(TransactionRefused, match="may not publish"):
            members[0].join_transaction(id=tx.id).start()
        tx.publish({"key": "y", "value": 2})
    eventually(lambda: ledger.values == {"x": 1, "y": 2})


def test_work_that_was_lost_is_not_gone_on_with(memory_sites: Sites) -> None:
    """Whatever ends a unit between two events: the second alone must not be voted for."""
    sites, type, ledger = memory_sites, memory_sites.name("transfers"), MemoryResource()
    member = sites.member("a", type, put(ledger), resources=[ledger])
    publisher = sites.start("p")
    sites.know(publisher, type, member)
    tx = publisher.transaction(type).start()
    tx.publish({"key": "x", "value": 1})
    eventually(lambda: ledger.has_work(tx.id))
    ledger.roll_back(tx.id)
    tx.publish({"key": "y", "value": 2})
    with pytest.raises(TransactionAborted, match="was lost before it was prepared"):
        tx.commit()
    assert ledger.values == {}


def test_what_a_publisher_does_itself_is_rolled_back_with_its_transaction(memory_sites: Sites) -> None:
    """No handler ran beside it: the member knows all the same that there is something to undo."""
    sites, type, ledger = memory_sites, memory_sites.name("transfers"), MemoryResource()
    publisher = sites.make("p")
    publisher.enlist(type, [ledger])
    publisher.start()
    sites.know(publisher, type, publisher)
    tx = publisher.transaction(type).start()
    tx[ledger].put("x", 1)
    tx.abort()
    eventually(lambda: not ledger.has_work(tx.id))
    with publisher.transaction(type) as tx:
        tx[ledger].put("x", 2)
        tx[ledger].put("y", 3)
    eventually(lambda: ledger.values == {"x": 2, "y": 3})


class SlowToOpen(MemoryResource):
    """Something happens while a unit is opened."""

    __slots__ = ("meanwhile",)
    meanwhile: Callable[[], object]

    def work(self, tx: TxId) -> Any:
        self.meanwhile()
        return super().work(tx)


def test_work_that_a_publisher_opens_too_late_is_rolled_back(memory_sites: Sites) -> None:
    sites, type, ledger = memory_sites, memory_sites.name("transfers"), SlowToOpen()
    publisher = sites.make("p")
    publisher.enlist(type, [ledger])
    publisher.start()
    sites.know(publisher, type, publisher)
    tx = publisher.transaction(type).start()
    call = tx._open().call
    role = publisher._engine.participant.subscriber._member(tx.id)

    def end() -> None:
        publisher._engine.post(AbortCall(call.name, "changed its mind"))
        eventually(lambda: call.outcome is not None and role.state not in (State.JOINED, State.ACTIVE))

    ledger.meanwhile = end
    with pytest.raises(TransactionAborted, match="changed its mind"):
        tx[ledger]
    eventually(lambda: not ledger.has_work(tx.id) and publisher._engine.ask(publisher._engine.workshop.idle))


def test_a_single_member_with_a_single_resource_decides_alone(sites: Sites) -> None:
    type = sites.name("transfers")
    ledger = MemoryResource()
    member = sites.member("a", type, put(ledger), resources=[ledger])
    performed: list[str] = []
    publisher = sites.start(
        "p", probe=lambda moment, thing: performed.append(getattr(thing, "message", thing).__class__.__name__)
    )
    sites.know(publisher, type, member)
    with publisher.transaction(type) as tx:
        tx.publish({"key": "x", "value": 1})
    eventually(lambda: ledger.values == {"x": 1})
    assert "Delegate" in performed
    assert "Prepare" not in performed


def test_a_failing_handler_is_called_again_as_often_as_it_asks_for(sites: Sites) -> None:
    type = sites.name("transfers")
    ledger = MemoryResource()
    calls: list[int] = []

    def flaky(tx: MemberTransaction, event: Event) -> None:
        calls.append(1)
        tx[ledger].put(f"attempt {len(calls)}", event.data)
        if len(calls) < 3:
            raise ValueError("again")

    member = sites.member("a", type, flaky, resources=[ledger], attempts=3)
    publisher = sites.start("p")
    sites.know(publisher, type, member)
    publisher.send(type, ["once"])
    eventually(lambda: ledger.values == {"attempt 3": "once"})


def test_a_constructor_holds_up_its_own_transaction_alone(memory_sites: Sites) -> None:
    slow, quick, go_on = memory_sites.name("slow"), memory_sites.name("quick"), threading.Event()

    class Slow(Participant):
        def __init__(self) -> None:
            assert go_on.wait(DEADLINE)

        def on_event(self, tx: MemberTransaction, event: Event) -> None: ...

    member = memory_sites.make("a")
    member.subscribe(slow, Slow)
    member.subscribe(quick, lambda tx, event: None)
    member.start()
    publisher = memory_sites.start("p")
    memory_sites.know(publisher, quick, member)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(publisher.send, slow, ["x"])
        eventually(lambda: member._engine.members.known, "its census has begun")
        assert publisher.send(quick, ["y"], census_within=DEADLINE / 2).members == 1
        go_on.set()
        assert waiting.result(DEADLINE).members == 1


def test_a_compensatable_member_undoes_in_reverse_order(sites: Sites) -> None:
    type = sites.name("orders")
    store = MemoryResource()
    undone: list[Any] = []

    class Reserve(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None:
            tx[store].put(event.data, "reserved")

        def on_compensate(self, tx: MemberTransaction, event: Event) -> None:
            undone.append(event.data)
            tx[store].put(event.data, "free")

    class RefuseLate(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None: ...

        def on_prepare(self, tx: MemberTransaction) -> None:
            eventually(lambda: store.values.get("second") == "reserved")
            raise ValueError("too late")

    members = [sites.member("a", type, Reserve, resources=[store]), sites.member("b", type, RefuseLate)]
    publisher = sites.start("p")
    sites.know(publisher, type, *members)
    tx = publisher.transaction(type).start()
    tx.publish("first")
    tx.publish("second")
    with pytest.raises(TransactionAborted, match="too late"):
        tx.commit()
    eventually(lambda: store.values == {"first": "free", "second": "free"})
    assert undone == ["second", "first"]


def test_a_compensation_that_keeps_failing_is_parked_and_listed(memory_sites: Sites) -> None:
    sites = memory_sites
    type = sites.name("orders")

    class Reserve(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None: ...

        def on_compensate(self, tx: MemberTransaction, event: Event) -> None:
            raise ValueError("cannot be undone")

    class RefuseLate(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None: ...

        def on_prepare(self, tx: MemberTransaction) -> None:
            raise ValueError("no")

    one = sites.make("a")
    one.subscribe(type, Reserve)
    surfaced: list[str] = []
    one.on_surface(lambda surface: surfaced.append(surface.what))
    one.start()
    members = [one, sites.member("b", type, RefuseLate)]
    publisher = sites.start("p")
    sites.know(publisher, type, *members)

    def parked() -> bool:
        with pytest.raises(TransactionAborted), publisher.transaction(type) as tx:
            tx.publish("first")
        return any(view.state in ("parked", "applying") for view in one.transactions())

    eventually(parked)
    eventually(lambda: any(view.state == "parked" for view in one.transactions()))
    eventually(lambda: "parked" in surfaced)


def test_a_local_member_fails_alone_and_commits_at_the_call(sites: Sites, notes: Notes) -> None:
    type = sites.name("news")
    store = MemoryResource()
    members = [
        sites.member("a", type, notes.handler("a"), scope=Scope.DISTRIBUTED),
        sites.member("b", type, put(store), scope=Scope.LOCAL, resources=[store]),
        sites.member("c", type, refuse, scope=Scope.LOCAL),
    ]
    publisher = sites.start("p")
    sites.know(publisher, type, *members)
    with publisher.transaction(type, require=at_least(1)) as tx:
        assert tx.members == 1
        tx.publish({"key": "k", "value": "v"})
    eventually(lambda: store.values == {"k": "v"})


def test_a_local_member_that_takes_its_time_to_join_misses_nothing(sites: Sites) -> None:
    type = sites.name("news")
    store = MemoryResource()
    called = threading.Event()

    class Slow(Participant):
        def on_join(self, tx: MemberTransaction) -> Scope:
            called.wait(DEADLINE)
            return Scope.LOCAL

        def on_event(self, tx: MemberTransaction, event: Event) -> None:
            tx[store].put(event.data, "there")

    member = sites.member("b", type, Slow, resources=[store])
    publisher = sites.start("p")
    sites.know(publisher, type, member)
    with publisher.transaction(type, local=True) as tx:
        tx.publish("early")
    called.set()
    eventually(lambda: store.values == {"early": "there"})


def test_what_distributed_members_decide_does_not_touch_local_ones(sites: Sites) -> None:
    type = sites.name("news")
    store = MemoryResource()
    members = [
        sites.member("a", type, refuse),
        sites.member("b", type, put(store), scope=Scope.LOCAL, resources=[store]),
    ]
    publisher = sites.start("p")
    sites.know(publisher, type, *members)
    with pytest.raises(TransactionAborted) as caught, publisher.transaction(type) as tx:
        tx.publish({"key": "k", "value": "v"})
    assert caught.value.outcome is not None
    assert caught.value.outcome.called
    eventually(lambda: store.values == {"k": "v"})


def test_a_publishers_abort_reaches_local_members(sites: Sites) -> None:
    type = sites.name("news")
    store = MemoryResource()
    member = sites.member("b", type, put(store), scope=Scope.LOCAL, resources=[store])
    publisher = sites.start("p")
    sites.know(publisher, type, member)
    with publisher.transaction(type, local=True) as tx:
        tx.publish({"key": "k", "value": "v"})
        eventually(lambda: len(store.units) == 1)
        tx.abort()
    eventually(lambda: not store.units)
    with publisher.transaction(type, local=True) as tx:
        tx.publish({"key": "k2", "value": "v"})
    eventually(lambda: store.values == {"k2": "v"})


def test_followers_apply_what_the_members_committed(sites: Sites, notes: Notes) -> None:
    type = sites.name("orders")
    copy = MemoryResource()
    veto: list[str] = []

    def check(tx: MemberTransaction, event: Event) -> None:
        if event.data["key"] in veto:
            raise ValueError("vetoed")

    members = [
        sites.member("a", type, check),
        sites.member("f", type, put(copy), scope=Scope.FOLLOWER, resources=[copy]),
    ]
    publisher = sites.start("p")
    sites.know(publisher, type, *members)
    follower_registered(publisher, members[1])
    publisher.send(type, [{"key": "one", "value": 1}])
    veto.append("two")
    with pytest.raises(TransactionAborted):
        publisher.send(type, [{"key": "two", "value": 2}])
    publisher.send(type, [{"key": "three", "value": 3}])
    eventually(lambda: copy.values == {"one": 1, "three": 3})


def follower_registered(publisher: Site, follower: Site) -> None:
    """Wait until the publisher's site has the follower in its registry."""
    chains = publisher._engine.participant.coordinator.chains
    eventually(lambda: any(follower.name in chain.readers for chain in chains.values()))


def test_a_durable_local_member_misses_nothing_while_it_is_away(sites: Sites) -> None:
    type = sites.name("news")
    store = MemoryResource()
    options: dict[str, Any] = {"scope": Scope.LOCAL, "durable": True, "resources": [store], "log": sites.file("b")}
    member = sites.member("b", type, put(store), **options)
    publisher = sites.start("p")
    sites.know(publisher, type, member)
    follower_registered(publisher, member)
    publisher.send(type, [{"key": "one", "value": 1}], local=True)
    eventually(lambda: store.values == {"one": 1})
    member.close()
    publisher.send(type, [{"key": "two", "value": 2}], local=True)
    sites.member("b", type, put(store), **options)
    eventually(lambda: store.values == {"one": 1, "two": 2})


def test_listeners_hear_of_everything_and_never_of_an_abort(sites: Sites) -> None:
    type = sites.name("news")
    heard: list[Any] = []
    listening = sites.make("l")
    listening.listener(type)(lambda event: heard.append((event.data, event.tx is not None)))
    listening.start()
    refusing = sites.member("a", type, refuse)
    publisher = sites.start("p")
    sites.know(publisher, type, listening, refusing)
    tx = publisher.transaction(type).start()
    tx.publish("inside")
    eventually(lambda: ("inside", True) in heard)
    with pytest.raises(TransactionAborted):
        tx.commit()
    publisher.publish(type, "plain").wait(10)
    eventually(lambda: ("plain", False) in heard)
    with pytest.raises(TransactionAborted), publisher.transaction(type, limit=Limit.LOCAL) as tx:
        tx.publish("not for listeners")
    assert [data for data, _ in heard] == ["inside", "plain"]


def test_scope_too_weak_for_the_limit_becomes_none(sites: Sites, notes: Notes) -> None:
    type = sites.name("news")
    members = [
        sites.member("a", type, notes.handler("a")),
        sites.member("b", type, notes.handler("b"), scope=Scope.LOCAL),
    ]
    publisher = sites.start("p")
    sites.know(publisher, type, *members)
    with publisher.transaction(type, limit=Limit.DISTRIBUTED) as tx:
        tx.publish("for members")
    assert tx.outcome is not None
    assert tx.outcome.members == 1
    assert notes.of("a") == ["for members"]
    assert notes.of("b") == []


def test_two_subscribers_of_one_site_have_one_vote(sites: Sites, notes: Notes) -> None:
    type = sites.name("orders")
    site = sites.make("a")
    site.subscribe(type, notes.handler("first"))
    site.subscribe(type, notes.handler("second"))
    site.start()
    publisher = sites.start("p")
    sites.know(publisher, type, site)
    outcome = publisher.send(type, ["both"])
    assert (outcome.status, outcome.members) == (Status.COMMITTED, 1)
    assert notes.of("first") == notes.of("second") == ["both"]


class Unsteady(MemoryResource):
    """A database that is away for a while when it should commit."""

    __slots__ = ("failures",)

    def commit_prepared(self, tx: TxId) -> None:
        self.failures = getattr(self, "failures", 0) + 1
        if self.failures < 3:
            raise ResourceError("the database is away")
        super().commit_prepared(tx)


def test_finishing_is_repeated_until_the_resource_is_back(memory_sites: Sites, notes: Notes) -> None:
    sites = memory_sites
    type = sites.name("transfers")
    store = Unsteady()
    members = [
        sites.member("a", type, put(store), resources=[store]),
        sites.member("b", type, notes.handler("b")),
    ]
    publisher = sites.start("p")
    sites.know(publisher, type, *members)
    publisher.send(type, [{"key": "x", "value": 1}])
    eventually(lambda: store.values == {"x": 1})


def test_several_resources_are_committed_at_once_by_a_commit_of_their_own(memory_sites: Sites) -> None:
    sites = memory_sites
    type = sites.name("orders")
    stores = [MemoryResource("stock"), MemoryResource("till")]

    class Reserve(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None:
            for store in stores:
                tx[store].put(event.data, "reserved")

        def on_compensate(self, tx: MemberTransaction, event: Event) -> None:
            for store in stores:
                tx[store].put(event.data, "free")

    def after_the_others(tx: MemberTransaction, event: Event) -> None:
        eventually(lambda: all(store.values for store in stores))
        raise ValueError("no")

    members = [
        sites.member("a", type, Reserve, resources=stores),
        sites.member("b", type, after_the_others),
    ]
    publisher = sites.start("p")
    sites.know(publisher, type, *members)
    with pytest.raises(TransactionAborted):
        publisher.send(type, ["seat"])
    eventually(lambda: all(store.values == {"seat": "free"} for store in stores))


def test_a_subscriber_outside_the_transaction_cannot_hold_its_resource(sites: Sites) -> None:
    """Nobody would ever end that unit of work."""
    type = sites.name("transfers")
    ledger = MemoryResource()
    errors: list[Exception] = []

    def try_to_write(tx: MemberTransaction, event: Event) -> None:
        try:
            tx[ledger].put("x", 1)
        except UsageError as exc:
            errors.append(exc)

    listener = sites.member("a", type, try_to_write, resources=[ledger], scope=Scope.NON_TRANSACTIONAL)
    publisher = sites.start("p")
    sites.know(publisher, type, listener)
    with publisher.transaction(type) as tx:
        tx.publish({})
    eventually(lambda: len(errors) == 1)
    assert not ledger.units
