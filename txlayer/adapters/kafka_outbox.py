"""What this bus sends: numbered in the order of the log, kept until the broker has it, refused when too much waits.

Events of a topic that is not known yet wait here, in order, until it is found or created; all others are handed to the
producer at once, which keeps them while the broker is away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from time import time_ns
from typing import Any, NoReturn
from zlib import crc32

from confluent_kafka import KafkaError, KafkaException, Producer

from txlayer.adapters.base import EVENT_OVERHEAD, buffer_full
from txlayer.adapters.kafka_events import GONE, PACKED, Event, Route, receipts
from txlayer.adapters.kafka_names import check_topic, partition_of
from txlayer.adapters.kafka_options import most_events
from txlayer.adapters.kafka_topics import KafkaTopics, Partitions
from txlayer.adapters.streams import Stream, Streams
from txlayer.errors import Backpressure, Closed, PayloadTooLarge, PublishFailed, TxLayerError, UsageError
from txlayer.metadata import pack, pack_head
from txlayer.receipt import Receipt

_logger = logging.getLogger(__name__)

RECORD_BYTES = 512
"""Room for what Kafka and the metadata add to a record, beside payload, key and the application's headers."""
_HEADER_BYTES = 10
MAX_TYPE_BYTES = 255
SERVE_EVERY = 64
"""Events after which a publisher serves delivery reports himself."""
BURST_SECONDS = 0.005
"""How often it is looked whether publishers still do."""
IDLE_SECONDS = 0.02
SAID_SECONDS = 0.25
"""How often the reports of what was only said are cleared away, while nobody waits for a receipt."""
_LEARN_SECONDS = 5.0


