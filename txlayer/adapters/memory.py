"""The memory bus: several sites in one process, with the same contract as a real broker.

Events wait in the bus while its broker is down and leave in order when it is back. The broker itself, with its faults,
is in `memory_broker`; `bus.native` is it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from txlayer import metadata
from txlayer.adapters.ack_window import AckWindow
from txlayer.adapters.base import EVENT_OVERHEAD, BusBase, SubscriptionBase, as_bytes, buffer_full
from txlayer.adapters.event_checks import check_event, check_text
from txlayer.adapters.lane import Lane, LaneOptions
from txlayer.adapters.latest_values import LatestValueWatch
from txlayer.adapters.memory_broker import Deliver, MemoryBroker, Record, broker
from txlayer.adapters.streams import Stream
from txlayer.adapters.topics import check_name, check_pattern, escape, matches
from txlayer.connect import BusUrl, read_options
from txlayer.delivery import Delivery
from txlayer.errors import Closed, PayloadTooLarge, PublishFailed, UsageError
from txlayer.ports import Capabilities, WatchHandler
from txlayer.presence import Holder
from txlayer.receipt import Receipt

_LEVEL = frozenset(chr(code) for code in range(33, 127)) - frozenset("/+#$")
_count = itertools.count(1)


class MemoryOptions(msgspec.Struct, frozen=True):
    """What may stand in the query of a `memory://` URL."""

    name: str = ""
    max_payload: int | None = None
    buffer_bytes: int = 64 * 1024 * 1024
    cloudevents: bool = False


def open_bus(target: object, options: Mapping[str, Any]) -> MemoryBus:
    """Entry point."""
    if not isinstance(target, BusUrl):
        raise UsageError("the memory bus is opened by a URL: memory://name")
    return MemoryBus(broker(target.host), read_options(options, MemoryOptions))


class MemoryBus(BusBase):
    """One site's connection to a memory broker."""

    def __init__(self, broker: MemoryBroker, options: MemoryOptions) -> None:
        super().__init__(options.name or f"memory-{next(_count)}", options.cloudevents)
        self._broker = broker
        self._options = options
        self._topics: dict[str, Stream] = {}
        self._outbox: deque[tuple[Callable[[], bool], int, Receipt]] = deque()
        self._outbox_bytes = 0
        self._flushing = threading.RLock()
        broker.connect(self._name, self._reconnect)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities("publisher", True, True, True, self._options.max_payload)

    @property
    def native(self) -> MemoryBroker:
        return self._broker

    @property
    def name(self) -> str:
        """What partitions of the broker call this bus."""
        return self._name

    def topic(self, *levels: str) -> str:
        return "/".join(escape(level, _LEVEL) for level in levels)

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        key: bytes | None = None,
        type: str = "",
    ) -> Receipt:
        payload = check_event(topic, payload, headers, key, type)
        check_name(topic)
        self._check_size(payload)
        beside, packed = dict(headers or {}), None
        size = len(payload) + len(key or b"") + sum(len(name) + len(value) for name, value in beside.items())
        with self._flushing:
            self._check_open()
            self._check_room(size)
            stream = self._stream(topic)
            number, now_us = stream.number + 1, time.time_ns() // 1000
            if self._cloudevents:
                beside.update(metadata.cloud_attributes(stream.id, number, now_us, type))
            else:
                packed = metadata.pack(stream.id, number, now_us, type.encode())
            stream.number = number
            record = Record(topic, payload, key, beside, packed, self._name)
            return self._hand_over(lambda: self._broker.publish(record), size)

    def announce(self, key: str, value: bytes | None) -> Receipt:
        check_text("the key of a latest value", key)
        if value is not None:
            self._check_size(value := as_bytes(value))
        with self._flushing:
            if self._closed:
                raise Closed(f"bus {self._name} is closed")
            self._check_room(len(value or b""))
            return self._hand_over(lambda: self._broker.announce(key, value, self._name), len(value or b""))

    def watch(self, prefix: str, handler: WatchHandler | None = None) -> MemoryWatch:
        self._check_open()
        watch = MemoryWatch(self._broker, self._name, prefix, handler)
        self._remember(watch)
        return watch

    def crash(self) -> None:
        """As if the process died: nothing is flushed, the wills are carried out."""
        with self._flushing:  # first: a word that is said after the will would make the dead live again
            self._closing = self._closed = True
        with self._lock:
            things, self._things = self._things, []
        self._ticker.close()
        for thing in things:
            if isinstance(thing, MemoryWatch):
                thing.close(timeout=0)
        self._broker.disconnect(self._name, crashed=True)
        for thing in things:
            if isinstance(thing, MemorySubscription):
                thing.crash()

    def _open_subscription(
        self, topics: Sequence[str], options: LaneOptions, holder: Holder | None
    ) -> MemorySubscription:
        for topic in topics:
            check_pattern(topic)
        return MemorySubscription(self._broker, self._name, topics, self._lane(options), options, holder)

    def _stream(self, topic: str) -> Stream:
        return self._topics.get(topic) or self._streams.open_in(self._topics, topic)

    def _at_death(self, key: str, will: bytes) -> Callable[[], None]:
        self._broker.set_will(self._name, key, will)
        return lambda: self._broker.set_will(self._name, key, None)

    def _shut_down(self, timeout: float) -> None:
        self._broker.disconnect(self._name)
        with self._flushing:
            while self._outbox:
                self._outbox.popleft()[2].complete(PublishFailed("the bus was closed before the broker was back"))

    def _check_size(self, payload: bytes) -> None:
        limit = self._options.max_payload
        if limit is not None and len(payload) > limit:
            raise PayloadTooLarge(f"payload of {len(payload)} bytes: this bus takes at most {limit} (max_payload)")

    def _check_room(self, size: int) -> None:
        if self._outbox_bytes + size > self._options.buffer_bytes:
            raise buffer_full(self._outbox_bytes, self._options.buffer_bytes)

    def _hand_over(self, send: Callable[[], bool], size: int) -> Receipt:
        receipt = Receipt()
        if not self._outbox and send():
            receipt.complete()
        elif self._broker.running and not self._outbox:
            receipt.complete(PublishFailed("a subscription of the memory broker is full"))
        else:
            self._outbox.append((send, size, receipt))
            self._outbox_bytes += size + EVENT_OVERHEAD
        return receipt

    def _reconnect(self) -> None:
        for thing in list(self._things):
            if isinstance(thing, MemorySubscription | MemoryWatch):
                thing.attach()
        with self._flushing:
            while self._outbox and not self._closed:
                send, size, receipt = self._outbox[0]
                if not send():
                    return
                self._outbox.popleft()
                self._outbox_bytes -= size + EVENT_OVERHEAD
                receipt.complete()


