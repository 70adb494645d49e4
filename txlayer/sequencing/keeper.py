"""What a durable subscription keeps: its cursor, as a latest value of the bus, and what the broker may forget.

The order of things: the application acknowledges events, the cursor moves over them, the cursor is durable, the broker
hears that they are consumed. After a crash the broker gives again what it has not heard of, and the cursor tells which
of it was consumed. Acknowledged is a prefix of what was handed to the application.

A broker with a small window of unacknowledged events would stop while the event that the others wait for is behind the
window. So what waits for too long is kept beside the cursor and acknowledged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from txlayer.delivery import Delivery
from txlayer.errors import PayloadTooLarge, TxLayerError
from txlayer.ordering import effects as fx
from txlayer.ordering.messages import Beside, Event
from txlayer.ordering.subscriber import Subscriber
from txlayer.ordering.subscriber_config import Cursor
from txlayer.ports import Bus
from txlayer.receipt import Receipt
from txlayer.sequencing.arrivals import Arrived
from txlayer.sequencing.loop import Loop

_logger = logging.getLogger(__name__)
KIND = "ordered"
_STALLED = 0.25
_PAUSE = 0.05
_MOST_SPOOLED = 500
_SPOOL_BYTES = 256 * 1024


class _Kept(Struct, frozen=True, array_like=True):
    cursor: Cursor
    spooled: tuple[Event, ...] = ()


class _Handed:
    __slots__ = ("number", "publisher", "rank", "serial", "settled")

    def __init__(self, event: Event) -> None:
        self.rank = event.stamp.rank
        self.number = event.stamp.number
        self.publisher = event.publisher
        self.serial = event.serial
        self.settled = False


class Keeper:
    """Of one durable name. `lock` is its subscription's too; `wanted` tells whether a topic is still subscribed."""

    def __init__(self, bus: Bus, durable: str, loop: Loop) -> None:
        self.lock = threading.RLock()
        self.wanted: Callable[[str], bool] = lambda topic: True
        self._bus = bus
        self._key = f"{KIND}/{durable}/cursor"
        self._prefix = f"{KIND}/{durable}"
        self._loop = loop
        self._role: Subscriber | None = None
        self._handed: deque[_Handed] = deque()
        self._tokens: dict[int, _Handed] = {}
        self._next_token = 0
        self._unacknowledged: dict[int, dict[int, list[Delivery]]] = {}
        self._spooled: dict[tuple[int, int], None] = {}
        self._dirty = self._saving = False
        self._then: list[Callable[[], None]] = []
        self._moved = self._saved_at = 0.0

    def resume(self, role: Subscriber) -> list[fx.Effect]:
        """Go on where the last holder of the name stopped."""
        self._role = role
        watch = self._bus.watch(self._prefix)
        try:
            value = watch.snapshot().get(self._key)
        finally:
            watch.close()
        if value is None:
            return []
        try:
            kept = msgspec.msgpack.decode(value, type=_Kept)
        except msgspec.MsgspecError as exc:
            _logger.warning("%s holds no cursor, the subscription begins anew: %s", self._key, exc)
            return []
        now = time.monotonic()
        effects = role.resume(kept.cursor, now)
        for event in kept.spooled:
            self._spooled[event.stamp.rank, event.stamp.number] = None
            effects.extend(role.step(event, now))
        return effects

    # Events

    def arrived(self, event: Event, delivery: Delivery) -> None:
        """The broker has given it; it hears of it when the cursor has passed."""
        with self.lock:
            self._unacknowledged.setdefault(event.stamp.rank, {}).setdefault(event.stamp.number, []).append(delivery)
            self._dirty = True

    def handed(self, effect: fx.Deliver, delivery: Delivery) -> Delivery:
        """A delivery for the application, which acknowledges it here."""
        copy = Delivery(
            delivery.topic, delivery.payload, delivery.key, delivery.headers, delivery.packed, native=delivery.native
        )
        copy.redelivered = delivery.redelivered
        with self.lock:
            self._next_token += 1
            one = self._tokens[self._next_token] = _Handed(effect.event)
            self._handed.append(one)
            copy.held_by(self, self._next_token)
        return copy

    def settle(self, delivery: Delivery) -> None:
        """The application has acknowledged an event."""
        with self.lock:
            delivery.settled = True
            one = self._tokens.pop(delivery.token, None)
            if one is None:
                return
            one.settled = True
            while self._handed and self._handed[0].settled:
                self._handed.popleft()
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
            waiting = bool(self._then) or (self._dirty and now - self._saved_at >= _PAUSE)
        if waiting or self._stalled(now):
            self._save()

    def _stalled(self, now: float) -> bool:
        role = self._role
        return bool(role and role.buffer.size and self._unacknowledged and now - self._moved >= _STALLED)

    def _save(self) -> None:
        with self.lock:
            if self._saving or self._role is None or not (self._dirty or self._stalled(time.monotonic())):
                return
            self._dirty, self._saving = False, True
            then, self._then = self._then, []
            kept = self._kept(self._role, self._stalled(time.monotonic()))
            try:
                receipt = self._announce(kept)
            except TxLayerError as exc:
                _logger.info("the cursor of %s was not saved: %s", self._key, exc)
                self._saving, self._dirty, self._then = False, True, [*then, *self._then]
                return
        receipt.when_done(lambda done: self._loop.post(lambda: self._saved(kept, then, done)))

    def _announce(self, kept: _Kept) -> Receipt:
        try:
            return self._bus.announce(self._key, msgspec.msgpack.encode(kept))
        except PayloadTooLarge:
            return self._bus.announce(self._key, msgspec.msgpack.encode(_Kept(kept.cursor)))

    def _kept(self, role: Subscriber, spool: bool) -> _Kept:
        cursor = role.cursor()
        first: dict[int, int] = {}
        unseen: dict[tuple[str, int], set[int]] = {}
        for one in self._handed:
            first.setdefault(one.rank, one.number)
            unseen.setdefault((one.publisher, one.rank), set()).add(one.serial)
        topics = tuple(
            (topic, rank, min(clock, first.get(rank, clock + 1) - 1)) for topic, rank, clock in cursor.topics
        )
        seen = tuple(
            (publisher, rank, low, high, tuple(sorted({*holes, *unseen.get((publisher, rank), ())})))
            for publisher, rank, low, high, holes in cursor.seen
        )
        return _Kept(Cursor(cursor.version, topics, cursor.unplaced, seen), self._spool(role, spool))

    def _spool(self, role: Subscriber, more: bool) -> tuple[Event, ...]:
        waiting = {
            (lane.rank, number): item
            for lane in role.buffer.lanes.values()
            for number, item in lane.items.items()
            if isinstance(item, Event) and (more or (lane.rank, number) in self._spooled)
        }
        spooled: list[Event] = []
        size = 0
        for event in waiting.values():
            size += len(event.payload) + 256
            if len(spooled) >= _MOST_SPOOLED or size > _SPOOL_BYTES:
                break
            spooled.append(_bare(event))
        return tuple(spooled)

    def _saved(self, kept: _Kept, then: list[Callable[[], None]], receipt: Any) -> None:
        with self.lock:
            self._saving, self._saved_at = False, time.monotonic()
            if receipt.error is not None:
                self._dirty, self._then = True, [*then, *self._then]
                return
            self._release(kept)
        for act in then:
            act()

    def _release(self, kept: _Kept) -> None:
        """Tell the broker what the durable cursor has passed, or holds beside it."""
        self._spooled = {(event.stamp.rank, event.stamp.number): None for event in kept.spooled}
        clocks = {rank: clock for _, rank, clock in kept.cursor.topics}
        for rank in list(self._unacknowledged):
            by_number, clock = self._unacknowledged[rank], clocks.get(rank, 0)
            passed = [
                number
                for number, deliveries in by_number.items()
                if number <= clock or (rank, number) in self._spooled or not self.wanted(deliveries[0].topic)
            ]
            for number in passed:
                self._moved = time.monotonic()
                for delivery in by_number.pop(number):
                    delivery.ack()
            if not by_number:
                del self._unacknowledged[rank]

    def end(self, forget: bool, timeout: float) -> None:
        """The last save, or the removal."""
        if forget:
            self._bus.announce(self._key, None)
            return
        done = threading.Event()
        self.save_now(done.set)
        done.wait(timeout)


def _bare(event: Event) -> Event:
    beside = event.beside
    if isinstance(beside, Arrived):
        beside = Beside(beside.headers, beside.key, beside.type)
    return Event(event.publisher, event.serial, event.stamp, event.payload, event.again, beside)
