"""One site of the simulated world: the real roles, the real log over a disk that forgets, the real unit of work.

It performs effects as a runtime does. A crash takes everything but the disk and what the resource holds durably; a
pause only stops time for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from txlayer import messages as m
from txlayer.effects import (
    Answer,
    AskScope,
    BranchesFound,
    Broadcast,
    CancelTimer,
    Effect,
    ForgetSettlements,
    HandlerDone,
    Input,
    MarkersFound,
    Notify,
    Opened,
    PrepareUnit,
    PublishPlain,
    Received,
    Resolve,
    RoomChanged,
    RunHandler,
    Send,
    SetTimer,
    Settle,
    Surface,
    TimerFired,
    TimerKey,
)
from txlayer.errors import LogRolledBack, ResourceError
from txlayer.logs.memory import MemoryDisk
from txlayer.logs.record_log import Head, Identity, RecordLog, open_log
from txlayer.logs.register import Register
from txlayer.messages import Numbered, TxId
from txlayer.resources.memory import MemoryResource
from txlayer.resources.port import Resource
from txlayer.runtime.branches import NoBranch
from txlayer.runtime.settling import forget, leave_keys, settle
from txlayer.runtime.unit_work import WORK, HandlerFailed, Marked, UnitWork, Work
from txlayer.runtime.write_ahead import WriteAhead
from txlayer.simulation.clock import Clock
from txlayer.simulation.edges import Edges
from txlayer.simulation.history import History
from txlayer.tokens import Keyring
from txlayer.transactions.participant import Participant
from txlayer.transactions.seat import Bounds, Patience, Seat


class Surroundings(Protocol):
    """What a node needs from its world."""

    clock: Clock
    rng: Random
    register: Register
    edges: Edges
    history: History

    def send(self, source: str, target: str, message: m.AnyMessage) -> None: ...
    def broadcast(self, source: str, event_type: str, message: m.AnyMessage) -> None: ...
    def crash_point(self, site: str, point: str) -> None: ...
    def observe(self, source: str, message: m.AnyMessage) -> None: ...
    def note(self, site: str, text: str) -> None: ...
    def old_log_refused(self, site: str) -> None: ...


def _line(event: Numbered) -> str:
    """An event as the resource keeps it; without a seal its bytes may be anything."""
    return f"{event.number}:{event.publisher}:{event.item.payload.decode(errors='backslashreplace')}"


@dataclass(slots=True)
class SimulatedHandlers:
    """What the application of a node does: write down each event, or fail."""

    node: Node

    def handle(self, tx: TxId, event: Numbered, work: Any) -> None:
        edges, site = self.node.world.edges, self.node.name
        if edges.handler_fails(site, tx, event):
            raise HandlerFailed("drawn to fail")
        if not edges.handled(site, tx, event, _line(event)):
            work.put(f"{tx}/{event.number}", _line(event))

    def compensate(self, tx: TxId, event: Numbered, work: Any) -> None:
        if self.node.world.edges.compensation_fails(self.node.name, tx):
            raise HandlerFailed("drawn to fail")
        work.put(f"{tx}/{event.number}", _line(event))


class SimulatedResource(MemoryResource):
    """The memory resource, with prepares that fail when the world says so."""

    __slots__ = ("node",)
    node: Node

    def prepare(self, tx: TxId, of: int = 1) -> None:
        if self.node.world.edges.prepare_fails(self.node.name, tx):
            self.roll_back(tx)
            raise HandlerFailed("drawn to fail")
        super().prepare(tx, of)


@dataclass(slots=True, eq=False)
class Node:
    """A site that can crash."""

    name: str
    world: Surroundings
    patience: Patience
    bounds: Bounds
    identity: Identity
    finishers: tuple[str, ...] = ()
    disk: MemoryDisk = field(default_factory=MemoryDisk)
    backup: MemoryDisk | None = None
    remembered: Head | None = None
    resource: SimulatedResource = field(default_factory=SimulatedResource)
    up: bool = False
    paused_until: float = 0.0
    generation: int = 0
    last_life: int = 0
    log: RecordLog | None = None
    ahead: WriteAhead | None = None
    participant: Participant | None = None
    timers: dict[TimerKey, int] = field(default_factory=dict)
    timer_count: int = 0
    queues: dict[TxId, deque[Work]] = field(default_factory=dict)
    syncing: bool = False
    inbox: deque[Input] = field(default_factory=deque)
    stepping: bool = False
    room_low: bool = False

    def __post_init__(self) -> None:
        self.resource.node = self
        self.resource.on_commit = lambda tx, values: self.world.edges.committed(self.name, tx, values)

    # Life and death

    def start(self) -> None:
        """Open the log, read all of it, go on."""
        self.up = True
        self.generation += 1
        self.log = self._open_log()
        self.remembered = self.log.head()
        self.last_life = self.log.header.life
        keyring = Keyring(self.log.header.secret)
        seat = Seat(
            self.name, self.log.header.incarnation, self.log.header.life, keyring, self.patience, self.bounds,
            finishers=self.finishers,
        )  # fmt: skip
        leave_keys(self.world.register, seat)
        self.participant = Participant(seat)
        self.resource.open(self.name, self.log.header.incarnation)
        self.ahead = WriteAhead(self.log)
        records, self.log.records = self.log.records, {}
        self._perform_batches(self.participant.recover(records.values()))
        self._sync_soon()
        self.take(MarkersFound(Marked.of(self.resource, self.identity.incarnation).ours))
        under_this_log = [one.tx for one in self.resource.branches() if one.incarnation == self.resource.log]
        self.take(BranchesFound(tuple(under_this_log)))
        self.watch_room()

    def _open_log(self) -> RecordLog:
        """An operator may have put an old copy of the log in its place: it is refused, then the right one is found."""
        copy, self.backup = self.backup, None
        if copy is not None and self.remembered is not None:
            try:
                log = open_log(copy, self.name, self.identity, self.remembered)
            except LogRolledBack:
                self.world.old_log_refused(self.name)
            else:
                self.disk = copy
                return log
        return open_log(self.disk, self.name, self.identity, self.remembered)

    def crash(self, kept: int) -> None:
        """Lose everything volatile; of what was written and not synced the first `kept` batches survive."""
        self.up = False
        self.generation += 1
        self.disk.crash(kept)
        self.resource.crash()
        self.timers.clear()
        self.queues.clear()
        self.inbox.clear()
        self.syncing = self.stepping = self.room_low = False
        self.participant = self.ahead = self.log = None

    def life(self) -> int:
        """The count of starts, as the log has it."""
        return self.log.header.life if self.log is not None else 0

    # Events in

    def take(self, event: Input) -> None:
        """Something happened at this site."""
        if not self.up:
            return
        self.inbox.append(event)
        if self.stepping:
            return
        self.stepping = True
        generation = self.generation
        while self.up and self.generation == generation and self.inbox:
            self._step(self.inbox.popleft())
        if self.generation == generation:
            self.stepping = False

    def _step(self, event: Input) -> None:
        assert self.participant is not None
        generation = self.generation
        self._perform_batches(self.participant.step(event))
        if self.generation == generation:
            self._sync_soon()

    def _perform_batches(self, batches: list[tuple[Any, list[Effect]]]) -> None:
        generation = self.generation
        for role, effects in batches:
            if self.generation != generation or self.ahead is None:
                return
            self._perform(self.ahead.admit(role, effects))

    # The log

    def _sync_soon(self) -> None:
        if self.syncing or self.ahead is None or not self.ahead.dirty():
            return
        self.syncing = True
        before, during = self.world.edges.sync_time(self.name)
        self._later(before, lambda: self._write(during))

    def _write(self, during: float) -> None:
        self.world.crash_point(self.name, "before write")
        if not self.up or self.log is None:
            return
        self.log.write()
        self.world.crash_point(self.name, "after write")
        if self.up:
            self._later(during, self._sync)

    def _sync(self) -> None:
        if self.log is None or self.ahead is None:
            return
        self.log.sync()
        self.remembered = self.log.head()
        self.syncing = False
        self.world.crash_point(self.name, "after sync")
        if not self.up:
            return
        for effects in self.ahead.synced():
            self._perform(effects)
        if self.up:
            self._sync_soon()
            self.watch_room()

    def watch_room(self) -> None:
        """Tell the roles when the disk is almost full, and when it has room again."""
        low = self.disk.low()
        if self.up and low != self.room_low:
            self.room_low = low
            self.take(RoomChanged(low))

    # Effects out

    def _perform(self, effects: list[Effect]) -> None:
        generation = self.generation
        for effect in effects:
            if self.generation != generation:
                return
            self._perform_one(effect)

    def _perform_one(self, effect: Effect) -> None:
        world = self.world
        match effect:
            case Send():
                if effect.site == self.name:
                    world.observe(self.name, effect.message)
                    self.inbox.append(Received(effect.message))
                    if not self.stepping:
                        self._later(0.0, self._drain)
                else:
                    world.send(self.name, effect.site, effect.message)
                    world.crash_point(self.name, "after send")
            case Broadcast():
                world.broadcast(self.name, effect.type, effect.message)
                world.crash_point(self.name, "after send")
            case Answer():
                world.edges.relayed(self.name, effect)
                world.broadcast(self.name, effect.type, m.Relay(effect.tx, effect.frame))
            case SetTimer():
                self._set_timer(effect)
            case CancelTimer():
                self.timers.pop(effect.key, None)
            case AskScope():
                choice = world.edges.choose_scope(self.name, effect.tx, effect.terms)
                self._later(0.0005, lambda: self.take(choice))
            case Opened():
                world.edges.opened(self.name, effect)
            case Resolve():
                world.edges.resolved(self.name, effect)
            case Surface():
                world.edges.surfaced(self.name, effect)
            case Notify():
                world.edges.notified(self.name, effect)
            case PublishPlain():
                world.edges.published(self.name, effect)
            case Settle():
                self._later(0.0005, lambda: self._settle(effect))
            case ForgetSettlements():
                assert self.participant is not None
                forget(world.register, self.participant.seat, effect)
            case _ if isinstance(effect, WORK):
                self._queue(effect)
            case _:
                raise AssertionError(f"nobody performs {type(effect).__name__}")

    def _settle(self, effect: Settle) -> None:
        assert self.participant is not None
        self.world.crash_point(self.name, "before settling")
        if not self.up:
            return
        settled = settle(self.world.register, self.participant.seat, effect)
        self.world.crash_point(self.name, "after settling")
        self.take(settled)

    def _drain(self) -> None:
        if self.inbox and not self.stepping:
            self.take(self.inbox.popleft())

    def _set_timer(self, effect: SetTimer) -> None:
        self.timer_count += 1
        count = self.timers[effect.key] = self.timer_count
        self._later(effect.seconds, lambda: self._fire(effect.key, count))

    def _fire(self, key: TimerKey, count: int) -> None:
        if self.timers.get(key) == count:
            del self.timers[key]
            self.take(TimerFired(key))

    # Work, one after the other for each transaction

    def _queue(self, work: Work) -> None:
        queue = self.queues.setdefault(work.tx, deque())
        queue.append(work)
        if len(queue) == 1:
            self._later(self.world.edges.work_time(self.name, work), lambda: self._work(work))

    def _work(self, work: Work) -> None:
        try:
            result = UnitWork(self._resource_of(work), SimulatedHandlers(self)).perform(work)
        except ResourceError as exc:
            self.world.edges.broken(self.name, f"{type(work).__name__}: {exc}")
            return
        self.world.crash_point(self.name, "after work")
        if not self.up:
            return
        queue = self.queues[work.tx]
        queue.popleft()
        if isinstance(work, RunHandler) and work.prepares and self._prepares_along(result):
            queue.appendleft(PrepareUnit(work.tx))
            result = None
        if queue:
            following = queue[0]
            self._later(self.world.edges.work_time(self.name, following), lambda: self._work(following))
        else:
            del self.queues[work.tx]
        if result is not None:
            self.take(result)

    def _prepares_along(self, result: Input | None) -> bool:
        return isinstance(result, HandlerDone) and result.ok and self.world.edges.prepares_along()

    def _resource_of(self, work: Work) -> Resource:
        if (self.name, work.tx) not in self.world.history.handled:
            return self.resource
        return NoBranch.of(work)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        generation = self.generation

        def run() -> None:
            if self.generation != generation or not self.up:
                return
            if self.world.clock.now < self.paused_until:
                self.world.clock.after(self.paused_until - self.world.clock.now, run)
                return
            action()

        self.world.clock.after(seconds, run)
