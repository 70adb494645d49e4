"""Total order: stamps per second of one host, end to end over Mosquitto, the published study, cost of subscribers."""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

from benchmarks import ordering_end_to_end, ordering_plots, ordering_stamps, ordering_study, ordering_subscriber

PARTS = ("stamps", "end-to-end", "study", "subscriber")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each figure is measured")
    parser.add_argument("--repetitions", type=int, default=3, help="the best of so many runs counts")
    parser.add_argument("--events", type=int, default=20_000, help="of each run end to end")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part of it (default: all)")
    parser.add_argument("--docs", type=Path, metavar="FOLDER", help="write plots and table of the study there")
    parser.add_argument("--json", action="store_true", help="only the JSON line")


def run(args: argparse.Namespace) -> int:
    parts = args.only or PARTS
    result: dict[str, Any] = {
        "benchmark": "ordering",
        "python": platform.python_version(),
        "repetitions": args.repetitions,
    }
    if "stamps" in parts:
        result.update(ordering_stamps.stamps(args.seconds, args.repetitions))
    if "end-to-end" in parts:
        result["end_to_end"] = ordering_end_to_end.end_to_end(args.events, args.repetitions)
        result["ratio"] = result["end_to_end"]["ratio"]
    if "study" in parts:
        result["study"] = ordering_study.study(lambda text: None if args.json else print(text, flush=True))
        if args.docs is not None:
            ordering_plots.write(result["study"], args.docs)
    if "subscriber" in parts:
        result["subscriber"] = ordering_subscriber.subscriber(args.repetitions)
    if not args.json:
        _tell(result)
    print(json.dumps(result))
    return 0


def _tell(result: dict[str, Any]) -> None:
    for unit in ("second", "cpu_second"):
        print(f"stamps per {unit} of one host, by group size")
        for way, figures in result.get(f"stamps_per_{unit}", {}).items():
            print(f"  {way:24}" + "".join(f"{size:>6}: {rate:>10,}" for size, rate in figures.items()))
    print("end to end, against the plain bus")
    for way, figures in result.get("end_to_end", {}).items():
        print(f"  {way:24} {figures}")
    print("microseconds of processor time per event of a subscriber")
    for way, figures in result.get("subscriber", {}).items():
        print(f"  by {way:23}" + "".join(f"{size:>8}: {cost:>6}" for size, cost in figures.items()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks ordering", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
