"""Figure 2: the ordered bus against plain publish and subscribe of the same load, on Mosquitto, in processes.

One publisher, one subscriber, twelve topics, hosts by command with a durable log; ways are measured in turns.
"""

from __future__ import annotations

import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.side_by_side import PAYLOAD_BYTES, receive
from txlayer import Bus, Delivery, Receipt, connect, errors, ordered
from txlayer.testing import servers

SECONDS = 120.0
HOSTS = (1, 3)
_TOPICS = tuple(f"{'abc'[number % 3]}{number}" for number in range(12))
_UNDER_WAY = 4000
_DELAYS = 300


def end_to_end(events: int, repetitions: int) -> dict[str, Any]:
    """Rates and delays of the plain bus, and of the ordered one with one and three hosts."""
    with servers.mqtt() as broker, ExitStack() as stack:
        ways = {"plain": ""}
        for hosts in HOSTS:
            ways[f"ordered_{hosts}"] = stack.enter_context(_chain(broker.url, hosts, tcp=False))
        ways["ordered_1_tcp"] = stack.enter_context(_chain(broker.url, 1, tcp=True))
        rates: dict[str, list[float]] = {way: [] for way in ways}
        delays: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(repetitions):
            for way, sequencer in ways.items():
                rates[way].append(events / _run(broker.url, sequencer, events, 0.0)[0])
            for way, sequencer in ways.items():
                delays[way] += _run(broker.url, sequencer, _DELAYS, 0.004)[1]
    return _summary(rates, delays, events)


def _summary(rates: dict[str, list[float]], delays: dict[str, list[float]], events: int) -> dict[str, Any]:
    rate = {way: statistics.median(found) for way, found in rates.items()}
    cuts = {way: statistics.quantiles(found, n=100) for way, found in delays.items()}
    result: dict[str, Any] = {"events": events, "payload_bytes": PAYLOAD_BYTES, "qos": 1}
    for way in rate:
        result[way] = {
            "events_per_second": round(rate[way]),
            "ratio": round(rate[way] / rate["plain"], 2),
            "added_p50_ms": round((cuts[way][49] - cuts["plain"][49]) * 1000, 2),
            "added_p99_ms": round((cuts[way][98] - cuts["plain"][98]) * 1000, 2),
        }
    result["ratio"] = result["ordered_1"]["ratio"]
    return result


@contextmanager
def _chain(url: str, hosts: int, tcp: bool) -> Iterator[str]:
    """Hosts by command; the URL by which clients find them."""
    chain = f"bench-{hosts}-{int(tcp)}"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        way = f"{url}/{chain}"
        for rank, name in enumerate("abc"[:hosts]):
            command = [sys.executable, "-m", "txlayer.cli", "sequencer", "serve", "--name", name, "--rank", str(rank)]
            command += ["--log", f"sqlite:///{folder}/{name}.db", "--bus", f"{url}/{chain}"]
            command += ["--topics", f"{name}*" if hosts > 1 else "*"]
            process = stack.enter_context(
                subprocess.Popen(
                    [*command, *(["--listen", "tcp://127.0.0.1:0"] if tcp else [])], stdout=subprocess.PIPE, text=True
                )
            )
            stack.callback(process.terminate)
            assert process.stdout is not None
            said = process.stdout.readline()
            way = said.split(" at ")[-1].strip() if tcp else way
        yield way


def _open(url: str, sequencer: str) -> Bus:
    return ordered(url, sequencer, deadline=SECONDS) if sequencer else connect(url)


def _run(url: str, sequencer: str, events: int, pause: float) -> tuple[float, list[float]]:
    """Seconds from the first publish until everything is received and acknowledged, and each event's delay."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    subscriber = context.Process(target=_subscribe, args=(url, sequencer, events, theirs), daemon=True)
    subscriber.start()
    receive(ours, SECONDS, "the subscriber")
    ours2, theirs2 = context.Pipe()
    publisher = context.Process(target=_publish, args=(url, sequencer, events, pause, theirs2), daemon=True)
    publisher.start()
    began, acknowledged = receive(ours2, SECONDS, "the publisher")
    received, delays = receive(ours, SECONDS, "the last event")
    publisher.join(SECONDS)
    subscriber.join(SECONDS)
    return max(received, acknowledged) - began, delays


def _subscribe(url: str, sequencer: str, events: int, connection: Connection) -> None:
    delays: list[float] = []
    done = threading.Event()

    def seen(delivery: Delivery) -> None:
        delays.append(time.monotonic() - float(delivery.payload[:24]))
        if len(delays) == events:
            done.set()

    with _open(url, sequencer) as bus:
        bus.subscribe(_TOPICS, seen)
        connection.send("ready")
        done.wait(SECONDS)
        connection.send((time.monotonic(), delays))


def _publish(url: str, sequencer: str, events: int, pause: float, connection: Connection) -> None:
    with _open(url, sequencer) as bus:
        bus.publish("a-warm", b"").wait(SECONDS)
        began = time.monotonic()
        receipts: list[Receipt] = []
        for number in range(events):
            payload = f"{time.monotonic():24.9f}".encode().ljust(PAYLOAD_BYTES, b"x")
            receipts.append(_patiently(bus, _TOPICS[number % len(_TOPICS)], payload, receipts))
            if len(receipts) > _UNDER_WAY:
                receipts[-_UNDER_WAY].wait(SECONDS)
            if pause:
                time.sleep(pause)
        for receipt in receipts:
            receipt.wait(SECONDS)
        connection.send((began, time.monotonic()))


def _patiently(bus: Bus, topic: str, payload: bytes, receipts: list[Receipt]) -> Receipt:
    while True:
        try:
            return bus.publish(topic, payload)
        except errors.Backpressure:
            receipts[-1].wait(SECONDS)
