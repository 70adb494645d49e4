"""Plain clients on the same broker, which have never heard of txlayer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from paho.mqtt.client import MQTTMessage
from paho.mqtt.enums import MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.conftest import DEADLINE
from tests.inbox import Inbox
from tests.integration.mqtt.rig import OLD, Opener, Plain
from txlayer import (
    errors,
)
from txlayer.testing.server import Server


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
