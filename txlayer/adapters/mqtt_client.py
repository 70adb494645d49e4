"""paho's client on a buffered socket, with the properties of an event left packed until somebody wants them.

Decoding one user property takes paho as long as everything else about a received event, and building the empty object
for it as long again. Here a PUBLISH is split where its parts end; paho decodes the properties when they are looked at.
A PUBACK that says no more than which event it is for is not decoded at all.
"""

from __future__ import annotations

import time
from typing import Any, Literal

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from txlayer.adapters.mqtt_properties import METADATA_PREFIX, user_pairs, varint
from txlayer.adapters.mqtt_socket import BufferedSocket, no_delay

_TAKEN = ReasonCode(PacketTypes.PUBACK)
_NO_PROPERTIES = Properties(PacketTypes.PUBACK)
_NOBODY_SUBSCRIBES = 0x10
_RECEIVED = MQTTMessage()


class PackedProperties(Properties):
    """Properties as they came; anything asked of them is answered by paho's own decoder."""

    def __init__(self, packed: bytes) -> None:
        object.__setattr__(self, "packed", packed)

    @property
    def none(self) -> bool:
        """There are no properties."""
        return not self.__dict__["packed"]

    @property
    def metadata(self) -> bytes | None:
        """The metadata as text, if they are the only property."""
        packed: bytes = self.__dict__["packed"]
        start = len(METADATA_PREFIX) + 2
        if packed.startswith(METADATA_PREFIX) and len(packed) == start + int.from_bytes(packed[start - 2 : start]):
            return packed[start:]
        return None

    @property
    def user_pairs(self) -> list[tuple[str, str]] | None:
        """All properties, if they are user properties."""
        return user_pairs(self.__dict__["packed"])

    def __getattr__(self, name: str) -> Any:
        if "packetType" in self.__dict__:
            raise AttributeError(name)
        packed: bytes = self.__dict__["packed"]
        Properties.__init__(self, PacketTypes.PUBLISH)
        Properties.unpack(self, varint(len(packed)) + packed)
        return getattr(self, name)


class QuickMessage(MQTTMessage):
    """A message that was received: without what paho needs to wait for one that is sent."""

    def __init__(self, mid: int, topic: bytes) -> None:
        self.mid, self._topic = mid, topic
        self.state, self.info = _RECEIVED.state, _RECEIVED.info


class QuickClient(Client):
    """A paho client for the loop of `mqtt_session`: acknowledges by hand, without Nagle's algorithm."""

    def _create_socket(self) -> Any:
        sock = super()._create_socket()
        no_delay(sock)
        return BufferedSocket(sock)

    def _ssl_wrap_socket(self, tcp_sock: Any) -> Any:
        """The context checks the host's name; paho leaves the socket of a failed handshake open."""
        assert self._ssl_context is not None
        sock = self._ssl_context.wrap_socket(tcp_sock, server_hostname=self._host, do_handshake_on_connect=False)
        try:
            sock.settimeout(self._connect_timeout)
            sock.do_handshake()
        except BaseException:
            sock.close()
            raise
        return sock

    def say(self, topic: bytes, payload: bytes) -> bool:
        """Put a PUBLISH at QoS 0 into the socket's buffer, from any thread; False if there is no room or no socket.

        paho's own way builds a receipt, a reason and properties for each, which here nobody looks at.
        """
        properties = b"\0" if self._protocol == MQTTProtocolVersion.MQTTv5 else b""
        rest = b"".join((len(topic).to_bytes(2), topic, properties, payload))
        try:
            return self._sock is not None and bool(self._sock.send(b"\x30" + varint(len(rest)) + rest))
        except BlockingIOError:
            return False

    def _packet_read(self) -> MQTTErrorCode:
        """A whole PUBLISH is taken out of the buffer; anything else paho reads byte by byte."""
        sock: Any = self._sock
        if self._in_packet["command"] == 0 and isinstance(sock, BufferedSocket):
            found = sock.peek_publish()
            if found is not None and self._take_publish(found[0], found[1]):
                sock.skip_to(found[2])
                return MQTTErrorCode.MQTT_ERR_SUCCESS
        return super()._packet_read()

    def _handle_publish(self) -> MQTTErrorCode:
        if self._take_publish(self._in_packet["command"], bytes(self._in_packet["packet"])):
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        return super()._handle_publish()

    def _take_publish(self, command: int, packet: bytes) -> bool:
        """False for what is rare, and for what is malformed: that is paho's."""
        qos = (command >> 1) & 3
        topic_end = 2 + int.from_bytes(packet[:2])
        place = topic_end + 2 if qos else topic_end
        properties = _properties(packet, place)
        if self._protocol != MQTTProtocolVersion.MQTTv5 or qos > 1 or properties is None or self.on_message is None:
            return False
        start, end = properties
        message = QuickMessage(int.from_bytes(packet[topic_end:place]), packet[2:topic_end])
        message.qos, message.dup, message.retain = qos, bool(command & 8), bool(command & 1)
        message.payload = packet[end:]
        message.properties = PackedProperties(packet[start:end])
        # By one of these, depending on its release, paho tells a slow broker from one that is gone.
        message.timestamp = self._last_bytes_received = self._last_msg_in = time.monotonic()
        self.on_message(self, None, message)
        return True

    def _handle_pubackcomp(self, cmd: Literal["PUBACK", "PUBCOMP"]) -> MQTTErrorCode:
        packet = self._in_packet["packet"]
        if cmd != "PUBACK" or not (len(packet) == 2 or (len(packet) == 3 and packet[2] in (0, _NOBODY_SUBSCRIBES))):
            return super()._handle_pubackcomp(cmd)
        mid = int.from_bytes(packet[:2])
        with self._out_message_mutex:
            if self._out_messages.pop(mid, None) is None:
                return MQTTErrorCode.MQTT_ERR_SUCCESS
            self._inflight_messages -= 1
        on_publish: Any = self.on_publish
        if on_publish is not None:
            on_publish(self, None, mid, _TAKEN, _NO_PROPERTIES)
        return MQTTErrorCode.MQTT_ERR_SUCCESS


def _properties(packet: bytes, place: int) -> tuple[int, int] | None:
    """Where the properties begin and end; None if the packet is too short for them."""
    length = shift = 0
    for digit in packet[place : place + 4]:
        place += 1
        length |= (digit & 0x7F) << shift
        shift += 7
        if not digit & 0x80:
            return (place, place + length) if place + length <= len(packet) else None
    return None
