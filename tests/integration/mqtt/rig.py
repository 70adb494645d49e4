"""What the tests of the MQTT bus share: buses that are closed in the end, plain clients, a scripted broker."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.properties import Properties

from tests.conftest import DEADLINE, eventually
from txlayer import (
    Bus,
    Roster,
    Standing,
    connect,
)
from txlayer.adapters.mqtt import MqttBus
from txlayer.testing.mosquitto import Mosquitto

PrivateBroker = Callable[..., Mosquitto]
OLD = "3.1.1"
AS_DEBIAN_SHIPS_IT = {"max_inflight_messages": 20, "max_queued_messages": 1000}
SECRET = "s3cret-word"


class Opener:
    """Opens buses and closes them in the end."""

    def __init__(self) -> None:
        self.open: list[Bus] = []

    def __call__(self, target: object, **options: Any) -> MqttBus:
        bus = connect(target, **options)
        assert isinstance(bus, MqttBus)
        self.open.append(bus)
        return bus


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


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def standing(roster: Roster, name: str) -> Standing | None:
    return next((view.standing for view in roster.sites() if view.name == name), None)


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
