"""The quick reading of a PUBLISH and of a PUBACK gives what paho's own decoder gives."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt import _packet
from paho.mqtt.client import Client, MQTTMessage
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


@pytest.mark.parametrize("packet", [b"\0\7", b"\0\7\0", b"\0\7\x10", b"\0\7\x97", b"\0\7\x97\0", b"\0\1"])
def test_a_puback_is_taken_as_paho_takes_it(packet: bytes) -> None:
    assert acknowledged(QuickClient, packet) == acknowledged(Client, packet)


def acknowledged(kind: type[Client], packet: bytes) -> tuple[list[tuple[int, bool]], list[int], int]:
    """What a client that waits for the acknowledgements of 7 and 8 tells, and what it still waits for."""
    client: Any = kind(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.max_inflight_messages_set(0)
    told: list[tuple[int, bool]] = []
    client.on_publish = lambda _, __, mid, reason, ___: told.append((mid, reason.is_failure))
    for mid in (7, 8):
        client._out_messages[mid] = message = MQTTMessage(mid, b"t")
        message.qos = 1
        client._inflight_messages += 1
    client._in_packet["command"], client._in_packet["packet"] = 0x40, bytearray(packet)
    client._packet_handle()
    return told, list(client._out_messages), client._inflight_messages
