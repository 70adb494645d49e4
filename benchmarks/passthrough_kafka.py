"""Kafka: confluent-kafka in a plain script against the same through txlayer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks import through_txlayer
from benchmarks.side_by_side import stamped
from benchmarks.through_txlayer import SECONDS, WARM


def measure(url: str, events: int, repetitions: int) -> dict[str, Any]:
    """confluent-kafka in a plain script, and txlayer."""
    return through_txlayer.measure(_raw_publish, _raw_subscribe, url, events, repetitions)


def bootstrap(url: str) -> str:
    """The servers of a Kafka URL."""
    return url.removeprefix("kafka://").partition("?")[0]


def _raw_publish(url: str, topic: str, events: int, pause: float, all_acknowledged: Callable[[], None]) -> None:
    """As a careful user writes it: idempotent, every acknowledgement counted, a bounded buffer."""
    producer = Producer({"bootstrap.servers": bootstrap(url), "enable.idempotence": True, "linger.ms": 1})
    producer.produce(WARM, b"")
    producer.flush(SECONDS)
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
    producer.flush(SECONDS)
    if acknowledged != events:
        raise RuntimeError(f"{events - acknowledged} events were not acknowledged")
    all_acknowledged()


def _raw_subscribe(url: str, topic: str, ready: Callable[[], None], seen: Callable[[bytes], bool]) -> None:
    """In batches, from the end of the log at the start."""
    admin = AdminClient({"bootstrap.servers": bootstrap(url)})
    created = admin.create_topics([NewTopic(topic, 1), NewTopic(WARM, 1)])
    created[topic].result(SECONDS)
    created[WARM].exception(SECONDS)  # there already
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap(url),
            "group.id": topic,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    here = TopicPartition(topic, 0)
    _, end = consumer.get_watermark_offsets(here, timeout=SECONDS)
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
