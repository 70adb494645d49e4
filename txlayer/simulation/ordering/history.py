"""What was seen at the edges of an ordering world. Checkers read only this, and the roles at rest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from txlayer.ordering.timestamp import host_of, log_of


class Id(NamedTuple):
    """An event, whatever its number."""

    publisher: str
    topic: str
    serial: int


class Seen(NamedTuple):
    """A delivery to an application."""

    id: Id
    number: int
    out_of_order: bool
    at: float


@dataclass(slots=True)
class Offered:
    """An event as its publisher's application lived through it."""

    id: Id
    at: float
    deadline: float | None = None
    accepted: bool = False
    failed: bool = False
    in_doubt: bool = False
    after: frozenset[Id] = frozenset()


@dataclass(slots=True)
class SubscriberHistory:
    """One subscriber, over its lives."""

    delivered: list[Seen] = field(default_factory=list)
    since: dict[str, float] = field(default_factory=dict)
    baselines: dict[str, int] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    gaps: list[tuple[str, int, int, bool]] = field(default_factory=list)
    arrived: set[tuple[int, int]] = field(default_factory=set)


@dataclass(slots=True)
class History:
    """Everything a checker may know."""

    offered: dict[Id, Offered] = field(default_factory=dict)
    numbers: dict[tuple[int, int], Id] = field(default_factory=dict)
    numbers_of: dict[Id, list[int]] = field(default_factory=dict)
    subscribers: dict[str, SubscriberHistory] = field(default_factory=dict)
    dead: dict[str, None] = field(default_factory=dict)
    logs: dict[int, list[int]] = field(default_factory=dict)
    """Of each host those that it has had, the last one holds."""
    violations: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    events: int = 0
    steps: int = 0
    crashes: int = 0

    def is_former(self, rank: int) -> bool:
        """Whether the log of a topic's host is gone."""
        return log_of(rank) < self.logs.get(host_of(rank), [0])[-1]

    def violation(self, text: str) -> None:
        """Something that must never happen did."""
        if len(self.violations) < 20:
            self.violations.append(text)
