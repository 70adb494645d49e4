"""What a world is made of: its sites, their tastes, the transactions, the faults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

from txlayer.messages import Access, Item, Scope
from txlayer.simulation import faults as fault_kinds
from txlayer.simulation.faults import Faults
from txlayer.simulation.history import CallSeen
from txlayer.simulation.workload import TYPES, Taste, draw_taste, draw_terms
from txlayer.transactions.seat import Bounds

LEVELS = ("broker",) * 14 + ("secret",) * 5 + ("signed",)


@dataclass(slots=True)
class Plan:
    """What a world is made of. The general world draws all of it; directed sweeps set some of it."""

    sites: int = 4
    transactions: int = 35
    span: float = 40.0
    faults: Faults = field(default_factory=Faults)
    level: str = "broker"
    finishers: bool = False
    bounds: Bounds = field(default_factory=Bounds)
    tastes: dict[tuple[str, str], Taste] = field(default_factory=dict)
    scripts: list[tuple[float, CallSeen, list[Item], bool, tuple[str, ...]]] = field(default_factory=list)
    crash: tuple[str, int] | None = None
    drop: int | None = None
    late: int | None = None
    restart_after: float = 1.0
    sync_seconds: float = 0.0
    replay: bool = False
    wipe: bool = False
    refuser: str = ""
    """Whose handler fails the first time that it gets an event of a transaction."""
    refuser_again: str = ""
    """Whose handler fails when it gets one again, in another life."""
    heal_for: float = 400.0
    try_again: float = 0.0
    abort_after_call: float = 0.0


def draw_plan(seed: int) -> Plan:
    """A general world."""
    rng = Random(f"plan {seed}")
    plan = Plan(sites=rng.choice([3, 4, 4, 5]), level=rng.choice(LEVELS), faults=fault_kinds.draw(rng), try_again=0.3)
    plan.abort_after_call = 0.05
    plan.finishers = rng.random() < 0.25
    if rng.random() < 0.15:
        plan.bounds = Bounds(chain_entries=rng.choice([1, 2, 4]))
    names = [f"s{number}" for number in range(plan.sites)]
    for name in names:
        for event_type in TYPES:
            plan.tastes[name, event_type] = draw_taste(rng)
    members = {kind: [name for name in names if plan.tastes[name, kind].votes_by_name()] for kind in TYPES}
    for number in range(plan.transactions):
        plan.scripts.append(_draw_script(rng, names, members, number, plan.span))
    for where, taste in plan.tastes.items():
        if rng.random() < 0.15 and taste.scope is not Scope.FOLLOWER:
            plan.tastes[where] = replace(taste, follows=True)
    return plan


def _draw_script(
    rng: Random, names: list[str], members: dict[str, list[str]], number: int, span: float
) -> tuple[float, CallSeen, list[Item], bool, tuple[str, ...]]:
    terms = draw_terms(rng, names, members)
    publisher = rng.choice(names)
    hosted = terms.access is Access.MULTI or rng.random() < 0.4
    coordinator = rng.choice(names) if hosted else publisher
    key = f"t{number}"
    kinds = (terms.type, terms.type, "other")
    headers = (("call", key),)
    items = [
        Item(rng.choice(kinds), f"{key}.{event}".encode(), headers) for event in range(rng.choice([0, 1, 1, 2, 3]))
    ]
    helpers = tuple(rng.sample(names, 1)) if rng.random() < (0.8 if hosted else 0.1) else ()
    helpers = tuple(name for name in helpers if name != publisher) if not terms.one_shot else ()
    call = CallSeen(key, publisher, coordinator, terms)
    return span * rng.random(), call, items, rng.random() < 0.07, helpers
