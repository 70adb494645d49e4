"""The same on asyncio: calls are awaited, handlers are coroutines on the user's loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from tests.conftest import DEADLINE
from tests.sites.conftest import PATIENT, QUICK, Sites
from txlayer import Access, AsyncSite, Event, MemberTransaction, Participant, Scope, Status, at_least
from txlayer.errors import TransactionAborted, UsageError
from txlayer.resources.memory import MemoryResource
from txlayer.transacting import Plan


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.005)


class PatientAsyncSite(AsyncSite):
    """As `PatientSite`."""

    def _plan(self, type: Any, attributes: Any, **terms: Any) -> Plan:
        return super()._plan(type, attributes, **{**PATIENT, **terms})


def make(sites: Sites, short: str, **options: Any) -> AsyncSite:
    return PatientAsyncSite(sites.name(short), bus=sites.url, log="memory://", patience=QUICK, **options)


def test_coroutine_handlers_run_on_the_users_loop(sites: Sites) -> None:
    type = sites.name("meetings")
    store = MemoryResource()
    loops: set[Any] = set()

    class Attend(Participant):
        async def on_join(self, tx: MemberTransaction) -> Scope:
            loops.add(asyncio.get_running_loop())
            return Scope.DISTRIBUTED

        async def on_event(self, tx: MemberTransaction, event: Event) -> None:
            await asyncio.sleep(0)
            loops.add(asyncio.get_running_loop())
            tx[store].put(event.data, "seen")

        async def on_commit(self, tx: MemberTransaction) -> None:
            loops.add(asyncio.get_running_loop())
            tx_done.append(tx.id)

    tx_done: list[Any] = []

    async def main() -> None:
        member, publisher = make(sites, "a"), make(sites, "p")
        member.subscribe(type, Attend, resources=[store])
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(member)
            await stack.enter_async_context(publisher)
            await until(lambda: publisher.subscribed(type) == [member.name])
            async with publisher.transaction(type, settle_for=at_least(1)) as tx:
                await tx.publish("one")
                await tx.publish("two")
            assert tx.outcome is not None
            assert tx.outcome.status is Status.COMMITTED
            assert (await publisher.send(type, ["three"])).members == 1
            assert (await publisher.outcome(tx.id)).status is Status.COMMITTED
            await until(lambda: len(tx_done) == 2)
        assert loops == {asyncio.get_running_loop()}

    asyncio.run(main())
    assert store.values == {"one": "seen", "two": "seen", "three": "seen"}


def test_errors_and_several_publishers(sites: Sites) -> None:
    type = sites.name("meetings")
    seen: list[Any] = []

    async def refuse_odd(tx: MemberTransaction, event: Event) -> None:
        if event.data % 2:
            raise ValueError("odd")
        seen.append(event.data)

    async def main() -> None:
        member, publisher, third = make(sites, "a"), make(sites, "p", hosts=True), make(sites, "t")
        member.subscriber(type)(refuse_odd)
        async with member, publisher, third:
            await until(lambda: publisher.subscribed(type) == [member.name])
            with pytest.raises(TransactionAborted, match="odd"):
                await publisher.send(type, [1])
            with pytest.raises(KeyError):
                async with publisher.transaction(type) as tx:
                    raise KeyError
            assert tx.outcome is not None
            assert tx.outcome.status is Status.ABORTED
            async with publisher.transaction(type, {"k": "v"}, access=Access.MULTI, coordinator="self") as tx:
                await tx.publish(2)
                async with third.join_transaction(type, {"k": "v"}) as joined:
                    await joined.publish(4)
            with pytest.raises(UsageError, match="after the end"):
                await tx.publish(6)

    asyncio.run(main())
    assert seen == [2, 4]


def test_waiting_for_a_host_does_not_stop_the_users_loop(memory_sites: Sites) -> None:
    type, seen = memory_sites.name("meetings"), threading.Event()

    def no_host(seconds: float) -> list[str]:
        assert seen.wait(DEADLINE), "the loop stands still"
        return []

    async def main() -> None:
        async with make(memory_sites, "p") as publisher:
            publisher._engine.neighbours.await_hosts = no_host  # type: ignore[method-assign]
            asyncio.get_running_loop().call_soon(seen.set)
            with pytest.raises(UsageError, match="no site offers to host"):
                await publisher.send(type, [1], coordinator="hosted")

    asyncio.run(main())


def test_a_cancelled_wait_does_not_stop_the_site(memory_sites: Sites) -> None:
    type, silent = memory_sites.name("meetings"), threading.Event()

    async def main() -> None:
        async with make(memory_sites, "h", hosts=True) as host, make(memory_sites, "t") as third:
            async with host.transaction(type, access=Access.MULTI, coordinator="self", census_within=0.1) as tx:
                joined = await third.join_transaction(id=tx.id).start()
                host._engine.loop.post(lambda: silent.wait(DEADLINE))
                await joined.publish(1, type=type)
                leaving = asyncio.create_task(joined.__aexit__(None, None, None))
                await until(lambda: joined._open().ended)
                leaving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await leaving
                silent.set()
                assert third.transactions() == []
                await until(lambda: not third._engine.participant.publishers)
                assert not third._engine.calls.open
            assert third._engine.loop.error is None

    asyncio.run(main())


@pytest.mark.parametrize("before", [True, False])
def test_what_a_thread_begins_for_a_cancelled_task_is_given_up(memory_sites: Sites, before: bool) -> None:
    """Whether the thread was through when the task was cancelled, or not yet."""
    type = memory_sites.name("meetings")
    entered, cancelled, begun = threading.Event(), threading.Event(), threading.Event()

    async def main() -> None:
        member = make(memory_sites, "a")
        member.subscribe(type, lambda tx, event: None)
        async with member, make(memory_sites, "h", hosts=True) as host, make(memory_sites, "p") as publisher:
            await until(lambda: host.subscribed(type) == [member.name])
            await until(lambda: publisher._engine.neighbours.hosts() == [host.name])
            tx = publisher.transaction(type, coordinator=host.name)
            begin = tx._begin

            def held() -> Any:
                entered.set()
                if before:
                    assert cancelled.wait(DEADLINE)
                core = begin()
                begun.set()
                return core

            tx._begin = held
            starting = asyncio.create_task(tx.start())
            await asyncio.sleep(0)
            if before:
                await until(entered.is_set)  # a thread that has not come to it yet never does
            else:
                begun.wait(DEADLINE)  # the loop stands still meanwhile: the task cannot take what the thread returns
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
            cancelled.set()
            await until(begun.is_set)
            coordinator = host._engine.participant.coordinator
            await until(lambda: coordinator.next_number > 1)
            await until(lambda: not coordinator.transactions)
            await until(lambda: not publisher._engine.participant.publishers)

    asyncio.run(main())


def test_a_publisher_awaits_the_resource_that_its_site_enlists(sites: Sites) -> None:
    type, store, seen = sites.name("meetings"), MemoryResource(), list[Any]()

    async def main() -> None:
        publisher, member = make(sites, "p"), make(sites, "a")
        publisher.enlist(type, [store])
        member.subscribe(type, lambda tx, event: seen.append(event.data))
        async with publisher, member:
            await until(lambda: publisher.subscribed(type) == sorted([publisher.name, member.name]))
            async with publisher.transaction(type) as tx:
                assert tx.members == 2
                (await tx.work(store)).put("own", 1)
                await tx.publish("theirs")
                with pytest.raises(UsageError, match=r"await tx\.work"):
                    tx[store]
                with pytest.raises(UsageError, match=r"site\.enlist"):
                    await tx.work(MemoryResource())
            with pytest.raises(UsageError, match="after the end"):
                await tx.work(store)
            undone = await publisher.transaction(type).start()
            (await undone.work(store)).put("undone", 1)
            await undone.abort()
            await until(lambda: not store.units and not store.prepared)

    asyncio.run(main())
    assert (store.values, seen) == ({"own": 1}, ["theirs"])
