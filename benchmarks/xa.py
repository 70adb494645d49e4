"""A transaction over three databases: by hand, through txlayer, and the floor below any such layer.

One PostgreSQL server with three databases and fsync on, one broker; each member is a process of its own and inserts one
row. The ways are measured in turns; nothing of one is left prepared when the next begins.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Protocol
from urllib.parse import urlsplit

import psycopg

from benchmarks.xa_direct import Direct
from benchmarks.xa_floor import Floor
from benchmarks.xa_txlayer import Layer
from txlayer.testing import servers
from txlayer.testing.postgres import Postgres

DATABASES = 3
CONCURRENCY = (1, 4, 16)
SECONDS = 60.0


class Way(Protocol):
    """One way to do it."""

    def transaction(self) -> None: ...
    def close(self) -> None: ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bus", choices=["mqtt"], default="mqtt")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each figure and repetition")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--only", choices=["direct", "txlayer", "floor"], help="one way alone, to profile it")
    parser.add_argument("--json", action="store_true", help="nothing but the JSON line")


def run(args: argparse.Namespace) -> int:
    with ExitStack() as stack:
        broker = stack.enter_context(servers.mqtt())
        server = stack.enter_context(Postgres(max_prepared_transactions=200, max_connections=200))
        urls = databases(server.url)
        makers: dict[str, Callable[[], Way]] = {
            "direct": lambda: Direct(urls, max(CONCURRENCY)),
            "txlayer": lambda: Layer(broker.url, urls),
            "floor": lambda: Floor(broker.url, urls),
        }
        ways = {name: make() for name, make in makers.items() if args.only in (None, name)}
        for way in ways.values():
            stack.callback(way.close)
        result = compare(ways, Prepared(stack.enter_context(psycopg.connect(urls[0], autocommit=True))), args)
    print(json.dumps(result))
    return 0


def databases(url: str) -> list[str]:
    """Fresh databases with a table each."""
    names = [f"bench_{time.monotonic_ns()}_{number}" for number in range(DATABASES)]
    with psycopg.connect(url, autocommit=True) as db:
        for name in names:
            db.execute(f"CREATE DATABASE {name}".encode())
    urls = [urlsplit(url)._replace(path=f"/{name}").geturl() for name in names]
    for database in urls:
        with psycopg.connect(database) as db:
            db.execute("CREATE TABLE entry (id bigserial PRIMARY KEY, value text)")
    return urls


class Prepared:
    """What is prepared on the server."""

    def __init__(self, db: psycopg.Connection[Any]) -> None:
        self._db = db

    def wait(self) -> None:
        """Until nothing is."""
        end = time.monotonic() + SECONDS
        while self._db.execute("SELECT 1 FROM pg_prepared_xacts LIMIT 1").fetchone():
            if time.monotonic() > end:
                raise RuntimeError(f"transactions are still prepared after {SECONDS} s")


def compare(ways: dict[str, Way], prepared: Prepared, args: argparse.Namespace) -> dict[str, Any]:
    """Latency one by one, throughput by how many at a time."""
    delays: dict[str, list[float]] = {name: [] for name in ways}
    ends: dict[str, list[float]] = {name: [] for name in ways}
    rates: dict[str, dict[int, list[float]]] = {name: {n: [] for n in CONCURRENCY} for name in ways}
    for way in ways.values():
        measure(way, 4, 1.0)  # warm-up
    for _ in range(args.repetitions):
        for concurrency in CONCURRENCY:
            for name, way in ways.items():
                prepared.wait()
                took, rate = measure(way, concurrency, args.seconds)
                rates[name][concurrency].append(rate)
                if concurrency == 1:
                    delays[name] += took
        for name, way in ways.items():
            ends[name] += until_committed(way, prepared)
    result: dict[str, Any] = {name: _summary(delays[name], ends[name], rates[name]) for name in ways}
    if len(ways) == len(("direct", "txlayer", "floor")):
        direct, layer, floor = result["direct"], result["txlayer"], result["floor"]
        most = f"per_second_at_{max(CONCURRENCY)}"
        result["latency_ratio"] = round(layer["p50_ms"] / direct["p50_ms"], 2)
        result["throughput_ratio"] = round(layer[most] / direct[most], 2)
        result["floor_ratio"] = round(layer["p50_ms"] / floor["p50_ms"], 2)
        result["floor_throughput_ratio"] = round(layer[most] / floor[most], 2)
    return result


def _summary(delays: list[float], ends: list[float], rates: dict[int, list[float]]) -> dict[str, float]:
    cuts = statistics.quantiles(delays, n=100, method="inclusive")
    summary = {"p50_ms": round(cuts[49] * 1000, 2), "p99_ms": round(cuts[98] * 1000, 2), "samples": len(delays)}
    summary["p50_until_committed_ms"] = round(statistics.median(ends) * 1000, 2)
    return summary | {f"per_second_at_{n}": round(statistics.median(found)) for n, found in rates.items()}


def measure(way: Way, concurrency: int, seconds: float) -> tuple[list[float], float]:
    """Seconds that each transaction took, and transactions a second, with so many at a time."""
    begun = time.monotonic()

    def drive() -> list[float]:
        delays = []
        while (start := time.monotonic()) < begun + seconds:
            way.transaction()
            delays.append(time.monotonic() - start)
        return delays

    with ThreadPoolExecutor(concurrency) as threads:
        drivers = [threads.submit(drive) for _ in range(concurrency)]
        delays = [delay for driver in drivers for delay in driver.result()]  # raises what a transaction did
    return delays, len(delays) / (time.monotonic() - begun)


def until_committed(way: Way, prepared: Prepared) -> list[float]:
    """Seconds until a transaction is committed in all databases, one at a time."""
    delays = []
    for _ in range(50):
        prepared.wait()
        start = time.monotonic()
        way.transaction()
        prepared.wait()
        delays.append(time.monotonic() - start)
    return delays
