"""Runs the work of members: for one transaction one piece after the other, on two pools of threads.

Handlers run on the one; preparing, committing, rolling back and forgetting on the other, so that handlers that wait for
locks cannot starve the commit that would release them. Work that runs neither application code nor a resource is done
at once. A handler past its deadline is given up: its vote is no, its thread is counted as stuck. Finishing that fails,
because a database is away, is tried again until it works.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from txlayer.effects import (
    ApplyWhole,
    AskScope,
    CommitUnit,
    Compensate,
    CompensationDone,
    FinishUnit,
    ForgetMarker,
    HandlerDone,
    Input,
    InspectUnit,
    Notify,
    PrepareUnit,
    RunHandler,
    ScopeChosen,
    UnitCommitted,
    UnitPrepared,
    WholeApplied,
)
from txlayer.errors import ResourceError
from txlayer.messages import Scope, TxId
from txlayer.resources.group import ResourceGroup
from txlayer.runtime.branches import NoBranch
from txlayer.runtime.membership import Membership, Memberships
from txlayer.runtime.pool import Job, Pool
from txlayer.runtime.unit_work import HandlerFailed, UnitWork, Work

_logger = logging.getLogger(__name__)

Task = Work | AskScope | Notify
_FINISHING = (PrepareUnit, CommitUnit, FinishUnit, InspectUnit, ForgetMarker)
_LONGEST_PAUSE = 10.0


@dataclass(frozen=True, slots=True)
class TaskDone:
    """Posted by a worker: a task has come to an end."""

    task: Task
    job: Job


@dataclass(frozen=True, slots=True)
class Again:
    """A resource could not do what must be done; it is tried again."""

    reason: str


@dataclass(slots=True)
class Workshop:
    """All work of one site. Everything but the tasks themselves runs on the runtime thread."""

    members: Memberships
    handlers: Pool
    finishers: Pool
    within: float
    """Seconds that a handler may take."""
    post: Callable[[object], None]
    later: Callable[[float, Callable[[], None]], Callable[[], None]]
    """Call a function after so many seconds; the result cancels that."""
    probe: Callable[[str, object], None] | None = None
    results: deque[Input] = field(default_factory=deque)
    """What was done at once, to be stepped before anything else."""
    late: int = 0
    _queues: dict[TxId, deque[Task]] = field(default_factory=dict)
    _failures: dict[TxId, int] = field(default_factory=dict)
    _deadlines: dict[TxId, Callable[[], None]] = field(default_factory=dict)

    def take(self, task: Task) -> None:
        """Do it, after what was asked for before it for the same transaction."""
        queue = self._queues.setdefault(task.tx, deque())
        queue.append(task)
        if len(queue) == 1:
            self._start(task)

    def idle(self) -> bool:
        """Whether nothing is being done or waits."""
        return not self._queues

    def busy(self) -> set[TxId]:
        """Transactions for which something is being done or waits."""
        return set(self._queues)

    def on_done(self, done: TaskDone) -> None:
        """A worker is through."""
        self._cancel_deadline(done.task.tx)
        if isinstance(done.job.result, Again):
            self._again(done.task, done.job.result)
            return
        self._failures.pop(done.task.tx, None)
        self._finish(done.task, done.job.result)

    def _finish(self, task: Task, result: Input | None) -> None:
        if result is not None:
            self.results.append(result)
        queue = self._queues[task.tx]
        queue.popleft()
        if queue:
            self._start(queue[0])
        else:
            del self._queues[task.tx]

    def _again(self, task: Task, failure: Again) -> None:
        count = self._failures[task.tx] = self._failures.get(task.tx, 0) + 1
        pause = min(0.1 * 2 ** min(count, 10), _LONGEST_PAUSE)
        _logger.warning("%s of %s failed, again in %.1f s: %s", type(task).__name__, task.tx, pause, failure.reason)
        self.later(pause, lambda: self._start(task))

    def _start(self, task: Task) -> None:
        member = self._member(task)
        if self._at_once(task, member):
            result = self._perform(task, member)
            assert not isinstance(result, Again), "without resources nothing fails for a while"
            self._finish(task, result)
            return
        job = Job(partial(self._perform, task, member), lambda job: self.post(TaskDone(task, job)))
        pool = self.finishers if isinstance(task, _FINISHING) else self.handlers
        if not pool.submit(job):
            self._finish(task, self._refusal(task, f"all {pool.threads} threads for handlers hang"))
        elif pool is self.handlers:
            self._set_deadline(self.within, task, member, job)

    def _member(self, task: Task) -> Membership:
        if isinstance(task, AskScope):
            return self.members.invite(task.tx, task.terms)
        return self.members.of(task.tx, task.type if isinstance(task, ApplyWhole) else "")

    @staticmethod
    def _at_once(task: Task, member: Membership) -> bool:
        if isinstance(task, AskScope):
            return not member.asks()
        return isinstance(task, _FINISHING) and member.quiet()

    # Deadlines

    def _set_deadline(self, seconds: float, task: Task, member: Membership, job: Job) -> None:
        self._deadlines[task.tx] = self.later(seconds, lambda: self._check(task, member, job))

    def _cancel_deadline(self, tx: TxId) -> None:
        cancel = self._deadlines.pop(tx, None)
        if cancel is not None:
            cancel()

    def _check(self, task: Task, member: Membership, job: Job) -> None:
        """Has it returned? Waiting for a thread does not count."""
        waited = time.monotonic() - job.started if job.started is not None else 0.0
        if waited < self.within:
            self._set_deadline(self.within - waited, task, member, job)
        elif self.handlers.give_up(job):
            self.late += 1
            member.lost = True
            for resource in member.resources():
                resource.abandon(task.tx)
            _logger.error("a handler of %s did not return within %s s and is given up", task.tx, self.within)
            self._finish(task, self._refusal(task, f"a handler did not return within {self.within} s"))

    @staticmethod
    def _refusal(task: Task, reason: str) -> Input | None:
        match task:
            case RunHandler():
                return HandlerDone(task.tx, task.event.number, False, reason)
            case AskScope():
                return ScopeChosen(task.tx, Scope.NONE)
            case Compensate():
                return CompensationDone(task.tx, False, reason)
            case ApplyWhole():
                return WholeApplied(task.tx, False, reason)
            case _:
                return None

    # On a worker, or at once

    def _perform(self, task: Task, member: Membership) -> Input | Again | None:
        if self.probe is not None:
            self.probe("work", task)
        try:
            result = self._do(task, member)
        except ResourceError as exc:
            result = Again(str(exc))
        except Exception as exc:
            _logger.exception("%s of %s failed", type(task).__name__, task.tx)
            result = self._refusal(task, f"{type(exc).__name__}: {exc}") or Again(f"{type(exc).__name__}: {exc}")
        if self.probe is not None:
            self.probe("worked", task)
        return result

    def _do(self, task: Task, member: Membership) -> Input | Again | None:
        match task:
            case AskScope():
                return member.choose()
            case Notify():
                member.notify(task.event)
                return None
            case PrepareUnit() | CommitUnit():
                return self._prepare(task, member)
            case RunHandler():
                try:
                    return self._unit(task, member).perform(task)
                except ResourceError as exc:
                    return HandlerDone(task.tx, task.event.number, False, str(exc))
            case _:
                result = self._unit(task, member).perform(task)
                self._tell(task, member, result)
                return result

    def _prepare(self, task: PrepareUnit | CommitUnit, member: Membership) -> Input | None:
        unit = self._unit(task, member)
        kind = UnitPrepared if isinstance(task, PrepareUnit) else UnitCommitted
        try:
            member.prepare()
        except (HandlerFailed, ResourceError) as exc:
            unit.resource.roll_back(task.tx)
            member.ended(False)
            return kind(task.tx, False, str(exc))
        result = unit.perform(task)
        if isinstance(result, UnitCommitted):
            member.ended(result.ok)
        elif isinstance(result, UnitPrepared) and not result.ok:
            member.ended(False)
        return result

    @staticmethod
    def _tell(task: Task, member: Membership, result: Input | None) -> None:
        if isinstance(task, FinishUnit):
            member.ended(task.commit)
            return
        applied = isinstance(result, WholeApplied) and result.ok
        if applied or (isinstance(task, InspectUnit) and task.at_once and not member.resources()):
            member.ended(True)

    @staticmethod
    def _unit(task: Task, member: Membership) -> UnitWork:
        resources = member.resources()
        if resources:
            if member.unit is None:
                again = any(s.attempts > 1 for s in member.subscribers)
                member.unit = UnitWork(ResourceGroup(resources, savepoints=again), member)
            return member.unit
        if isinstance(task, InspectUnit):
            return UnitWork(NoBranch("committed" if task.at_once else "prepared"), member)
        return UnitWork(NoBranch("committed" if isinstance(task, Compensate) else "none"), member)
