"""Publishes of a session: those that wait for room, and those on their way to the broker's acknowledgement."""

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
    """A publish."""

    __slots__ = ("payload", "properties", "receipt", "retain", "size", "topic")

    def __init__(self, topic: str, payload: bytes, properties: Properties | None, retain: bool, size: int) -> None:
        self.topic = topic
        self.payload = payload
        self.properties = properties
        self.retain = retain
        self.size = size
        self.receipt = Receipt()


class Outbox:
    """Filled from any thread, one at a time; emptied on the network thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: deque[Outgoing] = deque()
        self._on_the_way: dict[int, Outgoing] = {}
        self._taken_bytes = self._done_bytes = 0  # each written by one side only

    @property
    def bytes(self) -> int:
        """What was taken and not acknowledged."""
        return self._taken_bytes - self._done_bytes

    @property
    def empty(self) -> bool:
        return not self._waiting and not self._on_the_way

    def has_work(self, window: int) -> bool:
        """Whether `pump` would hand something over."""
        return bool(self._waiting) and len(self._on_the_way) < window

    def put(self, outgoing: Outgoing) -> None:
        self._taken_bytes += outgoing.size
        self._waiting.append(outgoing)

    def pump(self, window: int) -> None:
        """Hand publishes to paho, in order, up to `window` without acknowledgement."""
        while self._waiting and len(self._on_the_way) < window:
            outgoing = self._waiting.popleft()
            try:
                info = self._client.publish(outgoing.topic, outgoing.payload, 1, outgoing.retain, outgoing.properties)
            except ValueError as exc:
                self._finish(outgoing, PublishFailed(f"paho refused the event: {exc}"))
                continue
            if info.rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:  # paho's next packet id is still on its way
                self._waiting.appendleft(outgoing)
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
        for queue in (self._on_the_way, self._waiting):
            while queue:
                try:
                    outgoing = queue.popitem()[1] if isinstance(queue, dict) else queue.popleft()
                except (KeyError, IndexError):
                    break
                self._finish(outgoing, error)

    def _finish(self, outgoing: Outgoing, error: BusError | None) -> None:
        self._done_bytes += outgoing.size
        outgoing.receipt.complete(error)
