"""The broker of the memory bus: routes, keeps sessions and latest values, and misbehaves on request.

Everything is in one process and under one lock. It can be stopped and started like a real one, and `faults` makes it
drop, duplicate, reorder and delay by a seed; `partition` holds back what one group of buses sends to another.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from txlayer.adapters.topics import matches

_LONGEST_OVERTAKEN = 1.0


@dataclass(frozen=True)
class Record:
    """An event as the broker keeps it."""

    topic: str
    payload: bytes
    key: bytes | None
    headers: dict[str, str]
    packed: bytes | None
    sender: str


Deliver = Callable[[int, Record], None]
"""Takes a token to acknowledge by, and the event."""


@dataclass(frozen=True)
class Faults:
    """How the broker misbehaves. `drop`, `duplicate` and `reorder` are probabilities per delivery.

    A reordered event is overtaken by the next one of the same session. `delay` seconds pass before each delivery.
    """

    seed: int = 0
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay: float = 0.0


@dataclass(frozen=True)
class Watcher:
    """Someone who follows the latest values below a prefix."""

    owner: str
    prefix: str
    tell: Callable[[str, bytes | None], None]


@dataclass
class Session:
    """What the broker knows of one subscription. `deliver` is None while its owner is away."""

    owner: str
    filters: set[str] = field(default_factory=set)
    deliver: Deliver | None = None
    epoch: int = 0
    unacknowledged: dict[int, Record] = field(default_factory=dict)

    def wants(self, topic: str) -> bool:
        return topic in self.filters or any(matches(pattern, topic) for pattern in self.filters)


class MemoryBroker:
    """One per name and process; `broker("name")` finds it."""

    def __init__(self, name: str, max_queued: int = 1_000_000) -> None:
        self.name = name
        self.running = True
        self._max_queued = max_queued
        self._lock = threading.RLock()
        self._sessions: dict[str, Session] = {}
        self._latest: dict[str, bytes] = {}
        self._watchers: dict[int, Watcher] = {}
        self._buses: dict[str, Callable[[], None]] = {}
        self._wills: dict[tuple[str, str], bytes] = {}
        self._ids = itertools.count(1)
        self._faults = Faults()
        self._random = random.Random(0)
        self._walls: list[tuple[frozenset[str], frozenset[str]]] = []
        self._held: deque[tuple[str, int, Record]] = deque()
        self._held_values: deque[tuple[int, str, bytes | None]] = deque()
        self._overtaken: dict[str, list[tuple[int, Record]]] = {}
        self._postman = _Postman()

    # -- what a test does to it ----------------------------------------------------------------------------------------

    def misbehave(self, faults: Faults) -> None:
        """From now on; `Faults()` heals."""
        with self._lock:
            self._faults = faults
            self._random = random.Random(faults.seed)
            for session in list(self._overtaken):
                self._catch_up(session)

    def partition(self, senders: Collection[str], receivers: Collection[str]) -> None:
        """Hold back what buses named in `senders` send to those in `receivers` (one way), until `heal`.

        Latest values and last wills too: the receivers hear no heartbeat of the senders.
        """
        with self._lock:
            self._walls.append((frozenset(senders), frozenset(receivers)))

    def heal(self) -> None:
        """End all partitions and deliver what they held back, in order."""
        with self._lock:
            self._walls.clear()
            held, self._held = self._held, deque()
            for session, token, record in held:
                self._hand_over(session, token, record)
            values, self._held_values = self._held_values, deque()
            for watch, key, value in values:
                if watch in self._watchers:
                    self._watchers[watch].tell(key, value)

    def stop(self) -> None:
        """As if killed: connections break, wills are not sent; sessions and latest values are kept as on a disk."""
        with self._lock:
            self.running = False
            for session in self._sessions.values():
                session.deliver = None
            self._watchers.clear()

    def start(self) -> None:
        with self._lock:
            self.running = True
            buses = list(self._buses.values())
        for reconnect in buses:
            reconnect()

    # -- what a bus does -----------------------------------------------------------------------------------------------

    def connect(self, bus: str, reconnect: Callable[[], None]) -> None:
        """`reconnect` is called when a stopped broker is there again."""
        with self._lock:
            self._buses[bus] = reconnect

    def disconnect(self, bus: str, *, crashed: bool = False) -> None:
        """The bus is gone; if it crashed, its wills are carried out."""
        with self._lock:
            self._buses.pop(bus, None)
            wills = {key: value for (owner, key), value in self._wills.items() if owner == bus}
            self._wills = {place: value for place, value in self._wills.items() if place[0] != bus}
            for session in self._sessions.values():
                if session.owner == bus:
                    session.deliver = None
            if crashed and self.running:
                for key, value in wills.items():
                    self.announce(key, value, bus)

    def set_will(self, bus: str, key: str, value: bytes | None) -> None:
        with self._lock:
            if value is None:
                self._wills.pop((bus, key), None)
            else:
                self._wills[bus, key] = value

    def publish(self, record: Record) -> bool:
        """Route to every session that wants it. False: the broker is down, or a session is full; nothing was taken."""
        with self._lock:
            wanting = [(name, session) for name, session in self._sessions.items() if session.wants(record.topic)]
            if not self.running or any(len(session.unacknowledged) >= self._max_queued for _, session in wanting):
                return False
            for name, session in wanting:
                if self._random.random() < self._faults.drop:
                    continue
                token = next(self._ids)
                session.unacknowledged[token] = record
                self._send(name, token, record)
                if self._random.random() < self._faults.duplicate:
                    self._send(name, token, record)
            return True

    def open_session(self, name: str, owner: str, filters: Collection[str], deliver: Deliver, epoch: int = 0) -> bool:
        """Attach to a session, new or known, and get what it still has.

        False while the broker is down, or a later holder of the name, with a higher `epoch`, is attached to it.
        """
        with self._lock:
            if not self.running:
                return False
            session = self._sessions.setdefault(name, Session(owner))
            if session.deliver is not None and session.epoch > epoch:
                return False
            session.owner, session.filters, session.deliver, session.epoch = owner, set(filters), deliver, epoch
            held = {token for holder, token, _ in self._held if holder == name}
            for token, record in list(session.unacknowledged.items()):
                if token not in held:
                    deliver(token, record)
            return True

    def set_filters(self, name: str, filters: Collection[str]) -> None:
        with self._lock:
            if name in self._sessions:
                self._sessions[name].filters = set(filters)

    def close_session(self, name: str, owner: str, deliver: Deliver | None, *, forget: bool) -> None:
        """Detach from a session, unless a later holder of its name, perhaps of the same bus, has attached meanwhile."""
        with self._lock:
            session = self._sessions.get(name)
            if session is None or session.owner != owner or session.deliver not in (None, deliver):
                return
            if forget:
                del self._sessions[name]
            else:
                session.deliver = None

    def acknowledge(self, name: str, tokens: Collection[int]) -> None:
        with self._lock:
            session = self._sessions.get(name)
            if session is not None and self.running:
                for token in tokens:
                    session.unacknowledged.pop(token, None)

    def announce(self, key: str, value: bytes | None, sender: str = "") -> bool:
        with self._lock:
            if not self.running:
                return False
            if value is None:
                self._latest.pop(key, None)
            else:
                self._latest[key] = value
            for watch, watcher in list(self._watchers.items()):
                if not below(key, watcher.prefix):
                    continue
                if self._walled(sender, watcher.owner):
                    self._held_values.append((watch, key, value))
                else:
                    watcher.tell(key, value)
            return True

    def watch(self, prefix: str, tell: Callable[[str, bytes | None], None], owner: str = "") -> int:
        """Calls `tell` for what is there, then for what comes. 0 while the broker is down."""
        with self._lock:
            if not self.running:
                return 0
            for key, value in list(self._latest.items()):
                if below(key, prefix):
                    tell(key, value)
            watch = next(self._ids)
            self._watchers[watch] = Watcher(owner, prefix, tell)
            return watch

    def unwatch(self, watch: int) -> None:
        with self._lock:
            self._watchers.pop(watch, None)

    # -- delivery ------------------------------------------------------------------------------------------------------

    def _send(self, name: str, token: int, record: Record) -> None:
        if self._walled(record.sender, self._sessions[name].owner):
            self._held.append((name, token, record))
        elif self._faults.reorder and self._random.random() < self._faults.reorder:
            self._overtaken.setdefault(name, []).append((token, record))
            self._postman.later(_LONGEST_OVERTAKEN, lambda: self._catch_up(name))
        else:
            self._carry(name, token, record)
            self._catch_up(name)

    def _walled(self, sender: str, receiver: str) -> bool:
        return any(sender in senders and receiver in receivers for senders, receivers in self._walls)

    def _catch_up(self, name: str) -> None:
        """Deliver what has been overtaken. The last event of all is overtaken by nobody: it only comes late."""
        with self._lock:
            for token, record in self._overtaken.pop(name, []):
                self._carry(name, token, record)

    def _carry(self, name: str, token: int, record: Record) -> None:
        if self._faults.delay:
            self._postman.later(self._faults.delay, lambda: self._hand_over(name, token, record))
        else:
            self._hand_over(name, token, record)

    def _hand_over(self, name: str, token: int, record: Record) -> None:
        with self._lock:
            session = self._sessions.get(name)
            if session is not None and session.deliver is not None and token in session.unacknowledged:
                session.deliver(token, record)


class _Postman:
    """Delivers what a fault delays."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._letters: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None

    def later(self, seconds: float, deliver: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._letters, (time.monotonic() + seconds, next(self._order), deliver))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="txlayer-memory-postman", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        """Ends when there is nothing left to deliver."""
        while True:
            with self._changed:
                if not self._letters:
                    self._thread = None
                    return
                wait = self._letters[0][0] - time.monotonic()
                if wait > 0:
                    self._changed.wait(wait)
                    continue
                _, _, deliver = heapq.heappop(self._letters)
            deliver()


def below(key: str, prefix: str) -> bool:
    """Whether a key is `prefix` itself or lies under it."""
    return key == prefix or key.startswith(prefix.rstrip("/") + "/")


_brokers: dict[str, MemoryBroker] = {}
_brokers_lock = threading.Lock()


def broker(name: str) -> MemoryBroker:
    """The broker of `memory://name`, made at its first use."""
    with _brokers_lock:
        return _brokers.setdefault(name, MemoryBroker(name))
