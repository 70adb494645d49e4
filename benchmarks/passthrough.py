"""What the layer costs on top of the raw client: throughput, latency, and the time to subscribe.

The server is started and ended here unless `--url` names one.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from txlayer.testing import servers

SERVERS = {"mqtt": servers.mqtt, "kafka": servers.kafka}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bus", choices=sorted(SERVERS), required=True)
    parser.add_argument("--url", help="an existing broker instead of one of our own")
    parser.add_argument("--events", type=int, help="events per run (default: 20,000 on MQTT, 200,000 on Kafka)")
    parser.add_argument("--repetitions", type=int, default=7, help="runs of each way, in turns")
    parser.add_argument("--json", action="store_true", help="only the JSON line")


def run(args: argparse.Namespace) -> int:
    events = args.events or {"mqtt": 20_000, "kafka": 200_000}[args.bus]
    measure = importlib.import_module(f"benchmarks.passthrough_{args.bus}").measure
    with nullcontext(args.url) if args.url else _started(args.bus) as url:
        figures = measure(url, events, args.repetitions)
    result: dict[str, Any] = {
        "benchmark": "passthrough",
        "bus": args.bus,
        "events": events,
        "repetitions": args.repetitions,
        "python": platform.python_version(),
        **figures,
    }
    if not args.json:
        _tell(result)
    print(json.dumps(result))
    return 0


@contextmanager
def _started(bus: str) -> Iterator[str]:
    with SERVERS[bus]() as server:
        yield server.url


def _tell(result: dict[str, Any]) -> None:
    for way in ("raw", "txlayer"):
        figures = result[way]
        rate, p50, p99 = figures["events_per_second"], figures["p50_ms"], figures["p99_ms"]
        print(f"{way:8} {rate:>8} events/s   p50 {p50} ms   p99 {p99} ms")
    print(f"ratio    {result['ratio']:>8}   subscribe to first event {result['subscribe_to_first_event_ms']} ms")
