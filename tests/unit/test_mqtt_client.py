"""The quick reading of a PUBLISH gives what paho's own decoder gives."""

from __future__ import annotations

import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt import _packet
from paho.mqtt.client import MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from txlayer.adapters.mqtt_client import PackedProperties, QuickClient
from txlayer.adapters.mqtt_properties import compact

_TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Cn"]), max_size=20)


def quick(command: int, packet: bytes) -> MQTTMessage:
    """What a client of ours makes of a packet."""
    client: Any = QuickClient(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    received: list[MQTTMessage] = []
    client.on_message = lambda _, __, message: received.append(message)
    client._in_packet["command"], client._in_packet["packet"] = command, bytearray(packet)
    client._handle_publish()
    return received[0]


@given(
    topic=_TEXT.filter(bool),
    payload=st.binary(max_size=300),
    headers=st.dictionaries(_TEXT.filter(lambda name: name != "tx"), _TEXT, max_size=3),
    mid=st.integers(1, 65_535),
    qos=st.integers(0, 1),
    flags=st.sampled_from([0, 1, 8, 9]),
)
def test_a_publish_is_read_as_paho_reads_it(
    topic: str, payload: bytes, headers: dict[str, str], mid: int, qos: int, flags: int
) -> None:
    name, properties = topic.encode(), compact(b"bWV0YWRhdGE=", headers)
    packet = (
        struct.pack(">H", len(name)) + name + (struct.pack(">H", mid) if qos else b"") + properties.pack() + payload
    )
    command = 0x30 | (qos << 1) | flags
    message = quick(command, packet)
    expected = _packet.decode_publish(command, packet, MQTTProtocolVersion.MQTTv5)
    assert (message.topic, message.payload, message.mid) == (topic, expected.payload, expected.mid)
    assert (message.qos, message.retain, message.dup) == (expected.qos, expected.retain, expected.dup)
    assert isinstance(message.properties, PackedProperties)
    assert message.properties.metadata == (None if headers else b"bWV0YWRhdGE=")
    assert expected.properties is not None
    assert message.properties.UserProperty == expected.properties.UserProperty
