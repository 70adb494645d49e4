"""The quick reading of a PUBLISH and of a PUBACK gives what paho's own decoder gives."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt import _packet
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from txlayer.adapters.mqtt_client import PackedProperties, QuickClient
from txlayer.adapters.mqtt_properties import compact, varint
from txlayer.adapters.mqtt_socket import BufferedSocket

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


class Chunks:
    """A socket that gives what arrived piece by piece, and then nothing."""

    def __init__(self, stream: bytes, cuts: list[int]) -> None:
        places = [0, *sorted({cut % (len(stream) + 1) for cut in cuts}), len(stream)]
        self.chunks = [stream[a:b] for a, b in itertools.pairwise(places) if a < b]

    def recv(self, count: int) -> bytes:
        if not self.chunks:
            raise BlockingIOError
        return self.chunks.pop(0)


def publish(number: int, payload: bytes) -> bytes:
    """A packet at QoS 1."""
    rest = b"\0\1t" + number.to_bytes(2) + b"\0" + payload
    return b"\x32" + varint(len(rest)) + rest


@given(payloads=st.lists(st.binary(max_size=200), min_size=1, max_size=6), cuts=st.lists(st.integers(0, 2000)))
def test_packets_are_read_whatever_pieces_they_come_in(payloads: list[bytes], cuts: list[int]) -> None:
    """With answers to pings between them, which paho reads."""
    stream = b"".join(publish(number, payload) + b"\xd0\0" for number, payload in enumerate(payloads, 1))
    client: Any = QuickClient(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.manual_ack_set(True)
    received: list[tuple[int, bytes]] = []
    client.on_message = lambda _, __, message: received.append((message.mid, message.payload))
    socket = Chunks(stream, cuts)
    client._sock = BufferedSocket(socket)
    for _ in range(10 * len(payloads) + 2 * len(cuts) + 10):
        client.loop_read()
    client._sock = None
    assert received == list(enumerate(payloads, 1))
    assert not socket.chunks


def test_events_that_come_keep_the_connection_alive_as_with_paho() -> None:
    """The answer to a ping may be stuck behind them."""
    client: Any = QuickClient(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.on_message = lambda *_: None
    client._last_bytes_received = client._last_msg_in = 0.0
    client._sock = BufferedSocket(Chunks(publish(1, b"x"), []))
    client.loop_read()
    client._sock = None
    assert client._last_bytes_received > 0.0
    assert client._last_msg_in > 0.0
