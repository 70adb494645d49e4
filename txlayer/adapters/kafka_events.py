"""Events on their way out: the receipt, the headers, the partition and its stream."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message

from txlayer import metadata
from txlayer.adapters.kafka_names import partition_of
from txlayer.adapters.streams import Stream
from txlayer.errors import PublishFailed
from txlayer.receipt import Receipt

Headers = list[tuple[str, str | bytes | None]]

PACKED = metadata.HEADER
CLOUD_PREFIX = "ce_"
GONE = (KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART)
"""What is said of a topic that was there and was deleted."""
_PURGED = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)


class KafkaReceipt(Receipt, gc=False, eq=False):
    """A receipt that is the producer's callback itself: nothing else is made for an event."""

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        """The producer's delivery report."""
        if error is None:  # `complete`, written out: this is on the path of every event
            self._done = True
            if self._listeners is not None:
                self._notify()
        elif error.code() in _PURGED:
            self.complete(PublishFailed("the bus was closed before the broker acknowledged the event"))
        elif error.code() in GONE:
            topic = message.topic() or ""
            self._on_gone(topic)
            self.complete(
                PublishFailed(f"topic {topic} was deleted ({error.str()}): the next publish to it makes it again")
            )
        else:
            self.complete(PublishFailed(f"topic {message.topic()}: {error.str()}"))

    def _on_gone(self, topic: str) -> None:
        """The broker has no such topic any more."""


def receipts(on_gone: Callable[[str], None]) -> type[KafkaReceipt]:
    """The receipts of one producer. What they share is in their class: a field would be paid for every event."""

    class OwnReceipt(KafkaReceipt, gc=False, eq=False):
        def _on_gone(self, topic: str) -> None:
            on_gone(topic)

    return OwnReceipt


@dataclass(slots=True)
class Event:
    """An event that has no number yet."""

    payload: bytes | None
    key: bytes | None
    headers: Mapping[str, str] | None
    type: str | None
    """None for a latest value, which has no number."""
    time_us: int
    receipt: KafkaReceipt
    size: int

    def headers_for(self, stream: Stream, cloudevents: bool) -> Headers:
        """What travels beside the payload when it is the next event of `stream`."""
        if self.type is None:
            return []
        given = {name: value.encode("utf-8", "surrogateescape") for name, value in (self.headers or {}).items()}
        if not cloudevents:
            packed = metadata.pack(stream.id, stream.number + 1, self.time_us, self.type.encode())
            return [(PACKED, packed), *given.items()]
        attributes = metadata.cloud_attributes(stream.id, stream.number + 1, self.time_us, self.type)
        own = {f"{CLOUD_PREFIX}{name}": value.encode() for name, value in attributes.items()}
        # The headers of another event may be passed on: this event's own attributes count.
        return list({**own, "content-type": b"application/octet-stream", **given, **own}.items())


class Route:
    """Where the events of one topic go. Without streams it is not known yet, and they wait."""

    __slots__ = ("default", "partitions", "streams", "topic", "waiting")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.partitions = 0
        self.default = 0
        """The partition of events without a key: one per publisher, so that they keep their order."""
        self.streams: list[Stream] = []
        self.waiting: deque[Event] = deque()

    def partition(self, key: bytes | None) -> int:
        return self.default if key is None else partition_of(key, self.partitions)
