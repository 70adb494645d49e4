"""The floor below any layer of this kind: a bare coordinator and bare members over the same broker.

The members do the same database work, begin, insert and prepare in one message; there is no log, no census, no marker
and no check of anything. The coordinator's transaction is over when it has all votes and has sent the decision.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import socket
import threading
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

import psycopg
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

_WORKERS = 8
_SECONDS = 60.0


def _client(url: str) -> Client:
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.max_inflight_messages_set(100)
    client.on_socket_open = _no_delay
    parts = urlsplit(url)
    client.connect(parts.hostname or "", parts.port or 1883)
    return client


def _no_delay(_: Client, __: object, sock: Any) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class Floor:
    """The coordinator, in this process; `members` in processes of their own."""

    def __init__(self, broker: str, urls: list[str]) -> None:
        self._run = f"floor-{os.getpid()}"
        self._numbers = itertools.count(1)
        self._count = len(urls)
        self._votes: dict[str, tuple[list[str], threading.Event]] = {}
        context = multiprocessing.get_context("spawn")
        self._members: list[tuple[Any, Connection]] = []
        for number, url in enumerate(urls):
            ours, theirs = context.Pipe()
            process = context.Process(target=member, args=(broker, url, self._run, number, theirs), daemon=True)
            process.start()
            self._members.append((process, ours))
        for _, ready in self._members:
            if not ready.poll(_SECONDS):
                raise RuntimeError("a member did not start")
        self._client = _client(broker)
        subscribed = threading.Event()
        self._client.on_subscribe = lambda *_: subscribed.set()
        self._client.on_message = self._on_vote
        self._client.subscribe(f"{self._run}/votes", qos=1)
        self._client.loop_start()
        subscribed.wait(_SECONDS)

    def transaction(self) -> None:
        """Ask for work, collect votes, send the decision."""
        name = str(next(self._numbers))
        complete = threading.Event()
        self._votes[name] = ([], complete)
        self._client.publish(f"{self._run}/work", f"work {name}".encode(), qos=1)
        if not complete.wait(_SECONDS):
            raise RuntimeError("votes are missing")
        self._client.publish(f"{self._run}/work", f"commit {name}".encode(), qos=1)
        del self._votes[name]

    def _on_vote(self, _: Client, __: object, message: Any) -> None:
        name = message.payload.decode()
        votes, complete = self._votes[name]
        votes.append(name)
        if len(votes) == self._count:
            complete.set()

    def close(self) -> None:
        for process, connection in self._members:
            connection.send("end")
            process.join(_SECONDS)
        self._client.disconnect()
        self._client.loop_stop()


def member(broker: str, url: str, run: str, number: int, connection: Connection) -> None:
    """Insert and prepare when asked, vote, commit when told."""
    client = _client(broker)
    jobs: SimpleQueue[str] = SimpleQueue()

    def work() -> None:
        with psycopg.connect(url, autocommit=True) as db:
            while True:
                what, _, name = jobs.get().partition(" ")
                gid = f"{run}-{number}-{name}"
                if what == "work":
                    db.execute(f"BEGIN; INSERT INTO entry (value) VALUES ('{name}'); PREPARE TRANSACTION '{gid}'")
                    client.publish(f"{run}/votes", name.encode(), qos=1)
                else:
                    db.execute(f"COMMIT PREPARED '{gid}'")

    for _ in range(_WORKERS):
        threading.Thread(target=work, daemon=True).start()
    client.on_message = lambda _client, _data, message: jobs.put(message.payload.decode())
    client.on_subscribe = lambda *_: connection.send("ready")
    client.subscribe(f"{run}/work", qos=1)
    client.loop_start()
    connection.recv()
