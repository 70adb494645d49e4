"""`txlayer simulate --world ordering`: many seeds, one with its trace, planted bugs. One JSON object comes last."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from functools import partial
from typing import NamedTuple

from txlayer.simulation.command import shared
from txlayer.simulation.hunt import Found
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
    parser.add_argument("--processes", type=int, default=1, help="share the work among so many processes")


def run(args: argparse.Namespace) -> int:
    """Exit status 0 only without violations (with --mutants: only if every planted bug was found)."""
    started = time.perf_counter()
    scenarios = (args.scenario,) if args.scenario else SCENARIOS
    if args.seed is not None and not args.mutants:
        if len(scenarios) > 1:
            _print("--seed needs --scenario")
            return 2
        return _one(scenarios[0], args.seed, args.trace, args.json)
    if args.mutants:
        result, good = _mutants(args)
    else:
        result = run_many(scenarios, args.first, args.seeds, args.processes)
        good = not result["violations"]
    _show({**result, "seconds": round(time.perf_counter() - started, 2)}, args.json)
    return 0 if good else 1


def run_many(scenarios: tuple[str, ...], first: int, seeds: int, processes: int = 1) -> dict[str, object]:
    """The sums over so many seeds of each scenario, as the contract of the command has them."""
    faults: Counter[str] = Counter()
    sums: Counter[str] = Counter(events=0, deliveries=0, crashes=0)
    violations: list[dict[str, object]] = []
    worlds = [(scenario, seed) for scenario in scenarios for seed in range(first, first + seeds)]
    for (scenario, seed), one in zip(worlds, shared(run_world, worlds, processes), strict=True):
        sums.update(one.sums)
        faults.update(one.faults)
        if one.violations:
            violations.append({"scenario": scenario, "seed": seed, "violations": one.violations})
    return {
        "seeds": seeds,
        "scenarios": len(scenarios),
        "worlds": len(worlds),
        "transactions": 0,  # there are none here: what is counted is events
        "committed": 0,
        **sums,
        "faults": dict(sorted(faults.items())),
        "violations": violations,
    }


class Ran(NamedTuple):
    """One world, as numbers."""

    sums: dict[str, int]
    faults: dict[str, int]
    violations: list[str]


def run_world(place: tuple[str, int]) -> Ran:
    """One scenario with one seed. One seed in a hundred runs twice and must leave the same trace."""
    world = World(*place)
    history = world.history
    try:
        world.run()
        if place[1] % 100 == 0:
            again = World(*place)
            again.run()
            if again.trace_hash() != world.trace_hash():
                history.violation("the same seed left two different traces")
    except Exception as exc:  # whatever a role raises is its fault, and belongs to this seed
        history.violation(f"raised {type(exc).__name__}: {exc}")
    deliveries = sum(len(one.delivered) for one in history.subscribers.values())
    sums = {"events": history.events, "deliveries": deliveries, "crashes": history.crashes}
    return Ran(sums, dict(history.faults), history.violations)


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


def _mutants(args: argparse.Namespace) -> tuple[dict[str, object], bool]:
    results: list[Found] = []
    for found in shared(partial(mutants.find, first=args.first, seeds=args.seeds), mutants.MUTANTS, args.processes):
        results.append(found)
        if not args.json:
            _print(f"{found.name}: {found.where or 'NOT FOUND'}: {found.evidence}")
    missed = [found.name for found in results if not found.where]
    detail = [{"name": f.name, "where": f.where, "evidence": f.evidence, "runs": f.runs} for f in results]
    result: dict[str, object] = {"mutants": len(results), "found": len(results) - len(missed), "missed": missed}
    return {**result, "detail": detail} if args.json else result, not missed


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
