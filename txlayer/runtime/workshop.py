"""Runs the work of members: for one transaction one piece after the other, on three pools of threads.

Handlers run on the first, and the last one of a unit prepares it where it may. Preparing otherwise, and committing in
one phase, run on the second: the statements of a batch are sent with them, so they wait for locks as handlers do. What
releases locks, finishing and rolling back, runs on the third, which nobody who waits for a lock can fill. Work that
runs neither application code nor a resource is done at once, and markers are forgotten many at a time, because nobody
waits for that. A handler past its deadline is given up: its vote is no, its thread is counted as stuck. Finishing that
fails, because a database is away, is tried again until it works.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from msgspec import Struct

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
    UnitFinished,
    UnitPrepared,
    WholeApplied,
)
from txlayer.errors import ResourceError, ResourceUnavailable
from txlayer.messages import Scope, TxId
from txlayer.resources.group import ResourceGroup
from txlayer.resources.port import Resource
from txlayer.runtime.branches import Attempt, NoBranch
from txlayer.runtime.membership import Membership
from txlayer.runtime.memberships import Memberships
from txlayer.runtime.pool import Job, Pool
from txlayer.runtime.unit_work import HandlerFailed, UnitWork, Work
from txlayer.units import chain_of, undo_of

_logger = logging.getLogger(__name__)

_VOTING = (PrepareUnit, CommitUnit)
_FINISHING = (FinishUnit, InspectUnit, ForgetMarker)
_ON_RESOURCES = (*_VOTING, *_FINISHING)
_LONGEST_PAUSE = 10.0
_FORGOTTEN_AT_ONCE = 64
_FORGET_SECONDS = 1.0
_MOST_FINISHING = 16
"""With so many decided units that are not finished yet, the next ones wait before they prepare."""


@dataclass(frozen=True, slots=True)
class Consent:
    """The application's last word, before a unit is prepared or committed."""

    tx: TxId


@dataclass(frozen=True, slots=True)
class Tell:
    """The application hears how it ended; whatever it does, `result` goes to the roles."""

    tx: TxId
    commit: bool
    result: Input | None


@dataclass(frozen=True, slots=True)
class Undo:
    """The application objected: roll back, then `result` goes to the roles."""

    tx: TxId
    result: Input


@dataclass(frozen=True, slots=True)
class Lend:
    """A publisher opens work on a resource, on its own thread. From `turn` on, nothing else is done meanwhile."""

    tx: TxId
    turn: Future[Membership | None]
    """Answered by the member; by None if the publisher may not."""


Task = Work | AskScope | Notify | Consent | Tell | Undo | Lend


