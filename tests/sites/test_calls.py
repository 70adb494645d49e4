"""Several threads with one transaction: each has a deadline of its own, and none takes the other's answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest

from tests.conftest import DEADLINE, eventually
from tests.sites.conftest import Notes, Sites
from txlayer import Access, AsyncSite, Event, MemberTransaction, Participant, Scope, Site, Status
from txlayer.errors import Closed, OutcomeUnknown, TransactionRefused
from txlayer.site_base import SiteBase

Run = Callable[..., Future[Any]]


@pytest.fixture
def aside() -> Iterator[Run]:
    """Runs something on another thread."""
    with ThreadPoolExecutor() as threads:
        yield threads.submit


class Slow(Participant):
    """Takes part when it is told to, and votes when it is told to."""

    joins, votes, asked = threading.Event(), threading.Event(), threading.Event()

    def on_join(self, tx: MemberTransaction) -> Scope:
        assert self.joins.wait(DEADLINE)
        return Scope.DISTRIBUTED

    def on_event(self, tx: MemberTransaction, event: Event) -> None: ...

    def on_prepare(self, tx: MemberTransaction) -> None:
        self.asked.set()
        assert self.votes.wait(DEADLINE)


@pytest.fixture
def slow() -> Iterator[type[Slow]]:
    class Own(Slow):
        joins, votes, asked = threading.Event(), threading.Event(), threading.Event()

    yield Own
    Own.joins.set()
    Own.votes.set()


def publisher_of(sites: Sites, type: str, handler: Any) -> Site:
    member, publisher = sites.member("m", type, handler), sites.start("p")
    sites.know(publisher, type, member)
    return publisher


def waits(publisher: SiteBase, many: int) -> None:
    """Wait until so many threads wait for answers."""
    calls = publisher._engine.calls
    eventually(lambda: sum(len(call.waiting) for call in list(calls.open.values())) == many)


def test_a_question_does_not_shorten_a_commit(memory_sites: Sites, slow: type[Slow], aside: Run) -> None:
    publisher = publisher_of(memory_sites, memory_sites.name("orders"), slow)
    slow.joins.set()
    tx = publisher.transaction(memory_sites.name("orders")).start()
    tx.publish("x")
    commit = aside(tx.commit, within=DEADLINE)
    assert slow.asked.wait(DEADLINE)
    with pytest.raises(OutcomeUnknown):
        publisher.outcome(tx.id, within=0.05)
    assert not commit.done()
    slow.votes.set()
    assert commit.result(DEADLINE).status is Status.COMMITTED


def test_a_commit_does_not_shorten_a_question(memory_sites: Sites, slow: type[Slow], aside: Run) -> None:
    publisher = publisher_of(memory_sites, memory_sites.name("orders"), slow)
    slow.joins.set()
    tx = publisher.transaction(memory_sites.name("orders"), key="7").start()
    tx.publish("x")
    with pytest.raises(OutcomeUnknown):
        tx.commit(within=0.05)
    by_id = aside(publisher.outcome, tx.id, within=DEADLINE)
    by_key = aside(publisher.outcome, key="7", within=DEADLINE)
    waits(publisher, 2)
    with pytest.raises(OutcomeUnknown):
        publisher.outcome(tx.id, within=0.05)
    assert not by_id.done()
    assert not by_key.done()
    slow.votes.set()
    assert [one.result(DEADLINE).status for one in (by_id, by_key)] == [Status.COMMITTED] * 2


def test_a_question_does_not_end_a_beginning(memory_sites: Sites, slow: type[Slow], aside: Run) -> None:
    publisher = publisher_of(memory_sites, memory_sites.name("orders"), slow)
    tx = publisher.transaction(memory_sites.name("orders"), key="7")
    begun = aside(tx.start)
    waits(publisher, 1)
    with pytest.raises(OutcomeUnknown):
        publisher.outcome(key="7", within=DEADLINE)
    assert not begun.done()
    slow.joins.set()
    slow.votes.set()
    begun.result(DEADLINE)
    assert tx.commit().status is Status.COMMITTED


def test_who_joined_may_ask_and_go_on_publishing(memory_sites: Sites, notes: Notes) -> None:
    type = memory_sites.name("orders")
    host, joiner = memory_sites.start("host", hosts=True), memory_sites.start("j")
    publisher = publisher_of(memory_sites, type, notes.handler("m"))
    with publisher.transaction(type, access=Access.MULTI, coordinator=host.name) as tx:
        with joiner.join_transaction(id=tx.id) as joined:
            joined.publish("before")
            with pytest.raises(OutcomeUnknown):
                joiner.outcome(tx.id, within=0.05)
            joined.publish("after")
        tx.publish("last")
    assert notes.of("m") == ["before", "after", "last"]
    assert joiner.outcome(tx.id).status is Status.COMMITTED


def test_a_refused_event_is_not_the_outcome_of_its_transaction(memory_sites: Sites, notes: Notes) -> None:
    type = memory_sites.name("orders")
    host, joiner = memory_sites.start("host", hosts=True), memory_sites.start("j")
    publisher = publisher_of(memory_sites, type, notes.handler("m"))
    tx = publisher.transaction(type, access=Access.MULTI, coordinator=host.name).start()

    def publish_late() -> None:
        with joiner.join_transaction(id=tx.id) as joined:
            tx.commit()
            joined.publish("late")

    with pytest.raises(TransactionRefused):
        publish_late()
    assert joiner.outcome(tx.id).status in (Status.COMMITTED, Status.FINISHED)


def silent_host(sites: Sites) -> Site:
    """It is there, and hears nothing."""
    host = sites.start("h", hosts=True)
    assert host._engine.wires.subscription is not None
    host._engine.wires.subscription.close()
    return host


def is_forgotten(publisher: SiteBase) -> None:
    """Wait until the site has nothing left of any call."""
    eventually(lambda: not publisher._engine.calls.open and not publisher._engine.participant.publishers)


def test_a_call_that_nobody_can_ask_about_is_forgotten_at_its_deadline(memory_sites: Sites) -> None:
    host, publisher = silent_host(memory_sites), memory_sites.start("p")
    with pytest.raises(OutcomeUnknown):
        publisher.send(memory_sites.name("orders"), ["x"], coordinator=host.name, within=0.05)
    is_forgotten(publisher)
    with pytest.raises(OutcomeUnknown):
        publisher.send(memory_sites.name("orders"), ["x"], coordinator=host.name, within=0.05, key="7")
    assert list(publisher._engine.calls.open) == ["k:7"]


def test_a_call_that_nobody_can_ask_about_is_forgotten_with_its_task(memory_sites: Sites) -> None:
    host, site = silent_host(memory_sites), AsyncSite(memory_sites.name("p"), bus=memory_sites.url, log="memory://")

    async def main() -> None:
        async with site:
            sending = asyncio.create_task(site.send(memory_sites.name("orders"), ["x"], coordinator=host.name))
            await asyncio.to_thread(waits, site, 1)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await asyncio.to_thread(is_forgotten, site)

    asyncio.run(main())


def test_a_start_that_is_interrupted_gives_the_transaction_up(memory_sites: Sites) -> None:
    host, publisher = silent_host(memory_sites), memory_sites.start("p")
    tx = publisher.transaction(memory_sites.name("orders"), coordinator=host.name)
    begin, answer = tx._begin, Mock(result=Mock(side_effect=KeyboardInterrupt))
    tx._begin = lambda: (begin()[0], answer)
    with pytest.raises(KeyboardInterrupt):
        tx.start()
    is_forgotten(publisher)


# A site that is closed meanwhile


def test_a_site_whose_start_was_cancelled_is_closed(memory_sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    site = AsyncSite(memory_sites.name("p"), bus=memory_sites.url, log="memory://")
    reached, go_on, show = threading.Event(), threading.Event(), site._engine.show
    monkeypatch.setattr(site._engine, "show", lambda: (reached.set(), go_on.wait(DEADLINE), show()))

    async def main() -> None:
        starting = asyncio.create_task(site.start())
        await asyncio.to_thread(reached.wait, DEADLINE)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        go_on.set()

    asyncio.run(main())
    eventually(site._engine._gone.is_set)


def test_a_site_that_two_threads_close_is_taken_apart_once(memory_sites: Sites, aside: Run) -> None:
    site = memory_sites.start("p", log=memory_sites.file("p"))
    engine, parts, drains = site._engine, list[str](), list[str]()
    drain, apart, go_on = engine._drain, engine._take_apart, threading.Event()

    def drain_slowly(deadline: float) -> None:
        drains.append(threading.current_thread().name)
        assert len(drains) > 1 or go_on.wait(DEADLINE)
        drain(deadline)

    engine._drain = drain_slowly  # type: ignore[method-assign]
    engine._take_apart = lambda timeout: (parts.append("x"), apart(timeout))[1]  # type: ignore[method-assign]
    first = aside(site.close)
    eventually(lambda: drains)
    second = aside(site.close, timeout=0.0)
    second.result(DEADLINE)
    go_on.set()
    first.result(DEADLINE)
    assert len(parts) == 1
    site.close()
    assert len(parts) == 1


def test_who_waits_for_events_to_be_accepted_hears_that_the_site_is_closed(memory_sites: Sites, aside: Run) -> None:
    type = memory_sites.name("orders")
    host, publisher, joiner = (memory_sites.start(name, hosts=name == "h") for name in ("h", "p", "j"))
    tx = publisher.transaction(type, access=Access.MULTI, coordinator=host.name, census_within=0.1).start()
    joined = joiner.join_transaction(id=tx.id, within=10 * DEADLINE).start()
    assert host._engine.wires.subscription is not None
    host._engine.wires.subscription.close()  # it hears nothing any more
    joined.publish("x")
    leaving = aside(joined.__exit__, None, None, None)
    eventually(lambda: joiner._engine.calls.promises)
    joiner.close(timeout=0.1)
    with pytest.raises(Closed):
        leaving.result(DEADLINE)
