"""A subscription on Kafka: which topics, from where, and how far it is safe.

Positions are settled before `subscribe` returns. Without a name they are the ends of the logs now; a durable name has
its own consumer and goes on where its group was committed. What it held before and has no committed position for (the
topic is new under its pattern, was deleted and made again, or has new partitions) is read from the beginning.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence

from confluent_kafka import Consumer

from txlayer.adapters.base import SubscriptionBase
from txlayer.adapters.kafka_feed import EventFeed
from txlayer.adapters.kafka_names import check_subscription, wanted
from txlayer.adapters.kafka_positions import Committer, Positions
from txlayer.adapters.kafka_reader import KafkaReader, Place
from txlayer.adapters.kafka_topics import KafkaTopics
from txlayer.adapters.lane import Lane
from txlayer.adapters.topics import is_pattern
from txlayer.errors import BrokerUnreachable, NameTaken, SubscribeFailed, TxLayerError
from txlayer.presence import Holder


class KafkaSubscription(SubscriptionBase):
    """Topics and patterns that feed one lane."""

    def __init__(
        self,
        reader: KafkaReader,
        topics: KafkaTopics,
        positions: Positions,
        lane: Lane,
        timeout: float,
        durable: tuple[str, Holder, Committer] | None = None,
    ) -> None:
        super().__init__([], lane, durable[1] if durable else None)
        self._reader = reader
        self._cluster = topics
        self._positions = positions
        self._timeout = timeout
        self._name = durable[0] if durable else ""
        self._committer = durable[2] if durable else None
        self._feeds: dict[Place, EventFeed] = {}
        self._changing = threading.RLock()

    @property
    def native(self) -> Consumer:
        return self._reader.consumer

    def begin(self, topics: Sequence[str], held: Collection[str] | None) -> None:
        """Start. `held`: what the durable name was subscribed to before; None if nothing is known of that."""
        for topic in topics:
            check_subscription(topic)
        with self._changing:
            before = self._topics
            self._topics = before.union(topics)  # first: an event that comes early is wanted
            try:
                self._attach(self._starts(self._places(topics), held))
            except BaseException as exc:
                self._topics = before
                if isinstance(exc, SubscribeFailed):
                    for topic in topics:  # perhaps it was deleted: make it again the next time
                        self._cluster.forget(topic)
                raise
        self._cluster.watch(self._on_topics, often=any(is_pattern(topic) for topic in topics))

    def add(self, *topics: str) -> None:
        self._check_open()
        self.begin([topic for topic in topics if topic not in self._topics], ())
        self._tell_holder()

    def remove(self, *topics: str) -> None:
        self._check_open()
        with self._changing:
            self._topics = self._topics.difference(topics)  # a new set: the lane's thread may be looking at the old one
            self._lane.keep_only(self._wants)
            gone = {place: feed for place, feed in self._feeds.items() if not self._wants(place[0])}
            for place, feed in gone.items():
                feed.close()
                del self._feeds[place]
            self._reader.detach(gone, self._timeout)
        self._tell_holder()

    def tick(self) -> None:
        """Called by the reader again and again."""
        if self._committer is not None and not self.closed:
            self._committer.tick(dict(self._feeds))

    def stop_soon(self, error: Exception) -> None:
        """For the reader's thread, which cannot wait for itself."""
        threading.Thread(target=self.fail, args=(error,), name="txlayer-kafka-fail", daemon=True).start()

    def _stop(self, forget: bool) -> None:
        self._cluster.unwatch(self._on_topics)
        for feed in self._feeds.values():
            feed.close()
        if self._committer is None:
            self._reader.detach(dict(self._feeds), self._timeout)
            return
        if not forget and not isinstance(self._error, NameTaken):  # the position belongs to the later holder then
            committer, feeds = self._committer, self._feeds
            self._reader.last = lambda: committer.finish(feeds)
        self._reader.close()
        if forget:
            self._positions.forget(self._name)

    def _wants(self, topic: str) -> bool:
        return topic in self._topics or any(wanted(pattern, topic) for pattern in self._topics)

    def _tell_holder(self) -> None:
        if self._holder is not None:
            self._holder.update({"topics": "\n".join(sorted(self._topics))})

    def _places(self, topics: Sequence[str]) -> dict[Place, str]:
        """Every partition of these topics, and under which topic or pattern it falls; missing topics are created."""
        counts: dict[str, tuple[int, str]] = {}
        patterns = [topic for topic in topics if is_pattern(topic)]
        if patterns:
            there = self._cluster.all(self._timeout)
            for pattern in patterns:
                counts.update({name: (count, pattern) for name, count in there.items() if wanted(pattern, name)})
        found = {topic: self._cluster.find(topic) for topic in topics if not is_pattern(topic)}
        for topic, future in found.items():
            try:
                counts[topic] = (future.result(self._timeout), topic)
            except TimeoutError:
                raise BrokerUnreachable(f"topic {topic} could not be found within {self._timeout} s") from None
            except TxLayerError as exc:
                raise SubscribeFailed(str(exc)) from exc
        return {(name, number): under for name, (count, under) in counts.items() for number in range(count)}

    def _starts(self, places: Mapping[Place, str], held: Collection[str] | None) -> dict[Place, int]:
        new = [place for place in places if place not in self._feeds]
        if self._committer is None:
            return self._positions.ends(new)
        resumed = [place for place in new if held is None or places[place] in held]
        committed = self._reader.committed(resumed, self._timeout)
        lost = [place for place in resumed if place not in committed and held is not None]
        fresh = self._positions.ends([place for place in new if place not in committed and place not in lost])
        fresh.update(self._positions.beginnings(lost))
        self._reader.commit_now(fresh, self._timeout)
        self._committer.know({**committed, **fresh})
        return {**committed, **fresh}

    def _attach(self, starts: Mapping[Place, int]) -> None:
        durable = self._committer is not None
        feeds = {place: EventFeed(place, at, self._lane, durable, self.stop_soon) for place, at in starts.items()}
        if not feeds:
            return
        before = self._feeds
        self._feeds = {**before, **feeds}
        try:
            self._reader.attach(feeds, self._timeout)
        except BaseException:
            self._feeds = before  # they are not read: the next look tries again
            raise

    def _on_topics(self, topics: Mapping[str, int]) -> None:
        """Topics and partitions that have come meanwhile are read from their beginning."""
        if not self._changing.acquire(blocking=False):
            return  # an `add` under way waits for the thread that calls this; there will be another look
        try:
            if self.closed:
                return
            new = [
                (topic, number)
                for topic, count in topics.items()
                if self._wants(topic)
                for number in range(count)
                if (topic, number) not in self._feeds
            ]
            self._attach(self._positions.beginnings(new))
        finally:
            self._changing.release()
