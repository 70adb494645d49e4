"""MQTT: paho in a plain script against the same through txlayer."""

from __future__ import annotations

import socket
import statistics
import threading
import time
from typing import Any
from urllib.parse import urlsplit

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from benchmarks.side_by_side import Way, compare, stamped
from txlayer import Delivery, connect, errors

_OUTSTANDING = 1000


def measure(url: str, events: int, repetitions: int) -> dict[str, Any]:
    """Both ways in turns, and how long a subscription takes at run-time."""
    ways = [Way("raw", _raw_publish, _raw_subscribe), Way("txlayer", _publish, _subscribe)]
    result = compare(ways, url, events, repetitions)
    result["ratio"] = round(result["txlayer"]["events_per_second"] / result["raw"]["events_per_second"], 3)
    result["subscribe_to_first_event_ms"] = subscribe_to_first_event_ms(url)
    return result


def subscribe_to_first_event_ms(url: str, rounds: int = 20) -> float:
    """From the call of `subscribe` at run-time to the first event at the handler; median."""
    times = []
    with connect(url) as subscriber, connect(url) as publisher:
        for round in range(rounds):
            topic, arrived = f"bench-first-{time.monotonic_ns()}-{round}", threading.Event()
            publisher.publish(topic, b"there is such a topic").wait(10)
            began = time.monotonic()
            subscriber.subscribe(topic, lambda _, arrived=arrived: arrived.set())  # type: ignore[misc]
            publisher.publish(topic, b"x")
            arrived.wait(10)
            times.append(time.monotonic() - began)
    return round_ms(statistics.median(times))


def round_ms(seconds: float) -> float:
    return round(seconds * 1000, 2)


def _publish(url: str, topic: str, events: int, pause: float) -> None:
    with connect(url) as bus:
        receipts = []
        for _ in range(events):
            while True:
                try:
                    receipts.append(bus.publish(topic, stamped()))
                    break
                except errors.Backpressure:
                    receipts[-1].wait(60)
            if pause:
                time.sleep(pause)
        for receipt in receipts:
            receipt.wait(60)


def _subscribe(url: str, topic: str, ready: Any, seen: Any) -> None:
    done = threading.Event()

    def handler(delivery: Delivery) -> None:
        if seen(delivery.payload):
            done.set()

    with connect(url) as bus:
        bus.subscribe(topic, handler)
        ready()
        done.wait(300)


def _raw_client(url: str) -> Client:
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.max_inflight_messages_set(100)
    client.on_socket_open = _no_delay
    parts = urlsplit(url)
    client.connect(parts.hostname or "", parts.port or 1883)
    return client


def _no_delay(_: Client, __: object, sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _raw_publish(url: str, topic: str, events: int, pause: float) -> None:
    """As a careful user writes it: every acknowledgement counted, a bounded number outstanding."""
    client = _raw_client(url)
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
    client.disconnect()
    client.loop_stop()


def _raw_subscribe(url: str, topic: str, ready: Any, seen: Any) -> None:
    client = _raw_client(url)
    client.on_subscribe = lambda *_: ready()

    def on_message(_: Client, __: object, message: Any) -> None:
        if seen(message.payload):
            client.disconnect()

    client.on_message = on_message
    client.subscribe(topic, qos=1)
    client.loop_forever()
