"""What the outbox does with what the producer says."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError

from txlayer import errors
from txlayer.adapters.kafka_outbox import KafkaOutbox
from txlayer.adapters.streams import Streams


class Producer:
    """Keeps what it is given; the test makes the delivery reports."""

    def __init__(self) -> None:
        self.reports: list[Any] = []

    def produce(
        self, topic: str, value: bytes, key: bytes | None, partition: int, on_delivery: Any, *_: Any, **more: Any
    ) -> None:
        self.reports.append(on_delivery)

    def poll(self, timeout: float) -> int:
        return 0

    def list_topics(self, topic: str, timeout: float) -> None:
        """Nothing to learn."""

    def flush(self, timeout: float) -> int:
        return 0

    def __len__(self) -> int:
        return 0


class Topics:
    """Finds every topic at once, with `partitions`, and remembers how often it was asked."""

    def __init__(self) -> None:
        self.partitions = 1
        self.known = True
        self.asked: list[str] = []
        self.forgotten: list[str] = []

    def find(self, topic: str, *, compacted: bool = False) -> Future[int]:
        self.asked.append(topic)
        found: Future[int] = Future()
        if self.known:
            found.set_result(self.partitions)
        return found

    def forget(self, topic: str) -> None:
        self.forgotten.append(topic)


class Report:
    """The message of a delivery report."""

    def topic(self) -> str:
        return "rooms"


@pytest.fixture
def topics() -> Topics:
    return Topics()


@pytest.fixture
def outbox(topics: Topics) -> Iterator[KafkaOutbox]:
    producer: Any = Producer()
    made: Any = topics
    box = KafkaOutbox(producer, made, Streams(), buffer_bytes=1 << 20, message_bytes=1 << 20, cloudevents=False)
    yield box
    box.flush(0.0)


def publish(outbox: KafkaOutbox, **rest: Any) -> Any:
    """As the bus does it."""
    route = outbox.plain.get("rooms")
    if route is not None:
        return outbox.send_plain(route, b"x", rest.get("key"), "")
    return outbox.send("rooms", b"x", None, rest.get("key"), "")


@pytest.mark.parametrize(
    "code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC]
)
def test_a_topic_that_a_delivery_report_calls_unknown_is_looked_for_again(
    outbox: KafkaOutbox, topics: Topics, code: int
) -> None:
    publish(outbox)
    receipt = publish(outbox)
    assert topics.asked == ["rooms"]
    receipt(KafkaError(code), Report())
    assert "rooms was deleted" in str(receipt.error)
    assert "makes it again" in str(receipt.error)
    assert topics.forgotten == ["rooms"]
    after = publish(outbox)
    assert topics.asked == ["rooms", "rooms"]
    after(None, Report())
    assert (after.done, after.error) == (True, None)


def test_empty_events_of_a_topic_that_is_not_known_yet_fill_the_buffer(outbox: KafkaOutbox, topics: Topics) -> None:
    topics.known = False
    for _ in range((1 << 20) // 256):
        outbox.send("rooms", b"", None, None, "")
    with pytest.raises(errors.Backpressure, match="buffer_bytes=1048576"):
        outbox.send("rooms", b"", None, None, "")


def test_a_topic_that_was_made_again_may_have_other_partitions(outbox: KafkaOutbox, topics: Topics) -> None:
    topics.partitions = 8
    receipt = publish(outbox)
    topics.partitions = 2
    receipt(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), Report())
    publish(outbox)
    assert outbox.plain["rooms"].partitions == 2
    assert outbox.plain["rooms"].default < 2
