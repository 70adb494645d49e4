"""Latest values on Kafka: one compacted topic per kind, read from its beginning and then followed.

All watches of a bus share one consumer, and those of one kind one map.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from confluent_kafka import Message

from txlayer.adapters.kafka_names import directory_topic
from txlayer.adapters.kafka_positions import Positions
from txlayer.adapters.kafka_reader import Feed, KafkaReader
from txlayer.adapters.kafka_topics import KafkaTopics
from txlayer.adapters.latest_values import LatestValueWatch
from txlayer.adapters.memory_broker import below
from txlayer.errors import BrokerUnreachable, BusError
from txlayer.ports import WatchHandler

_logger = logging.getLogger(__name__)


class KafkaWatch(LatestValueWatch):
    """Follows the keys below a prefix."""

    def __init__(self, directory: KafkaDirectory, prefix: str, handler: WatchHandler | None) -> None:
        super().__init__(handler)
        self._directory = directory
        self.prefix = prefix
        self.listening = False
        """Not before the log is read to its end: what it says of the past was replaced since."""

    def hear(self, key: str, value: bytes | None) -> None:
        """A value, old or new."""
        if self.listening and below(key, self.prefix):
            self._set(key, value)

    def _stop(self) -> None:
        self._directory.remove(self)


class KindFeed(Feed):
    """The values of one kind."""

    full = False

    def __init__(self, beginning: int) -> None:
        super().__init__(beginning)
        self._values: dict[str, bytes] = {}
        self.watches: list[KafkaWatch] = []
        self._reached = beginning
        self._error: Exception | None = None
        self._changed = threading.Condition()

    def tell(self, watch: KafkaWatch) -> None:
        """Tell it the latest values, and from now on all that comes."""
        with self._changed:
            watch.listening = True
            for key, value in self._values.items():
                watch.hear(key, value)

    def wait_for(self, offset: int, deadline: float) -> None:
        """Wait until everything before `offset` has been told."""
        with self._changed:
            self._changed.wait_for(lambda: self._reached >= offset or self._error, deadline - time.monotonic())
            if self._error is not None:
                raise BusError(f"latest values cannot be read: {self._error}")
            if self._reached < offset:
                raise BrokerUnreachable("the latest values did not arrive in time")

    def take(self, messages: Sequence[Message]) -> None:
        with self._changed:
            for message in messages:
                key, value = (message.key() or b"").decode("utf-8", "surrogateescape"), message.value()
                if value is None:
                    self._values.pop(key, None)
                else:
                    self._values[key] = value
                for watch in self.watches:
                    watch.hear(key, value)
            self._reach(self.next)

    def reach_end(self, offset: int) -> None:
        with self._changed:
            self._reach(offset)

    def lose(self, first: int, last: int) -> None:
        """Older values of a compacted log: there are newer ones."""

    def fail(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _reach(self, offset: int) -> None:
        self._reached = max(self._reached, offset)
        self._changed.notify_all()


class KafkaDirectory:
    """The watches of one bus."""

    def __init__(
        self, open_reader: Callable[[], KafkaReader], topics: KafkaTopics, positions: Positions, timeout: float
    ) -> None:
        self._open_reader = open_reader
        self._topics = topics
        self._positions = positions
        self._timeout = timeout
        self._lock = threading.Lock()
        self._reader: KafkaReader | None = None
        self._kinds: dict[str, KindFeed] = {}

    def watch(self, prefix: str, handler: WatchHandler | None) -> KafkaWatch:
        """Everything announced before the call is in its snapshot when it returns."""
        deadline = time.monotonic() + self._timeout
        topic = directory_topic(kind_of(prefix))
        self._find(topic)
        watch = KafkaWatch(self, prefix, handler)
        try:
            with self._lock:
                feed = self._kinds.get(topic)
                if feed is None:
                    feed = self._follow(topic)
                elif self._reader is not None:
                    self._reader.hurry()  # whoever begins to watch waits for what there is
                feed.watches.append(watch)
            feed.wait_for(self._positions.ends([(topic, 0)])[topic, 0], deadline)
            feed.tell(watch)
        except BaseException:
            watch.close()
            raise
        return watch

    def remove(self, watch: KafkaWatch) -> None:
        topic = directory_topic(kind_of(watch.prefix))
        with self._lock:
            feed = self._kinds.get(topic)
            if feed is None or watch not in feed.watches:
                return
            feed.watches.remove(watch)
            if not feed.watches and self._reader is not None:
                del self._kinds[topic]
                self._reader.detach({(topic, 0): feed}, self._timeout)

    def close(self) -> None:
        with self._lock:
            self._kinds.clear()
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _find(self, topic: str) -> None:
        try:
            self._topics.find(topic, compacted=True).result(self._timeout)
        except TimeoutError:
            raise BrokerUnreachable(f"topic {topic} could not be found within {self._timeout} s") from None

    def _follow(self, topic: str) -> KindFeed:
        if self._reader is None:
            self._reader = self._open_reader()
        feed = KindFeed(self._positions.beginnings([(topic, 0)])[topic, 0])
        self._reader.attach({(topic, 0): feed}, self._timeout)
        self._kinds[topic] = feed
        return feed


def kind_of(key: str) -> str:
    """The first level of a key."""
    return key.partition("/")[0]
