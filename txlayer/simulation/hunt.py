"""The hunt for planted bugs: the general world first, then the directed sweep, until a checker complains."""

from __future__ import annotations

import time
from dataclasses import dataclass

from txlayer.simulation.history import History
from txlayer.simulation.mutants import MUTANTS, Mutant
from txlayer.simulation.plan import draw_plan
from txlayer.simulation.sweep import CONFIGURATIONS, Configuration, Disturbance, run_one, sweep
from txlayer.simulation.world import World


@dataclass(frozen=True, slots=True)
class Found:
    """How a planted bug came to light; `where` is empty if it did not."""

    name: str
    where: str
    evidence: str
    runs: int
    seconds: float


def hunt(mutant: Mutant, seeds: int = 500, first_seeds: int = 60) -> Found:
    """Look for one planted bug: some seeds, the sweep, then the rest of the seeds."""
    started = time.perf_counter()
    with mutant.planted():
        hinted = tuple(c for c in CONFIGURATIONS if c.name == mutant.hint)
        found = _undisturbed() or _in_sweep(hinted) or _in_seeds(range(first_seeds))
        found = found or _in_sweep(CONFIGURATIONS) or _in_seeds(range(first_seeds, seeds))
    where, evidence, runs = found or ("", "", seeds)
    return Found(mutant.name, where, evidence, runs, round(time.perf_counter() - started, 2))


def _in_seeds(seeds: range) -> tuple[str, str, int] | None:
    for seed in seeds:
        try:
            history = World(seed, draw_plan(seed)).run()
        except AssertionError as exc:
            return f"seed {seed}", f"assertion: {exc}", seed - seeds.start + 1
        if history.violations:
            return f"seed {seed}", history.violations[0], seed - seeds.start + 1
    return None


def _undisturbed() -> tuple[str, str, int] | None:
    for runs, configuration in enumerate(CONFIGURATIONS, 1):
        history = run_one(configuration, Disturbance()).history
        if history.violations:
            return f"{configuration.name}, undisturbed", history.violations[0], runs
    return None


def _in_sweep(configurations: tuple[Configuration, ...]) -> tuple[str, str, int] | None:
    evidence: list[tuple[str, str]] = []

    def found(configuration: Configuration, disturbance: Disturbance, history: History) -> bool:
        evidence.append((f"{configuration.name}: {disturbance}", history.violations[0]))
        return True

    runs = 0
    for configuration in configurations:
        runs += sweep(10**9, found, (configuration,))
        if evidence:
            return (*evidence[0], runs)
    return None


def hunt_number(number: int) -> Found:
    """Planted bug `number`, for work that is shared among processes."""
    return hunt(MUTANTS[number])
