"""A transaction for callers that wait."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from txlayer.errors import Closed, OutcomeUnknown
from txlayer.messages import Outcome, Status
from txlayer.resources.port import Resource
from txlayer.runtime.calls import Answer, await_answer
from txlayer.transacting import ABORT_SECONDS, Face, Transacting, declared_name, raise_for


class Transaction(Face):
    """A transaction in a `with` block: left normally it commits, left by an exception it aborts.

    One that was joined belongs to who began it: leaving the block hands this publisher's events in; by an exception, it
    leaves there what was accepted. It neither commits nor aborts: `commit()` and `abort()` do, where they are allowed.
    """

    _begin_it = "use it in a with block, or call start()"

    def start(self) -> Self:
        """Begin it; `with` does."""
        self._not_begun()
        self._core, answer = self._begin()
        self._await_begin(self._core, answer)
        return self

    def publish(self, data: Any, type: str | None = None, attributes: Mapping[str, Any] | None = None) -> None:
        """Publish an event, of the transaction's type or any other."""
        core = self._open()
        if core.crowded():
            try:
                core.accepted().result(self._within)
            except TimeoutError:
                raise core.too_crowded(self._within) from None
        core.publish(data, type if type is not None else declared_name(data), attributes)

    def __getitem__(self, resource: Resource) -> Any:
        """What a resource offers to work with inside the transaction; `Site.enlist` names the resources."""
        core = self._open()
        core.check_open("work")
        return core.work(resource)

    def commit(self, within: float | None = None) -> Outcome:
        """Commit; the outcome if it committed, else `TransactionAborted`, `OutcomeUnknown`, ..."""
        core = self._open()
        within = within if within is not None else self._within
        self.outcome = settled(core, core.commit(), within)
        return raise_for(self.outcome)

    def abort(self, reason: str = "") -> None:
        """Abort; before the commit call that reaches everyone."""
        core = self._open()
        self.outcome = settled(core, core.abort(reason), ABORT_SECONDS)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        core = self._open()
        if core.ended:
            return
        if core.joined:
            self._leave(core, error)
        elif error is None:
            self.commit()
        else:
            taken = core.taken_away()
            self.abort(f"{type(error).__name__}: {error}")
            taken = taken or core.taken_away(by_others=True)
            if taken is not None and isinstance(error, Exception):
                raise taken from error

    def _leave(self, core: Transacting, error: BaseException | None) -> None:
        """A publisher that joined hands in its events; who may commit or abort does so by name."""
        core.end()
        if error is None:
            try:
                core.accepted().result(self._within)
            except TimeoutError:
                raise core.not_accepted(self._within) from None
        self.outcome = core.left(error)

    def _await_begin(self, core: Transacting, answer: Future[Answer]) -> None:
        try:
            opened = answer.result(core.begin_within())
        except TimeoutError:
            self.outcome = core.give_up()
            raise_for(self.outcome)
            return
        except BaseException:  # of a signal, perhaps: nobody else would end it
            core.give_up()
            raise
        if isinstance(opened, Outcome):
            self.outcome = opened
            core.not_opened(opened)


def settled(core: Transacting, answer: Future[Answer], seconds: float) -> Outcome:
    """Wait for an outcome; the caller knows it then. Not known in time, or the site closed: pending."""
    tx = core.call.tx
    try:
        outcome = await_answer(answer, seconds)
    except Closed as exc:
        raise OutcomeUnknown(f"{tx}: {exc}", Outcome(tx, core.call.name, Status.PENDING, final=False)) from exc
    if outcome is None:
        return core.not_known()
    assert isinstance(outcome, Outcome), "an ending call is answered by an outcome"
    core.take_note(outcome)
    return outcome
