"""What was seen at the edges of a world: by handlers, resources, callers, and on the wire. Checkers read only this."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from txlayer.messages import Item, Outcome, Scope, Terms, TxId


@dataclass(slots=True)
class CallSeen:
    """One transaction as its caller lived through it."""

    key: str
    publisher: str
    coordinator: str
    terms: Terms
    tx: TxId | None = None
    attempts: list[TxId] = field(default_factory=list)
    published: list[Item] = field(default_factory=list)
    called_at: float | None = None
    called_by_another: bool = False
    """A second publisher that may commit did, perhaps before this one had published everything."""
    withdrawn_at: float | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    told_at: list[float] = field(default_factory=list)
    """When it heard each of them."""
    done: bool = False


@dataclass(slots=True)
class Applied:
    """A commit in a resource."""

    site: str
    tx: TxId
    at: float
    values: tuple[str, ...]
    undone: tuple[str, ...] | None = None


@dataclass(slots=True)
class Handled:
    """What the handlers of a member without a resource were given: in its present life, and at most in any."""

    values: tuple[str, ...] = ()
    most: tuple[str, ...] = ()
    at: float = 0.0

    def take(self, number: int, value: str, at: float) -> None:
        """One more event; after a crash they begin again, and a handler that failed is tried again."""
        self.values = (*self.values[: number - 1], value)
        if len(self.values) > len(self.most):
            self.most, self.at = self.values, at


@dataclass(slots=True)
class History:
    """Everything a checker may know."""

    calls: dict[str, CallSeen] = field(default_factory=dict)
    current: dict[str, CallSeen] = field(default_factory=dict)
    """The last call that began under a key: what came to nothing may be tried again."""
    by_tx: dict[TxId, CallSeen] = field(default_factory=dict)
    other_published: dict[TxId, list[tuple[str, Item]]] = field(default_factory=dict)
    applied: list[Applied] = field(default_factory=list)
    followed: list[Applied] = field(default_factory=list)
    """The same of followers: a site may be one beside being a member, and applies a transaction as both."""
    handled: dict[tuple[str, TxId], Handled] = field(default_factory=dict)
    """Where a member has no resource that could apply anything."""
    scopes: dict[tuple[str, TxId], Scope] = field(default_factory=dict)
    decisions: dict[TxId, dict[tuple[bool, tuple[str, ...]], float]] = field(default_factory=dict)
    begun: dict[TxId, tuple[str, ...]] = field(default_factory=dict)
    joined: dict[TxId, dict[str, None]] = field(default_factory=dict)
    registered: dict[tuple[str, str, str], float] = field(default_factory=dict)
    stale: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """Readers that were told, with the registration that is worth nothing since."""
    finished: dict[TxId, None] = field(default_factory=dict)
    blocked: list[tuple[str, TxId]] = field(default_factory=list)
    told_later: list[Outcome] = field(default_factory=list)
    """Answers to those who asked by id when all was over."""
    public: dict[TxId, dict[int, float]] = field(default_factory=dict)
    notified: list[tuple[str, TxId, int]] = field(default_factory=list)
    delivered: dict[tuple[str, TxId], None] = field(default_factory=dict)
    parked: dict[tuple[str, TxId], None] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    crashes: int = 0
    crashed: dict[str, None] = field(default_factory=dict)
    events: int = 0

    def violation(self, text: str) -> None:
        """Something that must never happen did."""
        if len(self.violations) < 20:
            self.violations.append(text)
