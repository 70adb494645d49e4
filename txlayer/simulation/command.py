"""`txlayer simulate`: many seeds, one seed with its trace, planted bugs. The last line of output is one JSON object."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter

from txlayer.simulation.world import World, draw_plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happens")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON line, last")
    parser.add_argument("--processes", type=int, default=1, help="run seeds in so many processes")


def run(args: argparse.Namespace) -> int:
    """Exit status 0 only without violations."""
    if args.seed is not None:
        return _one(args.seed, args.trace, args.json)
    started = time.perf_counter()
    totals = Totals()
    for seed in range(args.first, args.first + args.seeds):
        totals.add(run_seed(seed))
    result = {**totals.result(), "seconds": round(time.perf_counter() - started, 2)}
    _show(result, args.json)
    return 1 if totals.violations else 0


class Totals:
    """Sums over seeds."""

    def __init__(self) -> None:
        self.seeds = self.transactions = self.committed = self.events = self.crashes = 0
        self.faults: Counter[str] = Counter()
        self.violations: list[dict[str, object]] = []

    def add(self, one: dict[str, object]) -> None:
        """Count one seed in."""
        self.seeds += 1
        for name in ("transactions", "committed", "events", "crashes"):
            value = one[name]
            assert isinstance(value, int)
            setattr(self, name, getattr(self, name) + value)
        assert isinstance(one["faults"], dict)
        self.faults.update(one["faults"])
        if one["violations"]:
            self.violations.append({"seed": one["seed"], "violations": one["violations"]})

    def result(self) -> dict[str, object]:
        """As the contract has it."""
        return {
            "seeds": self.seeds,
            "transactions": self.transactions,
            "committed": self.committed,
            "events": self.events,
            "crashes": self.crashes,
            "faults": dict(sorted(self.faults.items())),
            "violations": self.violations,
        }


def run_seed(seed: int) -> dict[str, object]:
    """One general world, as numbers."""
    world = World(seed, draw_plan(seed))
    history = world.run()
    committed = sum(1 for call in history.calls.values() if any(o.status.value == "committed" for o in call.outcomes))
    return {
        "seed": seed,
        "transactions": len(history.calls),
        "committed": committed,
        "events": history.events,
        "crashes": history.crashes,
        "faults": dict(history.faults),
        "violations": history.violations,
        "hash": world.trace_hash(),
    }


def _one(seed: int, trace: bool, as_json: bool) -> int:
    world = World(seed, draw_plan(seed), print_line if trace else None)
    history = world.run()
    for violation in history.violations:
        print_line(f"VIOLATION {violation}")
    result = {"seed": seed, "hash": world.trace_hash(), "violations": history.violations}
    _show(result, as_json)
    return 1 if history.violations else 0


def _show(result: dict[str, object], as_json: bool) -> None:
    if as_json:
        print_line(json.dumps(result))
        return
    for name, value in result.items():
        print_line(f"{name}: {value}")
    failing = result.get("violations")
    if isinstance(failing, list) and failing and isinstance(failing[0], dict):
        print_line(f"replay with: txlayer simulate --seed {failing[0]['seed']} --trace")


def print_line(text: str) -> None:
    """The only way out of this command."""
    sys.stdout.write(text + "\n")


def main() -> int:
    """Run without the rest of the command line."""
    parser = argparse.ArgumentParser(prog="txlayer simulate", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
