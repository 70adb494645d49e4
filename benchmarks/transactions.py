"""Transactions per second and commit latency, and the floor: bare request and reply over the same bus.

Every site is a process of its own on real buses, with the shipped defaults and a SQLite log. A one-shot transaction
takes one round trip before its outcome is known, one with census, events and prepare as rounds of their own takes two.
The floor sends a request to all members and waits for all replies, as often; without txlayer, without a log. Both are
measured in turns, and medians are compared. Percentiles are of all turns together.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from benchmarks.transactions_floor import Floor, open_floor
from benchmarks.transactions_load import AT_ONCE, Load, Measured, percentile
from benchmarks.transactions_sites import LEVELS, Sites
from txlayer.testing import servers

SERVERS = {"mqtt": servers.mqtt, "kafka": servers.kafka}
ROUND_TRIPS = {"one_shot": 1, "plain_send": 1, "rounds": 2}
RATIO_OF = (3, "broker")
"""Where `latency_ratio` is taken: three members, the shipped security level."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bus", choices=["memory", *sorted(SERVERS)], required=True)
    parser.add_argument("--url", help="an existing broker instead of one of our own")
    parser.add_argument("--members", type=int, action="append", help="may be repeated (default: 1, 3 and 10)")
    parser.add_argument("--level", choices=LEVELS, action="append", help="may be repeated (default: all)")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each figure is measured in one turn")
    parser.add_argument("--repetitions", type=int, default=5, help="turns")
    parser.add_argument("--within", type=float, help="seconds for census and votes, instead of the shipped defaults")
    parser.add_argument("--json", action="store_true", help="only the JSON line")


def run(args: argparse.Namespace) -> int:
    """Measure every combination and print."""
    result: dict[str, Any] = {
        "benchmark": "transactions",
        "bus": args.bus,
        "python": platform.python_version(),
        "repetitions": args.repetitions,
        "at_once": AT_ONCE,
        "latency_ratio": None,
        "members": {},
    }
    with nullcontext(args.url) if args.url else _started(args.bus) as url:
        for count in args.members or (1, 3, 10):
            with open_floor(args.bus, url, count) as floor:
                result["members"][str(count)] = _of_size(args, url, count, floor)
    result["latency_ratio"] = _latency_ratio(result["members"])
    if not args.json:
        _tell(result)
    print(json.dumps(result))
    return 0


@contextmanager
def _started(bus: str) -> Iterator[str]:
    if bus == "memory":
        yield "memory://benchmark"
        return
    with SERVERS[bus]() as server:
        yield server.url


def _of_size(args: argparse.Namespace, url: str, count: int, floor: Floor) -> dict[str, Any]:
    figures = {}
    for level in args.level or LEVELS:
        with Sites(url, count, level, in_processes=args.bus != "memory", within=args.within) as sites:
            loads = {"floor": floor.load(1), "floor_two_rounds": floor.load(2), **sites.loads()}
            figures[level] = _in_turns(loads, args.seconds, args.repetitions)
    return figures


def _in_turns(loads: dict[str, Load], seconds: float, repetitions: int) -> dict[str, Any]:
    runs: dict[str, list[tuple[Measured, Measured]]] = {name: [] for name in loads}
    for load in loads.values():
        load.sequential(seconds / 2)
        load.at_once(seconds / 2)
    for _ in range(repetitions):
        for name, load in loads.items():
            runs[name].append((load.sequential(seconds), load.at_once(seconds)))
    figures: dict[str, Any] = {name: _summary(measured) for name, measured in runs.items()}
    for name, trips in ROUND_TRIPS.items():
        below = runs["floor" if trips == 1 else "floor_two_rounds"]
        ratios = [mine[0].p50 / bare[0].p50 for mine, bare in zip(runs[name], below, strict=True)]
        figures[name]["latency_ratio"] = round(statistics.median(ratios), 2)
    return figures


def _summary(runs: list[tuple[Measured, Measured]]) -> dict[str, Any]:
    """The median rate of the turns, and percentiles of all that was done in them."""
    figures = {}
    for at, name in enumerate(("sequential", f"{AT_ONCE}_at_once")):
        measured = [pair[at] for pair in runs]
        times = [seconds for one in measured for seconds in one.times]
        figures[name] = {
            "per_second": round(statistics.median(one.per_second for one in measured)),
            "p50_ms": round(percentile(times, 50) * 1000, 3),
            "p99_ms": round(percentile(times, 99) * 1000, 3),
            "samples": len(times),
            "failed": sum(one.failed for one in measured),
        }
    return figures


def _latency_ratio(members: dict[str, Any]) -> float | None:
    count, level = RATIO_OF
    ratio: float | None = members.get(str(count), {}).get(level, {}).get("one_shot", {}).get("latency_ratio")
    return ratio


def _tell(result: dict[str, Any]) -> None:
    for count, levels in result["members"].items():
        for level, ways in levels.items():
            print(f"{count} members, security {level}")
            for way, figures in ways.items():
                shown = "    ".join(_line(figures[load]) for load in ("sequential", f"{AT_ONCE}_at_once"))
                ratio = f"   {figures['latency_ratio']} of the floor" if "latency_ratio" in figures else ""
                print(f"  {way:17}{shown}{ratio}")


def _line(figures: dict[str, Any]) -> str:
    rate, of = f"{figures['per_second']:>7}/s", f"of {figures['samples']}"
    return f"{rate}  p50 {figures['p50_ms']:>7} p99 {figures['p99_ms']:>7} ms {of:>9}"
