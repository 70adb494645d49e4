"""Publishes of a session: those that wait for room, and those on their way to the broker's acknowledgement.

Latest values wait in a queue of their own and go first: a heartbeat behind a full buffer of events would come too late,
and a site that is only busy would count as dead.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTErrorCode

from txlayer.errors import BusError, PublishFailed
from txlayer.receipt import Receipt

if TYPE_CHECKING:
    from paho.mqtt.properties import Properties


class Outgoing:
    """A publish of an event, or of a latest value (`first`)."""

    __slots__ = ("first", "payload", "properties", "receipt", "retain", "size", "topic")

    def __init__(
        self,
        topic: str,
        payload: bytes,
        properties: Properties | None,
        size: int,
        first: bool = False,
        retain: bool = False,
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.properties = properties
        self.size = size
        self.first = first
        self.retain = retain
        self.receipt = Receipt()


class _Queue(deque[Outgoing]):
    """With the bytes of what was taken and not acknowledged, also of what has left the queue."""

    def __init__(self) -> None:
        super().__init__()
        self.taken_bytes = self.done_bytes = 0  # each written by one side only

    @property
    def bytes(self) -> int:
        return self.taken_bytes - self.done_bytes


class Outbox:
    """Filled from any thread, one at a time; emptied on the network thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._values, self._events = _Queue(), _Queue()
        self._on_the_way: dict[int, Outgoing] = {}

    @property
    def event_bytes(self) -> int:
        """Of events taken and not acknowledged."""
        return self._events.bytes

    @property
    def value_bytes(self) -> int:
        """Of latest values taken and not acknowledged."""
        return self._values.bytes

    @property
    def empty(self) -> bool:
        return not self._values and not self._events and not self._on_the_way

    def has_work(self, window: int) -> bool:
        """Whether `pump` would hand something over."""
        if self._values:
            return len(self._on_the_way) < window
        return bool(self._events) and self._room_for_some(window)

    def _room_for_some(self, window: int) -> bool:
        """A window that is full is not topped up one by one, or publisher, broker and subscriber all go on so: each
        wakes up for every single event. It is filled again when half of it is free."""
        free = window - len(self._on_the_way)
        return free >= min(len(self._events), (window + 1) // 2) > 0

    def put(self, outgoing: Outgoing) -> None:
        queue = self._queue_of(outgoing)
        queue.taken_bytes += outgoing.size
        queue.append(outgoing)

    def pump(self, window: int) -> None:
        """Hand publishes to paho, each queue in order, up to `window` without acknowledgement."""
        if not self.has_work(window):
            return
        while (queue := self._values or self._events) and len(self._on_the_way) < window:
            outgoing = queue.popleft()
            try:
                info = self._client.publish(outgoing.topic, outgoing.payload, 1, outgoing.retain, outgoing.properties)
            except ValueError as exc:
                self._finish(outgoing, PublishFailed(f"paho refused the event: {exc}"))
                continue
            if info.rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:  # paho's next packet id is still on its way
                queue.appendleft(outgoing)
                return
            self._on_the_way[info.mid] = outgoing

    def acknowledge(self, mid: int, error: BusError | None) -> None:
        outgoing = self._on_the_way.pop(mid, None)
        if outgoing is not None:
            self._finish(outgoing, error)

    def give_up_largest(self, breaks: int) -> bool:
        """An event that the broker breaks the connection over would be sent again for ever, and block all behind it.

        MQTT 3.1.1 does not tell how large a packet may be, so the largest one is the likeliest.
        """
        if not self._on_the_way:
            return False
        mid, outgoing = max(self._on_the_way.items(), key=lambda item: len(item[1].payload))
        del self._on_the_way[mid]
        self._client._out_messages.pop(mid, None)  # paho offers no way to take one back
        reason = (
            f"the broker broke the connection {breaks} times in a row and this event of "
            f"{len(outgoing.payload)} bytes is the largest one on its way: it may or may not arrive"
        )
        self._finish(outgoing, PublishFailed(reason))
        return True

    def fail(self, error: BusError) -> None:
        """Nothing will be sent any more. Two threads may do this at once."""
        for queue in (self._on_the_way, self._values, self._events):
            while queue:
                try:
                    outgoing = queue.popitem()[1] if isinstance(queue, dict) else queue.popleft()
                except (KeyError, IndexError):
                    break
                self._finish(outgoing, error)

    def _finish(self, outgoing: Outgoing, error: BusError | None) -> None:
        self._queue_of(outgoing).done_bytes += outgoing.size
        outgoing.receipt.complete(error)

    def _queue_of(self, outgoing: Outgoing) -> _Queue:
        return self._values if outgoing.first else self._events
