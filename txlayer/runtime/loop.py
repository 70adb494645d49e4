"""The loop of a site: turn by turn it steps the roles and performs what they ask for.

Everything that happens comes through one queue: deliveries of the bus, calls of the application, finished work,
presence. A turn takes all that waits, steps the roles, writes what they appended with one sync, lets go of what waited
for it, and only then acknowledges the deliveries. So the appends of all that arrived during one sync share the next,
and an idle site waits for nothing but the disk.

There is one turn at a time. The thread that brings something takes it: one that has received, one that has done some
work. To wake another one would take as long as the turn. The loop's own thread takes the turn for timers and for the
application's threads, whose calls end at their deadlines and which a signal may interrupt.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from math import inf
from queue import Empty, SimpleQueue
from typing import Any

from txlayer import messages as m
from txlayer.codec import frames_of
from txlayer.delivery import Delivery
from txlayer.effects import (
    Answer,
    AskScope,
    AwaitLog,
    BranchesFound,
    Broadcast,
    CancelTimer,
    Effect,
    FinishUnit,
    ForgetMarker,
    ForgetSettlements,
    Input,
    MarkersFound,
    Notify,
    NotSent,
    Opened,
    PublishPlain,
    Received,
    Resolve,
    Role,
    RoomChanged,
    Send,
    SetTimer,
    Settle,
    Surface,
    TimerFired,
    TimerKey,
)
from txlayer.errors import DecodeError, NameTaken, TxLayerError
from txlayer.logs.record_log import RecordLog
from txlayer.messages import TxId
from txlayer.records import Heuristic
from txlayer.runtime.calls import Calls
from txlayer.runtime.inbox import received
from txlayer.runtime.settling import Registrar
from txlayer.runtime.timers import Timers
from txlayer.runtime.unit_work import WORK
from txlayer.runtime.wires import TooLarge, Wires
from txlayer.runtime.workshop import TaskDone, Workshop
from txlayer.runtime.write_ahead import WriteAhead
from txlayer.security import Seal
from txlayer.transactions.participant import Participant

_logger = logging.getLogger(__name__)
_MOST_AT_ONCE = 512
_MOST_TURNS = 4
"""That a thread takes in a row before it goes back to its own work."""
_SOON_SECONDS = 0.03
_FORGET_SECONDS = 0.25
_LOOK_SECONDS = 0.1
_REST: TimerKey = ("rest", 0, "")

Probe = Callable[[str, object], None]
"""Hears of every step on its way, for tests that end the process exactly there and for tracing; on whatever thread.

