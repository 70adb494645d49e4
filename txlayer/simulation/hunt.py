"""The hunt for planted bugs: the general world first, then the directed sweep, until a checker complains.

A run counts only if the same run without the bug is clean: otherwise the world would be found, not the bug.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from txlayer.simulation.history import History
from txlayer.simulation.mutants import MUTANTS, Mutant
from txlayer.simulation.plan import draw_plan
from txlayer.simulation.sweep import CONFIGURATIONS, Configuration, Disturbance, disturbances, run_one
from txlayer.simulation.world import World


@dataclass(frozen=True, slots=True)
class Found:
    """How a planted bug came to light; `where` is empty if it did not."""

    name: str
    where: str
    evidence: str
    runs: int
    seconds: float


Evidence = tuple[str, str, int]
Run = Callable[[], History]


def hunt(mutant: Mutant, seeds: int = 500, first_seeds: int = 60) -> Found:
    """Look for one planted bug: some seeds, the sweep, then the rest of the seeds."""
    started = time.perf_counter()
    hinted = tuple(c for c in CONFIGURATIONS if c.name == mutant.hint)
    found = _undisturbed(mutant) or _in_sweep(mutant, hinted) or _in_seeds(mutant, range(first_seeds))
    found = found or _in_sweep(mutant, CONFIGURATIONS) or _in_seeds(mutant, range(first_seeds, seeds))
    where, evidence, runs = found or ("", "", seeds)
    return Found(mutant.name, where, evidence, runs, round(time.perf_counter() - started, 2))


def _in_seeds(mutant: Mutant, seeds: range) -> Evidence | None:
    return _first(mutant, ((f"seed {seed}", partial(_general, seed)) for seed in seeds))


def _general(seed: int) -> History:
    return World(seed, draw_plan(seed)).run()


def _undisturbed(mutant: Mutant) -> Evidence | None:
    quiet = ((f"{one.name}, undisturbed", partial(_directed, one, Disturbance(), 0)) for one in CONFIGURATIONS)
    return _first(mutant, quiet)


def _in_sweep(mutant: Mutant, configurations: tuple[Configuration, ...]) -> Evidence | None:
    return _first(
        mutant,
        (
            (f"{configuration.name}: {disturbance}", partial(_directed, configuration, disturbance, number))
            for configuration in configurations
            for number, disturbance in enumerate(disturbances(configuration, 10**9))
        ),
    )


def _directed(configuration: Configuration, disturbance: Disturbance, seed: int) -> History:
    return run_one(configuration, disturbance, seed).history


def _first(mutant: Mutant, runs: Iterable[tuple[str, Run]]) -> Evidence | None:
    """The first run that the planted bug alone spoils."""
    for number, (where, run) in enumerate(runs, 1):
        with mutant.planted():
            violation = _violation(run)
        if violation and not _violation(run):
            return where, violation, number
    return None


def _violation(run: Run) -> str:
    try:
        violations = run().violations
    except AssertionError as exc:
        return f"assertion: {exc}"
    return violations[0] if violations else ""


def hunt_number(number: int) -> Found:
    """Planted bug `number`, for work that is shared among processes."""
    return hunt(MUTANTS[number])