class KafkaOutbox:
    """The producer and what waits for it."""

    def __init__(
        self,
        producer: Producer,
        topics: KafkaTopics,
        streams: Streams,
        *,
        buffer_bytes: int,
        message_bytes: int,
        cloudevents: bool,
    ) -> None:
        self.producer = producer
        self._produce: Callable[..., None] = producer.produce
        self._serve = self._serve_beside
        self._receipt = receipts(self._close_route)
        self._served_by_publishers = 0
        self._routes: dict[str, Route] = {}
        """One for each topic that this bus has published to. No bound: a topic costs the broker far more."""
        self._open: dict[str, Route] = {}
        """Those with nothing waiting: their events leave at once."""
        self.plain: Mapping[str, Route] = {} if cloudevents else self._open
        """Those that `send_plain` takes."""
        self._in_use = threading.RLock()
        """Held while the producer is used beside its poller: the driver ends the process if it is closed meanwhile."""
        self._order = threading.Lock()
        """Held while an event is numbered and handed over, so that numbers are in the order of the log."""
        self._topics = topics
        self._streams = streams
        self._buffer_bytes = buffer_bytes
        self._message_bytes = message_bytes
        self._cloudevents = cloudevents
        self._waiting_bytes = 0
        self._idle = threading.Condition(self._order)
        self._stopped = threading.Event()
        self._dozing = False
        """The poller waits for `_wake`; looked at after an event was handed over."""
        self._wake = threading.Event()
        self._poller = threading.Thread(target=self._poll, name="txlayer-kafka-poll", daemon=True)
        self._poller.start()

    def send_plain(self, route: Route, payload: bytes, key: bytes | None, type: str) -> Receipt:
        """`send` for an event without headers, in the compact form, to a topic of `plain`: the path of nearly all."""
        receipt = self._receipt()
        partition = route.default if key is None else crc32(key) % route.partitions
        stream = route.streams[partition]
        self._order.acquire()  # half the price of `with`
        try:
            number = stream.number + 1
            if type:
                packed = pack(stream.id, number, time_ns() // 1000, type.encode())
            else:
                packed = pack_head(1, stream.id, number, time_ns() // 1000, 0)
            self._produce(route.topic, payload, key, partition, receipt, None, 0, [(PACKED, packed)])
            stream.number = number
        except BufferError:
            raise self._full() from None
        except KafkaException as exc:
            refusal = self._refused(exc)
            if not isinstance(refusal, _TopicGone):
                raise refusal from exc
            number = 0
        finally:
            self._order.release()
        if not number:
            return self.send(route.topic, payload, None, key, type)
        if self._dozing:
            self._wake.set()
        if not number % SERVE_EVERY:
            self._served_by_publishers += 1
            self._serve(0)
        return receipt

    def send(
        self,
        topic: str,
        payload: bytes | None,
        headers: Mapping[str, str] | None,
        key: bytes | None,
        type: str | None,
        *,
        compacted: bool = False,
    ) -> Receipt:
        """Take an event of any topic; it leaves at once if the topic is known."""
        size = self._size(payload, key, headers)
        if type and len(type.encode()) > MAX_TYPE_BYTES:
            raise UsageError(f"event type of {len(type.encode())} bytes: at most {MAX_TYPE_BYTES} in UTF-8")
        event = Event(payload, key, headers, type, time.time_ns() // 1000, self._receipt(), size)
        with self._order:
            if (ready := self._open.get(topic)) is not None:
                try:
                    self._hand_over(ready, event)
                except _TopicGone:
                    del self._open[topic]
                    self._topics.forget(topic)
                else:
                    return event.receipt
            if self._waiting_bytes + size > self._buffer_bytes:
                raise buffer_full(self._waiting_bytes, self._buffer_bytes)
            route = self._routes.get(topic)
            if route is None:
                check_topic(topic)
                route = self._routes[topic] = Route(topic)
            asked = bool(route.waiting)
            route.waiting.append(event)
            self._waiting_bytes += size
        if not asked:
            self._topics.find(topic, compacted=compacted).add_done_callback(_Open(self, route))
        return event.receipt

    def say(self, topic: str, payload: bytes) -> None:
        """A message that nobody waits for: no number, no report."""
        route = self._open.get(topic)
        if route is None:
            self.send(topic, payload, None, None, "")
            return
        try:
            try:
                self._produce(route.topic, payload, None, route.default)
            except BufferError:
                self._serve(0)  # perhaps it is full of reports that nobody waits for
                self._produce(route.topic, payload, None, route.default)
        except BufferError:
            raise self._full() from None
        except KafkaException as exc:
            raise self._refused(exc) from exc

    def stream(self, topic: str) -> Stream:
        """The stream of this publisher's events without a key."""
        route = self._routes[topic]
        return route.streams[route.default]

    def flush(self, timeout: float) -> None:
        """Wait until everything is acknowledged, up to `timeout`; then fail what is left, and stop."""
        deadline = time.monotonic() + timeout
        with self._idle:
            self._idle.wait_for(lambda: not self._waiting_bytes, timeout)
        self.producer.flush(max(0.0, deadline - time.monotonic()))
        with self._order:
            self._produce = _refuse  # nobody would report what came to it
            for route in self._routes.values():
                self._fail_waiting(route, Closed("the bus was closed before the broker was back"))
        if len(self.producer):
            self.producer.purge(in_queue=True, in_flight=True)
            self.producer.flush(1.0)
        self._stopped.set()
        self._wake.set()
        self._poller.join(5.0)
        with self._in_use:
            if hasattr(self.producer, "close"):  # older drivers close it with the object
                self.producer.close()

    def _poll(self) -> None:
        """Serves delivery reports, which only complete receipts: no application code runs here.

        While publishers serve the reports themselves this thread keeps away: the driver takes and leaves the
        interpreter for every report, and two threads that do so at once halve the rate.
        """
        served = 0
        while not self._stopped.is_set():
            if served != self._served_by_publishers:
                served = self._served_by_publishers
                time.sleep(BURST_SECONDS)
            elif not self.producer.poll(IDLE_SECONDS):
                self._doze()

    def _doze(self) -> None:
        """Wait until somebody wants a receipt: what is only said need not wake a thread."""
        self._dozing = True
        if not len(self.producer):  # looked at now: who hands over later sees that this thread dozes
            while not self._wake.wait(SAID_SECONDS):
                self.producer.poll(0)
        self._dozing = False
        self._wake.clear()

    def _serve_beside(self, timeout: float) -> None:
        """Serve on a publisher's thread, unless another one does or the producer is being closed."""
        if self._in_use.acquire(blocking=False):
            try:
                if not self._stopped.is_set():
                    self.producer.poll(timeout)
            finally:
                self._in_use.release()

    def open(self, route: Route, found: Partitions) -> None:
        """The topic is known, or cannot be had."""
        error = found.exception()
        if route.streams and error is None:
            self._learn(route.topic)
        with self._order:
            if error is not None:
                failure = error if isinstance(error, TxLayerError) else PublishFailed(str(error))
                self._fail_waiting(route, failure)
                if not route.streams:
                    self._routes.pop(route.topic, None)  # there is no such topic
                return
            if route.partitions != found.result():  # one that was made again may have more or fewer
                route.streams += [self._streams.open() for _ in range(len(route.streams), found.result())]
                route.partitions = found.result()
                route.default = partition_of(self._streams.publisher, route.partitions)
            while route.waiting:
                event = route.waiting[0]
                try:
                    self._hand_over(route, event)
                except TxLayerError as exc:
                    if exc.retriable and not self._stopped.is_set():
                        self._idle.wait(0.01)  # lets go of the lock: others get their Backpressure meanwhile
                        continue
                    event.receipt.complete(exc)
                route.waiting.popleft()
                self._waiting_bytes -= event.size
            self._open[route.topic] = route
            self._idle.notify_all()

    def _learn(self, topic: str) -> None:
        """It was gone: the producer has to learn that it is there again, and does so by itself in the end."""
        with self._in_use:
            try:
                if not self._stopped.is_set():
                    self.producer.list_topics(topic, timeout=_LEARN_SECONDS)
            except KafkaException as exc:
                _logger.info("Kafka: the producer does not know topic %s again yet: %s", topic, exc)

    def _close_route(self, topic: str) -> None:
        """It was deleted: what is published from now on waits until it is made again."""
        with self._order:
            if self._open.pop(topic, None) is not None:
                self._topics.forget(topic)

    def _fail_waiting(self, route: Route, error: TxLayerError) -> None:
        while route.waiting:
            event = route.waiting.popleft()
            self._waiting_bytes -= event.size
            event.receipt.complete(PublishFailed(f"topic {route.topic}: {error}"))
        self._idle.notify_all()

    def _hand_over(self, route: Route, event: Event) -> None:
        partition = route.partition(event.key)
        stream = route.streams[partition]
        headers = event.headers_for(stream, self._cloudevents)
        try:
            self._produce(
                route.topic,
                event.payload,
                event.key,
                partition=partition,
                on_delivery=event.receipt,
                headers=headers,
            )
        except BufferError:
            raise self._full() from None
        except KafkaException as exc:
            raise self._refused(exc) from exc
        if event.type is not None:
            stream.number += 1
        if self._dozing:
            self._wake.set()

    def _size(self, payload: bytes | None, key: bytes | None, headers: Mapping[str, str] | None) -> int:
        size = len(payload or b"") + len(key or b"")
        for name, value in (headers or {}).items():
            size += len(name) + len(value.encode("utf-8", "surrogateescape")) + _HEADER_BYTES
        if size + RECORD_BYTES > self._message_bytes:
            raise too_large(size, self._message_bytes)
        return size + EVENT_OVERHEAD

    def _full(self) -> Backpressure:
        limit = self._buffer_bytes
        self._wake.set()
        return Backpressure(
            f"{len(self.producer)} events wait for the broker; the limit is buffer_bytes={limit} of payload, "
            f"or {most_events(limit)} events: wait, or raise it"
        )

    def _refused(self, exc: KafkaException) -> TxLayerError:
        """What the producer says to an event that it does not take."""
        error = exc.args[0]
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return PayloadTooLarge(f"the event with its headers is over the {self._message_bytes} bytes of the broker")
        if error.code() in GONE:
            return _TopicGone(f"the topic was deleted: {error.str()}")
        return PublishFailed(f"the producer refused the event: {error.str()}")


class _TopicGone(PublishFailed):
    """The topic was there and was deleted: it is to be made again."""


class _Open:
    """What the search for a topic calls in the end."""

    __slots__ = ("_outbox", "_route")

    def __init__(self, outbox: KafkaOutbox, route: Route) -> None:
        self._outbox = outbox
        self._route = route

    def __call__(self, found: Partitions) -> None:
        self._outbox.open(self._route, found)


def _refuse(*args: Any, **rest: Any) -> NoReturn:
    """In the place of `produce` after the last flush."""
    raise Closed("the bus is closed")


def too_large(size: int, limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(f"event of {size} bytes with key and headers: the broker takes at most {limit} per record")