`("step", event)` before a role takes an event; `("perform", effect)` and `("performed", effect)` around each effect;
`("write", log)`, `("written", log)` and `("synced", log)` around the log; `("work", task)` and `("worked", task)`
around work of members.
"""


class Loop:
    """The runtime of one site."""

    def __init__(
        self, wires: Wires, seal: Seal, log: RecordLog, participant: Participant, calls: Calls, probe: Probe | None
    ) -> None:
        self.wires = wires
        self.calls = calls
        self.participant = participant
        self.log = log
        self.workshop: Workshop
        self.registrar: Registrar | None = None
        self.on_surface: Callable[[Surface], None] = lambda _: None
        self.on_said: Callable[[Send | Broadcast], None] = lambda _: None
        self.on_operate: Callable[[m.Operate], None] = lambda _: None
        self.on_stopped: Callable[[Exception], None] = lambda _: None
        self.refused = 0
        """Frames that were no message, or whose seal was broken."""
        self.error: Exception | None = None
        self._seal = seal
        self._ahead = WriteAhead(log, patient=self._patient)
        self._probe = probe
        self._inbox: deque[Any] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        """What the loop's own thread sleeps on."""
        self._rung = False
        self._wakes_at = 0.0
        """When a timer is due, as of the last turn."""
        self._turning = threading.Lock()
        """Held by whoever has the turn; everything below happens with it."""
        self._running = False
        self._local: deque[Input] = deque()
        self._unacknowledged: list[Delivery] = []
        self._timers = Timers()
        self._acts: dict[TimerKey, Callable[[], None]] = {}
        self._counter = count()
        self._sync_by = self._flush_by = inf
        """When what waits for company is written, and sent, all the same."""
        self._rest_at = inf
        self._markers: tuple[TxId, ...] = ()
        self._branches: tuple[TxId, ...] = ()
        self._next_look = 0.0
        self._perform_by = self._performers()
        self._thread = threading.Thread(target=self._run, name=f"txlayer-site-{wires.site}", daemon=True)

    # From any thread

    def start(self, markers: tuple[TxId, ...], branches: tuple[TxId, ...] = ()) -> None:
        """Take up what the log and the resources hold; only then anything that has arrived meanwhile."""
        self._markers, self._branches = markers, branches
        self._thread.start()

    def post(self, item: object) -> None:
        """Something happened: an event for the roles, a delivery, finished work, or a function to call."""
        self._inbox.append(item)
        self._ring()

    def leave(self, item: object) -> None:
        """The same, of something that can wait for the next turn: there is one every second, whatever happens."""
        self._inbox.append(item)

    def bring(self, *items: object) -> None:
        """The same, by a thread of ours that holds nothing and may be kept: it takes the turn if nobody has it."""
        self._inbox.extend(items)
        for _ in range(_MOST_TURNS):
            if not self._inbox or not self._turning.acquire(blocking=False):
                return  # whoever has the turn looks again
            try:
                self._take_turn()
            finally:
                self._turning.release()
        if self._inbox:
            self._ring()

    def waiting(self) -> int:
        """How much has been posted and not been taken."""
        return len(self._inbox)

    def stop(self, timeout: float) -> None:
        """End the loop after what is queued."""
        self.post(self._stop)
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            self._thread.join(timeout)

    def _ring(self) -> None:
        if not self._rung:
            self._rung = True
            self._bell.put(None)

    # In the turn

    def later(self, seconds: float, act: Callable[[], None]) -> Callable[[], None]:
        """Call `act` after so many seconds; the result cancels that."""
        key: TimerKey = ("later", next(self._counter), "")
        self._acts[key] = act
        self._timers.set(key, seconds)

        def cancel() -> None:
            self._acts.pop(key, None)
            self._timers.cancel(key)

        return cancel

    def _stop(self) -> None:
        if self._ahead.dirty():
            self._sync()
        self._flush_all()
        self._end()

    def _end(self) -> None:
        self._running = False
        self._ring()

    def _recover(self) -> None:
        records, self.log.records = self.log.records, {}
        self._admit(self.participant.recover(one for one in records.values() if not isinstance(one, Heuristic)))
        self._step(MarkersFound(self._markers))
        self._step(BranchesFound(self._branches))
        self._watch_room()

    def _run(self) -> None:
        with self._turning:
            self._guard(self._recover)
            self._running = self.error is None
        while self._running:
            if self._inbox or time.monotonic() >= self._wakes_at:  # or somebody has only told us of an earlier timer
                with self._turning:
                    self._take_turn()
            if not self._inbox:  # what was brought meanwhile was left to us
                self._sleep()
        with self._turning:
            return  # another thread may still be in the last turn

    def _sleep(self) -> None:
        """Until somebody rings, or the next timer is due."""
        wakes_at = self._wakes_at
        try:
            self._bell.get(timeout=None if wakes_at == inf else max(0.0, wakes_at - time.monotonic()))
        except Empty:
            return
        finally:
            self._rung = False

    def _take_turn(self) -> None:
        """On whatever thread; whoever leaves the loop's own asleep has seen to it that it wakes up in time."""
        if not self._running:
            return
        self._guard(self._turn)
        due, before = self._timers.next_due(), self._wakes_at
        self._wakes_at = due  # before it is rung: the other reads it without asking for the turn
        if due < before and threading.current_thread() is not self._thread:
            self._ring()

    def _guard(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as exc:  # also SystemExit of a predicate: on whatever thread, no site stops silently
            error = exc if isinstance(exc, Exception) else TxLayerError(f"a turn was ended by {exc!r}")
            self.error = error
            self._end()
            self.calls.fail(error)
            self.on_stopped(error)
            _logger.critical("site %s stops: %s", self.wires.site, error, exc_info=not isinstance(exc, TxLayerError))

    def _turn(self) -> None:
        if self.participant.coordinator.room_low:  # nothing new begins, so no sync may come that would notice
            self._watch_room()
        self._take_all()
        for key in self._timers.due():
            act = self._acts.pop(key, None)
            if act is not None:
                act()
            else:
                self._step(TimerFired(key))
        if self.wires.presence is not None and self.wires.presence.lost:
            raise NameTaken(f"a later life of {self.wires.site!r} has taken the name over; this one stops")
        self._settle()
        self._flush()
        while self._ahead.urgent:
            self._sync()
        self._mind_rest()
        if not self._ahead.soon:
            for delivery in self._unacknowledged:
                delivery.ack()
            self._unacknowledged.clear()

    def _mind_rest(self) -> None:
        """What nobody waits for is written and sent with what comes next, or when its time has come."""
        now = time.monotonic()
        within = _SOON_SECONDS if self._ahead.soon else _FORGET_SECONDS
        self._sync_by = min(self._sync_by, now + within) if self._ahead.dirty() else inf
        said = self.wires.said or self.workshop.finishing
        self._flush_by = min(self._flush_by, now + _SOON_SECONDS) if said else inf
        first = min(self._sync_by, self._flush_by)
        if first < self._rest_at:
            self._rest_at = first
            self._acts[_REST] = self._on_rest
            self._timers.set(_REST, first - now)

    def _on_rest(self) -> None:
        self._rest_at = inf
        now = time.monotonic()
        if self._sync_by <= now:
            self._sync()
        if self._flush_by <= now:
            self._flush_by = inf
            self._flush_all()

    def _patient(self, effect: Effect) -> bool:
        """Nobody waits for these: the coordinator's forgetting, and finishing that holds no lock and calls nobody."""
        if isinstance(effect, Send):
            return isinstance(effect.message, m.Ack)
        return isinstance(effect, ForgetMarker) or (isinstance(effect, FinishUnit) and self.workshop.empty(effect))

    def _take_all(self) -> None:
        inbox = self._inbox
        for _ in range(_MOST_AT_ONCE):
            if not inbox:
                return
            self._take(inbox.popleft())

    def _take(self, item: Any) -> None:
        if type(item) is Delivery:
            self._unacknowledged.append(item)
            self._receive(item)
        elif type(item) is TaskDone:
            self.workshop.on_done(item)
        elif callable(item):
            item()
        else:
            self._step(item)
        self._settle()

    def _receive(self, delivery: Delivery) -> None:
        try:
            frames = frames_of(delivery.payload)
        except DecodeError as exc:
            self._refuse(delivery.topic, exc)
            return
        for frame in frames:
            self._open(delivery.topic, frame)

    def _open(self, topic: str, frame: bytes) -> None:
        try:
            event = received(self._seal, frame)
        except DecodeError as exc:
            self._refuse(topic, exc)
            return
        if event is None:
            return
        if type(event.message) is m.Operate:
            self.on_operate(event.message)
        elif type(event.message) is not m.Operated:
            self._step(event)

    def _refuse(self, topic: str, error: DecodeError) -> None:
        self.refused += 1
        _logger.warning("%s: a frame was refused: %s", topic, error)

    def operate(self, role: Role, effects: list[Effect]) -> None:
        """Take what a role asks for at an operator's word."""
        self._admit([(role, effects)])
        self._settle()

    def answer(self, operated: m.Operated, to: str) -> None:
        """Say it once what was done is durable."""
        self._admit([(("operator", to), [AwaitLog(), Send(to, operated)])])

    def _settle(self) -> None:
        """Step what sites say to themselves and what was done at once, until there is nothing of it."""
        local, results = self._local, self.workshop.results
        while local or results:
            self._step(results.popleft() if results else local.popleft())

    def _step(self, event: Input) -> None:
        if self._probe is not None:
            self._probe("step", event)
        self._admit(self.participant.step(event))

    def _admit(self, batches: Iterable[tuple[Role, list[Effect]]]) -> None:
        for role, effects in batches:
            self._perform(self._ahead.admit(role, effects))

    def _sync(self) -> None:
        probe = self._probe
        if probe is not None:
            probe("write", self.log)
        self.log.write()
        if probe is not None:
            probe("written", self.log)
        self.log.sync()
        if probe is not None:
            probe("synced", self.log)
        for effects in self._ahead.synced():
            self._perform(effects)
            self._settle()
        self._flush()
        self._watch_room()

    def _watch_room(self) -> None:
        """Not after every sync: to ask the system takes as long as a step or two."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_SECONDS
        low = self.log.low()
        if low != self.participant.coordinator.room_low:
            _logger.warning("the disk of the log is almost full" if low else "the disk of the log has room again")
            self._step(RoomChanged(low))

    def _perform(self, effects: list[Effect]) -> None:
        perform, probe = self._perform_by, self._probe
        for effect in effects:
            if probe is not None:
                probe("perform", effect)
            perform[type(effect)](effect)
            if probe is not None:
                self._flush()
                probe("performed", effect)

    def _performers(self) -> dict[type[Effect], Callable[[Any], None]]:
        """Who performs which effect; looked up by type, since a transaction has some fifteen of them at each site."""
        return {
            SetTimer: lambda effect: self._timers.set(effect.key, effect.seconds),
            CancelTimer: lambda effect: self._timers.cancel(effect.key),
            Send: self._send,
            Broadcast: self._broadcast,
            **dict.fromkeys((AskScope, Notify, *WORK), lambda effect: self.workshop.take(effect)),
            Answer: lambda effect: self._publish(self.wires.control(effect.type), m.Relay(effect.tx, effect.frame)),
            PublishPlain: lambda effect: self.wires.publish_plain(effect.tx, effect.event),
            Opened: self.calls.on_opened,
            Resolve: self.calls.on_resolve,
            Surface: lambda effect: self.on_surface(effect),
            Settle: self._ask_register,
            ForgetSettlements: self._ask_register,
        }

    def _ask_register(self, effect: Settle | ForgetSettlements) -> None:
        if self.registrar is not None:
            self.registrar.take(effect)
        else:  # another site named this one as its finisher, which it is not
            _logger.warning("site %s has no register of decisions: Site(register=...)", self.wires.site)

    def _broadcast(self, effect: Broadcast) -> None:
        self._publish(self.wires.control(effect.type), effect.message, effect.patient)
        self.on_said(effect)

    def _send(self, effect: Send) -> None:
        self.on_said(effect)
        if effect.site == self.wires.site:
            self._local.append(Received(effect.message))
        else:
            self._publish(self.wires.inbox(effect.site), effect.message, patient=type(effect.message) is m.Ack)

    def _publish(self, topic: str, message: m.AnyMessage, patient: bool = False) -> None:
        self._take_back(self.wires.say(topic, message, self._seal.close(message), patient))

    def _flush(self) -> None:
        """Let go of what was said, once somebody waits for some of it."""
        if self.wires.hurry or self._probe is not None:
            self._flush_all()

    def _flush_all(self) -> None:
        self._take_back(self.wires.flush())
        if self._local:
            self._settle()
            self._flush()

    def _take_back(self, refused: list[TooLarge]) -> None:
        """Said again a message would be as large: its role hears of it."""
        for message, reason in refused:
            _logger.error("%s: %s is not sent: %s", self.wires.site, type(message).__name__, reason)
            self._local.append(NotSent(message, reason))
