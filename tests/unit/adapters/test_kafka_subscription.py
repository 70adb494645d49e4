"""What a subscription does while its reader takes topics up, against a reader that is only written down."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from tests.conftest import eventually
from txlayer import Delivery, errors
from txlayer.adapters.kafka_feed import EventFeed
from txlayer.adapters.kafka_reader import Place
from txlayer.adapters.kafka_subscription import KafkaSubscription
from txlayer.adapters.lane import Lane, LaneOptions
from txlayer.ports import Ack, Retry


class Early:
    """An event that is there at once."""

    def value(self) -> bytes:
        return b"early"

    def offset(self) -> int:
        return 0

    def headers(self) -> None:
        return None

    key = headers


class Reader:
    """Takes up all that it is asked to, or fails with `error`; `when_attached` is called before it returns."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.when_attached: Callable[[Mapping[Place, EventFeed]], None] = lambda feeds: None
        self.reads: dict[Place, EventFeed] = {}

    def attach(self, feeds: Mapping[Place, EventFeed], timeout: float) -> None:
        if self.error is not None:
            raise self.error
        self.reads.update(feeds)
        self.when_attached(feeds)

    def detach(self, feeds: Mapping[Place, EventFeed], timeout: float) -> None:
        for place in feeds:
            del self.reads[place]


class Topics:
    """Every topic is there, with one partition."""

    def find(self, topic: str) -> Future[int]:
        found: Future[int] = Future()
        found.set_result(1)
        return found

    def forget(self, topic: str) -> None:
        """It is found again."""

    def watch(self, *args: Any, **rest: Any) -> None:
        """There is no news."""

    unwatch = watch


class Positions:
    """Every log is empty."""

    def ends(self, places: Collection[Place]) -> dict[Place, int]:
        return dict.fromkeys(places, 0)

    beginnings = ends


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def inbox() -> list[str]:
    return []


@pytest.fixture
def lane(inbox: list[str]) -> Lane:
    def hear(delivery: Delivery) -> None:
        inbox.append(delivery.topic)

    bury: Any = None
    return Lane(LaneOptions(hear, Ack.AUTO, Retry(), None, ""), bury)


@pytest.fixture
def subscription(reader: Reader, lane: Lane) -> Iterator[KafkaSubscription]:
    parts: Any = (reader, Topics(), Positions())
    made = KafkaSubscription(*parts, lane, 1.0)
    made.begin(["a", "b"], None)
    yield made
    made.close()


def test_an_event_that_comes_while_its_topic_is_added_again_is_handled(
    subscription: KafkaSubscription, reader: Reader, lane: Lane, inbox: list[str]
) -> None:
    def come_early(feeds: Mapping[Place, EventFeed]) -> None:
        message: Any = Early()
        for feed in feeds.values():
            feed.take([message])
        eventually(lambda: not lane._queue and not lane._running)

    subscription.remove("a")
    reader.when_attached = come_early
    subscription.add("a")
    assert inbox == ["a"]


def test_a_topic_that_could_not_be_added_is_not_subscribed_to(subscription: KafkaSubscription, reader: Reader) -> None:
    reader.error = errors.SubscribeFailed("not now")
    with pytest.raises(errors.SubscribeFailed):
        subscription.add("c")
    assert subscription.topics == {"a", "b"}
    reader.error = None
    subscription.add("c")
    assert subscription.topics == {"a", "b", "c"}
    assert set(reader.reads) == {("a", 0), ("b", 0), ("c", 0)}


def test_new_partitions_that_could_not_be_read_are_tried_at_the_next_look(
    subscription: KafkaSubscription, reader: Reader
) -> None:
    reader.error = errors.SubscribeFailed("not now")
    with pytest.raises(errors.SubscribeFailed):
        subscription._on_topics({"a": 2})
    reader.error = None
    subscription._on_topics({"a": 2})
    assert ("a", 1) in reader.reads
