"""The Kafka bus: an idempotent producer, consumers without group membership, compacted topics for latest values.

One thread polls the producer, one finds and makes topics, one reads for all subscriptions without a name, one for each
durable name, one for all watches. None of them runs application code.

Latest values have a producer of their own: a heartbeat that a full buffer of events refused would come too late, and a
site that is only busy would count as dead. It is opened by the first of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Producer

from txlayer.adapters.base import BusBase, as_bytes
from txlayer.adapters.event_checks import check_event, check_text
from txlayer.adapters.kafka_connect import Cluster, reach
from txlayer.adapters.kafka_latest import KafkaDirectory, KafkaWatch, kind_of
from txlayer.adapters.kafka_names import check_subscription, directory_topic, make_topic
from txlayer.adapters.kafka_options import KafkaOptions, KafkaSettings, read_target
from txlayer.adapters.kafka_outbox import RECORD_BYTES, KafkaOutbox
from txlayer.adapters.kafka_positions import Committer, Positions
from txlayer.adapters.kafka_reader import QUIET_SECONDS, KafkaReader
from txlayer.adapters.kafka_subscription import KafkaSubscription
from txlayer.adapters.kafka_topics import KafkaTopics
from txlayer.adapters.lane import LaneOptions
from txlayer.adapters.streams import Stream
from txlayer.errors import Closed, PayloadTooLarge, UsageError
from txlayer.ports import Capabilities, WatchHandler
from txlayer.presence import Holder
from txlayer.receipt import Receipt

type_of = type


def open_bus(target: object, options: Mapping[str, Any]) -> KafkaBus:
    """Entry point: `kafka://user:password@host:port,host:port?option=value`, or a dict of librdkafka settings."""
    return KafkaBus(*read_target(target, options))


class KafkaBus(BusBase):
    """One site's connection to a Kafka cluster."""

    _receives = True

    def __init__(self, settings: KafkaSettings, options: KafkaOptions) -> None:
        super().__init__(settings.client_id, options.cloudevents)
        self._settings = settings
        self._options = options
        self._timeout = options.connect_timeout
        cluster = reach(settings, options.connect_timeout)
        self._capabilities = self._limits(cluster)
        self._topics = KafkaTopics(cluster.admin, options.partitions, options.replication, settings.redact)
        self._positions = Positions(cluster.admin, settings.redact, self._timeout)
        self._directory = KafkaDirectory(self._open_directory_reader, self._topics, self._positions, self._timeout)
        self._shared: KafkaReader | None = None
        self._message_bytes = cluster.message_bytes
        self._outbox = self._open_outbox()
        self._values: KafkaOutbox | None = None
        self._plain, self._send_plain = self._outbox.plain, self._outbox.send_plain
        self._max_payload = self._capabilities.max_payload or 0

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def native(self) -> Producer:
        return self._outbox.producer

    def topic(self, *levels: str) -> str:
        return make_topic(*levels)

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        key: bytes | None = None,
        type: str = "",
    ) -> Receipt:
        if self._closing:
            self._check_open()
        if headers is None and type_of(payload) is bytes and type_of(type) is str:
            try:
                if len(payload) + (len(key) if key else 0) > self._max_payload:
                    raise self._too_large(payload, key)
                route = self._plain.get(topic)
                if route is not None:
                    return self._send_plain(route, payload, key, type)
            except TypeError:  # only then is it looked what is wrong: this is the path of nearly every event
                check_event(topic, payload, headers, key, type)
                raise
        payload = check_event(topic, payload, headers, key, type)
        if len(payload) + len(key or b"") > self._max_payload:
            raise self._too_large(payload, key)
        return self._outbox.send(topic, payload, headers, key, type)

    def say(self, topic: str, payload: bytes) -> None:
        self._check_open()
        if len(payload) > self._max_payload:
            raise self._too_large(payload)
        self._outbox.say(topic, payload)

    def announce(self, key: str, value: bytes | None) -> Receipt:
        check_text("the key of a latest value", key)
        if value is not None and len(value := as_bytes(value)) > self._max_payload:
            raise self._too_large(value)
        whole = key.encode("utf-8", "surrogateescape")
        return self._value_outbox().send(_kind_topic(key), value, None, whole, None, compacted=True)

    def watch(self, prefix: str, handler: WatchHandler | None = None) -> KafkaWatch:
        self._check_open()
        _kind_topic(prefix)
        watch = self._directory.watch(prefix, handler)
        self._remember(watch)
        return watch

    def _stream(self, topic: str) -> Stream:
        return self._outbox.stream(topic)

    def _open_subscription(
        self, topics: Sequence[str], options: LaneOptions, holder: Holder | None
    ) -> KafkaSubscription:
        for topic in topics:
            check_subscription(topic)
        committer = None
        if holder is None:
            reader = self._shared_reader()
        else:
            reader = self._open_reader(options.name, options.name)
            committer = Committer(reader, self._options.recommit)
        lane = self._lane(options, on_low=reader.has_room)
        durable = (options.name, holder, committer) if holder and committer else None
        subscription = KafkaSubscription(reader, self._topics, self._positions, lane, self._timeout, durable)
        try:
            subscription.begin(topics, _held_before(holder))
        except BaseException:
            lane.close()
            if durable is not None:
                reader.close()
            raise
        reader.tick = subscription.tick if durable is not None else reader.tick
        return subscription

    def _value_outbox(self) -> KafkaOutbox:
        with self._lock:
            if self._closed:
                raise Closed(f"bus {self._name} is closed")
            if self._values is None:
                self._values = self._open_outbox()
            return self._values

    def _open_outbox(self) -> KafkaOutbox:
        buffer_bytes = self._options.buffer_bytes
        return KafkaOutbox(
            Producer(self._settings.producer(buffer_bytes, self._message_bytes)),
            self._topics,
            self._streams,
            buffer_bytes=buffer_bytes,
            message_bytes=self._message_bytes,
            cloudevents=self._options.cloudevents,
        )

    def _shared_reader(self) -> KafkaReader:
        with self._lock:
            if self._shared is None:
                self._shared = self._open_reader("events", f"txlayer-{self._streams.publisher.hex()}")
            return self._shared

    def _open_directory_reader(self) -> KafkaReader:
        return self._open_reader("latest", f"txlayer-{self._streams.publisher.hex()}", tell_end=True)

    def _open_reader(self, name: str, group: str, *, tell_end: bool = False) -> KafkaReader:
        swift = self._settings.consumer(group, tell_end=tell_end)
        chosen = self._settings.given("fetch.wait.max.ms") is not None
        patient = None if chosen else self._settings.consumer(group, tell_end=tell_end, patient=True)
        quiet = 0.0 if tell_end else QUIET_SECONDS  # the heartbeats of many never pause, and may come a little later
        return KafkaReader(swift, name, self._settings.redact, patient, quiet)

    def _at_death(self, key: str, will: bytes) -> Callable[[], None]:
        """Kafka has no last will: the heartbeats stop."""
        return lambda: None

    def _shut_down(self, timeout: float) -> None:
        self._directory.close()
        if self._shared is not None:
            self._shared.close()
        deadline = time.monotonic() + timeout
        if self._values is not None:  # first: the last words are few, and the events may need all the time there is
            self._values.flush(timeout)
        self._outbox.flush(max(0.0, deadline - time.monotonic()))
        self._topics.close()

    def _limits(self, cluster: Cluster) -> Capabilities:
        order = "publisher" if self._options.partitions == 1 else "key"
        largest = cluster.message_bytes - RECORD_BYTES
        if self._options.max_payload is not None:
            largest = min(largest, self._options.max_payload)
        return Capabilities(order, True, True, True, largest)

    def _too_large(self, payload: bytes, key: bytes | None = None) -> PayloadTooLarge:
        size = f"{len(payload)} bytes" + (f" with a key of {len(key)}" if key else "")
        return PayloadTooLarge(f"payload of {size}: this bus takes at most {self._max_payload}")


def _kind_topic(key: str) -> str:
    kind = kind_of(key)
    if not kind:
        raise UsageError(f"key {key!r} of a latest value: kind/name")
    return directory_topic(kind)


def _held_before(holder: Holder | None) -> list[str] | None:
    """What a durable name was subscribed to by its last holder."""
    before = holder.before if holder is not None else None
    return before.info.get("topics", "").split("\n") if before is not None else None
