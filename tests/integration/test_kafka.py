"""The Kafka adapter on a real broker: what plain clients see, positions, limits."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn
from zlib import crc32

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from tests.conftest import DEADLINE, eventually
from txlayer import Ack, Bus, Delivery, Gap, Identity, Subscription, connect, errors
from txlayer.adapters.kafka_reader import BATCH
from txlayer.presence import decode
from txlayer.testing.kafka import Kafka
from txlayer.testing.server import Server

Connect = Callable[..., Any]


@pytest.fixture
def open_bus(kafka_broker: Server) -> Iterator[Connect]:
    """Buses on the shared broker, closed in the end."""
    buses: list[Bus] = []

    def open_one(**options: Any) -> Bus:
        buses.append(connect(kafka_broker.url, **options))
        return buses[-1]

    yield open_one
    for bus in buses:
        bus.close()


@pytest.fixture
def servers(kafka_broker: Server) -> str:
    return kafka_broker.address


@pytest.fixture
def name() -> str:
    return f"k{os.getpid()}-{time.monotonic_ns()}"


def read_plainly(servers: str, topic: str, partition: int = 0) -> Any:
    """The first message, as a consumer gets it that knows nothing of txlayer."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "plain", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, partition, 0)])
    message = consumer.poll(DEADLINE)
    consumer.close()
    assert message is not None
    assert message.error() is None
    return message


def produce_plainly(servers: str, topic: str, value: bytes | None, **rest: Any) -> None:
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, value, **rest)
    assert producer.flush(DEADLINE) == 0


def publish_for_ever(bus: Bus, topic: str) -> NoReturn:
    while True:
        bus.publish(topic, bytes(1000))


