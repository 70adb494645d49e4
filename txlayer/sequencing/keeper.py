"""What a durable subscription keeps: its cursor, as a latest value of the bus, and what the broker may forget.

The order of things: the application acknowledges events, the cursor moves over them, the cursor is durable, the broker
hears that they are consumed. After a crash the broker gives again what it has not heard of, and the cursor tells which
of it was consumed. Acknowledged is a prefix of what was handed to the application.

A broker with a small window of unacknowledged events would stop while the event that the others wait for is behind the
window. So what waits for too long is kept beside the cursor and acknowledged.

No save looks at everything that waits, and a cursor that the bus finds too large is cut: first what is kept beside it
and what was seen of publishers that have been silent for long.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from txlayer.delivery import Delivery
from txlayer.errors import PayloadTooLarge, TxLayerError
from txlayer.ordering import effects as fx
from txlayer.ordering.admission import is_former
from txlayer.ordering.messages import Beside, Event
from txlayer.ordering.subscriber import Subscriber
from txlayer.ordering.subscriber_config import Cursor
from txlayer.ordering.timestamp import host_of
from txlayer.receipt import Receipt
from txlayer.sequencing.arrivals import Arrived
from txlayer.sequencing.cursor_values import CursorValues
from txlayer.sequencing.handed_out import HandedOut
from txlayer.sequencing.loop import Loop

_logger = logging.getLogger(__name__)
_STALLED = 0.25
_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_SHARE = 20
"""Of the time at most one part in so many goes into saving."""
_MOST_SPOOLED = 500
_SPOOL_BYTES = 256 * 1024
_TRACKS = 1024

_Key = tuple[int, int]
"""Rank and number."""


class _Kept(Struct, frozen=True, array_like=True):
    cursor: Cursor
    spooled: tuple[Event, ...] = ()


class Keeper:
    """Of one durable name. `lock` is its subscription's too; `wanted` tells whether a topic is still subscribed."""

    def __init__(self, values: CursorValues, loop: Loop) -> None:
        self.lock = threading.RLock()
        self.wanted: Callable[[str], bool] = lambda topic: True
        self.trouble: str | None = None
        """Why the cursor is not durable."""
        self._values = values
        self._loop = loop
        self._role: Subscriber | None = None
        self._found: _Kept | None = None
        self._logs: dict[int, str] = {}
        self._out = HandedOut()
        self._unacknowledged: dict[_Key, list[Delivery]] = {}
        self._numbers: dict[int, list[int]] = {}
        self._waiting: dict[_Key, Event] = {}
        self._spooled: dict[_Key, Event] = {}
        self._spool_bytes, self._tracks = _SPOOL_BYTES, _TRACKS
        self._dirty = self._saving = False
        self._then: list[Callable[[], None]] = []
        self._moved = self._saved_at = 0.0
        self._pause = _PAUSE

    def read(self) -> frozenset[str]:
        """Get the cursor of the last holder, who may move it until the name is ours; the topics that it has."""
        self._found = None
        value = self._values.read()
        if value is None:
            return frozenset()
        try:
            self._found = msgspec.msgpack.decode(value, type=_Kept)
        except msgspec.MsgspecError as exc:
            _logger.warning("%s: not a cursor, the subscription begins anew: %s", self._values.key, exc)
            return frozenset()
        return frozenset(topic for topic, _, _ in self._found.cursor.topics)

    def take_over(self, lost: Callable[[], bool], patience: float) -> frozenset[str]:
        """The name is ours, unless it is `lost` meanwhile: read where the last holder has left it in the end."""
        self._values.take_over(lost, patience)
        return self.read()

    def resume(self, role: Subscriber) -> list[fx.Effect]:
        """Go on where the last holder of the name stopped, as it was read."""
        self._role, kept = role, self._found
        if kept is None:
            return []
        now = time.monotonic()
        self._logs = dict(kept.cursor.logs)
        effects = role.resume(kept.cursor, now)
        for event in kept.spooled:
            if not is_former(event, role.directory):
                self._spooled[event.stamp.rank, event.stamp.number] = event
                effects.extend(role.step(event, now))
        return effects

    def follow(self, claim: fx.Claimed) -> None:
        """A claim was taken in. If the host has another log, nothing that is here of its topics is of use any more."""
        role, host = self._role, claim.host
        shown = role.directory.claims.get(host) if role is not None else None
        if shown is None:
            return
        with self.lock:
            before, self._logs[host] = self._logs.get(host, shown.incarnation), shown.incarnation
            if before != shown.incarnation:
                self._forget_host(host)

    def _forget_host(self, host: int) -> None:
        for key in [key for key in self._unacknowledged if host_of(key[0]) == host]:
            self._acknowledge(key)
        self._numbers = {rank: numbers for rank, numbers in self._numbers.items() if host_of(rank) != host}
        self._out.forget(lambda rank: host_of(rank) == host)
        self._spooled = {key: event for key, event in self._spooled.items() if host_of(key[0]) != host}
        self._dirty = True

    # Events

    def arrived(self, event: Event, delivery: Delivery) -> None:
        """The broker has given it; it hears of it when the cursor has passed."""
        key = (event.stamp.rank, event.stamp.number)
        with self.lock:
            if key not in self._unacknowledged:
                self._unacknowledged[key] = []
                heapq.heappush(self._numbers.setdefault(key[0], []), key[1])
            self._unacknowledged[key].append(delivery)
            self._waiting[key] = event
            self._dirty = True

    def handed(self, effect: fx.Deliver, delivery: Delivery) -> Delivery:
        """A delivery for the application, which acknowledges it here."""
        copy = Delivery(
            delivery.topic, delivery.payload, delivery.key, delivery.headers, delivery.packed, native=delivery.native
        )
        copy.redelivered = delivery.redelivered
        with self.lock:
            copy.held_by(self, self._out.add(effect.event))
            self._waiting.pop((effect.event.stamp.rank, effect.event.stamp.number), None)
        return copy

    def settle(self, delivery: Delivery) -> None:
        """The application has acknowledged an event."""
        with self.lock:
            delivery.settled = True
            if self._out.settle(delivery.token):
                self._dirty = True

    # The cursor

    def save_now(self, then: Callable[[], None]) -> None:
        """Make the cursor durable and go on with `then`, on the loop."""
        with self.lock:
            self._then.append(then)
            self._dirty = True
        self._loop.post(self._save)

    def tick(self, now: float) -> None:
        """From time to time; under the subscription's lock."""
        with self.lock:
            pause = _PAUSE if self._then else self._pause
            if (self._dirty or self._stalled(now)) and now - self._saved_at >= pause:
                self._save()

    def _stalled(self, now: float) -> bool:
        role = self._role
        return bool(role and role.buffer.size and self._unacknowledged and now - self._moved >= _STALLED)

    def _save(self) -> None:
        with self.lock:
            began = time.monotonic()
            if self._saving or self._role is None or not (self._dirty or self._stalled(began)):
                return
            self._dirty, self._saving = False, True
            then, self._then = self._then, []
            try:
                kept, receipt = self._announce(self._role, self._stalled(began))
            except TxLayerError as exc:
                self._not_saved(exc, then)
                return
            self._pause = min(_LONGEST_PAUSE, max(_PAUSE, _SHARE * (time.monotonic() - began)))
        receipt.when_done(lambda done: self._loop.post(lambda: self._saved(kept, then, done)))

    def _announce(self, role: Subscriber, spool: bool) -> tuple[_Kept, Receipt]:
        while True:
            kept = self.kept(role, spool)
            try:
                return kept, self._values.save(msgspec.msgpack.encode(kept))
            except PayloadTooLarge:
                if not self._cut():
                    raise

    def _cut(self) -> bool:
        """Keep less from now on; False if there is nothing left to cut."""
        self._spool_bytes //= 2
        self._tracks //= 2
        return bool(self._spool_bytes or self._tracks)

    def _not_saved(self, error: TxLayerError, then: list[Callable[[], None]]) -> None:
        if isinstance(error, PayloadTooLarge) and self.trouble is None:
            self.trouble = f"the cursor {self._values.key} is too large for this bus: {error}"
            _logger.error("%s", self.trouble)
        _logger.info("the cursor %s was not saved: %s", self._values.key, error)
        self._saving, self._dirty, self._then = False, True, [*then, *self._then]
        self._saved_at = time.monotonic()

    def kept(self, role: Subscriber, spool: bool) -> _Kept:
        """What is to be durable now: nothing that the application has not acknowledged counts as consumed."""
        cursor = role.cursor(self._tracks)
        topics = tuple((topic, rank, self._out.clock(rank, clock)) for topic, rank, clock in cursor.topics)
        seen = tuple(self._out.seen(track) for track in cursor.seen)
        kept = Cursor(cursor.version, topics, cursor.unplaced, seen, cursor.logs, cursor.former)
        return _Kept(kept, self._spool(role, spool))

    def _spool(self, role: Subscriber, more: bool) -> tuple[Event, ...]:
        """What waits and was kept before, and if `more`, what has waited for longest."""
        spooled: list[Event] = []
        size = 0
        for waiting in (self._spooled, self._waiting if more else {}):
            for (rank, number), event in waiting.items():
                lane = role.buffer.lanes.get(rank)
                if lane is None or number not in lane.items:
                    continue
                if waiting is self._waiting and (rank, number) in self._spooled:
                    continue  # given again by the broker
                size += len(event.payload) + 256
                if len(spooled) >= _MOST_SPOOLED or size > self._spool_bytes:
                    return tuple(spooled)
                spooled.append(_bare(event))
        return tuple(spooled)

    def _saved(self, kept: _Kept, then: list[Callable[[], None]], receipt: Any) -> None:
        with self.lock:
            self._saving, self._saved_at = False, time.monotonic()
            if receipt.error is not None:
                if isinstance(receipt.error, PayloadTooLarge) and self._cut():
                    self._dirty, self._then = True, [*then, *self._then]
                else:
                    self._not_saved(receipt.error, then)
                return
            self.trouble = None
            self._values.saved()
            self._release(kept)
        for act in then:
            act()

    def _release(self, kept: _Kept) -> None:
        """Tell the broker what the durable cursor has passed, or holds beside it."""
        self._spooled = {(event.stamp.rank, event.stamp.number): event for event in kept.spooled}
        for key in self._spooled:
            self._acknowledge(key)
        clocks = {rank: clock for _, rank, clock in kept.cursor.topics}
        for rank, numbers in list(self._numbers.items()):
            clock = clocks.get(rank, 0)
            while numbers and (numbers[0] <= clock or (rank not in clocks and self._unwanted(rank, numbers[0]))):
                self._acknowledge((rank, heapq.heappop(numbers)))
            if not numbers:
                del self._numbers[rank]

    def _unwanted(self, rank: int, number: int) -> bool:
        deliveries = self._unacknowledged.get((rank, number))
        return not deliveries or not self.wanted(deliveries[0].topic)

    def _acknowledge(self, key: _Key) -> None:
        self._waiting.pop(key, None)
        for delivery in self._unacknowledged.pop(key, ()):
            self._moved = time.monotonic()
            delivery.ack()

    def end(self, forget: bool, timeout: float) -> None:
        """The last save, or the removal."""
        if forget:
            self._values.remove()
            return
        done = threading.Event()
        self.save_now(done.set)
        done.wait(timeout)


def _bare(event: Event) -> Event:
    beside = event.beside
    if isinstance(beside, Arrived):
        beside = Beside(beside.headers, beside.key, beside.type)
    return Event(event.publisher, event.serial, event.stamp, event.payload, event.again, beside)
