"""The publishing half of an ordered bus: drives the publisher's role, its events and its receipts.

Events leave under the role's lock, in its order. What the bus acknowledges comes back in groups, through the loop: the
bus's network thread only counts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from txlayer.adapters.base import EVENT_OVERHEAD, as_bytes, buffer_full
from txlayer.errors import Backpressure, Closed, PayloadTooLarge, PublishFailed, PublishInDoubt, TxLayerError
from txlayer.ordering import effects as fx
from txlayer.ordering.messages import AnyMessage, Beside, Event
from txlayer.ordering.publisher import Publisher
from txlayer.ports import Bus
from txlayer.receipt import Receipt
from txlayer.sequencing import stamps
from txlayer.sequencing.exchange import Letter
from txlayer.sequencing.loop import Loop

_logger = logging.getLogger(__name__)
_NOTHING_BESIDE = Beside()


class _Group:
    """Events of one release that are on their way to the broker."""

    __slots__ = ("done", "first", "size", "topic")

    def __init__(self, topic: str, first: int) -> None:
        self.topic = topic
        self.first = first
        self.size = 0
        self.done: list[Receipt] = []


class Publishing:
    """Thread-safe. `patience`: how long an event may wait for its place."""

    def __init__(
        self,
        role: Publisher,
        bus: Bus,
        send: Callable[[Sequence[Letter]], None],
        loop: Loop,
        patience: float,
        buffer_bytes: int,
    ) -> None:
        self._role = role
        self._bus = bus
        self._send = send
        self._loop = loop
        self._patience = patience
        self._buffer_bytes = buffer_bytes
        self._lock = threading.RLock()
        self._receipts: dict[tuple[str, int], tuple[Receipt, int]] = {}
        self._waiting_bytes = 0
        self._unsent: deque[tuple[_Group, Event]] = deque()
        self._closed = False
        self._stop_ticking = loop.every_tick(self._tick)

    def publish(
        self, topic: str, payload: bytes, headers: Mapping[str, str] | None, key: bytes | None, type: str
    ) -> Receipt:
        """Take an event; its receipt completes when it has its place and the bus has it."""
        payload = as_bytes(payload)
        limit = self._bus.capabilities.max_payload
        if limit is not None and len(payload) > limit:
            raise PayloadTooLarge(f"payload of {len(payload)} bytes: this bus takes at most {limit}")
        beside = Beside(dict(headers or {}), key, type) if headers or key is not None or type else None
        size, receipt, now = len(payload) + EVENT_OVERHEAD, Receipt(), time.monotonic()
        with self._lock:
            if self._closed:
                raise Closed("the ordered bus is closed")
            if self._waiting_bytes + size > self._buffer_bytes:
                raise buffer_full(self._waiting_bytes, self._buffer_bytes)
            effects = self._role.step(fx.Offer(topic, payload, now + self._patience, beside), now)
            self._receipts[topic, self._role.last_serial(topic)] = (receipt, size)
            self._waiting_bytes += size
            self._perform(effects)
        return receipt

    def take(self, messages: Sequence[AnyMessage | fx.Claimed]) -> None:
        """What the hosts say."""
        with self._lock:
            effects: list[fx.Effect] = []
            for message in messages:
                effects.extend(self._role.step(message, time.monotonic()))
            self._perform(effects)

    def close(self, timeout: float) -> None:
        """Wait for what is under way; what is left then fails."""
        deadline = time.monotonic() + timeout
        pause = threading.Event()
        while self._receipts and time.monotonic() < deadline:
            pause.wait(0.005)
        self._stop_ticking()
        with self._lock:
            self._closed = True
            left, self._receipts = self._receipts, {}
        for receipt, _ in left.values():
            receipt.complete(PublishFailed("the ordered bus was closed before the event had its place"))

    def _tick(self) -> None:
        with self._lock:
            self._send_unsent()
            due = self._role.next_deadline()
            now = time.monotonic()
            if due is not None and due <= now:
                self._perform(self._role.step(fx.Tick(), now))

    def _perform(self, effects: list[fx.Effect]) -> None:
        letters: list[Letter] = []
        group: _Group | None = None
        for effect in effects:
            match effect:
                case fx.Publish(topic, Event() as event):
                    number = event.stamp.number
                    if group is None or group.topic != topic or group.first + group.size != number:
                        group = _Group(topic, number)
                    group.size += 1
                    self._unsent.append((group, event))
                case fx.Send():
                    letters.append((effect.to, effect.message))
                case fx.Accepted():
                    self._complete(effect.topic, effect.serial, None)
                case fx.Failed():
                    error = PublishInDoubt if effect.unknown else PublishFailed
                    self._complete(effect.topic, effect.serial, error(effect.reason))
                case fx.Report():
                    _logger.warning("publisher %s: %s", self._role.name, effect.reason)
                case _:
                    raise AssertionError(effect)
        self._send_unsent()
        if letters:
            self._send(letters)

    def _send_unsent(self) -> None:
        while self._unsent:
            group, event = self._unsent[0]
            beside = event.beside or _NOTHING_BESIDE
            headers = stamps.headers(event)
            try:
                receipt = self._bus.publish(
                    group.topic, event.payload, headers=headers, key=beside.key, type=beside.type
                )
            except Backpressure:
                return  # the next tick tries again
            except TxLayerError as exc:
                receipt = Receipt()
                receipt.complete(exc)
            self._unsent.popleft()
            receipt.when_done(_Counted(self, group, event))

    def counted(self, group: _Group, event: Event, receipt: Receipt) -> None:
        """The bus has answered; on its thread."""
        if receipt.error is not None:
            error = receipt.error
            self._loop.post(lambda: self._spoiled(group.topic, event, error))
        group.done.append(receipt)
        if len(group.done) == group.size:
            self._loop.post(lambda: self.take_handed(fx.Handed(group.topic, group.first, group.size)))

    def take_handed(self, handed: fx.Handed) -> None:
        """A whole group is with the broker."""
        with self._lock:
            self._perform(self._role.step(handed, time.monotonic()))

    def _spoiled(self, topic: str, event: Event, error: TxLayerError) -> None:
        # Its number is used up: subscribers that wait for it are told that it is gone.
        with self._lock:
            self._role.forget(topic, event.stamp.number)
            self._complete(topic, event.serial, error)

    def _complete(self, topic: str, serial: int, error: TxLayerError | None) -> None:
        found = self._receipts.pop((topic, serial), None)
        if found is not None:
            receipt, size = found
            self._waiting_bytes -= size
            receipt.complete(error)


class _Counted:
    """A listener of a receipt."""

    __slots__ = ("_event", "_group", "_owner")

    def __init__(self, owner: Publishing, group: _Group, event: Event) -> None:
        self._owner = owner
        self._group = group
        self._event = event

    def __call__(self, receipt: Any) -> None:
        self._owner.counted(self._group, self._event, receipt)
