"""The topics of a Kafka cluster: found, created on demand, and watched for new ones.

One thread per bus does it, so that nobody who publishes waits for the broker; while the broker is away it tries again.
"""

from __future__ import annotations

import concurrent.futures
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from txlayer.errors import BrokerUnreachable, BusError, Closed, TxLayerError

_logger = logging.getLogger(__name__)

REQUEST_SECONDS = 5.0
LOOK_SECONDS = 1.0
PATTERN_SECONDS = 0.5
"""How often new topics are looked for while a subscription has a pattern."""
PARTITION_SECONDS = 10.0
"""How often topics are looked at for new partitions otherwise."""

_COMPACTED: Mapping[str, str] = {
    "cleanup.policy": "compact",
    # Small segments: only closed ones are compacted, and everyone who watches reads from the beginning.
    "segment.bytes": str(1024 * 1024),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
    "delete.retention.ms": "3600000",
}

_T = TypeVar("_T")
Partitions = concurrent.futures.Future[int]
OnTopics = Callable[[Mapping[str, int]], None]


class KafkaTopics:
    """Finds topics or makes them, and tells of new ones."""

    def __init__(
        self, admin: AdminClient, partitions: int, replication: int, describe: Callable[[object], str]
    ) -> None:
        self._admin = admin
        self._partitions = partitions
        self._replication = replication
        self._describe = describe
        self._lock = threading.Condition()
        self._known: dict[str, Partitions] = {}
        self._wanted: dict[str, bool] = {}
        self._watchers: dict[OnTopics, bool] = {}
        self._next_look = 0.0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def find(self, topic: str, *, compacted: bool = False) -> Partitions:
        """How many partitions it has; it is created if it is missing.

        Fails only with what the broker forbids, and with `Closed`.
        """
        with self._lock:
            found = self._known.get(topic)
            if found is not None:
                return found
            found = concurrent.futures.Future()
            if not self._closing.is_set():
                self._known[topic] = found
                self._wanted[topic] = compacted
                self._wake()
                return found
        found.set_exception(Closed("the bus is closed"))
        return found

    def forget(self, topic: str) -> None:
        """It seems to be gone: ask again when it is needed."""
        with self._lock:
            if topic not in self._wanted:
                self._known.pop(topic, None)

    def watch(self, on_topics: OnTopics, *, often: bool) -> None:
        """Call `on_topics` with all topics and their partitions again and again; `often` for patterns."""
        with self._lock:
            self._watchers[on_topics] = often
            self._next_look = min(self._next_look, time.monotonic() + self._interval())
            self._wake()

    def unwatch(self, on_topics: OnTopics) -> None:
        with self._lock:
            self._watchers.pop(on_topics, None)

    def all(self, timeout: float) -> dict[str, int]:
        """All topics that the broker shows, asked now."""
        try:
            return self._ask_all(timeout)
        except KafkaException as exc:
            error = exc.args[0]
            kind = BrokerUnreachable if _passes(error) else BusError
            raise kind(f"Kafka did not tell its topics: {self._describe(error)}") from exc

    def close(self) -> None:
        with self._lock:
            self._closing.set()
            self._lock.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(LOOK_SECONDS + 1.0)
        with self._lock:
            left = list(self._wanted)
        self._fail(left, Closed("the bus was closed before the broker was back"))

    def _ask_all(self, timeout: float) -> dict[str, int]:
        metadata = self._admin.list_topics(timeout=timeout)
        return {name: len(topic.partitions) for name, topic in metadata.topics.items() if topic.error is None}

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="txlayer-kafka-topics", daemon=True)
            self._thread.start()
        self._lock.notify()

    def _interval(self) -> float:
        return PATTERN_SECONDS if any(self._watchers.values()) else PARTITION_SECONDS

    def _run(self) -> None:
        pause = 0.05
        while not self._closing.is_set():
            with self._lock:
                while not self._closing.is_set() and not self._wanted and not self._look_due():
                    self._lock.wait(max(0.0, self._next_look - time.monotonic()) if self._watchers else None)
                wanted, look = dict(self._wanted), self._look_due()
            try:
                if wanted:
                    self._resolve(wanted)
                if look:
                    self._look()
                pause = 0.05
            except KafkaException as exc:
                _logger.info("topics: the broker does not answer, trying again: %s", self._describe(exc.args[0]))
                self._closing.wait(random.uniform(pause / 2, pause))
                pause = min(1.0, pause * 2)
            except Closed:
                return

    def _wait(self, future: concurrent.futures.Future[_T]) -> _T:
        """The answer to a request, unless the bus is closed meanwhile."""
        while not self._closing.is_set():
            concurrent.futures.wait([future], 0.05)
            if future.done():
                return future.result()
        raise Closed("the bus is closed")

    def _look_due(self) -> bool:
        return bool(self._watchers) and time.monotonic() >= self._next_look

    def _look(self) -> None:
        with self._lock:
            watchers = list(self._watchers)
            self._next_look = time.monotonic() + self._interval()
        topics = self._ask_all(LOOK_SECONDS)
        for on_topics in watchers:
            try:
                on_topics(topics)
            except TxLayerError as exc:
                _logger.warning("new topics could not be subscribed to yet: %s", exc)

    def _resolve(self, wanted: Mapping[str, bool]) -> None:
        """One round: what is there is found, what is missing is created and found in the next round."""
        missing = []
        futures = self._admin.describe_topics(TopicCollection(list(wanted)), request_timeout=REQUEST_SECONDS)
        for topic, future in futures.items():
            try:
                self._found(topic, len(self._wait(future).partitions))
            except KafkaException as exc:
                if exc.args[0].code() in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE):
                    missing.append(topic)
                else:
                    self._refuse(topic, exc)
        if missing:
            self._create({topic: wanted[topic] for topic in missing})

    def _create(self, wanted: Mapping[str, bool]) -> None:
        topics = [self._new(topic, compacted) for topic, compacted in wanted.items()]
        created = self._admin.create_topics(
            topics, operation_timeout=REQUEST_SECONDS, request_timeout=2 * REQUEST_SECONDS
        )
        for topic, future in created.items():
            try:
                self._wait(future)
            except KafkaException as exc:
                if exc.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    self._refuse(topic, exc)

    def _new(self, topic: str, compacted: bool) -> NewTopic:
        partitions = 1 if compacted else self._partitions
        config: dict[str, Any] = dict(_COMPACTED) if compacted else {}
        return NewTopic(topic, num_partitions=partitions, replication_factor=self._replication, config=config)

    def _found(self, topic: str, partitions: int) -> None:
        with self._lock:
            if topic not in self._wanted:
                return  # the bus was closed meanwhile
            del self._wanted[topic]
            future = self._known[topic]
        future.set_result(partitions)

    def _refuse(self, topic: str, exc: KafkaException) -> None:
        """Raise again what may pass; what will not, is the answer."""
        error = exc.args[0]
        if _passes(error):
            raise exc
        self._fail([topic], BusError(f"topic {topic} cannot be created: {self._describe(error)}"))

    def _fail(self, topics: Collection[str], error: TxLayerError) -> None:
        for topic in topics:
            with self._lock:
                if topic not in self._wanted:
                    continue  # found or failed meanwhile
                del self._wanted[topic]
                future = self._known.pop(topic)
            future.set_exception(error)


def _passes(error: KafkaError) -> bool:
    return error.retriable() or error.code() in _PASSING


_PASSING = frozenset(
    {
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._WAIT_COORD,
        KafkaError._RESOLVE,
        KafkaError._DESTROY,
        KafkaError._AUTHENTICATION,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_CONTROLLER,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NETWORK_EXCEPTION,
    }
)
