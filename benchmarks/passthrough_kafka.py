"""Kafka: confluent-kafka in a plain script against the same through txlayer."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.side_by_side import Way, compare, stamped
from txlayer import Delivery, connect, errors

_SECONDS = 60.0
_WARM = "bench-warm"
"""Both publishers send it one event first: an idempotent producer may wait half a second for its number."""


def measure(url: str, events: int, repetitions: int) -> dict[str, Any]:
    """Both ways in turns, and how long a subscription takes at run-time."""
    ways = [Way("raw", _raw_publish, _raw_subscribe), Way("txlayer", _publish, _subscribe)]
    result = compare(ways, url, events, repetitions)
    result["ratio"] = round(result["txlayer"]["events_per_second"] / result["raw"]["events_per_second"], 3)
    result["subscribe_to_first_event_ms"] = subscribe_to_first_event_ms(url)
    return result


def subscribe_to_first_event_ms(url: str, rounds: int = 20) -> float:
    """From the call of `subscribe`, on a bus that is receiving, to the first event at the handler; median."""
    times = []
    with connect(url) as subscriber, connect(url) as publisher:
        for round_ in range(rounds):
            topic, arrived = f"bench-first-{time.monotonic_ns()}-{round_}", threading.Event()
            publisher.publish(topic, b"there is such a topic").wait(_SECONDS)
            began = time.monotonic()
            subscriber.subscribe(topic, lambda _, arrived=arrived: arrived.set())  # type: ignore[misc]
            publisher.publish(topic, b"x")
            arrived.wait(_SECONDS)
            times.append(time.monotonic() - began)
    return round(statistics.median(times[1:]) * 1000, 2)  # the first one starts the consumer


def _publish(url: str, topic: str, events: int, pause: float) -> None:
    with connect(url) as bus:
        bus.publish(_WARM, b"").wait(_SECONDS)
        receipts = []
        for _ in range(events):
            while True:
                try:
                    receipts.append(bus.publish(topic, stamped()))
                    break
                except errors.Backpressure:
                    receipts[-1].wait(_SECONDS)
            if pause:
                time.sleep(pause)
        for receipt in receipts:
            receipt.wait(_SECONDS)


def _subscribe(url: str, topic: str, ready: Callable[[], None], seen: Callable[[bytes], bool]) -> None:
    done = threading.Event()

    def handler(delivery: Delivery) -> None:
        if seen(delivery.payload):
            done.set()

    with connect(url) as bus:
        bus.subscribe(topic, handler)
        ready()
        done.wait(300)


def _servers(url: str) -> str:
    return url.removeprefix("kafka://").partition("?")[0]


def _raw_publish(url: str, topic: str, events: int, pause: float) -> None:
    """As a careful user writes it: idempotent, every acknowledgement counted, a bounded buffer."""
    producer = Producer({"bootstrap.servers": _servers(url), "enable.idempotence": True, "linger.ms": 1})
    producer.produce(_WARM, b"")
    producer.flush(_SECONDS)
    acknowledged = 0

    def on_delivery(error: KafkaError | None, _: Message) -> None:
        nonlocal acknowledged
        if error is None:
            acknowledged += 1

    for _ in range(events):
        payload = stamped()
        while True:
            try:
                producer.produce(topic, payload, on_delivery=on_delivery)
                break
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
        if pause:
            time.sleep(pause)
    producer.flush(_SECONDS)
    if acknowledged != events:
        raise RuntimeError(f"{events - acknowledged} events were not acknowledged")


def _raw_subscribe(url: str, topic: str, ready: Callable[[], None], seen: Callable[[bytes], bool]) -> None:
    """In batches, from the end of the log at the start."""
    admin = AdminClient({"bootstrap.servers": _servers(url)})
    created = admin.create_topics([NewTopic(topic, 1), NewTopic(_WARM, 1)])
    created[topic].result(_SECONDS)
    created[_WARM].exception(_SECONDS)  # there already
    consumer = Consumer(
        {
            "bootstrap.servers": _servers(url),
            "group.id": topic,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    here = TopicPartition(topic, 0)
    _, end = consumer.get_watermark_offsets(here, timeout=_SECONDS)
    consumer.assign([TopicPartition(topic, 0, end)])
    consumer.poll(0)
    ready()
    done = False
    while not done:
        first = consumer.poll(1.0)
        batch = [] if first is None else [first, *consumer.consume(499, 0)]
        for message in batch:
            if message.error() is None:
                done = seen(message.value() or b"")
    consumer.close()
