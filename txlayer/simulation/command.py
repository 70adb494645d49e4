"""`txlayer simulate`: many seeds, one seed with its trace, planted bugs, an outsider, every interleaving.

The last line of output is one JSON object if `--json` is given; the exit status is 0 only if nothing was violated.
What takes long tells on standard error how far it is.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from txlayer.simulation.explorer import explore
from txlayer.simulation.hunt import Found, hunt_number
from txlayer.simulation.mutants import MUTANTS
from txlayer.simulation.outsider import ADMITTED, LEVELS, SEEDS_TO_SHOW, attack_one
from txlayer.simulation.plan import draw_plan
from txlayer.simulation.sweep import CONFIGURATIONS, sweep_number
from txlayer.simulation.world import World

SEEDS = 100
Given = TypeVar("Given")
Got = TypeVar("Got")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--seeds", type=int, help=f"how many seeds to run: {SEEDS}, with --outsider {SEEDS_TO_SHOW}")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--trace", action="store_true", help="with --seed: print what happens")
    parser.add_argument("--mutants", action="store_true", help="plant every known bug and look for it")
    parser.add_argument("--sweep", action="store_true", help="every crash point and every message of small worlds")
    parser.add_argument("--pairs", type=int, default=0, help="with --sweep: also every n-th pair of crash and message")
    parser.add_argument("--outsider", action="store_true", help="forge, replay and alter every kind of message")
    parser.add_argument("--explore", type=int, metavar="MEMBERS", help="every interleaving with so many members")
    parser.add_argument("--crashes", type=int, default=1, help="with --explore")
    parser.add_argument("--losses", type=int, default=1, help="with --explore")
    parser.add_argument("--duplicates", type=int, default=0, help="with --explore")
    parser.add_argument("--early", type=int, default=0, help="with --explore: timers that may outrun messages")
    parser.add_argument("--states", type=int, default=1_000_000, help="with --explore: stop after so many states")
    parser.add_argument("--one-shot", action="store_true", help="with --explore: a one-shot transaction")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON line, last")
    parser.add_argument("--processes", type=int, default=1, help="share the work among so many processes")


def run(args: argparse.Namespace) -> int:
    """One of the things that this command can do."""
    if args.seed is not None:
        return _one(args.seed, args.trace, args.json)
    started = time.perf_counter()
    if args.mutants:
        result, good = _mutants(args)
    elif args.sweep:
        result, good = _sweep(args)
    elif args.outsider:
        result, good = _outsider(args)
    elif args.explore:
        result, good = _explore(args)
    else:
        result, good = _seeds(args)
    _show({**result, "seconds": round(time.perf_counter() - started, 2)}, args.json)
    return 0 if good else 1


def _seeds(args: argparse.Namespace) -> tuple[dict[str, object], bool]:
    totals = Totals()
    for one in shared(run_seed, _range(args, SEEDS), args.processes):
        totals.add(one)
    return totals.result(), not totals.violations


def _range(args: argparse.Namespace, default: int) -> range:
    return range(args.first, args.first + (default if args.seeds is None else args.seeds))


def _mutants(args: argparse.Namespace) -> tuple[dict[str, object], bool]:
    results: list[Found] = []
    for found in shared(hunt_number, range(len(MUTANTS)), args.processes):
        results.append(found)
        line = f"{found.name}: {found.where or 'NOT FOUND'}: {found.evidence}"
        print_progress(f"{len(results)} of {len(MUTANTS)}: {line}") if args.json else print_line(line)
    missed = [found.name for found in results if not found.where]
    detail = [{"name": f.name, "where": f.where, "evidence": f.evidence, "runs": f.runs} for f in results]
    result: dict[str, object] = {"mutants": len(results), "found": len(results) - len(missed), "missed": missed}
    return {**result, "detail": detail} if args.json else result, not missed


def _sweep(args: argparse.Namespace) -> tuple[dict[str, object], bool]:
    work = [(number, args.pairs) for number in range(len(CONFIGURATIONS))]
    results = list(shared(sweep_number, work, args.processes))
    violations = [text for _, texts in results for text in texts]
    return {"runs": sum(runs for runs, _ in results), "violations": violations}, not violations


def _outsider(args: argparse.Namespace) -> tuple[dict[str, object], bool]:
    work = [(level, seed) for level in LEVELS for seed in _range(args, SEEDS_TO_SHOW)]
    harmed: dict[str, Counter[str]] = {level: Counter() for level in LEVELS}
    runs = 0
    for (level, seed), attacked in zip(work, shared(attack_one, work, args.processes), strict=True):
        harmed[level].update(attacked.harmed)
        runs += attacked.runs
        print_progress(f"{level}, seed {seed}: {runs} runs, harm by {', '.join(harmed[level]) or 'nothing'}")
    good = not any(set(harmed[level]) - (ADMITTED if level == "broker" else set()) for level in LEVELS)
    return {**{level: dict(kinds) for level, kinds in harmed.items()}, "runs": runs}, good


def _explore(args: argparse.Namespace) -> tuple[dict[str, object], bool]:
    explored = explore(args.explore, args.crashes, args.losses, args.duplicates, args.one_shot, args.states, args.early)
    result: dict[str, object] = {
        "members": args.explore,
        "states": explored.states,
        "site_states": explored.site_states,
        "transitions": explored.transitions,
        "depth": explored.depth,
        "closed": explored.closed,
        "outcomes": dict(explored.outcomes),
        "violations": explored.violations,
    }
    return result, not explored.violations


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
    """One general world, as numbers. One seed in a hundred runs twice and must leave the same trace."""
    world = World(seed, draw_plan(seed))
    try:
        history = world.run()
    except Exception as exc:  # whatever a role raises is its fault, and belongs to this seed
        history = world.history
        history.violation(f"raised {type(exc).__name__}: {exc}")
    if seed % 100 == 0:
        again = World(seed, draw_plan(seed))
        again.run()
        if again.trace_hash() != world.trace_hash():
            history.violation("the same seed left two different traces")
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


def shared(work: Callable[[Given], Got], items: Iterable[Given], processes: int) -> Iterator[Got]:
    """Results in order, from one process or several."""
    if processes <= 1:
        yield from map(work, items)
        return
    # What was imported lives as long as the process: the collector need not go through it again and again.
    with ProcessPoolExecutor(processes, initializer=gc.freeze) as pool:
        yield from pool.map(work, items, chunksize=1)


def _one(seed: int, trace: bool, as_json: bool) -> int:
    world = World(seed, draw_plan(seed), print_line if trace else None)
    history = world.run()
    for violation in history.violations:
        print_line(f"VIOLATION {violation}")
    result: dict[str, object] = {"seed": seed, "hash": world.trace_hash(), "violations": history.violations}
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


def print_progress(text: str) -> None:
    """What is not a result."""
    sys.stderr.write(text + "\n")


def main() -> int:
    """Run without the rest of the command line."""
    parser = argparse.ArgumentParser(prog="txlayer simulate", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
