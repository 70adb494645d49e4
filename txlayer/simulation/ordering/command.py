"""`txlayer simulate --world ordering`: many seeds, one with its trace, planted bugs. One JSON object comes last."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter

from txlayer.simulation.ordering import mutants
from txlayer.simulation.ordering.plan import SCENARIOS
from txlayer.simulation.ordering.world import World


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run of each scenario")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--scenario", choices=SCENARIOS, help="only this one (default: all)")
    parser.add_argument("--seed", type=int, help="run this seed only; needs --scenario")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happens")
    parser.add_argument("--mutants", action="store_true", help="plant bugs, one by one, until each is found")
    parser.add_argument("--json", action="store_true", help="print nothing but the result, as one JSON line")


def run(args: argparse.Namespace) -> int:
    """Exit status 0 only without violations (with --mutants: only if every planted bug was found)."""
    if args.mutants:
        return _mutants(args)
    scenarios = (args.scenario,) if args.scenario else SCENARIOS
    if args.seed is not None:
        if len(scenarios) > 1:
            _print("--seed needs --scenario")
            return 2
        return _one(scenarios[0], args.seed, args.trace, args.json)
    started = time.perf_counter()
    result = run_many(scenarios, args.first, args.seeds)
    _show({**result, "seconds": round(time.perf_counter() - started, 2)}, args.json)
    return 1 if result["violations"] else 0


def run_many(scenarios: tuple[str, ...], first: int, seeds: int) -> dict[str, object]:
    """The sums over so many seeds of each scenario."""
    faults: Counter[str] = Counter()
    violations: list[dict[str, object]] = []
    worlds = events = deliveries = 0
    for scenario in scenarios:
        for seed in range(first, first + seeds):
            history = World(scenario, seed).run()
            worlds += 1
            events += history.events
            deliveries += sum(len(one.delivered) for one in history.subscribers.values())
            faults.update(history.faults)
            if history.violations:
                violations.append({"scenario": scenario, "seed": seed, "violations": history.violations})
    return {
        "seeds": worlds,
        "scenarios": len(scenarios),
        "events": events,
        "deliveries": deliveries,
        "faults": dict(sorted(faults.items())),
        "violations": violations,
    }


def _one(scenario: str, seed: int, trace: bool, as_json: bool) -> int:
    world = World(scenario, seed, _print if trace else None)
    history = world.run()
    result = {
        "scenario": scenario,
        "seed": seed,
        "events": history.events,
        "hash": world.trace_hash(),
        "violations": history.violations,
    }
    _show(result, as_json)
    return 1 if history.violations else 0


def _mutants(args: argparse.Namespace) -> int:
    started = time.perf_counter()
    found = {name: mutants.find(name, args.first, args.seeds) for name in mutants.MUTANTS}
    result = {
        "mutants": len(found),
        "found": sum(1 for place in found.values() if place is not None),
        "missed": [name for name, place in found.items() if place is None],
        "where": found,
        "seconds": round(time.perf_counter() - started, 2),
    }
    _show(result, args.json)
    return 1 if result["missed"] else 0


def _show(result: dict[str, object], as_json: bool) -> None:
    if not as_json:
        for name, value in result.items():
            _print(f"{name}: {value}")
        violations = result.get("violations")
        if isinstance(violations, list) and violations and isinstance(violations[0], dict):
            first = violations[0]
            _print(f"replay with: --world ordering --scenario {first['scenario']} --seed {first['seed']} --trace")
    _print(json.dumps(result))


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


def main() -> int:
    """Run without the rest of the command line."""
    parser = argparse.ArgumentParser(prog="txlayer simulate --world ordering", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