class MemorySubscription(SubscriptionBase):
    """A session at the memory broker."""

    def __init__(
        self,
        broker: MemoryBroker,
        owner: str,
        topics: Sequence[str],
        lane: Lane,
        options: LaneOptions,
        holder: Holder | None,
    ) -> None:
        super().__init__(topics, lane, holder)
        self._broker = broker
        self._owner = owner
        self._session = f"durable:{options.name}" if holder else f"{owner}:{next(_count)}"
        self._durable = holder is not None
        self._epoch = holder.epoch if holder else 0
        self._window = AckWindow(lambda released: None)
        self._deliver: Deliver | None = None
        self.attach()

    @property
    def native(self) -> MemoryBroker:
        return self._broker

    def attach(self) -> None:
        """Begin a new generation of the connection."""
        if self.closed:
            return
        self._window.close()
        window = self._window = AckWindow(self._release)

        def deliver(token: int, record: Record) -> None:
            delivery = Delivery(record.topic, record.payload, record.key, dict(record.headers), record.packed)
            window.receive(delivery, token)
            self._lane.put([delivery])

        self._deliver = deliver
        self._broker.open_session(self._session, self._owner, self._topics, deliver, self._epoch)

    def add(self, *topics: str) -> None:
        self._check_open()
        for topic in topics:
            check_pattern(topic)
        self._topics.update(topics)
        self._update_filters()

    def remove(self, *topics: str) -> None:
        self._check_open()
        self._topics.difference_update(topics)
        self._update_filters()

    def crash(self) -> None:
        """Stop as a dead process does: nothing more is acknowledged."""
        self._window.close()
        self.closed = True
        self._lane.close(timeout=0)

    def _update_filters(self) -> None:
        self._lane.keep_only(lambda topic: any(matches(pattern, topic) for pattern in self._topics))
        self._broker.set_filters(self._session, self._topics)

    def _stop(self, forget: bool) -> None:
        self._window.close()
        self._broker.close_session(self._session, self._owner, self._deliver, forget=forget or not self._durable)

    def _release(self, released: Sequence[Delivery]) -> None:
        self._broker.acknowledge(self._session, [delivery.token for delivery in released])


class MemoryWatch(LatestValueWatch):
    """Follows the broker's latest values."""

    def __init__(self, broker: MemoryBroker, owner: str, prefix: str, handler: WatchHandler | None) -> None:
        super().__init__(handler)
        self._broker = broker
        self._owner = owner
        self._prefix = prefix
        self.attach()

    def attach(self) -> None:
        if not self.closed:
            self._id = self._broker.watch(self._prefix, self._set, self._owner)

    def _stop(self) -> None:
        self._broker.unwatch(self._id)
