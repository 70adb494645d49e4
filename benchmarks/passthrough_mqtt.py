"""MQTT: paho in a plain script against the same through txlayer."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from benchmarks import through_txlayer
from benchmarks.side_by_side import stamped

_OUTSTANDING = 1000


def measure(url: str, events: int, repetitions: int) -> dict[str, Any]:
    """paho in a plain script, and txlayer."""
    return through_txlayer.measure(_raw_publish, _raw_subscribe, url, events, repetitions)


def raw_client(url: str) -> Client:
    """As a careful user sets it up: a window, no delay."""
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.max_inflight_messages_set(100)
    client.on_socket_open = _no_delay
    parts = urlsplit(url)
    client.connect(parts.hostname or "", parts.port or 1883)
    return client


def _no_delay(_: Client, __: object, sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _raw_publish(url: str, topic: str, events: int, pause: float, acknowledged_all: Callable[[], None]) -> None:
    """As a careful user writes it: every acknowledgement counted, a bounded number outstanding."""
    client = raw_client(url)
    room, acknowledged, all_acknowledged = threading.Semaphore(_OUTSTANDING), [0], threading.Event()

    def on_publish(*_: object) -> None:
        room.release()
        acknowledged[0] += 1
        if acknowledged[0] == events:
            all_acknowledged.set()

    client.on_publish = on_publish
    client.loop_start()
    for _ in range(events):
        room.acquire()
        client.publish(topic, stamped(), qos=1)
        if pause:
            time.sleep(pause)
    all_acknowledged.wait(300)
    acknowledged_all()
    client.disconnect()
    client.loop_stop()


def _raw_subscribe(url: str, topic: str, ready: Any, seen: Any) -> None:
    client = raw_client(url)
    client.on_subscribe = lambda *_: ready()

    def on_message(_: Client, __: object, message: Any) -> None:
        if seen(message.payload):
            client.disconnect()

    client.on_message = on_message
    client.subscribe(topic, qos=1)
    client.loop_forever()
