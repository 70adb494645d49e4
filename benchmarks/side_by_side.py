"""Publisher and subscriber in processes of their own, timed from the first publish to the last event.

A `Way` is one way to move events: the raw client, or txlayer. Ways are measured in turns, so that a noisy neighbour
hits all of them, and medians are compared.
"""

from __future__ import annotations

import multiprocessing
import statistics
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

PAYLOAD_BYTES = 200
_STAMP = struct.Struct(">d")
_START_SECONDS = 60.0
_RUN_SECONDS = 300.0

Publish = Callable[[str, str, int, float, Callable[[], None]], None]
"""(url, topic, events, pause, acknowledged): publishes so many, calls `acknowledged` when the broker has all."""

Subscribe = Callable[[str, str, Callable[[], None], Callable[[bytes], bool]], None]
"""(url, topic, ready, seen): calls `ready` once subscribed and `seen` per payload until it is true."""


@dataclass(frozen=True)
class Way:
    name: str
    publish: Publish
    subscribe: Subscribe


def stamped() -> bytes:
    """A payload that tells when it was made."""
    return _STAMP.pack(time.monotonic()).ljust(PAYLOAD_BYTES, b"x")


def compare(ways: list[Way], url: str, events: int, repetitions: int) -> dict[str, Any]:
    """Throughput and latency of each way, in turns."""
    rates: dict[str, list[float]] = {way.name: [] for way in ways}
    delays: dict[str, list[float]] = {way.name: [] for way in ways}
    for way in ways:
        run(way, url, events // 10, 0.0)  # warm-up
    for _ in range(repetitions):
        for way in ways:
            seconds, _ = run(way, url, events, 0.0)
            rates[way.name].append(events / seconds)
        for way in ways:
            delays[way.name] += run(way, url, 300, 0.002)[1]
    return {way.name: _summary(rates[way.name], delays[way.name]) for way in ways}


def _summary(rates: list[float], delays: list[float]) -> dict[str, float]:
    cuts = statistics.quantiles(delays, n=100)
    return {
        "events_per_second": round(statistics.median(rates)),
        "p50_ms": round(cuts[49] * 1000, 3),
        "p99_ms": round(cuts[98] * 1000, 3),
    }


def run(way: Way, url: str, events: int, pause: float) -> tuple[float, list[float]]:
    """Seconds from the first publish until everything is received and acknowledged, and each event's delay."""
    context = multiprocessing.get_context("spawn")
    topic = f"bench-{time.monotonic_ns()}"
    ours, theirs = context.Pipe()
    subscriber = context.Process(target=_subscribe, args=(way.subscribe, url, topic, events, theirs), daemon=True)
    subscriber.start()
    theirs.close()  # so that the end of the process is the end of the connection
    receive(ours, _START_SECONDS, "the subscriber")
    ours2, theirs2 = context.Pipe()
    publisher = context.Process(target=_publish, args=(way.publish, url, topic, events, pause, theirs2), daemon=True)
    publisher.start()
    theirs2.close()
    acknowledged = receive(ours2, _RUN_SECONDS, "the publisher")
    received, first, delays = receive(ours, _RUN_SECONDS, "the last event")
    publisher.join(_START_SECONDS)
    subscriber.join(_START_SECONDS)
    return max(received, acknowledged) - first, delays


def receive(connection: Connection, timeout: float, what: str) -> Any:
    """What another process sends, in time."""
    if not connection.poll(timeout):
        raise RuntimeError(f"{what} did not answer within {timeout} s")
    return connection.recv()


def _publish(publish: Publish, url: str, topic: str, events: int, pause: float, connection: Connection) -> None:
    publish(url, topic, events, pause, lambda: connection.send(time.monotonic()))


def _subscribe(subscribe: Subscribe, url: str, topic: str, events: int, connection: Connection) -> None:
    made: list[float] = []
    delays: list[float] = []
    unpack, now = _STAMP.unpack_from, time.monotonic

    def seen(payload: bytes) -> bool:
        stamp = unpack(payload)[0]
        made.append(stamp)
        delays.append(now() - stamp)
        return len(made) == events

    subscribe(url, topic, lambda: connection.send("ready"), seen)
    connection.send((made[-1] + delays[-1], made[0], delays))
