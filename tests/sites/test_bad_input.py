"""What is wrong is refused with a clear error, and nothing is lost by it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import DEADLINE, eventually
from tests.sites.conftest import Notes, Sites
from txlayer import (
    Access,
    Event,
    Limit,
    Limits,
    MemberTransaction,
    Participant,
    Scope,
    Site,
    Status,
    Threads,
    TxId,
    at_least,
    at_most,
    only,
)
from txlayer.errors import (
    Closed,
    LogFailed,
    OutcomeUnknown,
    PayloadTooLarge,
    TransactionAborted,
    TransactionRefused,
    UsageError,
)
from txlayer.logs.memory import MemoryDisk
from txlayer.resources.memory import MemoryResource
from txlayer.runtime.pool import Job


@pytest.fixture
def orders(memory_sites: Sites) -> str:
    return memory_sites.name("orders")


@pytest.fixture
def publisher(memory_sites: Sites, orders: str, notes: Notes) -> Site:
    member = memory_sites.member("a", orders, notes.handler("a"))
    site = memory_sites.start("p")
    memory_sites.know(site, orders, member)
    return site


# Transactions


def test_an_unknown_transaction(sites: Sites) -> None:
    host, site = sites.start("host", hosts=True), sites.start("p")
    forgotten = TxId(host.name, "another-log", 7, "00")
    with pytest.raises(OutcomeUnknown, match="log that decides this is gone"):
        site.join_transaction(id=forgotten).start()
    assert site.outcome(forgotten).status is Status.UNKNOWN
    with pytest.raises(UsageError, match="no transaction id"):
        site.join_transaction(id="nonsense")
    with pytest.raises(UsageError, match="by id, or by type"):
        site.join_transaction()


def test_calls_after_the_end(publisher: Site, orders: str) -> None:
    tx = publisher.transaction(orders).start()
    tx.publish("x")
    tx.commit()
    with pytest.raises(UsageError, match="publish after the end"):
        tx.publish("y")
    with pytest.raises(UsageError, match="commit after the end"):
        tx.commit()
    with pytest.raises(UsageError, match="abort after the end"):
        tx.abort()
    with pytest.raises(UsageError, match="has begun"):
        tx.start()
    assert tx.outcome is not None
    assert tx.outcome.status is Status.COMMITTED


def test_calls_before_the_beginning(publisher: Site, orders: str) -> None:
    tx = publisher.transaction(orders)
    with pytest.raises(UsageError, match="has not begun"):
        tx.publish("x")
    with pytest.raises(UsageError, match="has not begun"):
        tx.commit()


def test_commit_and_publish_by_someone_who_may_not(sites: Sites, notes: Notes) -> None:
    type = sites.name("orders")
    member = sites.member("a", type, notes.handler("a"))
    host = sites.start("host", hosts=True)
    first, second, third = (sites.start(name) for name in ("first", "second", "third"))
    sites.know(host, type, member)
    terms: dict[str, Any] = {"access": Access.MULTI, "coordinator": host.name, "publishers": [second.name]}
    with first.transaction(type, **terms) as tx:
        with pytest.raises(TransactionRefused, match="may not publish"):
            third.join_transaction(type).start()
        joined = second.join_transaction(type).start()
        joined.publish("second's")
        with pytest.raises(TransactionRefused, match="may not commit"):
            joined.commit()
        tx.publish("first's")
    assert sorted(notes.of("a")) == ["first's", "second's"]


def test_a_committer_that_is_named_may_commit(sites: Sites, notes: Notes) -> None:
    type = sites.name("orders")
    member = sites.member("a", type, notes.handler("a"))
    host = sites.start("host", hosts=True)
    first, second = sites.start("first"), sites.start("second")
    sites.know(host, type, member)
    tx = first.transaction(type, access=Access.MULTI, coordinator=host.name, committers=[second.name]).start()
    tx.publish("first's")
    tx._open().accepted().result(DEADLINE)
    joined = second.join_transaction(type).start()
    joined.publish("second's")
    assert joined.commit().status is Status.COMMITTED
    assert tx.commit().status is Status.COMMITTED
    assert sorted(notes.of("a")) == ["first's", "second's"]


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({"limit": "local"}, "Limit.LOCAL"),
        ({"access": "multi"}, "Access.MULTI"),
        ({"local": True, "limit": Limit.DISTRIBUTED}, "cannot be limited"),
        ({"local": True, "settle_for": at_least(1)}, "no census"),
        ({"census_within": 0.0}, "census_within must lie between"),
        ({"predicate": "yes"}, "a predicate is a function"),
        ({"settle_for": 2}, r"settle_for=at_least\(2\)"),
        ({"require": ["a"]}, "require=at_least"),
        ({"predicate": lambda answers: True, "coordinator": "hosted"}, "does not travel"),
        ({"access": Access.MULTI, "coordinator": "self"}, "coordinator that hosts"),
    ],
)
def test_terms_that_cannot_work(publisher: Site, orders: str, terms: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        publisher.transaction(orders, **terms)


def test_one_shot_where_it_is_not_allowed(publisher: Site, orders: str) -> None:
    with pytest.raises(UsageError, match="one shot shows the events"):
        publisher.send(orders, ["x"], limit=Limit.DISTRIBUTED)
    assert publisher.send(orders, ["x"], limit=Limit.DISTRIBUTED, require=only(*publisher.subscribed(orders))).members


def test_no_host(publisher: Site, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher._engine.neighbours, "await_hosts", lambda seconds: [])
    with pytest.raises(UsageError, match="no site offers to host"):
        publisher.transaction(orders, coordinator="hosted").start()


def test_a_coordinator_that_never_answers(publisher: Site, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.transacting.BEGIN_SECONDS", 0.1)
    with pytest.raises(TransactionAborted, match="no answer from coordinator 'nowhere'"):
        publisher.transaction(orders, coordinator="nowhere", census_within=0.1).start()


@pytest.mark.parametrize("terms", [{"key": "order 7"}, {"access": Access.MULTI, "committers": ["another"]}])
def test_silence_tells_nothing_of_what_another_call_may_commit(
    publisher: Site, orders: str, monkeypatch: pytest.MonkeyPatch, terms: dict[str, Any]
) -> None:
    monkeypatch.setattr("txlayer.transacting.BEGIN_SECONDS", 0.1)
    with pytest.raises(OutcomeUnknown, match="no answer from coordinator 'nowhere'") as caught:
        publisher.transaction(orders, coordinator="nowhere", census_within=0.1, **terms).start()
    assert caught.value.outcome is not None
    assert not caught.value.outcome.final


def test_a_key_that_is_open(publisher: Site, orders: str) -> None:
    with (
        publisher.transaction(orders, key="order 7"),
        pytest.raises(UsageError, match=r"key 'order 7' is open in this site: outcome\(key='order 7'\)"),
    ):
        publisher.transaction(orders, key="order 7").start()


@pytest.mark.parametrize("count", ["2", -1, 1.5])
def test_a_count_that_is_none(count: Any) -> None:
    for condition in (at_least, at_most):
        with pytest.raises(UsageError, match="a whole number"):
            condition(count)


def test_what_was_given_up_is_not_begun_later(
    memory_sites: Sites, publisher: Site, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later, roles = memory_sites.name("later"), publisher._engine.participant
    with monkeypatch.context() as patch:
        patch.setattr("txlayer.transacting.BEGIN_SECONDS", 0.1)
        with pytest.raises(TransactionAborted):
            publisher.transaction(orders, coordinator=later, census_within=0.1).start()
        with pytest.raises(OutcomeUnknown):
            publisher.transaction(orders, coordinator=later, census_within=0.1, key="order 7").start()
    with pytest.raises(OutcomeUnknown):
        publisher.outcome(key="order 8", coordinator=later, within=0.1)
    eventually(lambda: not roles.publishers and not publisher._engine.calls.open, "nothing is repeated")
    host = memory_sites.start("later", hosts=True)
    assert publisher.outcome(key="order 7", coordinator=host.name).status is Status.ABORTED
    assert host._engine.participant.coordinator.next_number == 1
    with publisher.transaction(orders, key="order 7") as tx:
        tx.publish("x")
    assert tx.outcome is not None
    assert tx.outcome.status is Status.COMMITTED


# Subscribers


@pytest.mark.parametrize(
    ("handler", "options", "says"),
    [
        (lambda event: None, {}, r"takes \(tx, event\)"),
        ("no function", {}, "a Participant class, a Participant or a function"),
        (dict, {}, "is no Participant"),
        (type("Needs", (Participant,), {"__init__": lambda self, database: None}), {}, "without arguments"),
        (lambda tx, event: None, {"scope": "local"}, "Scope.LOCAL"),
        (lambda tx, event: None, {"attempts": 0}, "at least once"),
        (lambda tx, event: None, {"durable": True}, "for local members"),
    ],
)
def test_subscribers_that_cannot_work(memory_sites: Sites, handler: Any, options: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        memory_sites.make("x").subscribe("t", handler, **options)


@pytest.mark.parametrize("answer", [Scope.DISTRIBUTED, Scope.FOLLOWER, "distributed", ValueError("undecided")])
def test_an_illegal_scope_takes_no_part(
    memory_sites: Sites, orders: str, publisher: Site, notes: Notes, answer: Any
) -> None:
    class Illegal(Participant):
        def on_join(self, tx: MemberTransaction) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

        def on_event(self, tx: MemberTransaction, event: Event) -> None:
            notes.seen.append(("illegal", event.type, event.data))

    member = memory_sites.member("b", orders, Illegal)
    eventually(lambda: member.name in publisher.subscribed(orders))
    publisher.send(orders, ["x"], local=True)
    eventually(lambda: notes.of("a") == ["x"])
    eventually(lambda: not member._engine.participant.subscriber.asked)
    assert notes.of("illegal") == []


def test_a_resource_that_is_not_the_subscribers(memory_sites: Sites, orders: str) -> None:
    stranger = MemoryResource()
    member = memory_sites.member("a", orders, lambda tx, event: tx[stranger].put("x", 1))
    site = memory_sites.start("p")
    memory_sites.know(site, orders, member)
    with pytest.raises(TransactionAborted, match="resources="):
        site.send(orders, ["x"])


# Events


def test_events_that_cannot_be_sent(memory_sites: Sites, orders: str, notes: Notes) -> None:
    member = memory_sites.member("a", orders, notes.handler("a"))
    site = memory_sites.start("p", limits=Limits(events=3, bytes=1000))
    memory_sites.know(site, orders, member)
    with site.transaction(orders) as tx:
        with pytest.raises(UsageError, match="cannot be written as application/json"):
            tx.publish(object())
        with pytest.raises(PayloadTooLarge, match="at most 1000"):
            tx.publish("x" * 2000)
        with pytest.raises(UsageError, match="printable"):
            tx.publish("x", type="")
        tx.publish("good")
    assert notes.of("a") == ["good"]
    with pytest.raises(PayloadTooLarge, match="at most 1000"):
        site.send(orders, ["x" * 600, "x" * 600])
    with pytest.raises(UsageError, match="more than 3 events"):
        site.send(orders, ["x"] * 4)
    with site.transaction(orders) as tx:
        for number in range(3):
            tx.publish(number)
        with pytest.raises(UsageError, match="more than 3 events"):
            tx.publish("one too many")
    assert notes.of("a") == ["good", 0, 1, 2]


def test_the_bus_limits_what_a_transaction_holds(notes: Notes, memory_sites: Sites, orders: str) -> None:
    memory_sites.world.url += "?max_payload=20000"
    member = memory_sites.member("a", orders, notes.handler("a"))
    site = memory_sites.start("p")
    memory_sites.know(site, orders, member)
    with pytest.raises(PayloadTooLarge, match="the bus takes 20000 in one message"):
        site.send(orders, ["x" * 15000])
    assert site.send(orders, ["x" * 12000]).members == 1


def test_headers_and_attributes_count_against_the_limit_of_the_bus(
    notes: Notes, memory_sites: Sites, orders: str
) -> None:
    memory_sites.world.url += "?max_payload=20000"
    member = memory_sites.member("a", orders, notes.handler("a"))
    site = memory_sites.start("p")
    memory_sites.know(site, orders, member)
    much = {"much": "y" * 30000}
    with pytest.raises(PayloadTooLarge, match="the bus takes 20000"):
        site.send(orders, ["x"] * 2000)
    with pytest.raises(PayloadTooLarge, match="attributes counted in"):
        site.send(orders, ["x"], much)
    with pytest.raises(PayloadTooLarge, match="attributes counted in"):
        site.transaction(orders, much)
    with site.transaction(orders) as tx:
        tx.publish("small")
        with pytest.raises(PayloadTooLarge, match="the bus takes 20000"):
            tx.publish("x", attributes=much)
    assert notes.of("a") == ["small"]
    assert site.send(orders, ["x"] * 200).members == 1, "what fits goes through"


def test_a_message_that_the_bus_does_not_take_fails_its_transaction(
    publisher: Site, memory_sites: Sites, orders: str, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = memory_sites.start("host", hosts=True)
    eventually(lambda: host.name in publisher._engine.neighbours.hosts(), "the publisher knows the host")
    _take_at_most(publisher, 3000, monkeypatch)
    much = {"much": "y" * 5000}
    with pytest.raises(TransactionAborted, match="3000 is the most"):
        publisher.send(orders, ["x"], much)
    with pytest.raises(TransactionAborted, match="3000 is the most"), publisher.transaction(orders, much) as tx:
        tx.publish("x")
    with pytest.raises(TransactionAborted, match="3000 is the most"), publisher.transaction(orders) as tx:
        tx.publish("x", attributes=much)
    for coordinator in (host.name, "hosted"):
        with pytest.raises(TransactionRefused, match="3000 is the most"):
            publisher.send(orders, ["x"], much, coordinator=coordinator)
    with (
        pytest.raises(TransactionAborted, match="3000 is the most"),
        publisher.transaction(orders, coordinator=host.name) as tx,
    ):
        tx.publish("x", attributes=much)
    publisher.send(orders, ["small"])
    assert notes.of("a") == ["small"]


def _take_at_most(site: Site, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = site.bus.publish

    def narrow(topic: str, payload: bytes, **options: Any) -> Any:
        if len(payload) > most:
            raise PayloadTooLarge(f"{len(payload)} bytes: {most} is the most")
        return publish(topic, payload, **options)

    monkeypatch.setattr(site.bus, "publish", narrow)


def test_a_reason_of_any_length_is_a_vote(memory_sites: Sites, orders: str) -> None:
    memory_sites.world.url += "?max_payload=20000"

    def refuse(tx: MemberTransaction, event: Event) -> None:
        raise ValueError("no " * 20000)

    member = memory_sites.member("a", orders, refuse)
    site = memory_sites.start("p")
    memory_sites.know(site, orders, member)
    with pytest.raises(TransactionAborted, match=r"ValueError: no no .*\.\.\."):
        site.send(orders, ["x"])
    with pytest.raises(RuntimeError), site.transaction(orders) as tx:
        raise RuntimeError("no " * 20000)
    assert tx.outcome is not None
    assert tx.outcome.status is Status.ABORTED


def test_a_member_whose_answer_is_too_large_does_not_take_part(memory_sites: Sites, orders: str) -> None:
    memory_sites.world.url += "?max_payload=20000"

    class Boaster(Participant):
        def on_join(self, tx: MemberTransaction) -> Any:
            return Scope.DISTRIBUTED, {"much": "y" * 30000}

    member = memory_sites.member("a", orders, Boaster)
    heard: list[str] = []
    member.on_surface(lambda surface: heard.append(surface.detail))
    site = memory_sites.start("p")
    memory_sites.know(site, orders, member)
    assert site.send(orders, ["x"]).members == 0
    eventually(lambda: any("bytes of attributes" in detail for detail in heard), "the operator hears why")


def test_many_events_are_held_back_until_the_coordinator_has_them(sites: Sites, notes: Notes) -> None:
    type = sites.name("orders")
    member = sites.member("a", type, notes.handler("a"))
    site = sites.start("p")
    sites.know(site, type, member)
    with site.transaction(type) as tx:
        for number in range(1000):
            tx.publish(number)
    assert notes.of("a") == list(range(1000))


# Handlers that hang


class Hanging(Participant):
    """Hangs in one of its methods, until the test is over. Only that one has a short deadline."""

    where = ""
    over = threading.Event()
    member: Site

    def __init__(self) -> None:
        self.store = STORE

    def on_event(self, tx: MemberTransaction, event: Event) -> None:
        tx[STORE].put("before", event.data)
        self._hang("on_event", then="on_prepare")
        if self.where == "on_event":
            tx[STORE].put("after", event.data)

    def on_prepare(self, tx: MemberTransaction) -> None:
        self._hang("on_prepare", then="on_commit")

    def on_commit(self, tx: MemberTransaction) -> None:
        self._hang("on_commit")

    def _hang(self, where: str, then: str = "") -> None:
        if then and self.where == then:
            self.allow(0.2)
        if self.where == where:
            self.over.wait(DEADLINE)

    @classmethod
    def allow(cls, seconds: float) -> None:
        """How long the methods that are called from now on may take."""
        cls.member._engine.workshop.within = seconds


STORE = MemoryResource()


@pytest.fixture
def hanging() -> Iterator[type[Hanging]]:
    Hanging.over.clear()
    STORE.values.clear()
    yield Hanging
    Hanging.over.set()


@pytest.mark.parametrize("where", ["on_event", "on_prepare"])
def test_a_handler_that_never_returns_votes_no(
    memory_sites: Sites, orders: str, hanging: type[Hanging], where: str
) -> None:
    hanging.where = where
    member = hanging.member = memory_sites.member("a", orders, hanging, resources=[STORE])
    site = memory_sites.start("p")
    memory_sites.know(site, orders, member)
    if where == "on_event":
        hanging.allow(0.2)
    with pytest.raises(TransactionAborted, match=r"did not return within 0\.2 s"):
        site.send(orders, ["x"], census_within=DEADLINE)
    pool = member._engine.workshop.handlers
    assert pool.stuck == 1
    hanging.over.set()
    eventually(lambda: pool.stuck == 0)
    assert not STORE.units
    assert not STORE.prepared
    assert STORE.values == {}
    hanging.where = ""
    hanging.allow(DEADLINE)
    assert site.send(orders, ["y"]).members == 1


@pytest.mark.parametrize("where", ["on_join", "on_event", "on_prepare", "on_commit"])
def test_a_handler_that_ends_its_thread_fails_as_any_other_and_costs_no_thread(
    memory_sites: Sites, orders: str, where: str
) -> None:
    class Leaving(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None: ...

    setattr(Leaving, where, lambda *_: sys.exit(3))
    member = memory_sites.member("a", orders, Leaving, scope=Scope.DISTRIBUTED)
    site = memory_sites.start("p")
    memory_sites.know(site, orders, member)
    if where in ("on_event", "on_prepare"):
        with pytest.raises(TransactionAborted, match="SystemExit"):
            site.send(orders, ["x"], census_within=DEADLINE)
    else:
        assert site.send(orders, ["x"], census_within=DEADLINE).members == (1 if where == "on_commit" else 0)
    eventually(member._engine.workshop.idle)
    pool = member._engine.workshop.handlers
    eventually(lambda: len(pool._resting) == pool.threads)


def test_an_on_commit_that_never_returns_does_not_hold_up_the_rest(
    memory_sites: Sites, orders: str, hanging: type[Hanging]
) -> None:
    hanging.where = "on_commit"
    member = hanging.member = memory_sites.member("a", orders, hanging, resources=[STORE])
    site = memory_sites.start("p")
    memory_sites.know(site, orders, member)
    assert site.send(orders, ["x"]).members == 1
    eventually(lambda: STORE.values == {"before": "x"})
    eventually(lambda: all(view.state == "done" for view in member.transactions()))


def test_threads_that_hang_are_counted_and_capped(memory_sites: Sites, orders: str, hanging: type[Hanging]) -> None:
    hanging.where = "on_event"
    threads = Threads(handlers=2, finishers=2, spare=1)
    member = hanging.member = memory_sites.member(
        "a", orders, hanging, resources=[STORE], handler_within=0.05, threads=threads
    )
    site = memory_sites.start("p")
    memory_sites.know(site, orders, member)
    for _ in range(3):
        with pytest.raises(TransactionAborted, match="did not return"):
            site.send(orders, ["x"], census_within=DEADLINE)
    pool = member._engine.workshop.handlers
    assert (pool.stuck, pool.threads) == (3, 3)
    with pytest.raises(TransactionAborted, match="all 3 threads for handlers hang"):
        site.send(orders, ["x"], census_within=DEADLINE)
    hanging.over.set()
    eventually(lambda: pool.stuck == 0)
    hanging.where = ""
    hanging.allow(DEADLINE)
    assert site.send(orders, ["y"]).members == 1


def test_handlers_that_wait_for_a_thread_are_refused_when_all_hang(
    memory_sites: Sites, orders: str, hanging: type[Hanging]
) -> None:
    hanging.where = "on_event"
    threads = Threads(handlers=1, finishers=1, spare=0)
    member = memory_sites.member("a", orders, hanging, resources=[STORE], handler_within=0.5, threads=threads)
    site = memory_sites.start("p")
    memory_sites.know(site, orders, member)
    open = [site.transaction(orders).start() for _ in range(3)]
    for tx in open:
        tx.publish("x")
    reasons = []
    for tx in open:
        with pytest.raises(TransactionAborted) as caught:
            tx.commit()
        reasons.append(str(caught.value))
    assert sum("did not return" in reason for reason in reasons) == 1
    assert sum("all 1 threads for handlers hang" in reason for reason in reasons) == 2
    eventually(lambda: member._engine.ask(member._engine.workshop.idle), "nothing is left to do")


def test_votes_that_are_missing_abort_though_no_thread_is_left_to_ask_for_patience(
    memory_sites: Sites, orders: str, hanging: type[Hanging]
) -> None:
    hanging.where = "on_event"
    member = memory_sites.member("a", orders, hanging, resources=[STORE], handler_within=DEADLINE)
    other = memory_sites.member("b", orders, lambda tx, event: None)
    site = memory_sites.start("p", threads=Threads(handlers=1, finishers=1, spare=0))
    memory_sites.know(site, orders, member, other)
    stuck = Job(lambda: hanging.over.wait(DEADLINE), lambda job: None)
    assert site._engine.workshop.handlers.submit(stuck)
    eventually(lambda: stuck.started is not None)
    assert site._engine.workshop.handlers.give_up(stuck)
    with (
        pytest.raises(TransactionAborted, match="votes are missing"),
        site.transaction(orders, vote_within=0.1, on_votes_missing=lambda tx: 60.0) as tx,
    ):
        tx.publish("x")


def test_handlers_that_wait_for_each_other_do_not_starve_the_commit(memory_sites: Sites, orders: str) -> None:
    """All handlers but one wait for the first transaction's commit, which needs a thread."""
    committed = threading.Event()
    started: list[Any] = []

    class Attend(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None:
            started.append(event.data)
            if event.data != "first":
                committed.wait(DEADLINE)

    class Store(MemoryResource):
        __slots__ = ()

        def commit(self, tx: TxId, undo: bytes = b"") -> None:
            super().commit(tx, undo)
            committed.set()

    member = memory_sites.member("a", orders, Attend, resources=[Store()], threads=Threads(handlers=2))
    site = memory_sites.start("p")
    memory_sites.know(site, orders, member)
    first = site.transaction(orders).start()
    first.publish("first")
    eventually(lambda: "first" in started)
    others = [site.transaction(orders).start() for _ in range(4)]
    for tx in others:
        tx.publish("other")
    eventually(lambda: started.count("other") == 2)
    first.commit()
    for tx in others:
        tx.commit()


# The site


def test_a_site_that_is_not_started(memory_sites: Sites) -> None:
    site = memory_sites.make("a")
    with pytest.raises(UsageError, match="not started"):
        site.transaction("t")
    with pytest.raises(UsageError, match="1 to 120 letters"):
        Site("a b", bus="memory://x", log="memory://")
    with pytest.raises(UsageError, match="at most 100"):
        Site("a" * 101, bus="memory://x", log="memory://")
    with pytest.raises(UsageError, match="no kind of log"):
        Site("a", bus="memory://x", log="oracle://x").start()
    with pytest.raises(UsageError, match=r"sqlite:///file\.db"):
        Site("a", bus="memory://x", log="sqlite://x").start()
    with pytest.raises(UsageError, match="use 'broker', Secret"):
        Site("a", bus="memory://x", log="memory://", security="none")
    site.close()
    with pytest.raises(Closed):
        site.start()


_FORK = """
import os, sys
from txlayer import Site
from txlayer.errors import UsageError
from txlayer.plain import PlainEvents
site = Site("a", bus="memory://fork", log="memory://")
site.listener("t")(print)
site.start()
pid = os.fork()
if pid == 0:
    PlainEvents.close = lambda *_: os._exit(3)
    refused = 0
    for act in (lambda: site.send("t", ["x"]), site.start):
        try:
            act()
        except UsageError as exc:
            refused += "after a fork" in str(exc)
    site.close()
    os._exit(42 if refused == 2 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 42
assert site.send("t", ["x"], census_within=0.1).members == 0
site.close()
"""


def test_a_site_refuses_to_work_in_a_forked_child() -> None:
    subprocess.run([sys.executable, "-c", _FORK], check=True, timeout=DEADLINE)


def test_jumps_of_the_wall_clock_mean_nothing(
    memory_sites: Sites, orders: str, publisher: Site, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, real_ns = time.time, time.time_ns
    for days in (400, -400):
        with publisher.transaction(orders, complete_within=20.0) as tx:
            monkeypatch.setattr(time, "time", lambda days=days: real() + days * 86400)
            monkeypatch.setattr(time, "time_ns", lambda days=days: real_ns() + days * 86400 * 10**9)
            tx.publish(days)
        assert tx.outcome is not None
        assert tx.outcome.status is Status.COMMITTED
    assert notes.of("a") == [400, -400]


def test_a_log_that_fails_stops_the_site_before_anything_is_said(
    memory_sites: Sites, orders: str, notes: Notes
) -> None:
    disk = MemoryDisk()
    member = memory_sites.member("a", orders, notes.handler("a"))
    site = memory_sites.start("p", log=disk)
    memory_sites.know(site, orders, member)
    disk.broken = True
    with pytest.raises(LogFailed):
        site.send(orders, ["x"])
    assert notes.of("a") == []
    with pytest.raises(Closed, match="the disk is broken"):
        site.send(orders, ["x"])
    eventually(lambda: site.name not in [v.name for v in member.sites() if v.standing.value == "alive"])


def test_strangers_frames_are_refused_and_counted(memory_sites: Sites, orders: str, publisher: Site) -> None:
    bus = publisher._engine.bus
    for frame in (b"", b"\xff" * 100, b"\x93\x01\xa0\xc4\x00"):
        bus.publish(bus.topic("txlayer", "v1", "in", publisher.name), frame)
    eventually(lambda: publisher._engine.loop.refused == 3)
    assert publisher.send(orders, ["x"]).members == 1