def committed(servers: str, group: str, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": servers})
    request = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    answer = admin.list_consumer_group_offsets([request])[group].result(DEADLINE)
    return int(answer.topic_partitions[0].offset)


def test_a_plain_consumer_reads_payload_key_and_headers_as_before(open_bus: Connect, servers: str, name: str) -> None:
    open_bus().publish(name, b"\x00payload", key=b"k", headers={"h": "ü"}, type="meeting.time").wait(DEADLINE)
    message = read_plainly(servers, name)
    assert (message.value(), message.key()) == (b"\x00payload", b"k")
    headers = dict(message.headers())
    assert headers.pop("h") == "ü".encode()
    assert list(headers) == ["tx"]


def test_a_plain_producer_is_understood(open_bus: Connect, servers: str, name: str) -> None:
    inbox: list[Delivery] = []
    open_bus().subscribe(name, inbox.append)
    produce_plainly(servers, name, b"v", key=b"k", headers=[("bytes", b"\xff\xfe"), ("none", None)])
    produce_plainly(servers, name, None)
    eventually(lambda: len(inbox) == 2)
    assert (inbox[0].payload, inbox[0].key, inbox[0].metadata) == (b"v", b"k", None)
    assert inbox[0].headers["bytes"].encode("utf-8", "surrogateescape") == b"\xff\xfe"
    assert inbox[0].headers["none"] == ""
    assert inbox[1].payload == b""
    assert [(d.native, d.token) for d in inbox] == [((name, 0), 0), ((name, 0), 1)]


def test_an_event_of_the_cloudevents_package_is_understood(open_bus: Connect, servers: str, name: str) -> None:
    kafka = pytest.importorskip("cloudevents.core.bindings.kafka")
    from cloudevents.core.formats.json import JSONFormat
    from cloudevents.core.v1.event import CloudEvent

    attributes = {"type": "meeting.time", "source": "/calendar", "id": "e-1", "specversion": "1.0"}
    event = CloudEvent({**attributes, "datacontenttype": "application/json", "room": "4"}, {"at": 9})
    made = kafka.to_binary(event, JSONFormat())
    inbox: list[Delivery] = []
    open_bus().subscribe(name, inbox.append)
    produce_plainly(servers, name, made.value, key=made.key, headers=list(made.headers.items()))
    eventually(lambda: inbox)
    metadata = inbox[0].metadata
    assert metadata is not None
    assert (metadata.type, metadata.source, metadata.id) == ("meeting.time", "/calendar", "e-1")
    assert metadata.content_type == "application/json"
    assert metadata.extensions["room"] == "4"
    assert inbox[0].payload == made.value


def test_the_cloudevents_package_understands_ours(open_bus: Connect, servers: str, name: str) -> None:
    kafka = pytest.importorskip("cloudevents.core.bindings.kafka")
    from cloudevents.core.formats.json import JSONFormat

    bus = open_bus(cloudevents=True)
    bus.publish(name, b'{"at": 9}', type="meeting.time", headers={"content-type": "application/json"}).wait(DEADLINE)
    message = read_plainly(servers, name)
    event = kafka.from_binary(
        kafka.KafkaMessage(headers=dict(message.headers()), key=message.key(), value=message.value()), JSONFormat()
    )
    assert event.get_type() == "meeting.time"
    assert event.get_data() == {"at": 9}


def test_order_per_key_and_numbers_per_partition(open_bus: Connect, servers: str, name: str) -> None:
    bus, inbox, gaps = open_bus(partitions=3), list[Delivery](), list[Gap]()
    assert bus.capabilities.order == "key"
    subscription = bus.subscribe(name, inbox.append, on_gap=gaps.append)
    for number in range(300):
        bus.publish(name, b"%d" % number, key=b"key-%d" % (number % 7))
    eventually(lambda: len(inbox) == 300)
    for key in range(7):
        numbers = [int(d.payload) for d in inbox if d.key == b"key-%d" % key]
        assert numbers == sorted(numbers)
    assert {d.native for d in inbox} == {(name, crc32(b"key-%d" % k) % 3) for k in range(7)}
    assert (gaps, subscription.stats.missing) == ([], 0)
    lost = crc32(b"key-1") % 3
    bus._outbox._routes[name].streams[lost].number += 4
    bus.publish(name, b"after", key=b"key-1")
    eventually(lambda: gaps)
    count = sum(1 for d in inbox if d.native == (name, lost) and d.payload != b"after")
    assert [(gap.first, gap.last) for gap in gaps] == [(count + 1, count + 4)]


def test_events_without_a_key_keep_their_order_on_several_partitions(open_bus: Connect, name: str) -> None:
    bus, inbox = open_bus(partitions=4), list[Delivery]()
    bus.subscribe(name, inbox.append)
    for number in range(500):
        bus.publish(name, b"%d" % number)
    eventually(lambda: len(inbox) == 500)
    assert [int(d.payload) for d in inbox] == list(range(500))


def test_new_partitions_of_a_topic_are_read_too(
    open_bus: Connect, servers: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.adapters.kafka_topics.PARTITION_SECONDS", 0.1)
    bus, inbox = open_bus(), list[Delivery]()
    bus.subscribe(name, inbox.append)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_partitions([NewPartitions(name, 2)])[name].result(DEADLINE)
    produce_plainly(servers, name, b"elsewhere", partition=1)
    eventually(lambda: [d.payload for d in inbox] == [b"elsewhere"])


def test_the_users_own_settings_open_a_bus(servers: str, name: str) -> None:
    with connect({"bootstrap.servers": servers, "linger.ms": 0, "client.id": "mine"}, partitions=2) as bus:
        bus.publish(name, b"x").wait(DEADLINE)
        assert isinstance(bus.native, Producer)
        assert bus.capabilities.max_payload is not None
    assert len(AdminClient({"bootstrap.servers": servers}).list_topics(timeout=DEADLINE).topics[name].partitions) == 2


def test_a_position_is_committed_and_committed_again(open_bus: Connect, servers: str, name: str) -> None:
    bus, inbox = open_bus(recommit=0.2), list[Delivery]()
    bus.subscribe(name, inbox.append, durable=name)
    for _ in range(3):
        bus.publish(name, b"x").wait(DEADLINE)
    eventually(lambda: committed(servers, name, name) == 3)
    admin = AdminClient({"bootstrap.servers": servers})
    moved = ConsumerGroupTopicPartitions(name, [TopicPartition(name, 0, 1)])
    admin.alter_consumer_group_offsets([moved])[name].result(DEADLINE)
    eventually(lambda: committed(servers, name, name) == 3, "the idle subscription has committed again")


def test_unsubscribe_makes_the_broker_forget_the_name(open_bus: Connect, servers: str, name: str) -> None:
    bus = open_bus()
    subscription = bus.subscribe(name, lambda _: None, durable=name)
    assert committed(servers, name, name) == 0
    subscription.unsubscribe()
    assert committed(servers, name, name) < 0
    bus.publish(name, b"while it is forgotten").wait(DEADLINE)
    inbox: list[Delivery] = []
    bus.subscribe(name, inbox.append, durable=name)
    bus.publish(name, b"new").wait(DEADLINE)
    eventually(lambda: [d.payload for d in inbox] == [b"new"])


def test_a_durable_pattern_gets_topics_that_were_made_while_it_was_away(open_bus: Connect, name: str) -> None:
    first = open_bus()
    first.subscribe(f"{name}.#", lambda _: None, durable=name)
    first.close()
    publisher = open_bus()
    for number in range(3):
        publisher.publish(publisher.topic(name, "new"), b"%d" % number).wait(DEADLINE)
    inbox: list[Delivery] = []
    open_bus().subscribe(f"{name}.#", inbox.append, durable=name)
    eventually(lambda: [d.payload for d in inbox] == [b"0", b"1", b"2"])


def test_a_full_subscription_does_not_hold_up_another_on_the_same_topic(
    open_bus: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "txlayer.adapters.kafka_feed.EventFeed.full", property(lambda feed: len(feed._lane._queue) > 50)
    )
    bus, quick, slow, go_on = open_bus(), list[bytes](), list[bytes](), threading.Event()

    def wait(delivery: Delivery) -> None:
        go_on.wait(DEADLINE)
        slow.append(delivery.payload)

    bus.subscribe(name, wait)
    bus.subscribe(name, lambda delivery: quick.append(delivery.payload))
    sent = [b"%d" % number for number in range(3000)]
    for payload in sent:
        bus.publish(name, payload)
    eventually(lambda: len(quick) == 3000)
    go_on.set()
    eventually(lambda: len(slow) == 3000)
    assert quick == slow == sent


def test_readers_that_settle_and_hurry_again_lose_and_repeat_nothing(
    open_bus: Connect, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlayer.adapters.kafka_pace.SETTLE_SECONDS", 0.2)
    bus, publisher, inbox = open_bus(), open_bus(), list[tuple[str, int]]()
    sent: dict[str, int] = {}
    subscriptions = [
        bus.subscribe(f"{name}-0", lambda d: inbox.append((d.topic, int(d.payload)))),
        bus.subscribe(f"{name}-1", lambda d: inbox.append((d.topic, int(d.payload))), durable=name),
    ]
    for change in range(2, 6):
        eventually(lambda: all(subscription._reader._pace.patient for subscription in subscriptions))
        for number, subscription in enumerate(subscriptions):
            publish_some(publisher, sent, subscription)
            subscription.add(f"{name}-{change}-{number}")
            publish_some(publisher, sent, subscription)
    eventually(lambda: len(inbox) >= sum(sent.values()))
    assert {topic: [n for t, n in inbox if t == topic] for topic in sent} == {
        topic: list(range(count)) for topic, count in sent.items()
    }


def publish_some(bus: Bus, sent: dict[str, int], subscription: Subscription) -> None:
    """The next number on each of its topics."""
    for topic in sorted(subscription.topics):
        number = sent.get(topic, 0)
        bus.publish(topic, b"%d" % number)
        sent[topic] = number + 1


def test_unacknowledged_events_stop_the_reader(open_bus: Connect, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.adapters.kafka_feed.MAX_UNACKNOWLEDGED", 100)
    bus, inbox = open_bus(), list[Delivery]()
    bus.subscribe(name, inbox.append, durable=name, ack=Ack.MANUAL)
    for number in range(5000):
        bus.publish(name, b"%d" % number)
    while len(inbox) < 5000:
        eventually(lambda: any(not d.settled for d in inbox))
        assert sum(not d.settled for d in inbox) <= 100 + BATCH
        for delivery in list(inbox):
            delivery.ack()
    assert [int(d.payload) for d in inbox] == list(range(5000))


def test_latest_values_are_in_a_compacted_topic(open_bus: Connect, servers: str, name: str) -> None:
    bus = open_bus()
    bus.announce(f"{name}/one", b"v").wait(DEADLINE)
    message = read_plainly(servers, f"txlayer.v1.dir.{name}")
    assert (message.key(), message.value()) == (f"{name}/one".encode(), b"v")


def test_close_leaves_no_thread(open_bus: Connect, name: str) -> None:
    before = set(threading.enumerate())
    bus = open_bus()
    bus.subscribe(name, lambda _: None)
    bus.subscribe(f"{name}.#", lambda _: None, durable=name)
    bus.watch("sites")
    bus.publish(name, b"x").wait(DEADLINE)
    bus.announce(f"{name}/x", b"v").wait(DEADLINE)
    bus.close()
    eventually(lambda: all(t.name == "txlayer-receipts" for t in set(threading.enumerate()) - before))


def test_credentials_are_in_no_log_line_and_no_error(
    private_kafka_broker: Callable[..., Kafka], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    caplog.set_level(logging.DEBUG)
    broker = private_kafka_broker(sasl={"me": "hunter2"})
    host = broker.address
    with connect(f"kafka://me:hunter2@{host}") as bus:
        inbox: list[Delivery] = []
        bus.subscribe(name, inbox.append, durable=name)
        bus.publish(name, b"x").wait(DEADLINE)
        eventually(lambda: inbox)
    began = time.monotonic()
    with pytest.raises(errors.AuthenticationFailed) as caught:
        connect(f"kafka://me:hunter3@{host}", connect_timeout=DEADLINE)
    assert time.monotonic() - began < DEADLINE
    assert host in str(caught.value)
    shown = f"{caught.value!r} {caught.value} {bus!r} {caplog.text}"
    assert "hunter2" not in shown
    assert "hunter3" not in shown


def test_tls_with_its_authority_and_without(private_kafka_broker: Callable[..., Kafka], name: str) -> None:
    broker, sent = private_kafka_broker(tls=True), [b"%d" % number * 10_000 for number in range(100)]
    with connect(broker.url, ca=str(broker.ca_file)) as bus:
        inbox: list[Delivery] = []
        bus.subscribe(name, inbox.append, durable=name)
        for payload in sent:
            bus.publish(name, payload)
        eventually(lambda: len(inbox) == 100)
        assert [delivery.payload for delivery in inbox] == sent
    with pytest.raises(errors.BusError, match=r"certificate .* is not trusted.*ca="):
        connect(broker.url, connect_timeout=DEADLINE)


def test_a_payload_over_the_brokers_own_limit_is_refused(private_kafka_broker: Callable[..., Kafka], name: str) -> None:
    broker = private_kafka_broker(message_max_bytes=20_000)
    with connect(broker.url) as bus:
        largest = bus.capabilities.max_payload
        assert largest is not None
        assert 19_000 < largest < 20_000
        inbox: list[Delivery] = []
        bus.subscribe(name, inbox.append)
        with pytest.raises(errors.PayloadTooLarge, match=str(largest)):
            bus.publish(name, bytes(largest + 1))
        with pytest.raises(errors.PayloadTooLarge):
            bus.publish(name, bytes(largest), headers={"h": "x" * 500})
        bus.publish(name, bytes(largest)).wait(DEADLINE)
        receipts = [bus.publish(name, bytes(500)) for _ in range(1000)]  # batches must not be too large either
        for receipt in receipts:
            receipt.wait(DEADLINE)
        eventually(lambda: len(inbox) == 1001)


def test_a_type_that_does_not_fit_is_refused(open_bus: Connect, name: str) -> None:
    bus = open_bus()
    for _ in range(2):  # before and after the topic is known
        with pytest.raises(errors.UsageError, match="255"):
            bus.publish(name, b"x", type="t" * 256)
        bus.publish(name, b"x", type="t" * 255).wait(DEADLINE)


def test_a_broker_that_is_not_there_is_named_within_the_timeout() -> None:
    began = time.monotonic()
    with pytest.raises(errors.BrokerUnreachable, match=r"127\.0\.0\.1:1 .*1\.0 s") as caught:
        connect("kafka://127.0.0.1:1", connect_timeout=1.0)
    assert time.monotonic() - began < 5.0
    assert caught.value.retriable


def test_settings_that_the_client_refuses_are_a_usage_error() -> None:
    with pytest.raises(errors.UsageError, match=r"no\.such\.setting"):
        connect("kafka://127.0.0.1:1", config={"no.such.setting": 1})


def test_a_topic_is_created_while_the_broker_is_away(mortal_kafka_broker: Kafka, name: str) -> None:
    broker = mortal_kafka_broker
    with connect(broker.url) as bus:
        broker.kill()
        receipts = [bus.publish(name, b"%d" % number, key=b"k") for number in range(50)]
        with pytest.raises(errors.BrokerUnreachable):
            connect(broker.url, connect_timeout=1.0)
        assert not any(receipt.done for receipt in receipts)
        broker.restart()
        for receipt in receipts:
            receipt.wait(DEADLINE)
    assert read_plainly(broker.address, name).value() == b"0"


def test_close_while_the_broker_is_away_fails_what_is_left(mortal_kafka_broker: Kafka, name: str) -> None:
    broker = mortal_kafka_broker
    bus = connect(broker.url)
    bus.publish(name, b"x").wait(DEADLINE)
    bus.subscribe(name, lambda _: None)
    broker.kill()
    receipts = [bus.publish(name, b"x"), bus.publish(f"{name}.unknown", b"x")]
    began = time.monotonic()
    bus.close(timeout=0.5)
    assert time.monotonic() - began < 10.0
    for receipt in receipts:
        with pytest.raises(errors.PublishFailed):
            receipt.wait(DEADLINE)


def test_a_buffer_full_of_events_refuses_no_latest_value(mortal_kafka_broker: Kafka, name: str) -> None:
    broker = mortal_kafka_broker
    with connect(broker.url, buffer_bytes=64 * 1024, connect_timeout=DEADLINE) as bus:
        bus.publish(name, b"x").wait(DEADLINE)
        presence = bus.enter(name, Identity("log"))
        broker.kill()
        for topic in (name, f"{name}.unknown"):  # what waits in the producer, and what waits for its topic
            with pytest.raises(errors.Backpressure):
                publish_for_ever(bus, topic)
        receipt = bus.announce(f"{name}/one", b"v")
        broker.restart()
        receipt.wait(DEADLINE)
        assert not presence.lost
    with connect(broker.url, connect_timeout=DEADLINE) as bus:
        assert bus.watch(name).snapshot() == {f"{name}/one": b"v"}


def test_close_says_the_last_word_of_a_site(open_bus: Connect, name: str) -> None:
    first = open_bus()
    first.enter(name, Identity("log"))
    first.close()
    word = decode(open_bus().watch("sites").snapshot()[f"sites/{name}"])
    assert word is not None
    assert not word.alive


def test_patterns_cannot_be_subscribed_to_while_the_broker_is_away(mortal_kafka_broker: Kafka, name: str) -> None:
    broker = mortal_kafka_broker
    with connect(broker.url, connect_timeout=DEADLINE) as bus:
        bus._timeout = 1.0
        broker.kill()
        with pytest.raises(errors.BrokerUnreachable):
            bus.subscribe(f"{name}.#", lambda _: None)


def test_a_position_that_retention_has_removed_is_reported_as_a_gap(open_bus: Connect, servers: str, name: str) -> None:
    first, publisher = open_bus(), open_bus()
    first.subscribe(name, lambda _: None, durable=name)
    first.close()
    for number in range(10):
        publisher.publish(name, b"%d" % number).wait(DEADLINE)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_records([TopicPartition(name, 0, 6)])[TopicPartition(name, 0, 6)].result(DEADLINE)
    inbox, gaps = list[Delivery](), list[Gap]()
    subscription = open_bus().subscribe(name, inbox.append, durable=name, on_gap=gaps.append)
    eventually(lambda: [d.payload for d in inbox] == [b"6", b"7", b"8", b"9"])
    assert [(gap.stream, gap.first, gap.last) for gap in gaps] == [(f"{name}/0", 0, 5)]
    assert subscription.stats.missing == 6


def test_a_topic_that_is_deleted_under_a_publisher_is_made_again(open_bus: Connect, servers: str, name: str) -> None:
    bus = open_bus(**{"topic.metadata.propagation.max.ms": 1000})
    bus.publish(name, b"before").wait(DEADLINE)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_topics([name])[name].result(DEADLINE)

    def taken() -> bool:
        try:
            bus.publish(name, b"after").wait(DEADLINE)
        except errors.PublishFailed:  # said of every event that the deleted topic cannot take
            return False
        return True

    eventually(taken)
    inbox: list[Delivery] = []
    open_bus().subscribe(name, inbox.append)
    bus.publish(name, b"x", key=b"k").wait(DEADLINE)
    eventually(lambda: [d.payload for d in inbox] == [b"x"])


def test_a_topic_that_was_made_again_is_read_from_its_beginning(open_bus: Connect, servers: str, name: str) -> None:
    bus, inbox = open_bus(), list[Delivery]()
    bus.subscribe(name, inbox.append, durable=name)
    for number in range(5):
        bus.publish(name, b"%d" % number).wait(DEADLINE)
    eventually(lambda: len(inbox) == 5)
    bus.close()
    admin = AdminClient({"bootstrap.servers": servers})
    admin.delete_topics([name])[name].result(DEADLINE)
    eventually(lambda: name not in admin.list_topics(timeout=DEADLINE).topics)
    admin.create_topics([NewTopic(name, 1)])[name].result(DEADLINE)
    produce_plainly(servers, name, b"again")
    again: list[Delivery] = []
    open_bus().subscribe(name, again.append, durable=name)
    eventually(lambda: [d.payload for d in again] == [b"again"])
