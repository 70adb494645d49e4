"""What a broker drops, refuses or breaks a connection over."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.conftest import DEADLINE, eventually
from tests.inbox import Inbox
from tests.integration.mqtt.rig import AS_DEBIAN_SHIPS_IT, OLD, Opener, PrivateBroker, ScriptedBroker, numbers, port_of
from tests.proxy import Proxy
from txlayer import (
    Ack,
    Gap,
    Receipt,
    connect,
    errors,
)
from txlayer.testing.server import Server


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
