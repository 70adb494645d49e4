"""Performs the work of members on a resource: handlers, prepare, commit, undo. One call, one event back.

A resource that cannot be reached gives no event: `ResourceUnavailable` comes out, and the same work is to be performed
again until it is known what happened.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from txlayer.effects import (
    ApplyWhole,
    CommitUnit,
    Compensate,
    CompensationDone,
    FinishUnit,
    ForgetMarker,
    HandlerDone,
    Input,
    InspectUnit,
    PrepareUnit,
    RunHandler,
    UnitCommitted,
    UnitFinished,
    UnitInspected,
    UnitPrepared,
    WholeApplied,
)
from txlayer.errors import ResourceError, ResourceUnavailable
from txlayer.messages import Numbered, TxId
from txlayer.resources.port import Resource
from txlayer.units import UndoRecord, undo_of, undone_by

Work: TypeAlias = (
    RunHandler | PrepareUnit | CommitUnit | FinishUnit | InspectUnit | Compensate | ApplyWhole | ForgetMarker
)
WORK = (RunHandler, PrepareUnit, CommitUnit, FinishUnit, InspectUnit, Compensate, ApplyWhole, ForgetMarker)


class HandlerFailed(Exception):
    """Raised by application code that gives up on an event."""


class Handlers(Protocol):
    """What an application does with events. Both may raise `HandlerFailed`."""

    def handle(self, tx: TxId, event: Numbered, work: Any) -> None: ...

    def compensate(self, tx: TxId, event: Numbered, work: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Marked:
    """The units that have a marker, of their work or of its undoing."""

    ours: tuple[TxId, ...] = ()
    orphans: tuple[TxId, ...] = ()
    """Committed under a log that is gone, and perhaps to be undone: what that takes is beside the marker."""

    @classmethod
    def of(cls, resource: Resource, log: str) -> Marked:
        """As a site finds them that starts with this log."""
        units = sorted({undone_by(unit) for unit in resource.markers()})
        orphans = {unit for unit in units if _is_orphan(resource, log, unit)}
        return cls(tuple(u for u in units if u not in orphans), tuple(u for u in units if u in orphans))


def _is_orphan(resource: Resource, log: str, unit: TxId) -> bool:
    undo = resource.undo_record(unit)
    return bool(undo) and UndoRecord.decode(undo).log != log and resource.state(undo_of(unit)) != "committed"


class UnitWork:
    """The work of one site. Calls for one transaction must not overlap."""

    def __init__(self, resource: Resource, handlers: Handlers, unanswered: dict[TxId, None] | None = None) -> None:
        self._resource = resource
        self._handlers = handlers
        self._unanswered = unanswered if unanswered is not None else {}
        """Commits that were sent and may have happened; kept by the caller from one piece of work to the next."""

    def perform(self, work: Work) -> Input | None:
        """Do it and say how it went."""
        match work:
            case RunHandler():
                return self._run_handler(work)
            case PrepareUnit():
                reason = self._attempt(lambda: self._resource.prepare(work.tx))
                return UnitPrepared(work.tx, not reason, reason)
            case CommitUnit():
                reason = self._attempt(lambda: self._commit(work))
                return UnitCommitted(work.tx, not reason, reason)
            case FinishUnit():
                finish = self._resource.commit_prepared if work.commit else self._resource.roll_back
                finish(work.tx)
                return UnitFinished(work.tx)
            case InspectUnit():
                return UnitInspected(work.tx, self._resource.settle(work.tx))
            case Compensate():
                return self._compensate(work)
            case ApplyWhole():
                reason = self._attempt(lambda: self._apply(work))
                return WholeApplied(work.tx, not reason, reason)
            case ForgetMarker():
                self._resource.forget(work.tx)
                self._resource.forget(undo_of(work.tx))
                return None

    def _run_handler(self, work: RunHandler) -> Input:
        try:
            self._resource.savepoint(work.tx)
            self._handlers.handle(work.tx, work.event, self._resource.work(work.tx))
        except (HandlerFailed, ResourceError) as exc:
            self._resource.undo_to_savepoint(work.tx)
            return HandlerDone(work.tx, work.event.number, False, str(exc))
        return HandlerDone(work.tx, work.event.number, True)

    def _commit(self, work: CommitUnit) -> None:
        if work.tx not in self._unanswered:
            try:
                self._resource.commit(work.tx, work.undo.encode() if work.undo is not None else b"")
                return
            except ResourceUnavailable:
                self._unanswered[work.tx] = None
        committed = self._resource.settle(work.tx) == "committed"
        del self._unanswered[work.tx]
        if not committed:
            raise ResourceError("the connection broke before the work was committed")

    def _compensate(self, work: Compensate) -> Input:
        if self._resource.settle(work.tx) != "committed":
            self._resource.roll_back(work.tx)
            return CompensationDone(work.tx, True)
        undo = undo_of(work.tx)
        if self._was_committed(undo, work.attempt):
            return CompensationDone(work.tx, True)
        reason = self._attempt(lambda: self._undo(work.tx, undo, work.events))
        if reason:
            self._resource.roll_back(undo)
        return CompensationDone(work.tx, not reason, reason)

    def _undo(self, tx: TxId, undo: TxId, events: Iterable[Numbered]) -> None:
        for event in events:
            self._handlers.compensate(tx, event, self._resource.work(undo))
        self._resource.commit(undo)

    def _apply(self, work: ApplyWhole) -> None:
        tx = work.tx
        if self._was_committed(tx, work.attempt):
            return
        try:
            for event in work.events:
                self._handlers.handle(tx, event, self._resource.work(tx))
        except (HandlerFailed, ResourceError):
            self._resource.roll_back(tx)
            raise
        self._resource.commit(tx)  # if its answer is lost, nothing is rolled back before it is known what happened

    def _was_committed(self, tx: TxId, attempt: int) -> bool:
        """Whether an earlier attempt has done it, then to the end; otherwise nothing of it is left.

        Where a part of it is prepared, the commit of another part may still be on its way: that is settled first. To
        be settled is to be given up; this work must be done in the end, so it is taken back.
        """
        state = self._resource.state(tx)
        settled = state == "prepared"
        if settled:
            state = self._resource.settle(tx)
        if state == "committed":
            self._resource.commit_prepared(tx)
            return True
        self._resource.roll_back(tx)
        if settled or attempt > 1:
            self._resource.reopen(tx)
        return False

    def _attempt(self, act: Any) -> str:
        try:
            act()
        except ResourceUnavailable:
            raise
        except (HandlerFailed, ResourceError) as exc:
            return str(exc) or type(exc).__name__
        return ""
