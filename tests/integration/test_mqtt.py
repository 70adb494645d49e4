"""The MQTT bus on a real Mosquitto: plain neighbours, old protocols, limits, bad networks."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.conftest import DEADLINE, eventually
from tests.inbox import Inbox
from tests.proxy import Proxy
from txlayer import (
    Ack,
    Bus,
    Delivery,
    Gap,
    Identity,
    Receipt,
    Retry,
    Roster,
    Standing,
    connect,
    dead_letters,
    errors,
)
from txlayer.adapters import streams
from txlayer.adapters.mqtt import MqttBus
from txlayer.testing.mosquitto import Mosquitto
from txlayer.testing.server import Server

PrivateBroker = Callable[..., Mosquitto]
OLD = "3.1.1"
AS_DEBIAN_SHIPS_IT = {"max_inflight_messages": 20, "max_queued_messages": 1000}
SECRET = "s3cret-word"
_numbers = itertools.count(1)


class Opener:
    """Opens buses and closes them in the end."""

    def __init__(self) -> None:
        self.open: list[Bus] = []

    def __call__(self, target: object, **options: Any) -> MqttBus:
        bus = connect(target, **options)
        assert isinstance(bus, MqttBus)
        self.open.append(bus)
        return bus


@pytest.fixture
def opened() -> Iterator[Opener]:
    opener = Opener()
    yield opener
    for bus in opener.open:
        bus.close(timeout=0.5)  # the broker may be gone


@pytest.fixture
def name() -> str:
    return f"m{os.getpid()}-{next(_numbers)}"


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test does, after it no thread of its buses runs."""
    before = set(threading.enumerate())
    yield

    def left() -> list[str]:
        names = [thread.name for thread in threading.enumerate() if thread not in before]
        return [name for name in names if name.startswith("txlayer-") and name != "txlayer-receipts"]

    eventually(lambda: not left(), "threads end")


