"""From Kafka messages to deliveries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Message

from txlayer import metadata
from txlayer.adapters.ack_window import AckWindow
from txlayer.adapters.kafka_events import CLOUD_PREFIX
from txlayer.adapters.kafka_reader import Feed, Place
from txlayer.adapters.lane import Lane
from txlayer.delivery import NO_HEADERS, Delivery, Gap

MAX_UNACKNOWLEDGED = 100_000
"""Events per partition that may wait for their acknowledgement before no more are read."""
_PACKED = metadata.HEADER

Headers = Sequence[tuple[str, str | bytes | None]]


class EventFeed(Feed):
    """Feeds the lane of a subscription from one partition."""

    def __init__(self, place: Place, next: int, lane: Lane, durable: bool, fail: Callable[[Exception], None]) -> None:
        super().__init__(next)
        self._place = place
        self._topic = place[0]
        self._lane = lane
        self._fail = fail
        self._window = AckWindow(self._release) if durable else None
        self.safe = next
        """Everything before this offset is acknowledged."""

    @property
    def full(self) -> bool:
        return self._lane.full or (self._window is not None and len(self._window) >= MAX_UNACKNOWLEDGED)

    def take(self, messages: Sequence[Message]) -> None:
        """Keeps no message: the garbage collector looks at each of them again and again."""
        topic, place, window = self._topic, self._place, self._window
        beside: Mapping[str, str]
        deliveries = []
        for message in messages:
            headers: Any = message.headers()
            if headers is not None and len(headers) == 1 and headers[0][0] == _PACKED:
                beside, packed = NO_HEADERS, headers[0][1]
            else:
                beside, packed = _read(headers)
            delivery = Delivery(topic, message.value() or b"", message.key(), beside, packed, CLOUD_PREFIX, place)
            if window is None:
                delivery.token = message.offset()  # type: ignore[assignment]
            else:
                window.receive(delivery, message.offset())  # type: ignore[arg-type]
            deliveries.append(delivery)
        self._lane.put(deliveries)

    def lose(self, first: int, last: int) -> None:
        self._lane.report(Gap(self._topic, "{}/{}".format(*self._place), first, last))
        self.safe = max(self.safe, last + 1)

    def reach_end(self, offset: int) -> None:
        """Nobody asked."""

    def fail(self, error: Exception) -> None:
        self._fail(error)

    def close(self) -> None:
        """An acknowledgement that comes later reaches nobody."""
        if self._window is not None:
            self._window.close()

    def _release(self, released: Sequence[Delivery]) -> None:
        self.safe = released[-1].token + 1


def _read(headers: Headers | None) -> tuple[dict[str, str], bytes | None]:
    """User headers as text, and the compact metadata if they are there."""
    beside: dict[str, str] = {}
    packed = None
    for name, value in headers or ():
        data = value.encode() if isinstance(value, str) else value or b""
        if name == _PACKED:
            packed = data
        else:
            beside[name] = data.decode("utf-8", "surrogateescape")
    return beside, packed
