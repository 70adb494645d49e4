"""`AsyncSite`: the same site for asyncio. Calls are awaited; coroutine handlers run on the user's loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from txlayer.errors import Closed, OutcomeUnknown, UsageError
from txlayer.messages import Outcome, TxId
from txlayer.resources.port import Resource
from txlayer.runtime.calls import Answer
from txlayer.site_base import Begin, SiteBase
from txlayer.transacting import ABORT_SECONDS, Face, Transacting, declared_name, raise_for


class _Beginning:
    """What a thread begins for a task. If that is cancelled, nobody else would ever end it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._core: Transacting | None = None
        self._dropped = False

    def run(self, begin: Begin) -> tuple[Transacting, Future[Answer]]:
        """On the thread."""
        core, answer = begin()
        with self._lock:
            self._core, dropped = core, self._dropped
        if dropped:
            core.give_up()
        return core, answer

    def drop(self) -> None:
        """The task does not want it any more."""
        with self._lock:
            self._dropped, core = True, self._core
        if core is not None:
            core.give_up()


class AsyncTransaction(Face):
    """A transaction in an `async with` block: as `Transaction`, with awaited calls."""

    _begin_it = "use it in `async with`, or await start()"

    async def start(self) -> Self:
        """Begin it; `async with` does."""
        self._not_begun()
        # Finding a host or an open transaction may take a while.
        beginning = _Beginning()
        try:
            core, answer = await asyncio.to_thread(beginning.run, self._begin)
        except asyncio.CancelledError:
            beginning.drop()
            raise
        self._core = core
        try:
            opened = await asyncio.wait_for(asyncio.wrap_future(answer), core.begin_within())
        except TimeoutError:
            self.outcome = core.give_up()
            raise_for(self.outcome)
            return self
        except asyncio.CancelledError:
            core.give_up()
            raise
        if isinstance(opened, Outcome):
            self.outcome = core.not_opened(opened)
        return self

    async def publish(self, data: Any, type: str | None = None, attributes: Mapping[str, Any] | None = None) -> None:
        """Publish an event, of the transaction's type or any other."""
        core = self._open()
        if core.crowded():
            try:
                await asyncio.wait_for(asyncio.wrap_future(core.accepted()), self._within)
            except TimeoutError:
                raise core.too_crowded(self._within) from None
        core.publish(data, type if type is not None else declared_name(data), attributes)

    async def work(self, resource: Resource) -> Any:
        """What a resource offers to work with inside the transaction; `AsyncSite.enlist` names the resources."""
        core = self._open()
        core.check_open("work")
        return await asyncio.to_thread(core.work, resource)  # it may wait for a connection, perhaps of this loop

    def __getitem__(self, resource: Resource) -> Any:
        """For who writes it as in a handler, where there is nothing to await."""
        raise UsageError("a publisher awaits its resource: `conn = await tx.work(resource)`")

    async def commit(self, within: float | None = None) -> Outcome:
        """Commit; the outcome if it committed, else `TransactionAborted`, `OutcomeUnknown`, ..."""
        core = self._open()
        within = within if within is not None else self._within
        self.outcome = await settled(core, core.commit(), within)
        return raise_for(self.outcome)

    async def abort(self, reason: str = "") -> None:
        """Abort; before the commit call that reaches everyone."""
        core = self._open()
        self.outcome = await settled(core, core.abort(reason), ABORT_SECONDS)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        core = self._open()
        if core.ended:
            return
        if core.joined:
            await self._leave(core, error)
        elif error is None:
            await self.commit()
        else:
            taken = core.taken_away()
            await self.abort(f"{type(error).__name__}: {error}")
            taken = taken or core.taken_away(by_others=True)
            if taken is not None and isinstance(error, Exception):
                raise taken from error

    async def _leave(self, core: Transacting, error: BaseException | None) -> None:
        core.end()
        if error is None:
            try:
                await asyncio.wait_for(asyncio.wrap_future(core.accepted()), self._within)
            except TimeoutError:
                raise core.not_accepted(self._within) from None
            except asyncio.CancelledError:
                core.leave()
                raise
        self.outcome = core.left(error)


class AsyncSite(SiteBase):
    """A site whose calls are awaited. `async with AsyncSite(...) as site:` starts and closes it."""

    async def start(self) -> Self:
        """Connect, open the log, take up what an earlier run left, and begin to receive."""
        self._application.loop = asyncio.get_running_loop()
        try:
            await asyncio.to_thread(self._start)
        except asyncio.CancelledError:  # the thread goes on, and nobody else would close what it starts
            threading.Thread(target=self._abandon, name="txlayer-abandon", daemon=True).start()
            raise
        return self

    async def close(self, timeout: float = 10.0) -> None:
        """Take no new work, let running transactions finish up to `timeout`, leave the rest in the log."""
        await asyncio.to_thread(self._close, timeout)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def transaction(
        self, type: str | type, attributes: Mapping[str, Any] | None = None, **terms: Any
    ) -> AsyncTransaction:
        """A transaction for an `async with` block; the terms are those of `Site.transaction`."""
        begin, within = self._beginning(type, attributes, terms)
        return AsyncTransaction(begin, within)

    async def send(
        self, type: str | type, events: Sequence[Any], attributes: Mapping[str, Any] | None = None, **terms: Any
    ) -> Outcome:
        """A whole transaction in one shot."""
        plan = self._plan(type, attributes, one_shot=True, **terms)
        items = self._items(plan.terms, events)
        plan = await asyncio.to_thread(self._placed, plan)  # finding a host may take a while
        core, answer = Transacting.begin(self._engine, plan, items)
        return raise_for(await settled(core, answer, plan.within))

    def join_transaction(
        self,
        type: str | type | None = None,
        attributes: Mapping[str, Any] | None = None,
        *,
        id: TxId | str | None = None,
        within: float = 10.0,
    ) -> AsyncTransaction:
        """Publish in an open transaction of another site, found by type and attributes or by id."""
        return AsyncTransaction(self._joining(type, attributes, id, within), within)

    async def outcome(
        self,
        tx: TxId | str | None = None,
        *,
        key: str | None = None,
        coordinator: str | None = None,
        within: float = 10.0,
    ) -> Outcome:
        """What became of a transaction; see `Site.outcome`."""
        question = self._ask(tx, key, coordinator)
        try:
            answer = await asyncio.wait_for(asyncio.wrap_future(question.answer), within)
        except TimeoutError:
            answer = None
        except asyncio.CancelledError:
            question.drop()
            raise
        return question.note(answer)


async def settled(core: Transacting, answer: Future[Answer], seconds: float) -> Outcome:
    """Await an outcome; the caller knows it then. Not known in time, or the site closed: pending."""
    try:
        outcome = await asyncio.wait_for(asyncio.wrap_future(answer), seconds)
    except TimeoutError:
        return core.not_known()
    except asyncio.CancelledError:
        core.not_known()
        raise
    except Closed as exc:
        raise OutcomeUnknown(f"{core.call.tx}: {exc}", core.not_known()) from exc
    assert isinstance(outcome, Outcome), "an ending call is answered by an outcome"
    core.take_note(outcome)
    return outcome