class Plain:
    """A plain paho client that has never heard of txlayer."""

    def __init__(self, url: str, topic: str | None = None, protocol: int = MQTTProtocolVersion.MQTTv5, **options: Any):
        self.got: list[MQTTMessage] = []
        self.client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion(protocol), **options)
        self.client.on_message = lambda _, __, message: self.got.append(message)
        ready = threading.Event()
        self.client.on_subscribe = lambda *_: ready.set()
        host, _, port = url.rpartition("//")[2].partition(":")
        self.client.connect(host, int(port))
        self.client.loop_start()
        if topic is not None:
            self.client.subscribe(topic, 1)
            assert ready.wait(DEADLINE)

    def publish(self, topic: str, payload: bytes, retain: bool = False, properties: Properties | None = None) -> None:
        self.client.publish(topic, payload, 1, retain, properties).wait_for_publish(DEADLINE)

    def wait(self, count: int) -> None:
        eventually(lambda: len(self.got) >= count)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def plain() -> Iterator[Callable[..., Plain]]:
    clients: list[Plain] = []

    def make(*args: Any, **options: Any) -> Plain:
        clients.append(Plain(*args, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


# -- plain neighbours --------------------------------------------------------------------------------------------------


def test_a_plain_subscriber_reads_the_payload_byte_for_byte(
    mqtt_broker: Server, opened: Opener, plain: Callable[..., Plain], name: str
) -> None:
    new, old = plain(mqtt_broker.url, name), plain(mqtt_broker.url, name, MQTTProtocolVersion.MQTTv311)
    payload = bytes(range(256)) * 4
    opened(mqtt_broker.url).publish(name, payload, type="meeting", headers={"own": "1"}).wait(DEADLINE)
    for client in (new, old):
        client.wait(1)
        assert bytes(client.got[0].payload) == payload
    assert [pair[0] for pair in new.got[0].properties.UserProperty] == ["tx", "own"]  # type: ignore[union-attr]


def test_a_plain_publisher_is_read_with_its_properties_and_without_metadata(
    mqtt_broker: Server, opened: Opener, plain: Callable[..., Plain], name: str
) -> None:
    inbox = Inbox()
    opened(mqtt_broker.url).subscribe(name, inbox)
    plain(mqtt_broker.url, None, MQTTProtocolVersion.MQTTv311).publish(name, b"old")
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = [("tx", "no metadata of ours"), ("colour", "red")]
    new = plain(mqtt_broker.url)
    new.publish(name, b"new", properties=properties)
    new.client.publish(name, b"qos 0", 0)
    inbox.wait(3)
    assert inbox.payloads == [b"old", b"new", b"qos 0"]
    assert [delivery.metadata for delivery in inbox] == [None, None, None]
    assert inbox[1].headers == {"colour": "red"}
    assert isinstance(inbox[0].native, MQTTMessage)


def test_cloud_events_are_written_as_the_mqtt_binding_says(
    mqtt_broker: Server, opened: Opener, plain: Callable[..., Plain], name: str
) -> None:
    reader = plain(mqtt_broker.url, name)
    bus = opened(mqtt_broker.url, cloudevents=True)
    bus.publish(name, b'{"a":1}', type="meeting.time", headers={"content-type": "application/json", "subject": "x"})
    reader.wait(1)
    properties = reader.got[0].properties
    attributes = dict(properties.UserProperty)  # type: ignore[union-attr]
    assert {"specversion": "1.0", "type": "meeting.time", "subject": "x"}.items() <= attributes.items()
    assert {"id", "source", "time"} <= set(attributes)
    assert properties.ContentType == "application/json"  # type: ignore[union-attr]
    assert bytes(reader.got[0].payload) == b'{"a":1}'


def test_a_cloud_event_written_by_hand_is_understood(
    mqtt_broker: Server, opened: Opener, plain: Callable[..., Plain], name: str
) -> None:
    inbox = Inbox()
    opened(mqtt_broker.url).subscribe(name, inbox)
    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType = "application/json; charset=utf-8"
    properties.UserProperty = [
        ("specversion", "1.0"),
        ("type", "com.example.someevent"),
        ("time", "2018-04-05T03:56:24Z"),
        ("id", "1234-1234-1234"),
        ("source", "/mycontext/subcontext"),
    ]
    plain(mqtt_broker.url).publish(name, b"{}", properties=properties)
    inbox.wait(1)
    metadata = inbox[0].metadata
    assert metadata is not None
    assert (metadata.id, metadata.source, metadata.type) == (
        "1234-1234-1234",
        "/mycontext/subcontext",
        "com.example.someevent",
    )
    assert (metadata.content_type, metadata.number) == ("application/json; charset=utf-8", None)


def test_a_key_that_is_no_text_is_refused_with_cloud_events(mqtt_broker: Server, opened: Opener, name: str) -> None:
    bus, inbox = opened(mqtt_broker.url, cloudevents=True), Inbox()
    bus.subscribe(name, inbox)
    with pytest.raises(errors.UsageError, match="header"):
        bus.publish(name, b"x", key=b"\xff")
    bus.publish(name, b"y", key="ä".encode())
    inbox.wait(1)
    assert (inbox[0].payload, inbox[0].key) == (b"y", "ä".encode())


@pytest.mark.parametrize("protocol", ["5", OLD])
def test_retained_messages_of_plain_users_are_no_new_events(
    mqtt_broker: Server, opened: Opener, plain: Callable[..., Plain], name: str, protocol: str
) -> None:
    neighbour, inbox = plain(mqtt_broker.url), Inbox()
    neighbour.publish(f"{name}/a", b"yesterday", retain=True)
    bus = opened(mqtt_broker.url, protocol=protocol)
    bus.subscribe(f"{name}/#", inbox)
    neighbour.publish(f"{name}/a", b"today", retain=True)
    inbox.wait(1)
    assert inbox.payloads == [b"today"]
    neighbour.publish(f"{name}/a", b"", retain=True)


# -- MQTT 3.1.1 --------------------------------------------------------------------------------------------------------


def test_old_protocol_round_trip_with_headers_and_key(
    mqtt_broker: Server, opened: Opener, plain: Callable[..., Plain], name: str
) -> None:
    bus, inbox = opened(f"{mqtt_broker.url}?protocol={OLD}"), Inbox()
    assert not bus.capabilities.native_headers
    bus.subscribe(name, inbox)
    payload = bytes(range(256))
    bus.publish(name, payload, headers={"a": "ä\n"}, key=b"k\0\xff", type="t").wait(DEADLINE)
    plain(mqtt_broker.url).publish(name, b"{not an envelope")
    inbox.wait(2)
    assert (inbox[0].payload, inbox[0].headers, inbox[0].key) == (payload, {"a": "ä\n"}, b"k\0\xff")
    assert inbox[0].metadata is not None
    assert (inbox[0].metadata.type, inbox[0].metadata.number) == ("t", 1)
    assert (inbox[1].payload, inbox[1].metadata) == (b"{not an envelope", None)


@pytest.mark.parametrize("protocols", [(OLD, "5"), ("5", OLD)], ids=["old to new", "new to old"])
def test_old_and_new_protocol_on_one_broker(
    mqtt_broker: Server, opened: Opener, name: str, protocols: tuple[str, str]
) -> None:
    publisher, subscriber = (opened(mqtt_broker.url, protocol=protocol) for protocol in protocols)
    inbox = Inbox()
    subscriber.subscribe(name, inbox)
    publisher.publish(name, b"hello", headers={"a": "b"}, key=b"k", type="t").wait(DEADLINE)
    inbox.wait(1)
    assert inbox[0].payload == b"hello"
    if protocols[0] == OLD:  # the broker leaves out what the old protocol has no place for
        assert (inbox[0].headers, inbox[0].key) == ({"a": "b"}, b"k")
        assert inbox[0].metadata is not None
        assert (inbox[0].metadata.type, inbox[0].metadata.number) == ("t", 1)


def test_a_structured_cloud_event_is_opened_on_mqtt_5_only_if_it_is_declared(
    mqtt_broker: Server, opened: Opener, plain: Callable[..., Plain], name: str
) -> None:
    inbox, event = Inbox(), b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":1}}'
    opened(mqtt_broker.url).subscribe(name, inbox)
    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType = "application/cloudevents+json; charset=utf-8"
    publisher = plain(mqtt_broker.url)
    publisher.publish(name, event)
    publisher.publish(name, event, properties=properties)
    inbox.wait(2)
    assert inbox.payloads == [event, b'{"a":1}']
    assert inbox[0].metadata is None
    assert inbox[1].metadata is not None
    assert (inbox[1].metadata.id, inbox[1].metadata.type) == ("1", "t")


@pytest.mark.parametrize("protocol", ["5", OLD])
def test_a_durable_name_collects_while_away_and_is_forgotten_by_unsubscribe(
    mqtt_broker: Server, opened: Opener, name: str, protocol: str
) -> None:
    publisher = opened(mqtt_broker.url, protocol=protocol)
    first, second, third = Inbox(), Inbox(), Inbox()
    consumer = opened(mqtt_broker.url, protocol=protocol)
    consumer.subscribe(name, first, durable=name)
    publisher.publish(name, b"1").wait(DEADLINE)
    first.wait(1)
    consumer.close()
    publisher.publish(name, b"2").wait(DEADLINE)
    again = opened(mqtt_broker.url, protocol=protocol)
    subscription = again.subscribe(name, second, durable=name)
    second.wait(1)
    assert second.payloads == [b"2"]
    subscription.unsubscribe()
    publisher.publish(name, b"3").wait(DEADLINE)
    again.subscribe(name, third, durable=name)
    publisher.publish(name, b"4").wait(DEADLINE)
    third.wait(1)
    assert third.payloads == [b"4"]


def test_what_the_next_holder_of_a_durable_name_does_not_want_is_no_longer_collected(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str
) -> None:
    broker = private_mqtt_broker(log_type="all")
    first = opened(broker.url).subscribe([f"{name}/1", f"{name}/2"], Inbox(), durable=name)
    first.add(f"{name}/3")
    first.remove(f"{name}/2")
    first.close()
    bus, inbox = opened(broker.url), Inbox()
    bus.subscribe(f"{name}/1", inbox, durable=name)
    for topic in ("3", "1"):
        bus.publish(f"{name}/{topic}", topic.encode()).wait(DEADLINE)
    inbox.wait(1)
    assert inbox.payloads == [b"1"]

    def given_back() -> list[str]:
        lines = broker.log_text().splitlines()
        ends = [lines[place + 1] for place, line in enumerate(lines) if f"Received UNSUBSCRIBE from {name}" in line]
        return [line.rpartition("/")[2] for line in ends]

    eventually(lambda: given_back() == ["2", "3"])


@pytest.mark.parametrize("filters", [("+", "a"), ("a", "+")], ids=["narrower", "wider"])
def test_a_durable_name_that_returns_with_another_filter_is_never_without_one(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str, filters: tuple[str, str]
) -> None:
    """The broker hears of the end of the old filter only after it has confirmed the new one."""
    broker = private_mqtt_broker(log_type="all")
    before, after = (f"{name}/{last}" for last in filters)
    opened(broker.url).subscribe(before, Inbox(), durable=name).close()
    opened(broker.url).subscribe(after, Inbox(), durable=name)
    eventually(lambda: f"Received UNSUBSCRIBE from {name}" in broker.log_text())
    until_then = broker.log_text().partition(f"Received UNSUBSCRIBE from {name}")[0]
    assert until_then.count(f"Sending SUBACK to {name}\n") == 2


def test_old_protocol_latest_values_and_presence(mqtt_broker: Server, opened: Opener, name: str) -> None:
    bus, other = opened(mqtt_broker.url, protocol=OLD), opened(mqtt_broker.url)
    bus.announce(f"test/{name}/a", b"1").wait(DEADLINE)
    assert other.watch(f"test/{name}").snapshot() == {f"test/{name}/a": b"1"}
    with Roster(other) as roster:
        presence = bus.enter(name, Identity("log"))
        eventually(lambda: standing(roster, name) is Standing.ALIVE)
        with pytest.raises(errors.NameTaken):
            other.enter(name, Identity("another"))
        presence.leave()
        eventually(lambda: standing(roster, name) is Standing.DEAD)
        roster.remove(name)


def standing(roster: Roster, name: str) -> Standing | None:
    return next((view.standing for view in roster.sites() if view.name == name), None)


# -- limits of the broker ----------------------------------------------------------------------------------------------


def test_what_mosquitto_drops_silently_is_reported_as_a_gap(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str
) -> None:
    broker = private_mqtt_broker(max_queued_messages=10, max_inflight_messages=1)
    publisher, consumer = opened(broker.url), opened(broker.url)
    first, second, gaps = Inbox(), Inbox(), list[Gap]()
    consumer.subscribe(name, first, durable=name)
    publisher.publish(name, b"0").wait(DEADLINE)
    first.wait(1)
    consumer.close()
    receipts = [publisher.publish(name, payload) for payload in numbers(100)]
    for receipt in receipts:
        receipt.wait(DEADLINE)  # acknowledged, and most of them gone
    subscription = opened(broker.url).subscribe(name, second, durable=name, on_gap=gaps.append)
    second.wait(10)  # now the broker has room again
    publisher.publish(name, b"next").wait(DEADLINE)
    eventually(lambda: b"next" in second.payloads)
    positions = [delivery.position for delivery in second]
    seen = [position[1] for position in positions if position is not None]
    assert second.payloads[-1] == b"next"
    assert seen[-1] == 102
    assert [(gap.topic, gap.first, gap.last) for gap in gaps] == [(name, seen[-2] + 1, 101)]
    assert subscription.stats.missing == 101 - seen[-2] > 50


def test_an_event_over_the_broker_s_packet_limit_is_refused_and_the_bus_goes_on(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str
) -> None:
    broker = private_mqtt_broker(max_packet_size=2000)
    proxy = Proxy(port_of(broker.url))
    bus, inbox = opened(f"mqtt://127.0.0.1:{proxy.port}"), Inbox()
    topics = [f"{name}/{number:040}" for number in range(200)]  # a SUBSCRIBE of 10 kB
    bus.subscribe(topics, inbox)
    assert bus.capabilities.max_payload is not None
    for payload, headers in ((bytes(2000), {}), (b"", {"h": "x" * 2000})):
        with pytest.raises(errors.PayloadTooLarge, match="2000"):
            bus.publish(topics[0], payload, headers=headers)
    with pytest.raises(errors.PayloadTooLarge):
        bus.announce(f"test/{name}", bytes(2000))
    with pytest.raises(errors.TopicForbidden):
        bus.subscribe("x" * 2000, inbox)
    for topic in topics:
        bus.publish(topic, bytes(bus.capabilities.max_payload))
    inbox.wait(200)
    assert bus._main.generations == 1
    proxy.cut()
    eventually(lambda: bus._main.generations == 2)
    bus.publish(topics[199], b"again").wait(DEADLINE)
    inbox.wait(201)
    assert bus._main.generations == 2
    bus.close()
    proxy.close()


def test_many_latest_values_on_a_broker_as_it_is_shipped(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str
) -> None:
    """More of them than Mosquitto queues for a client."""
    bus = opened(private_mqtt_broker(**AS_DEBIAN_SHIPS_IT).url)
    receipts = [bus.announce(f"test/{number}", b"%d" % number) for number in range(2500)]
    for receipt in receipts:
        receipt.wait(DEADLINE)
    assert len(bus.watch("test").snapshot()) == 2500


def taken_until_full(publish: Callable[[], Receipt]) -> int:
    """How many publishes are taken before one is refused."""
    for taken in range(1000):
        try:
            publish()
        except errors.Backpressure:
            return taken
    raise AssertionError("the buffer has no limit")


def test_latest_values_and_watches_have_room_beside_a_full_buffer(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str
) -> None:
    broker = private_mqtt_broker()
    bus = opened(broker.url, buffer_bytes=100_000, connect_timeout=DEADLINE)
    broker.kill()
    eventually(lambda: not bus._main.connected)
    assert taken_until_full(lambda: bus.publish(name, bytes(1000))) > 50
    said = bus.announce(f"test/{name}", b"alive")
    assert taken_until_full(lambda: bus.announce(f"test/{name}/more", bytes(1000))) > 50
    broker.restart()
    said.wait(DEADLINE)
    assert bus.watch("test").snapshot()[f"test/{name}"] == b"alive"


@pytest.mark.parametrize("extra", [{"headers": {"h": "x" * 10_000}}, {"key": bytes(10_000)}], ids=["headers", "key"])
def test_headers_and_key_count_towards_the_buffer(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str, extra: dict[str, Any]
) -> None:
    broker = private_mqtt_broker()
    bus = opened(broker.url, buffer_bytes=1_000_000)
    broker.kill()
    eventually(lambda: not bus._main.connected)
    assert 50 < taken_until_full(lambda: bus.publish(name, b"x", **extra)) < 100


@pytest.mark.parametrize("protocol", ["5", OLD])
def test_what_would_break_the_connection_is_refused(
    mqtt_broker: Server, opened: Opener, name: str, protocol: str
) -> None:
    bus, inbox = opened(mqtt_broker.url, protocol=protocol), Inbox()
    bus.subscribe(name, inbox)
    for topic in ("a\nb", "\ud800", "a\x85", "/".join("x" * 300), f"{name}/\ufffe"):
        with pytest.raises(errors.TopicForbidden):
            bus.publish(topic, b"x")
        with pytest.raises(errors.TopicForbidden):
            bus.subscribe(topic, inbox)
        with pytest.raises(errors.TopicForbidden):
            bus.announce(topic, b"x")
        with pytest.raises(errors.TopicForbidden):
            bus.watch(topic)
    with pytest.raises(errors.TopicForbidden, match="shared"):
        bus.subscribe("$share/group/topic", inbox)
    with pytest.raises(errors.UsageError):
        bus.publish(name, "text")  # type: ignore[arg-type]
    bus.publish("/".join("x" * 200), b"x").wait(DEADLINE)
    bus.subscribe([], inbox).close()
    buffer = bytearray(b"before")
    bus.publish(name, memoryview(buffer))  # type: ignore[arg-type]
    buffer[:] = b"after!"
    inbox.wait(1)
    assert inbox.payloads == [b"before"]
    assert bus._main.generations == 1


def test_an_event_that_an_old_broker_breaks_the_connection_over_does_not_block_the_others(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str
) -> None:
    """MQTT 3.1.1 does not tell the limit, so nothing can be refused beforehand."""
    broker, inbox = private_mqtt_broker(max_packet_size=2000), Inbox()
    opened(broker.url, protocol=OLD).subscribe(name, inbox)
    bus = opened(broker.url, protocol=OLD)
    receipts = [bus.publish(name, payload) for payload in (b"before", bytes(10_000), b"after")]
    with pytest.raises(errors.PublishFailed, match="largest one"):
        receipts[1].wait(DEADLINE)
    receipts[0].wait(DEADLINE)
    receipts[2].wait(DEADLINE)
    inbox.wait(2)
    assert inbox.payloads == [b"before", b"after"]


def test_warnings_at_connect_say_what_the_broker_lacks(
    private_mqtt_broker: PrivateBroker, opened: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        opened(private_mqtt_broker(retain_available=False, max_inflight_messages=5).url)
    assert "keeps no retained messages" in caplog.text
    assert "takes only 5 publishes at a time" in caplog.text


def test_a_broker_of_qos_0_only_is_refused(private_mqtt_broker: PrivateBroker) -> None:
    broker = private_mqtt_broker(max_qos=0)
    with pytest.raises(errors.BusError, match="only QoS 0"):
        connect(broker.url)


def test_a_publish_that_the_access_list_forbids_fails_its_receipt(
    private_mqtt_broker: PrivateBroker, opened: Opener, tmp_path: Path
) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic readwrite txlayer/#\ntopic readwrite open/#\n")
    bus, inbox = opened(private_mqtt_broker(acl_file=rules).url), Inbox()
    bus.subscribe("open/a", inbox)
    with pytest.raises(errors.PublishFailed, match="refused"):
        bus.publish("secret/a", b"x").wait(DEADLINE)
    bus.publish("open/a", b"x")
    inbox.wait(1)


class ScriptedBroker:
    """Speaks just enough MQTT 5 to say what Mosquitto cannot be made to say."""

    def __init__(self) -> None:
        self.refused: set[bytes] = set()
        self.connects: list[bytes] = []
        """The bodies of the CONNECT packets."""
        self._server = socket.create_server(("127.0.0.1", 0))
        self._clients: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        self.url = f"mqtt://127.0.0.1:{self._server.getsockname()[1]}"

    def say(self, packet: bytes) -> None:
        """To the client that came last."""
        self._clients[-1].sendall(packet)

    def hang_up(self, client: int) -> None:
        self._clients[client].shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(DEADLINE)
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                self._clients.append(client)
                self._threads.append(threading.Thread(target=self._serve, args=(client,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as stream, contextlib.suppress(OSError):
            while head := stream.read(1):
                length = shift = 0
                while True:
                    (digit,) = stream.read(1)
                    length |= (digit & 0x7F) << shift
                    shift += 7
                    if digit < 0x80:
                        break
                client.sendall(self._answer(head[0] >> 4, stream.read(length)))

    def _answer(self, kind: int, body: bytes) -> bytes:
        if kind == 1:
            self.connects.append(body)
            return b"\x20\x03\x00\x00\x00"
        if kind == 8:
            codes, rest = b"", body[3:]
            while rest:
                size = int.from_bytes(rest[:2])
                codes += b"\x87" if rest[2 : 2 + size] in self.refused else b"\x01"
                rest = rest[3 + size :]
            return b"\x90" + bytes([3 + len(codes)]) + body[:2] + b"\0" + codes
        if kind == 10:
            return b"\xb0\x04" + body[:2] + b"\0\0"
        return b""


@pytest.fixture
def scripted() -> Iterator[ScriptedBroker]:
    broker = ScriptedBroker()
    yield broker
    broker.close()


def test_a_subscription_that_the_broker_refuses_fails_now_or_after_a_reconnect(
    scripted: ScriptedBroker, opened: Opener
) -> None:
    scripted.refused = {b"secret"}
    bus = opened(scripted.url)
    inbox = Inbox()
    subscription, other = bus.subscribe("open", Inbox()), bus.subscribe("other", inbox)
    with pytest.raises(errors.SubscribeFailed, match="secret"):
        bus.subscribe(["also open", "secret"], Inbox())
    with pytest.raises(errors.SubscribeFailed, match="secret"):
        subscription.add("secret")
    with pytest.raises(errors.SubscribeFailed, match="secret"):
        other.add("open", "secret")  # on a session of its own, which must not take the handler with it
    assert subscription.topics == {"open"}
    scripted.refused = {b"open"}
    scripted.hang_up(0)
    eventually(lambda: isinstance(subscription.error, errors.SubscribeFailed), "told after the reconnect")
    assert (other.error, other.closed) == (None, False)
    packet = b"\0\x05other\0\x07\0still"  # topic, packet id, no properties, payload
    scripted.say(b"\x32" + bytes([len(packet)]) + packet)
    inbox.wait(1)
    bus.close(0.0)


def test_the_broker_is_told_how_many_events_may_be_on_their_way(scripted: ScriptedBroker, opened: Opener) -> None:
    bus = opened(scripted.url)
    bus.subscribe("t", Inbox(), ack=Ack.MANUAL)
    assert len(scripted.connects) == 2
    for connect_packet in scripted.connects:
        properties = Properties(PacketTypes.CONNECT)
        properties.unpack(connect_packet[10:])  # behind the protocol's name and version, flags, keepalive
        assert properties.ReceiveMaximum == 10_000
    bus.close(0.0)


def test_a_session_that_is_taken_over_fails_what_is_left(scripted: ScriptedBroker, opened: Opener) -> None:
    bus = opened(scripted.url)
    subscription = bus.subscribe("t", Inbox())
    pending = bus.publish("t", b"x")
    scripted.say(b"\xe0\x02\x8e\x00")  # DISCONNECT, session taken over
    eventually(lambda: isinstance(subscription.error, errors.NameTaken))
    assert "the broker says" in str(subscription.error)
    for receipt in (pending, bus.publish("t", b"y")):
        with pytest.raises(errors.NameTaken):
            receipt.wait(DEADLINE)
    with pytest.raises(errors.NameTaken):
        bus.subscribe("u", Inbox())


# -- who may connect ---------------------------------------------------------------------------------------------------


def test_user_and_password(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = private_mqtt_broker(user="alice", password=SECRET)
    address = broker.url.removeprefix("mqtt://")
    with caplog.at_level(logging.DEBUG):
        bus, inbox = opened(f"mqtt://alice:{SECRET}@{address}"), Inbox()
        bus.subscribe(name, inbox, durable=name)
        bus.publish(name, b"x").wait(DEADLINE)
        inbox.wait(1)
        for url in (f"mqtt://alice:{SECRET}x@{address}", f"mqtt://{address}"):
            for protocol in ("5", OLD):
                with pytest.raises(errors.AuthenticationFailed, match=address) as caught:
                    connect(url, protocol=protocol)
                assert not caught.value.retriable
                assert SECRET not in repr(caught.value) + str(caught.value.__cause__)
    assert SECRET not in caplog.text + repr(bus) + repr(bus.__dict__)


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts"])
def test_a_port_that_accepts_and_says_nothing(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(errors.BrokerUnreachable, match=address) as caught:
            connect(f"{scheme}://{address}", connect_timeout=0.5)
        assert caught.value.retriable
        assert 0.4 < time.monotonic() - began < DEADLINE


def test_a_port_that_answers_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            try:
                while True:
                    client, _ = server.accept()
                    with client:
                        client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            except OSError:
                return

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(errors.BrokerUnreachable, match=address):
            connect(f"mqtt://{address}", connect_timeout=0.5)
        server.shutdown(socket.SHUT_RDWR)
        thread.join(DEADLINE)


def test_tls_with_its_authority_and_without(private_mqtt_broker: PrivateBroker, opened: Opener, name: str) -> None:
    broker = private_mqtt_broker(tls=True)
    bus, inbox = opened(broker.url, ca=str(broker.ca_file)), Inbox()
    bus.subscribe(name, inbox, durable=name)
    for number in range(100):
        bus.publish(name, b"%d" % number * 10_000)
    inbox.wait(100)
    assert inbox.payloads == [b"%d" % number * 10_000 for number in range(100)]
    opened(broker.url, tls_insecure=True)
    with pytest.raises(errors.BusError, match=r"certificate .* is not trusted .*ca="):
        connect(broker.url)
    with pytest.raises(errors.UsageError, match="TLS files"):
        connect(broker.url, ca=str(broker.directory / "nowhere.pem"))


# -- a client of the user's own ----------------------------------------------------------------------------------------


def own_client(**options: Any) -> Client:
    return Client(CallbackAPIVersion.VERSION2, **{"protocol": MQTTProtocolVersion.MQTTv5, **options})


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311])
def test_the_user_s_own_client_works(
    mqtt_broker: Server, opened: Opener, name: str, version: MQTTProtocolVersion
) -> None:
    client = own_client(protocol=version)
    client.max_queued_messages_set(5)
    bus, inbox = opened(client, host="127.0.0.1", port=port_of(mqtt_broker.url)), Inbox()
    assert bus.native is client
    bus.subscribe(name, inbox)
    receipts = [bus.publish(name, payload, key=b"k") for payload in numbers(500)]
    for receipt in receipts:
        receipt.wait(DEADLINE)
    inbox.wait(500)
    assert inbox.payloads == numbers(500)
    bus.announce(f"test/{name}", b"x").wait(DEADLINE)
    assert bus.watch("test").snapshot()[f"test/{name}"] == b"x"
    presence = bus.enter(name, Identity("log"))
    with Roster(bus) as roster:
        eventually(lambda: standing(roster, name) is Standing.ALIVE)
    presence.leave()


def test_what_the_user_s_own_client_cannot_do_is_refused(mqtt_broker: Server, opened: Opener, name: str) -> None:
    port = port_of(mqtt_broker.url)
    bus = opened(own_client(), host="127.0.0.1", port=port)
    subscription = bus.subscribe(f"{name}/a", Inbox())
    bus.subscribe(f"{name}/b", Inbox())
    for options in ({"durable": name}, {"ack": Ack.MANUAL}):
        with pytest.raises(errors.UsageError, match="client of your own"):
            bus.subscribe(f"{name}/c", Inbox(), **options)  # type: ignore[arg-type]
    with pytest.raises(errors.UsageError, match="client of your own"):
        bus.subscribe(f"{name}/+", Inbox())
    with pytest.raises(errors.UsageError, match="client of your own"):
        subscription.add(f"{name}/b")
    logging_client, filtering_client = own_client(), own_client()
    logging_client.on_log = lambda *_: None
    filtering_client.message_callback_add(f"{name}/#", lambda *_: None)
    for client, taken in ((logging_client, "on_log.*enable_logger"), (filtering_client, "message_callback_add")):
        with pytest.raises(errors.UsageError, match=taken):
            connect(client, host="127.0.0.1", port=port)
    connected = own_client()
    connected.connect("127.0.0.1", port)
    with pytest.raises(errors.UsageError, match="connected already"):
        connect(connected, host="127.0.0.1", port=port)
    connected.disconnect()
    connected.loop_write()


def test_a_foreign_client_with_the_same_id_ends_a_durable_subscription_without_a_fight(
    mqtt_broker: Server, opened: Opener, plain: Callable[..., Plain], name: str
) -> None:
    bus, other = opened(mqtt_broker.url), Inbox()
    subscription = bus.subscribe(name, Inbox(), durable=name)
    bus.subscribe(f"{name}/other", other)
    foreign = plain(mqtt_broker.url, client_id=name)
    eventually(lambda: isinstance(subscription.error, errors.NameTaken))
    assert re.search(r"broke 3 times .* may be connecting .* or the network", str(subscription.error))
    eventually(lambda: subscription.closed)
    bus.publish(f"{name}/other", b"x").wait(DEADLINE)
    other.wait(1)
    eventually(foreign.client.is_connected)


# -- subscriptions that share a session --------------------------------------------------------------------------------


def test_a_topic_of_another_subscription_can_be_added_and_removed(
    mqtt_broker: Server, opened: Opener, name: str
) -> None:
    bus, one, other = opened(mqtt_broker.url), Inbox(), Inbox()
    first, second = bus.subscribe(f"{name}/1", one), bus.subscribe(f"{name}/2", other)
    first.add(f"{name}/2", f"{name}/+")
    assert first.topics == {f"{name}/1", f"{name}/2", f"{name}/+"}
    bus.publish(f"{name}/1", b"1")
    bus.publish(f"{name}/2", b"2")
    bus.publish(f"{name}/3", b"3")
    one.wait(3)
    other.wait(1)
    assert sorted(one.payloads) == [b"1", b"2", b"3"]
    first.remove(f"{name}/2", f"{name}/+")
    bus.publish(f"{name}/2", b"4")
    other.wait(2)
    bus.publish(f"{name}/1", b"5")
    one.wait(4)
    assert (one.payloads[3:], other.payloads) == ([b"5"], [b"2", b"4"])
    second.close()
    with pytest.raises(errors.Closed):
        second.add("x")


@pytest.mark.parametrize("by_adding", [False, True])
def test_subscriptions_to_the_same_topic_that_begin_at_once_get_all_its_events(
    mqtt_broker: Server, opened: Opener, name: str, by_adding: bool
) -> None:
    bus, inboxes, looked = opened(mqtt_broker.url), [Inbox(), Inbox()], threading.Barrier(2)
    router: Any = bus._router
    first = bus.subscribe(f"{name}/other", inboxes[0]) if by_adding else None
    overlaps = router.overlaps

    def look(*args: Any, **options: Any) -> bool:
        found: bool = overlaps(*args, **options)
        if not router.changing._is_owned():
            looked.wait(DEADLINE)  # the other looks too before either goes on
        return found

    router.overlaps = look
    begin = first.add if first is not None else partial(bus.subscribe, handler=inboxes[0])
    threads = [
        threading.Thread(target=begin, args=(name,)),
        threading.Thread(target=bus.subscribe, args=(name, inboxes[1])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    bus.publish(name, b"x").wait(DEADLINE)
    for inbox in inboxes:
        inbox.wait(1)


@pytest.mark.parametrize("what", ["subscription", "topic", "watch"])
def test_what_ends_takes_nothing_from_what_begins_at_the_same_moment(
    mqtt_broker: Server, opened: Opener, name: str, what: str
) -> None:
    bus, inbox, seen = opened(mqtt_broker.url), Inbox(), list[str]()
    session: Any = bus._main
    ending = bus.watch(name) if what == "watch" else bus.subscribe(name, Inbox())

    def begin() -> None:
        if what == "watch":
            bus.watch(name, lambda key, _: seen.append(key))
        else:
            bus.subscribe(name, inbox)

    beginner = threading.Thread(target=begin)
    unsubscribe = session.unsubscribe

    def late(filters: Any) -> Any:
        if beginner.ident is None:
            beginner.start()
            if not bus._router.changing._is_owned():  # type: ignore[attr-defined]
                beginner.join(DEADLINE)  # it is let in before the broker is told that the other ended
        return unsubscribe(filters)

    session.unsubscribe = late
    if what == "topic":
        ending.remove(name)  # type: ignore[union-attr]
    else:
        ending.close()
    beginner.join(DEADLINE)
    bus.publish(name, b"x").wait(DEADLINE)
    bus.announce(f"{name}/key", b"x").wait(DEADLINE)
    eventually(lambda: inbox.payloads == [b"x"] or seen == [f"{name}/key"])


def test_a_watch_that_fails_to_begin_takes_nothing_from_another_of_the_same_values(
    mqtt_broker: Server, opened: Opener, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = opened(mqtt_broker.url)
    watch = bus.watch(name)

    def refuse(*_: object) -> None:
        raise errors.SubscribeFailed("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(bus._main, "_await", refuse)
        with pytest.raises(errors.SubscribeFailed):
            bus.watch(name)
    bus.announce(f"{name}/key", b"x").wait(DEADLINE)
    eventually(lambda: watch.snapshot() == {f"{name}/key": b"x"})


def test_room_in_the_lane_wakes_the_session_of_an_added_topic_too(
    mqtt_broker: Server, opened: Opener, name: str
) -> None:
    bus, woken = opened(mqtt_broker.url), threading.Event()
    bus.subscribe(f"{name}/1", Inbox())
    subscription: Any = bus.subscribe(f"{name}/2", Inbox())
    subscription.add(f"{name}/1")
    [apart] = subscription._apart
    apart._own_session.look_again = woken.set
    bus.publish(f"{name}/1", b"x")
    assert woken.wait(DEADLINE)


def test_a_handler_that_waits_for_another_subscription_s_event_is_not_stuck_behind_the_window(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str
) -> None:
    bus, arrived, done = opened(private_mqtt_broker(**AS_DEBIAN_SHIPS_IT).url), threading.Event(), threading.Event()

    def wait_for_the_other(_: Delivery) -> None:
        assert arrived.wait(DEADLINE)
        done.set()

    for durable in (None, name):
        arrived.clear()
        done.clear()
        topics = [f"{name}/{durable}/waiting", f"{name}/{durable}/other"]
        waiting = bus.subscribe(topics[0], wait_for_the_other, durable=durable)
        other = bus.subscribe(topics[1], lambda _: arrived.set())
        for _ in range(100):
            bus.publish(topics[0], b"x")
        bus.publish(topics[1], b"y")
        assert done.wait(DEADLINE)
        waiting.close()
        other.close()


@pytest.mark.parametrize("qos", [0, 1])
def test_a_slow_durable_handler_stops_the_reading_and_not_the_connection(
    private_mqtt_broker: PrivateBroker, opened: Opener, plain: Callable[..., Plain], name: str, qos: int
) -> None:
    broker, go_on, inbox = private_mqtt_broker(log_type="all"), threading.Event(), Inbox()

    def handler(delivery: Delivery) -> None:
        go_on.wait(DEADLINE)
        inbox(delivery)

    subscription: Any = opened(broker.url, keepalive=2).subscribe(name, handler, durable=name)
    subscription._lane._high_water = 10
    publisher, count = plain(broker.url), 3000
    sent = [publisher.client.publish(name, b"%d" % number + bytes(10_000), qos) for number in range(count)]
    sent[-1].wait_for_publish(DEADLINE)
    eventually(lambda: broker.log_text().count(f"Received PINGREQ from {name}\n") >= 3, "longer than two keepalives")
    assert len(subscription._lane._queue) < 1000
    subscription.add(f"{name}/more")  # its confirmation is behind the events
    go_on.set()
    inbox.wait(count)
    assert inbox.payloads == [b"%d" % number + bytes(10_000) for number in range(count)]
    assert subscription._own_session.generations == 1


def test_after_its_goodbye_a_session_does_not_connect_again(mqtt_broker: Server, opened: Opener, name: str) -> None:
    subscription: Any = opened(mqtt_broker.url).subscribe(name, Inbox(), durable=name)
    session = subscription._own_session
    command = session._command

    def slowly(request: Callable[[], None]) -> None:
        command(request)
        eventually(lambda: session.generations == 2 or not session._thread.is_alive())

    session._command = slowly
    subscription.close()
    assert session.generations == 1


def test_room_that_comes_with_the_goodbye_does_no_harm(
    mqtt_broker: Server, opened: Opener, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    subscription: Any = opened(mqtt_broker.url).subscribe(name, Inbox(), durable=name)
    session = subscription._own_session
    session._has_room = lambda: session._said_goodbye  # the socket is closed then
    session.look_again()
    subscription.close()
    assert "ended by a bug" not in caplog.text


def test_a_publisher_that_forgets_its_first_topics_goes_on(
    mqtt_broker: Server, opened: Opener, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_MOST_TOPICS", 2)
    bus, inbox, gaps = opened(mqtt_broker.url), Inbox(), list[Gap]()
    subscription = bus.subscribe(f"{name}/+", inbox, on_gap=gaps.append)
    for number in range(9):
        bus.publish(f"{name}/{number % 3}", b"%d" % number)
    inbox.wait(9)
    assert inbox.payloads == [b"%d" % number for number in range(9)]
    assert (len(bus._topics), gaps, subscription.stats.duplicates) == (2, [], 0)


def test_publishes_from_many_threads_leave_in_the_order_of_their_numbers(
    mqtt_broker: Server, opened: Opener, name: str
) -> None:
    bus, inbox = opened(mqtt_broker.url), Inbox()
    subscription = opened(mqtt_broker.url).subscribe(name, inbox, ack=Ack.MANUAL)

    def publish(thread: int) -> None:
        for number in range(200):
            bus.publish(name, b"%d-%d" % (thread, number))

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    inbox.wait(1600)
    positions = [delivery.position for delivery in inbox]
    assert [position[1] for position in positions if position] == list(range(1, 1601))
    assert subscription.stats.missing == 0


# -- bad networks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"max_inflight_messages": 20}], ids=["no limits", "window of 20"])
def test_cut_again_and_again_under_load_nothing_is_lost_doubled_or_inverted(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str, settings: dict[str, object]
) -> None:
    broker = private_mqtt_broker(**settings)
    count, chance = 3000, random.Random(7)
    with Proxy(port_of(broker.url)) as left, Proxy(port_of(broker.url)) as right:
        publisher = opened(f"mqtt://127.0.0.1:{left.port}")
        subscriber = opened(f"mqtt://127.0.0.1:{right.port}")
        inboxes = [Inbox(), Inbox(), Inbox()]
        subscriptions = [
            subscriber.subscribe(name, inboxes[0]),
            subscriber.subscribe(name, inboxes[1], durable=name),
            subscriber.subscribe(f"{name}/#", inboxes[2]),
        ]
        receipts: list[Receipt] = []
        for number in range(count):
            receipts.append(publisher.publish(name, b"%d" % number))
            if number % 150 == 75:
                eventually(lambda: receipts[-50].done)  # keep up, so that the cuts fall among the events
                proxy = chance.choice([left, right])
                chance.choice([proxy.cut, lambda proxy=proxy: proxy.cut_after(chance.randrange(2000))])()
        for receipt in receipts:
            receipt.wait(DEADLINE)
        for inbox in inboxes:
            inbox.wait(count)
            assert inbox.payloads == numbers(count)
        assert [subscription.stats.missing for subscription in subscriptions] == [0, 0, 0]
        assert left.connections + right.connections > 12


def test_an_acknowledgement_of_an_old_connection_never_reaches_the_new_one(
    mqtt_broker: Server, opened: Opener, name: str
) -> None:
    publisher, inbox = opened(mqtt_broker.url), Inbox()
    with Proxy(port_of(mqtt_broker.url)) as proxy:
        consumer = opened(f"mqtt://127.0.0.1:{proxy.port}")
        consumer.subscribe(name, inbox, durable=name, ack=Ack.MANUAL)
        for payload in numbers(5):
            publisher.publish(name, payload)
        inbox.wait(5)
        proxy.cut()
        inbox.wait(10)
        assert [delivery.redelivered for delivery in inbox] == [False] * 5 + [True] * 5
        for delivery in inbox[:5]:
            delivery.ack()  # too late
        inbox[5].ack()
        consumer.close()
    last = Inbox()
    opened(mqtt_broker.url).subscribe(name, last, durable=name, ack=Ack.MANUAL)
    last.wait(4)
    assert last.payloads == [b"1", b"2", b"3", b"4"]


def test_a_half_open_connection_is_noticed_and_replaced(mqtt_broker: Server, opened: Opener, name: str) -> None:
    with Proxy(port_of(mqtt_broker.url)) as proxy:
        bus, inbox = opened(f"mqtt://127.0.0.1:{proxy.port}", keepalive=1, connect_timeout=5.0), Inbox()
        bus.subscribe(name, inbox)
        proxy.freeze()
        receipt = bus.publish(name, b"x")
        eventually(lambda: not bus._main.connected, "the silence is noticed")
        proxy.cut()
        proxy.thaw()
        receipt.wait(DEADLINE)
        inbox.wait(1)


def test_a_slow_network_changes_nothing_but_the_time(mqtt_broker: Server, opened: Opener, name: str) -> None:
    with Proxy(port_of(mqtt_broker.url)) as proxy:
        proxy.delay = 0.02
        bus, inbox = opened(f"mqtt://127.0.0.1:{proxy.port}"), Inbox()
        bus.subscribe(name, inbox)
        for payload in numbers(300):
            bus.publish(name, payload)
        inbox.wait(300)
        assert inbox.payloads == numbers(300)


def test_keys_removed_while_a_watch_was_cut_off_are_gone_afterwards(
    mqtt_broker: Server, opened: Opener, name: str
) -> None:
    other, told = opened(mqtt_broker.url), list[tuple[str, bytes | None]]()
    for key in ("a", "b", "c"):
        other.announce(f"test/{name}/{key}", b"1").wait(DEADLINE)
    with Proxy(port_of(mqtt_broker.url)) as proxy:
        bus = opened(f"mqtt://127.0.0.1:{proxy.port}", protocol=OLD)  # its session ends with the connection
        watch = bus.watch(f"test/{name}", lambda key, value: told.append((key, value)))
        assert len(watch.snapshot()) == 3
        proxy.refusing = True
        proxy.cut()
        eventually(lambda: not bus._main.connected)
        other.announce(f"test/{name}/a", None).wait(DEADLINE)
        other.announce(f"test/{name}/b", b"2").wait(DEADLINE)
        proxy.refusing = False
        eventually(lambda: watch.snapshot() == {f"test/{name}/b": b"2", f"test/{name}/c": b"1"})
        eventually(lambda: (f"test/{name}/a", None) in told)
    for key in ("b", "c"):
        other.announce(f"test/{name}/{key}", None)


def test_entering_while_the_broker_restarts(private_mqtt_broker: PrivateBroker, opened: Opener, name: str) -> None:
    broker = private_mqtt_broker(persistence=True)
    bus = opened(broker.url)
    bus.subscribe(name, Inbox())
    broker.kill()
    restarting = threading.Thread(target=broker.restart)
    restarting.start()
    inbox, entered = Inbox(), False
    while not entered:
        try:
            bus.subscribe(f"{name}/d", inbox, durable=name)
            entered = True
        except errors.BusError:
            pass
    restarting.join(DEADLINE)
    bus.publish(f"{name}/d", b"x").wait(DEADLINE)
    inbox.wait(1)


def test_an_unsubscribe_that_is_lost_with_the_connection_is_sent_again(
    mqtt_broker: Server, opened: Opener, name: str
) -> None:
    with Proxy(port_of(mqtt_broker.url)) as proxy:
        bus = opened(f"mqtt://127.0.0.1:{proxy.port}")
        inbox, manual = Inbox(), Inbox()
        subscription = bus.subscribe([f"{name}/1", f"{name}/2"], inbox)
        apart = bus.subscribe([f"{name}/1", f"{name}/3"], manual, ack=Ack.MANUAL)
        proxy.refusing = True
        proxy.cut()
        eventually(lambda: not bus._main.connected)
        for one in (subscription, apart):
            session = one._session  # type: ignore[attr-defined]
            session._options = msgspec.structs.replace(session._options, connect_timeout=0.2)
            with pytest.raises(errors.SubscribeFailed):
                one.remove(f"{name}/1")
        proxy.refusing = False
        for topic in ("1", "2", "3"):
            bus.publish(f"{name}/{topic}", topic.encode()).wait(DEADLINE)
        inbox.wait(1)
        manual.wait(1)
        assert (inbox.payloads, manual.payloads) == ([b"2"], [b"3"])
        assert not bus._main._filters.dropping


def test_a_dead_letter_waits_for_a_broker_that_is_away_and_is_one(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str
) -> None:
    broker = private_mqtt_broker(persistence=True)
    bus, tried, fail = opened(broker.url), threading.Event(), threading.Event()

    def handler(_: Delivery) -> None:
        tried.set()
        fail.wait(DEADLINE)
        raise ValueError("no such room")

    subscription = bus.subscribe(name, handler, durable=name, retry=Retry(2, 0.001, 0.001))
    bus.publish(name, b"poison").wait(DEADLINE)
    assert tried.wait(DEADLINE)
    broker.stop()
    eventually(lambda: not bus._main.connected)
    fail.set()
    eventually(lambda: bus._main.value_bytes)
    broker.restart()
    eventually(lambda: subscription.stats.dead_letters == 1)
    assert len(dead_letters.letters(opened(broker.url), name)) == 1


def test_a_replayed_cloud_event_is_handled_again(mqtt_broker: Server, opened: Opener, name: str) -> None:
    bus, good, fail = opened(mqtt_broker.url, cloudevents=True), Inbox(), [True]

    def handler(delivery: Delivery) -> None:
        if fail:
            raise ValueError("not today")
        good(delivery)

    subscription = bus.subscribe(name, handler, durable=name, retry=Retry(1))
    bus.publish(name, b"poison", type="t")
    eventually(lambda: subscription.stats.dead_letters == 1)
    [letter] = dead_letters.letters(bus, name)
    fail.clear()
    dead_letters.replay(bus, letter)
    good.wait(1)
    assert (good[0].payload, good[0].metadata and good[0].metadata.type) == (b"poison", "t")


# -- the end -----------------------------------------------------------------------------------------------------------


def test_what_was_published_just_before_close_is_delivered(mqtt_broker: Server, opened: Opener, name: str) -> None:
    inbox = Inbox()
    opened(mqtt_broker.url).subscribe(name, inbox)
    for number in range(20):
        bus = opened(mqtt_broker.url)
        receipts = [bus.publish(name, b"%d" % number) for _ in range(10)]
        bus.close()
        assert [receipt.error for receipt in receipts] == [None] * 10
    inbox.wait(200)


def test_close_while_the_broker_is_away_takes_its_time_and_no_more(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str
) -> None:
    broker = private_mqtt_broker()
    bus = opened(broker.url)
    subscriptions = [bus.subscribe(f"{name}/{number}", Inbox()) for number in range(5)]
    durable = [bus.subscribe(name, Inbox(), durable=f"{name}-{number}") for number in range(2)]
    bus.enter(name, Identity("log"))
    bus.watch("test")
    broker.kill()
    eventually(lambda: not bus._main.connected)
    began = time.monotonic()
    subscriptions[0].close()
    with pytest.raises(errors.BusError, match="away"):
        durable[0].unsubscribe()
    receipt = bus.publish(name, b"x")
    bus.close(timeout=1.0)
    assert time.monotonic() - began < DEADLINE
    assert isinstance(receipt.error, errors.PublishFailed)
    bus.close()


def test_close_with_handlers_that_never_return_has_one_deadline(mqtt_broker: Server, opened: Opener, name: str) -> None:
    bus, go_on, started = opened(mqtt_broker.url), threading.Event(), list[int]()

    def stuck(_: Delivery) -> None:
        started.append(1)
        go_on.wait(DEADLINE)

    for number in range(5):
        bus.subscribe(f"{name}/{number}", stuck)
        bus.publish(f"{name}/{number}", b"x")
    eventually(lambda: len(started) == 5)
    began = time.monotonic()
    bus.close(timeout=0.5)
    assert time.monotonic() - began < 15.0
    go_on.set()


def test_a_handler_may_close_its_subscription_and_its_bus(mqtt_broker: Server, opened: Opener, name: str) -> None:
    bus, closed = opened(mqtt_broker.url), list[str]()
    subscriptions = {}

    def close_subscription(_: Delivery) -> None:
        subscriptions["one"].close()
        closed.append("subscription")

    def close_bus(_: Delivery) -> None:
        bus.close()
        closed.append("bus")

    subscriptions["one"] = bus.subscribe(f"{name}/1", close_subscription, durable=name)
    bus.subscribe(f"{name}/2", close_bus)
    bus.publish(f"{name}/1", b"x")
    eventually(lambda: closed == ["subscription"])
    bus.publish(f"{name}/2", b"x")
    eventually(lambda: closed == ["subscription", "bus"])
    with pytest.raises(errors.Closed):
        bus.publish(name, b"x")


def test_a_receipt_s_callback_may_close_the_bus(mqtt_broker: Server, opened: Opener, name: str) -> None:
    bus, closed = opened(mqtt_broker.url), threading.Event()

    def close(_: Receipt) -> None:
        bus.close()
        closed.set()

    bus.publish(name, b"x").add_callback(close)
    assert closed.wait(DEADLINE)


def test_publishing_while_another_thread_closes_completes_every_receipt(
    mqtt_broker: Server, opened: Opener, name: str
) -> None:
    for _ in range(10):
        bus, receipts = opened(mqtt_broker.url), list[Receipt]()

        def publish(bus: Bus = bus, receipts: list[Receipt] = receipts) -> None:
            try:
                while True:
                    receipts.append(bus.publish(name, b"x"))
            except (errors.Closed, errors.Backpressure):
                return

        thread = threading.Thread(target=publish)
        thread.start()
        eventually(lambda receipts=receipts: len(receipts) > 50)  # type: ignore[misc]
        bus.close(timeout=0.2)
        thread.join(DEADLINE)
        assert not [receipt for receipt in receipts if not receipt.done]


def test_nothing_is_left_open(mqtt_broker: Server, opened: Opener, name: str) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    def once() -> None:
        bus = opened(mqtt_broker.url)
        bus.subscribe(name, Inbox(), durable=name).unsubscribe()
        bus.subscribe(name, Inbox())
        bus.enter(name, Identity("log")).leave()
        bus.watch("sites").close()
        bus.close()
        opened.open.clear()

    once()
    before = descriptors()
    for _ in range(3):
        once()
    eventually(lambda: descriptors() <= before)