@dataclass(frozen=True, slots=True)
class Again:
    """A resource could not do what must be done; it is tried again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Objection:
    """The application does not consent."""

    reason: str


Result = Input | Again | Objection | None
_Marker = tuple[ForgetMarker, Membership]


class TaskDone(Struct, frozen=True):
    """Posted by a worker: a task has come to an end."""

    task: Task
    job: Job


@dataclass(slots=True)
class Workshop:
    """All work of one site. Everything but the tasks themselves belongs to the turn of its loop."""

    members: Memberships
    handlers: Pool
    voters: Pool
    finishers: Pool
    within: float
    """Seconds that a handler may take."""
    post: Callable[[object], None]
    bring: Callable[[object], None]
    leave: Callable[[object], None]
    later: Callable[[float, Callable[[], None]], Callable[[], None]]
    """Call a function after so many seconds; the result cancels that."""
    probe: Callable[[str, object], None] | None = None
    results: deque[Input] = field(default_factory=deque)
    """What was done at once, to be stepped before anything else."""
    late: int = 0
    finishing: int = 0
    """Units that are being committed or rolled back, for which nobody waits."""
    _behind: deque[PrepareUnit | RunHandler] = field(default_factory=deque)
    """What waits for some of them: a database has room for so many prepared units only."""
    _queues: dict[TxId, deque[Task]] = field(default_factory=dict)
    _failures: dict[TxId, int] = field(default_factory=dict)
    _deadlines: dict[TxId, Callable[[], None]] = field(default_factory=dict)
    _unserved: dict[TxId, Task] = field(default_factory=dict)
    _forgetting: list[_Marker] = field(default_factory=list)

    def take(self, task: Task) -> None:
        """Do it, after what was asked for before it for the same transaction."""
        queue = self._queues.get(task.tx)
        if queue is not None:
            queue.append(task)
        elif self.empty(task):
            self._report(self._perform(task, self.members.of(task.tx), Attempt()))
        elif isinstance(task, ForgetMarker) and chain_of(task.tx) is None:  # those of a chain no start looks for
            self._forget([(task, self.members.of(task.tx))])
            if len(self._forgetting) >= _FORGOTTEN_AT_ONCE:
                self._forget_all()
        else:
            self._queues[task.tx] = deque((task,))
            self._start(task)

    def empty(self, task: Task) -> bool:
        """Whether this runs neither application code nor a resource."""
        member = self.members.known.get(task.tx)
        return member is not None and member.quiet and not member.resources and isinstance(task, _ON_RESOURCES)

    def idle(self) -> bool:
        """Whether nothing is being done or waits, but for a subscriber."""
        return self._queues.keys() <= self._unserved.keys()

    def busy(self) -> set[TxId]:
        """Transactions for which something is being done or waits."""
        return set(self._queues)

    def on_subscriber(self) -> None:
        """Work that an earlier life left may have found who it belongs to."""
        waiting, self._unserved = self._unserved, {}
        for task in waiting.values():
            self._start(task)

    def on_lent(self, task: Lend) -> None:
        """The publisher has it."""
        self._finish(task, None)

    def on_done(self, done: TaskDone) -> None:
        """A worker is through."""
        self._cancel_deadline(done.task.tx)
        if isinstance(done.task, FinishUnit):
            self.finishing -= 1
            while self._behind and self.finishing < _MOST_FINISHING:
                self._start(self._behind.popleft())
        self._finish(done.task, self._hung(done.task, self.handlers) if done.job.refused else done.job.result)

    def _finish(self, task: Task, result: Result) -> None:
        """The first task of its queue is over: what follows from it comes before what was asked for later."""
        if isinstance(result, Again):
            self._again(task, result)
            return
        self._failures.pop(task.tx, None)
        queue = self._queues[task.tx]
        queue.popleft()
        following = self._following(task, result, queue)
        if following is not None:
            queue.appendleft(following)
        else:
            self._report(result)
        if queue:
            self._start(queue[0])
        else:
            del self._queues[task.tx]

    def _report(self, result: Result) -> None:
        if result is not None and not isinstance(result, Again | Objection):
            self.results.append(result)

    def _following(self, task: Task, result: Result, queue: deque[Task]) -> Task | None:
        """Application code that belongs to a piece of work runs on the handlers' threads, with their deadline."""
        if isinstance(task, Consent):
            return self._objected(queue.popleft(), result) if isinstance(result, Objection) else None
        if isinstance(task, Undo):
            return Tell(task.tx, False, task.result)
        if isinstance(task, Tell) or self.members.of(task.tx).quiet or isinstance(result, Again | Objection):
            return None
        ended = self._ended(task, result)
        return Tell(task.tx, ended, result) if ended is not None else None

    @staticmethod
    def _objected(task: Task, objection: Objection) -> Undo:
        if isinstance(task, PrepareUnit):
            return Undo(task.tx, UnitPrepared(task.tx, False, objection.reason))
        return Undo(task.tx, UnitCommitted(task.tx, False, objection.reason))

    def _ended(self, task: Task, result: Input | None) -> bool | None:
        """Whether the application has to hear of a commit or an abort; None if it is not over."""
        match result:
            case UnitPrepared(ok=False):
                return None if isinstance(task, InspectUnit) else False
            case UnitCommitted() | WholeApplied(ok=True):
                return not isinstance(result, UnitCommitted) or result.ok
        if isinstance(task, FinishUnit):
            return task.commit
        if isinstance(task, InspectUnit) and task.at_once and not self.members.of(task.tx).resources:
            return True
        return None

    def _again(self, task: Task, failure: Again) -> None:
        count = self._failures[task.tx] = self._failures.get(task.tx, 0) + 1
        pause = min(0.1 * 2 ** min(count, 10), _LONGEST_PAUSE)
        _logger.warning("%s of %s failed, again in %.1f s: %s", type(task).__name__, task.tx, pause, failure.reason)
        self.later(pause, lambda: self._start(task))

    def _start(self, task: Task) -> None:
        if isinstance(task, Lend):
            self._give_turn(task)
            return
        if self._waits_for_subscriber(task):
            return
        member = self._member(task)
        if isinstance(task, _VOTING) and not member.quiet and not member.consented:
            member.consented = True
            task = Consent(task.tx)
            self._queues[task.tx].appendleft(task)
        if isinstance(task, PrepareUnit | RunHandler) and self._is_behind(task, member):
            self._behind.append(task)
            return
        if self._at_once(task, member):
            self._finish(task, self._perform(task, member, Attempt()))
            return
        attempt = Attempt()
        pool = self._pool(task)
        hand_in = partial(self._hand_in, task, pool, member.quiet)
        job = Job(partial(self._perform, task, member, attempt), hand_in)
        if not pool.submit(job):
            self._finish(task, self._hung(task, pool))
        elif isinstance(task, FinishUnit):
            self.finishing += 1
        elif pool is self.handlers:
            seconds = self.within * max(1, len(task.events) if isinstance(task, ApplyWhole | Compensate) else 1)
            self._set_deadline(seconds, _Running(task, member, attempt, job, seconds))

    def _is_behind(self, task: PrepareUnit | RunHandler, member: Membership) -> bool:
        prepares = isinstance(task, PrepareUnit) or (task.prepares and member.quiet)
        return prepares and self.finishing >= _MOST_FINISHING

    def _hand_in(self, task: Task, pool: Pool, quiet: bool, job: Job) -> None:
        """On a worker. With other jobs to do it leaves the turn to the loop, which takes several results at once."""
        if quiet and type(job.result) is UnitFinished and not self._behind:
            self.leave(TaskDone(task, job))  # only an acknowledgement follows
        else:
            (self.post if pool.crowded else self.bring)(TaskDone(task, job))

    def _forget(self, markers: Sequence[_Marker]) -> None:
        """Together with others, soon."""
        if markers and not self._forgetting:
            self.later(_FORGET_SECONDS, self._forget_all)
        self._forgetting += markers

    def _forget_all(self) -> None:
        markers, self._forgetting = self._forgetting, []

        def done(job: Job) -> None:
            left = markers if job.refused else job.result
            if left:
                self.post(lambda: self._forget(left))

        if markers and not self.finishers.submit(Job(partial(self._forget_each, markers), done)):
            self._forget(markers)

    def forget_now(self) -> None:
        """The loop has stopped: what is collected is forgotten here."""
        self._forget_each(self._forgetting)

    def _forget_each(self, markers: list[_Marker]) -> list[_Marker]:
        """On a worker: those that have to be tried again."""
        return [one for one in markers if isinstance(self._perform(*one, Attempt()), Again)]

    def _give_turn(self, task: Lend) -> None:
        if task.turn.set_running_or_notify_cancel():
            task.turn.set_result(self.members.of(task.tx))
        else:
            self._finish(task, None)  # the publisher waits no more

    def _pool(self, task: Task) -> Pool:
        if isinstance(task, _VOTING):
            return self.voters
        return self.finishers if isinstance(task, (*_FINISHING, Undo)) else self.handlers

    def _waits_for_subscriber(self, task: Task) -> bool:
        """Without its subscriber the resources of a prepared unit are unknown: it would be taken for finished."""
        if isinstance(task, AskScope | ForgetMarker):
            return False
        event_type = self.members.unserved(task.tx, task.terms if isinstance(task, ApplyWhole) else None)
        if event_type:
            self._unserved[task.tx] = task
            _logger.error(
                "%s of type %r is unfinished and nobody here takes it up: subscribe before the site starts, as before",
                task.tx,
                event_type,
            )
        return bool(event_type)

    def _member(self, task: Task) -> Membership:
        if isinstance(task, AskScope):
            return self.members.invite(task.tx, task.terms)
        return self.members.of(task.tx, task.terms if isinstance(task, ApplyWhole) else None)

    @staticmethod
    def _at_once(task: Task, member: Membership) -> bool:
        if isinstance(task, AskScope):
            return not member.asks()
        return isinstance(task, (*_ON_RESOURCES, Undo)) and not member.resources

    # Deadlines

    def _set_deadline(self, seconds: float, running: _Running) -> None:
        self._deadlines[running.task.tx] = self.later(seconds, lambda: self._check(running))

    def _cancel_deadline(self, tx: TxId) -> None:
        cancel = self._deadlines.pop(tx, None)
        if cancel is not None:
            cancel()

    def _check(self, running: _Running) -> None:
        """Has it returned? Waiting for a thread does not count."""
        job, task = running.job, running.task
        waited = time.monotonic() - job.started if job.started is not None else 0.0
        if waited < running.seconds:
            self._set_deadline(running.seconds - waited, running)
        elif not running.attempt.give_up():
            self._set_deadline(running.seconds, running)
        elif self.handlers.give_up(job):
            self.late += 1
            running.member.lost = True
            self._abandon(running)
            if isinstance(task, ApplyWhole | Compensate):
                self.members.renew(task.tx)
            _logger.error("a handler of %s did not return within %s s and is given up", task.tx, running.seconds)
            self._finish(task, self._refusal(task, f"a handler did not return within {running.seconds} s"))

    def _hung(self, task: Task, pool: Pool) -> Input | Objection | None:
        return self._refusal(task, f"all {pool.threads} threads for handlers hang")

    @staticmethod
    def _abandon(running: _Running) -> None:
        for resource in running.member.resources:
            for tx in (running.task.tx, undo_of(running.task.tx)):
                try:
                    resource.abandon(tx)
                except Exception:  # in the turn: a resource that fails must not stop the site
                    _logger.exception("%s could not be taken away from a handler that is given up", tx)

    @staticmethod
    def _refusal(task: Task, reason: str) -> Input | Objection | None:
        match task:
            case RunHandler():
                return HandlerDone(task.tx, task.event.number, False, reason)
            case AskScope():
                return ScopeChosen(task.tx, Scope.NONE)
            case Compensate():
                return CompensationDone(task.tx, False, reason)
            case ApplyWhole():
                return WholeApplied(task.tx, False, reason)
            case Consent():
                return Objection(reason)
            case Tell():
                return task.result
            case _:
                return None

    # On a worker, or at once

    def _perform(self, task: Task, member: Membership, attempt: Attempt) -> Result:
        result = self._perform_one(task, member, attempt)
        prepares = isinstance(task, RunHandler) and task.prepares and member.quiet
        if not prepares or not isinstance(result, HandlerDone) or not result.ok or not attempt.prepare():
            return result
        prepared = self._perform_one(PrepareUnit(task.tx), member, attempt)
        return result if isinstance(prepared, Again) else prepared  # then it is asked for, and tried, by itself

    def _perform_one(self, task: Task, member: Membership, attempt: Attempt) -> Result:
        if self.probe is not None:
            self.probe("work", task)
        try:
            result = self._do(task, member, attempt)
        except ResourceError as exc:
            away = isinstance(task, Compensate) and isinstance(exc, ResourceUnavailable)
            result = Again(str(exc)) if away else self._failed(task, str(exc))  # away is not failing for good
        except BaseException as exc:  # whatever ends here must be told, or its transaction waits for it
            _logger.exception("%s of %s failed", type(task).__name__, task.tx)
            result = self._failed(task, f"{type(exc).__name__}: {exc}")
        if self.probe is not None:
            self.probe("worked", task)
        return result

    def _failed(self, task: Task, reason: str) -> Result:
        """What a handler does may be refused; what must be finished is tried again."""
        refusal = self._refusal(task, reason)
        return Again(reason) if refusal is None and not isinstance(task, Notify | Tell) else refusal

    def _do(self, task: Task, member: Membership, attempt: Attempt) -> Result:
        match task:
            case AskScope():
                return member.choose()
            case Notify():
                member.notify(task.event)
                return None
            case Consent():
                return self._consent(member)
            case Tell():
                member.ended(task.commit)
                return task.result
            case Undo():
                self._resource(task, member, attempt).roll_back(task.tx)
                return None
            case Lend():
                return None  # its publisher does it
            case _:
                return UnitWork(self._resource(task, member, attempt), member, member.unanswered).perform(task)

    @staticmethod
    def _consent(member: Membership) -> Objection | None:
        try:
            member.prepare()
        except (HandlerFailed, ResourceError) as exc:
            return Objection(str(exc))
        return None

    @staticmethod
    def _resource(task: Task, member: Membership, attempt: Attempt) -> Resource:
        resources = member.resources
        if resources:
            again = any(s.attempts > 1 for s in member.subscribers)
            return ResourceGroup(resources, again, attempt.check, member.taking_part, member.handed)
        return NoBranch.of(task)


@dataclass(frozen=True, slots=True)
class _Running:
    """A task on a handler's thread."""

    task: Task
    member: Membership
    attempt: Attempt
    job: Job
    seconds: float
