"""How the site of a process takes part: the simulation's tastes, with real resources."""

from __future__ import annotations

from random import Random

import msgspec

from txlayer.messages import Scope
from txlayer.simulation.workload import TYPES, Taste, draw_taste


class SiteTaste(msgspec.Struct, frozen=True):
    """A taste for one event type. `resources`: how many databases the work goes to."""

    taste: Taste
    resources: int


class Config(msgspec.Struct, frozen=True):
    """What a process is given."""

    name: str
    bus: str
    folder: str
    tastes: dict[str, SiteTaste]
    seed: int
    failing: float = 0.06
    slow: float = 0.08
    mutant: str = ""
    dies_after: int = 0


def draw_tastes(rng: Random, names: list[str]) -> dict[tuple[str, str], SiteTaste]:
    """A taste for each site and type; the first site is always a distributed member with a database."""
    tastes: dict[tuple[str, str], SiteTaste] = {}
    for number, name in enumerate(names):
        for event_type in TYPES:
            taste = draw_taste(rng)
            if number == 0:
                taste = Taste(Scope.DISTRIBUTED, True, False, True, False, 1)
            resources = rng.choice([0, 1, 1, 2]) if number else 1
            reads = taste.reads() is not None  # exactly once needs a resource, and so does undoing
            tastes[name, event_type] = SiteTaste(
                taste, max(1, resources) if taste.compensatable or reads else resources
            )
    return tastes
