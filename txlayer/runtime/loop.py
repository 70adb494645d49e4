"""The loop of a site: one thread steps the roles and performs what they ask for.

Everything that happens comes through one queue: deliveries of the bus, calls of the application, finished work,
presence. A turn takes all that waits, steps the roles, writes what they appended with one sync, lets go of what waited
for it, and only then acknowledges the deliveries. So the appends of all that arrived during one sync share the next,
and an idle site waits for nothing but the disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any

from txlayer import messages as m
from txlayer.codec import frames_of
from txlayer.delivery import Delivery
from txlayer.effects import (
    Answer,
    AskScope,
    AwaitLog,
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
_SOON_SECONDS = 0.005
_FORGET_SECONDS = 0.25
_LOOK_SECONDS = 0.1

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
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._local: deque[Input] = deque()
        self._unacknowledged: list[Delivery] = []
        self._timers = Timers()
        self._acts: dict[TimerKey, Callable[[], None]] = {}
        self._counter = count()
        self._stopping = False
        self._sync_later: tuple[float, Callable[[], None]] | None = None
        self._markers: tuple[TxId, ...] = ()
        self._next_look = 0.0
        self._perform_by = self._performers()
        self._thread = threading.Thread(target=self._run, name=f"txlayer-site-{wires.site}", daemon=True)

    # From any thread

    def start(self, markers: tuple[TxId, ...]) -> None:
        """Take up what the log holds; only then anything that has arrived meanwhile."""
        self._markers = markers
        self._thread.start()

    def post(self, item: object) -> None:
        """Something happened: an event for the roles, a delivery, finished work, or a function to call."""
        self._inbox.put(item)

    def waiting(self) -> int:
        """How much has been posted and not been taken."""
        return self._inbox.qsize()

    def stop(self, timeout: float) -> None:
        """End the loop after what is queued."""
        self._inbox.put(self._stop)
        if threading.current_thread() is not self._thread and self._thread.ident is not None:
            self._thread.join(timeout)

    # On the runtime thread

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
        self._sync_rest()
        self._stopping = True

    def _recover(self) -> None:
        records, self.log.records = self.log.records, {}
        self._admit(self.participant.recover(one for one in records.values() if not isinstance(one, Heuristic)))
        self._step(MarkersFound(self._markers))
        self._watch_room()

    def _run(self) -> None:
        try:
            self._recover()
            while not self._stopping:
                self._turn()
        except Exception as exc:
            _logger.critical("site %s stops: %s", self.wires.site, exc, exc_info=not isinstance(exc, TxLayerError))
            self.error = exc
            self.calls.fail(exc)
            self.on_stopped(exc)

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
        if self._ahead.dirty():
            self._sync_within(_SOON_SECONDS if self._ahead.soon else _FORGET_SECONDS)
        if not self._ahead.soon:
            for delivery in self._unacknowledged:
                delivery.ack()
            self._unacknowledged.clear()

    def _sync_within(self, seconds: float) -> None:
        """At the latest then, if no other sync has taken it along."""
        if self._sync_later is not None and self._sync_later[0] <= seconds:
            return
        if self._sync_later is not None:
            self._sync_later[1]()
        self._sync_later = (seconds, self.later(seconds, self._sync_rest))

    def _sync_rest(self) -> None:
        self._sync_later = None
        if self._ahead.dirty():
            self._sync()

    def _patient(self, effect: Effect) -> bool:
        """Nobody waits for these: the coordinator's forgetting, and finishing that holds no lock and calls nobody."""
        if isinstance(effect, Send):
            return isinstance(effect.message, m.Ack)
        return isinstance(effect, ForgetMarker) or (isinstance(effect, FinishUnit) and self.workshop.empty(effect))

    def _take_all(self) -> None:
        try:
            self._take(self._inbox.get(timeout=self._timers.wait()))
            for _ in range(_MOST_AT_ONCE):
                self._take(self._inbox.get_nowait())
        except Empty:
            return

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
        self._publish(self.wires.control(effect.type), effect.message)
        self.on_said(effect)

    def _send(self, effect: Send) -> None:
        self.on_said(effect)
        if effect.site == self.wires.site:
            self._local.append(Received(effect.message))
        else:
            self._publish(self.wires.inbox(effect.site), effect.message)

    def _publish(self, topic: str, message: m.AnyMessage) -> None:
        self._take_back(self.wires.say(topic, message, self._seal.close(message)))

    def _flush(self) -> None:
        """Let go of what was said."""
        self._take_back(self.wires.flush())
        if self._local:
            self._settle()
            self._flush()

    def _take_back(self, refused: list[TooLarge]) -> None:
        """Said again a message would be as large: its role hears of it."""
        for message, reason in refused:
            _logger.error("%s: %s is not sent: %s", self.wires.site, type(message).__name__, reason)
            self._local.append(NotSent(message, reason))
