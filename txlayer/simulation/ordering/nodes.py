"""Processes of an ordering world: each drives one role, performs its effects and loses what a crash loses."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from txlayer.ordering.effects import Claimed, Effect, Erase, Persist, Tick
from txlayer.ordering.host import Host
from txlayer.ordering.records import AnyRecord, decode_record, encode_record
from txlayer.simulation.clock import Clock


class Role(Protocol):
    """What the world needs from a role."""

    def step(self, event: Any, now: float, /) -> list[Effect]: ...

    def next_deadline(self) -> float | None: ...


@dataclass(slots=True)
class Node:
    """One life of one process."""

    name: str
    role: Role
    clock: Clock
    perform: Callable[[Node, Effect], None]
    trace: Callable[[str, object], None]
    alive: bool = True
    planned: float | None = None
    frozen: bool = False
    backlog: list[object] = field(default_factory=list)

    def step(self, event: object) -> None:
        """Let the role take an event, and do what it asks for."""
        if not self.alive:
            return
        if self.frozen:
            self.backlog.append(event)
            return
        self.trace(self.name, event)
        self.take(self.role.step(event, self.clock.now))
        self.plan()

    def thaw(self) -> None:
        """The process goes on; what came meanwhile comes now."""
        self.frozen = False
        backlog, self.backlog = self.backlog, []
        for event in backlog:
            self.step(event)

    def take(self, effects: list[Effect]) -> None:
        """Perform effects."""
        for effect in effects:
            self.perform(self, effect)

    def plan(self) -> None:
        """Wake up when the role wants to."""
        due = self.role.next_deadline()
        if due is None or (self.planned is not None and self.planned <= due):
            return
        self.planned = due
        self.clock.after(max(0.0, due - self.clock.now), lambda: self._wake(due))

    def _wake(self, due: float) -> None:
        if self.planned == due:
            self.planned = None
            self.step(Tick())
            if self.alive and not self.frozen:
                self.plan()


@dataclass(slots=True)
class Disk:
    """What survives a crash."""

    log: int = 0
    rows: dict[str, bytes] = field(default_factory=dict)
    holder: HostNode | None = None

    def records(self) -> list[AnyRecord]:
        """As they are read at a start."""
        return [decode_record(body) for body in self.rows.values()]


@dataclass(slots=True)
class HostNode(Node):
    """A host with its disk: what follows a write waits until it is synced."""

    disk: Disk = field(default_factory=Disk)
    sync_time: Callable[[], float] = lambda: 0.001
    queue: deque[Effect] = field(default_factory=deque)
    syncing: bool = False

    def step(self, event: object) -> None:
        """A new claim may change the neighbours."""
        if not isinstance(event, Claimed):
            Node.step(self, event)
            return
        before = self.host.directory.neighbours(self.host.state.rank)
        Node.step(self, event)
        after = self.host.directory.neighbours(self.host.state.rank)
        if after != before and self.alive and not self.frozen:
            Node.step(self, after)

    @property
    def host(self) -> Host:
        """The role."""
        assert isinstance(self.role, Host)
        return self.role

    def take(self, effects: list[Effect]) -> None:
        """The write-ahead rule."""
        self.queue.extend(effects)
        self._pump()

    def _pump(self) -> None:
        while self.queue and not self.syncing and self.alive:
            if not isinstance(self.queue[0], Persist | Erase):
                self.perform(self, self.queue.popleft())
                continue
            batch: list[Persist | Erase] = []
            while self.queue and isinstance(self.queue[0], Persist | Erase):
                effect = self.queue.popleft()
                assert isinstance(effect, Persist | Erase)
                batch.append(effect)
            self.syncing = True
            self.clock.after(self.sync_time(), lambda batch=batch: self._synced(batch))  # type: ignore[misc]

    def _synced(self, batch: list[Persist | Erase]) -> None:
        if not self.alive or self.disk.holder is not self:
            return  # another process holds the log: nothing more leaves here
        for effect in batch:
            if isinstance(effect, Persist):
                self.disk.rows[effect.key] = encode_record(effect.record)
            else:
                self.disk.rows.pop(effect.key, None)
        self.syncing = False
        self._pump()
