"""What the roles of the ordering layer ask for, and what they hear besides messages.

The driver performs effects in order. The write-ahead rule is the driver's: after a `Persist` or `Erase` no other
effect of that host is performed until everything before it is durable. Time comes in with every step; a role says with
`next_deadline` when it wants to be stepped with a `Tick` at the latest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from msgspec import Struct

from txlayer.ordering.messages import AnyMessage, Beside, Event, Void
from txlayer.ordering.records import AnyRecord


class Send(Struct, frozen=True, gc=False):
    """To a client or a host, by name; may be lost."""

    to: str
    message: AnyMessage


class Persist(Struct, frozen=True, gc=False):
    """Make durable, in place of the last record under this key."""

    key: str
    record: AnyRecord


class Erase(Struct, frozen=True, gc=False):
    """Remove the record under this key."""

    key: str


class Publish(Struct, frozen=True, gc=False):
    """On the bus. An event's receipt comes back as `Handed`."""

    topic: str
    body: Event | Void


@dataclass(frozen=True, slots=True)
class BusSubscribe:
    """At the bus; answered by `BusSubscribed` once everything published from then on will come."""

    topic: str


@dataclass(frozen=True, slots=True)
class BusUnsubscribe:
    """At the bus."""

    topic: str


class Deliver(Struct, frozen=True, gc=False):
    """To the application. `out_of_order`: its place has passed."""

    topic: str
    event: Event
    out_of_order: bool = False


@dataclass(frozen=True, slots=True)
class Gap:
    """To the application: these numbers were lost and will not come.

    Not `certain`: a host that has restarted does not know whether there were events behind them.
    """

    topic: str
    first: int
    last: int
    certain: bool = True


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A durable subscriber keeps its cursor before what follows is performed; others do nothing."""


@dataclass(frozen=True, slots=True)
class Changed:
    """To the application: the subscription that it asked for is in force."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Accepted:
    """To the publishing application: the event has its place, and the bus has it."""

    topic: str
    serial: int


@dataclass(frozen=True, slots=True)
class Failed:
    """To the application: what it asked for did not happen, and will not.

    `unknown`: nobody here can tell. The event was on the bus, and may have been delivered or may be.
    """

    topic: str
    serial: int
    reason: str
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """To the operator: something was refused, or a rule of the protocol was broken from outside."""

    reason: str


Effect: TypeAlias = (
    Send
    | Persist
    | Erase
    | Publish
    | BusSubscribe
    | BusUnsubscribe
    | Deliver
    | Gap
    | Checkpoint
    | Changed
    | Accepted
    | Failed
    | Report
)


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing happened but time."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The application publishes. After `deadline` (a time, not a span) it is told that it failed, or that nobody
    knows."""

    topic: str
    payload: bytes
    deadline: float | None = None
    beside: Beside | None = None


@dataclass(frozen=True, slots=True)
class Handed:
    """The bus has acknowledged `count` events from `number` on."""

    topic: str
    number: int
    count: int = 1


@dataclass(frozen=True, slots=True)
class Want:
    """The application wants exactly these topics from now on."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BusSubscribed:
    """The bus has the subscription."""

    topic: str


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The chain as the directory shows it: the next lower and the next higher host, (rank, name)."""

    lower: tuple[int, str] | None
    upper: tuple[int, str] | None


@dataclass(frozen=True, slots=True)
class Claimed:
    """The directory shows a holder of a host's rank. `first`: the epoch in which its log began."""

    host: int
    name: str
    epoch: int
    incarnation: str
    patterns: tuple[str, ...]
    first: int = 1
