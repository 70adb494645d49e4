"""Request and reply over MQTT with paho alone, at QoS 1."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from threading import Event
from typing import Any

from paho.mqtt.client import Client

from benchmarks.passthrough_mqtt import raw_client
from benchmarks.transactions_floor import START_SECONDS, Requests


def prepare(url: str, topic: str) -> None:
    """Topics need no making."""


def reply(url: str, topic: str, parent: Connection) -> None:
    """A member: every request is replied to from the network thread."""
    client = raw_client(url)
    client.on_subscribe = lambda *_: parent.send("ready")

    def on_message(_: Client, __: object, message: Any) -> None:
        client.publish(f"{topic}/replies", message.payload, qos=1)

    client.on_message = on_message
    client.subscribe(f"{topic}/requests", qos=1)
    client.loop_start()
    parent.poll(None)
    client.disconnect()
    client.loop_stop()


@contextmanager
def requests(url: str, topic: str, members: int) -> Iterator[Requests]:
    """The asking side."""
    client = raw_client(url)

    def send(payload: bytes) -> None:
        client.publish(f"{topic}/requests", payload, qos=1)

    made = Requests(members, send)
    ready = Event()
    client.on_subscribe = lambda *_: ready.set()
    client.on_message = lambda _, __, message: made.on_reply(bytes(message.payload))
    client.subscribe(f"{topic}/replies", qos=1)
    client.loop_start()
    ready.wait(START_SECONDS)
    yield made
    client.disconnect()
    client.loop_stop()
