"""What the outbox does with what the producer says."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.conftest import DEADLINE, eventually
from txlayer import errors
from txlayer.adapters import kafka_outbox
from txlayer.adapters.kafka_outbox import SERVE_EVERY, KafkaOutbox
from txlayer.adapters.streams import Streams


class Producer:
    """Keeps what it is given; the test makes the delivery reports. Of no use when it is closed, as the driver's."""

    def __init__(self) -> None:
        self.reports: list[Any] = []
        self.away = self.closed = False
        self.polls = self.no_room = 0

    def produce(
        self, topic: str, value: bytes, key: bytes | None, partition: int, on_delivery: Any = None, *_: Any, **more: Any
    ) -> None:
        self._check_open()
        if self.no_room:
            raise BufferError
        self.reports.append(on_delivery)

    def poll(self, timeout: float) -> int:
        self._check_open()
        self.polls += 1
        self.no_room = max(0, self.no_room - 1)
        return 0

    def list_topics(self, topic: str, timeout: float) -> None:
        self._check_open()
        if self.away:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def flush(self, timeout: float) -> int:
        self._check_open()
        return 0

    def close(self) -> None:
        self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError("Producer has been closed")

    def __len__(self) -> int:
        return 0


class Topics:
    """Finds every topic at once, with `partitions`, and remembers how often it was asked."""

    def __init__(self) -> None:
        self.partitions = 1
        self.known = True
        self.error: errors.TxLayerError | None = None
        self.asked: list[str] = []
        self.forgotten: list[str] = []

    def find(self, topic: str, *, compacted: bool = False) -> Future[int]:
        self.asked.append(topic)
        found: Future[int] = Future()
        if self.error is not None:
            found.set_exception(self.error)
        elif self.known:
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
def producer() -> Producer:
    return Producer()


@pytest.fixture
def outbox(producer: Producer, topics: Topics) -> Iterator[KafkaOutbox]:
    made: Any = (producer, topics)
    box = KafkaOutbox(*made, Streams(), buffer_bytes=1 << 20, message_bytes=1 << 20, cloudevents=False)
    yield box
    if not producer.closed:
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


def test_a_broker_that_is_away_when_a_topic_is_found_again_blocks_no_event(
    outbox: KafkaOutbox, producer: Producer
) -> None:
    publish(outbox)(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), Report())
    producer.away = True
    publish(outbox)
    assert len(producer.reports) == 2
    publish(outbox)
    assert len(producer.reports) == 3


@pytest.mark.parametrize("key", [None, b"k"])
def test_an_event_that_comes_after_the_last_flush_is_refused(outbox: KafkaOutbox, key: bytes | None) -> None:
    publish(outbox)
    route = outbox.plain["rooms"]
    outbox.flush(0.0)
    with pytest.raises(errors.Closed):
        outbox.send_plain(route, b"x", key, "")
    with pytest.raises(errors.Closed):
        outbox.send("rooms", b"x", {"h": "v"}, key, "")


def test_a_topic_that_is_found_after_the_last_flush_fails_what_came_for_it(
    outbox: KafkaOutbox, producer: Producer, topics: Topics
) -> None:
    publish(outbox)(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), Report())
    outbox.flush(0.0)
    for receipt in (publish(outbox), outbox.send("others", b"x", None, None, "")):
        with pytest.raises(errors.Closed):
            receipt.wait(DEADLINE)
    assert len(producer.reports) == 1


def test_a_publisher_that_serves_reports_does_not_meet_a_closed_producer(outbox: KafkaOutbox) -> None:
    publish(outbox)
    route = outbox.plain["rooms"]
    outbox.flush(0.0)
    outbox._produce = lambda *_: None  # it was taken a moment before the last flush
    for _ in range(SERVE_EVERY):
        outbox.send_plain(route, b"x", None, "")


def test_topics_that_cannot_be_had_are_not_remembered(outbox: KafkaOutbox, topics: Topics) -> None:
    topics.error = errors.BusError("forbidden")
    with pytest.raises(errors.PublishFailed, match="forbidden"):
        outbox.send("rooms", b"x", None, None, "").wait(DEADLINE)
    assert outbox._routes == {}
    topics.error = None
    publish(outbox)
    assert list(outbox._routes) == ["rooms"]


@pytest.fixture
def dozing(outbox: KafkaOutbox, monkeypatch: pytest.MonkeyPatch) -> KafkaOutbox:
    """One whose poller waits until somebody wants a receipt."""
    monkeypatch.setattr(kafka_outbox, "SAID_SECONDS", 60.0)
    publish(outbox)
    outbox._wake.set()  # it may doze in the shorter time of before
    eventually(lambda: outbox._dozing and not outbox._wake.is_set())
    return outbox


@pytest.mark.parametrize("headers", [None, {"h": "v"}])
def test_an_event_wakes_the_thread_that_serves_its_receipt(
    dozing: KafkaOutbox, producer: Producer, headers: dict[str, str] | None
) -> None:
    polls = producer.polls
    publish(dozing) if headers is None else dozing.send("rooms", b"x", headers, None, "")
    eventually(lambda: producer.polls > polls)


def test_what_is_only_said_wakes_no_thread(dozing: KafkaOutbox, producer: Producer) -> None:
    dozing.say("rooms", b"x")
    assert not dozing._wake.is_set()
    assert producer.reports[-1] is None


def test_reports_of_what_was_said_are_cleared_away_before_more_is_refused(
    dozing: KafkaOutbox, producer: Producer
) -> None:
    producer.no_room = 1
    dozing.say("rooms", b"x")
    assert len(producer.reports) == 2
    producer.no_room = 2
    with pytest.raises(errors.Backpressure):
        dozing.say("rooms", b"x")


def test_a_thread_that_dozes_does_not_hold_up_the_end(dozing: KafkaOutbox) -> None:
    dozing.flush(0.0)
    assert not dozing._poller.is_alive()
