"""Sites in one process over a hub that loses nothing: real frames, seals, logs and group commit, no faults.

For measurements, and for long runs in which nothing may grow. Events are taken in rounds; after each round every log
that has something to write is synced once, and what it held back goes out.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from txlayer import messages as m
from txlayer.effects import (
    Answer,
    AskScope,
    Broadcast,
    CancelTimer,
    ConfirmCall,
    Effect,
    ForgetSettlements,
    Input,
    PresenceChanged,
    Received,
    Resolve,
    ScopeChosen,
    Send,
    SetTimer,
    Settle,
    TimerFired,
    TimerKey,
)
from txlayer.logs.port import Disk
from txlayer.logs.record_log import Identity, open_log
from txlayer.logs.register import MemoryRegister, Register
from txlayer.messages import Numbered, Outcome, Scope, TxId
from txlayer.resources.memory import MemoryResource
from txlayer.runtime.inbox import received
from txlayer.runtime.settling import forget, leave_keys, settle
from txlayer.runtime.unit_work import WORK, UnitWork
from txlayer.runtime.write_ahead import WriteAhead
from txlayer.security import Seal
from txlayer.tokens import Keyring
from txlayer.transactions.participant import Participant
from txlayer.transactions.scope import chain_for
from txlayer.transactions.seat import Bounds, Patience, Seat


class Ignore:
    """Handlers that write one value for each event."""

    def handle(self, tx: TxId, event: Numbered, work: Any) -> None:
        work.put("last", event.item.payload)

    def compensate(self, tx: TxId, event: Numbered, work: Any) -> None:
        work.put("last", event.item.payload)


@dataclass(slots=True, eq=False)
class DirectSite:
    """One site of a hub."""

    name: str
    hub: Hub
    disk: Disk
    seal: Seal
    choice: ScopeChosen
    bounds: Bounds
    finishers: tuple[str, ...] = ()
    timers: dict[TimerKey, int] = field(default_factory=dict)
    resource: MemoryResource = field(default_factory=MemoryResource)
    participant: Participant = field(init=False)
    ahead: WriteAhead = field(init=False)

    def __post_init__(self) -> None:
        log = open_log(self.disk, self.name, Identity(f"log-{self.name}", self.name.encode() * 8))
        seat = Seat(
            self.name, log.header.incarnation, log.header.life, Keyring(log.header.secret), Patience(), self.bounds,
            finishers=self.finishers,
        )  # fmt: skip
        leave_keys(self.hub.register, seat)
        self.participant = Participant(seat)
        self.ahead = WriteAhead(log)
        records, log.records = log.records, {}
        for role, effects in self.participant.recover(records.values()):
            for effect in self.ahead.admit(role, effects):
                self.perform(effect)

    def subscribes(self) -> bool:
        """Whether it wants to hear of transactions at all."""
        return self.choice.scope is not Scope.NONE or bool(self.choice.reads)

    def take(self, event: Input) -> None:
        """One step, and whatever of it need not wait."""
        self.hub.steps += 1
        for role, effects in self.participant.step(event):
            for effect in self.ahead.admit(role, effects):
                self.perform(effect)

    def sync(self) -> bool:
        """Make the log durable, let go of what waited; whether there was anything."""
        if not self.ahead.dirty():
            return False
        self.ahead.log.write()
        self.ahead.log.sync()
        for effects in self.ahead.synced():
            for effect in effects:
                self.perform(effect)
        return True

    def perform(self, effect: Effect) -> None:
        """Do it at once."""
        hub = self.hub
        match effect:
            case Send() if effect.site == self.name:
                hub.queue.append((self.name, Received(effect.message), b""))
            case Send():
                hub.send(effect.site, self.seal.close(effect.message))
            case Broadcast():
                hub.publish(self.seal.close(effect.message))
            case SetTimer():
                hub.cancel(self.timers.get(effect.key))
                self.timers[effect.key] = hub.plan(self, effect)
            case CancelTimer():
                hub.cancel(self.timers.pop(effect.key, None))
            case AskScope():
                hub.queue.append((self.name, replace(self.choice, tx=effect.tx), b""))
            case Resolve():
                hub.resolved(self, effect)
            case Answer():
                hub.publish(self.seal.close(m.Relay(effect.tx, effect.frame)))
            case Settle():
                hub.queue.append((self.name, settle(hub.register, self.participant.seat, effect), b""))
            case ForgetSettlements():
                forget(hub.register, self.participant.seat, effect)
            case _ if isinstance(effect, WORK):
                result = UnitWork(self.resource, hub.handlers).perform(effect)
                if result is not None:
                    hub.queue.append((self.name, result, b""))
            case _:
                pass


@dataclass(slots=True, eq=False)
class Hub:
    """All sites, one queue, a clock that moves only when told to."""

    sites: dict[str, DirectSite] = field(default_factory=dict)
    queue: deque[tuple[str, Input | None, bytes]] = field(default_factory=deque)
    planned: list[tuple[float, int]] = field(default_factory=list)
    timers: dict[int, tuple[str, TimerKey]] = field(default_factory=dict)
    handlers: Ignore = field(default_factory=Ignore)
    register: Register = field(default_factory=MemoryRegister)
    now: float = 0.0
    count: int = 0
    steps: int = 0
    syncs: int = 0
    on_outcome: Callable[[str, Outcome], None] | None = None

    def add(
        self, name: str, disk: Disk, seal: Seal, scope: Scope, finishers: tuple[str, ...] = (), **options: Any
    ) -> DirectSite:
        """A site that answers every census alike; with scope none it does not even subscribe."""
        kind = chain_for(scope, options.pop("durable", False))
        reads = (kind,) if kind is not None else ()
        choice = ScopeChosen(TxId("", "", 0, ""), Scope.NONE if reads else scope, reads=reads, **options)
        self.sites[name] = site = DirectSite(name, self, disk, seal, choice, Bounds(), finishers)
        for one in self.sites.values():
            for other in self.sites:
                types = ("orders",) if self.sites[other].subscribes() else ()
                one.take(_presence(self.sites[other], True, types))
        return site

    def kill(self, name: str) -> DirectSite:
        """A site is gone with all that it had not synced; the others notice."""
        site = self.sites.pop(name)
        for count in site.timers.values():
            self.cancel(count)
        site.ahead.log.close()
        for other in self.sites.values():
            other.take(_presence(site, False))
        return site

    def send(self, site: str, frame: bytes) -> None:
        """To one inbox."""
        self.queue.append((site, None, frame))

    def publish(self, frame: bytes) -> None:
        """To every subscriber."""
        for name, site in self.sites.items():
            if site.subscribes():
                self.queue.append((name, None, frame))

    def plan(self, site: DirectSite, effect: SetTimer) -> int:
        """Remember a timer."""
        self.count += 1
        heapq.heappush(self.planned, (self.now + effect.seconds, self.count))
        self.timers[self.count] = (site.name, effect.key)
        if len(self.planned) > 2 * len(self.timers) + 64:
            self.planned = [entry for entry in self.planned if entry[1] in self.timers]
            heapq.heapify(self.planned)
        return self.count

    def cancel(self, count: int | None) -> None:
        """Forget a timer."""
        if count is not None:
            self.timers.pop(count, None)

    def run(self) -> None:
        """Until nothing is left to do at this time."""
        while True:
            while self.queue or self.arrived():
                for _ in range(len(self.queue)):
                    name, event, frame = self.queue.popleft()
                    site = self.sites.get(name)
                    if site is None:
                        continue
                    taken = event if event is not None else received(site.seal, frame)
                    if taken is not None:
                        site.take(taken)
            if not sum(self._sync(site) for site in self.sites.values()):
                return

    def arrived(self) -> bool:
        """Whether something came in from outside; here nothing does."""
        return False

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        while self.planned and self.planned[0][0] <= self.now:
            name, key = self.timers.pop(heapq.heappop(self.planned)[1], ("", ("", "", "")))
            if name in self.sites:
                del self.sites[name].timers[key]
                self.sites[name].take(TimerFired(key))
                self.run()

    def resolved(self, site: DirectSite, effect: Resolve) -> None:
        """A caller hears and confirms at once."""
        if not effect.outcome.final:
            return
        if self.on_outcome is not None:
            self.on_outcome(effect.call, effect.outcome)
        self.queue.append((site.name, ConfirmCall(effect.call), b""))

    def _sync(self, site: DirectSite) -> bool:
        wrote = site.sync()
        self.syncs += wrote
        return wrote


def _presence(site: DirectSite, alive: bool, types: tuple[str, ...] = ()) -> PresenceChanged:
    seat = site.participant.seat
    return PresenceChanged(seat.site, seat.life, alive, types, seat.incarnation)
