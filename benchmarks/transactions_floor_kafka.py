"""Request and reply over Kafka with confluent-kafka alone: idempotent producers that do not linger."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.passthrough_kafka import bootstrap
from benchmarks.transactions_floor import START_SECONDS, Requests


def prepare(url: str, topic: str) -> None:
    """One topic each way, one partition each."""
    topics = [NewTopic(f"{topic}-requests", 1), NewTopic(f"{topic}-replies", 1)]
    admin = AdminClient({"bootstrap.servers": bootstrap(url)})
    for created in admin.create_topics(topics).values():
        created.result(START_SECONDS)


def reply(url: str, topic: str, parent: Connection) -> None:
    """A member: one thread that consumes and produces."""
    producer, consumer = _producer(url), _consumer(url, f"{topic}-requests")
    parent.send("ready")
    _consume(consumer, lambda payload: _produce(producer, f"{topic}-replies", payload), lambda: parent.poll(0))
    producer.flush(START_SECONDS)


@contextmanager
def requests(url: str, topic: str, members: int) -> Iterator[Requests]:
    """The asking side."""
    producer, consumer = _producer(url), _consumer(url, f"{topic}-replies")
    made = Requests(members, lambda payload: _produce(producer, f"{topic}-requests", payload))
    stop = threading.Event()
    thread = threading.Thread(target=_consume, args=(consumer, made.on_reply, stop.is_set))
    thread.start()
    yield made
    stop.set()
    thread.join()
    producer.flush(START_SECONDS)


def _producer(url: str) -> Producer:
    return Producer({"bootstrap.servers": bootstrap(url), "enable.idempotence": True, "linger.ms": 0})


def _consumer(url: str, topic: str) -> Consumer:
    consumer = Consumer({"bootstrap.servers": bootstrap(url), "group.id": topic, "enable.auto.commit": False})
    here = TopicPartition(topic, 0)
    _, end = consumer.get_watermark_offsets(here, timeout=START_SECONDS)
    consumer.assign([TopicPartition(topic, 0, end)])
    consumer.poll(0.5)
    return consumer


def _produce(producer: Producer, topic: str, payload: bytes) -> None:
    producer.produce(topic, payload)
    producer.poll(0)


def _consume(consumer: Consumer, act: Callable[[bytes], None], over: Callable[[], bool]) -> None:
    while not over():
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            act(message.value() or b"")
    consumer.close()
