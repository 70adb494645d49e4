"""What a subscriber is told at its start, and what it keeps if it is durable."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from msgspec import Struct


class Mode(Enum):
    """What a subscriber is promised; see docs/ordering.md."""

    TOTAL = "total"
    CAUSAL = "causal"
    PER_TOPIC = "per-topic"
    UNRELIABLE = "unreliable"


@dataclass(frozen=True, slots=True)
class SubscriberConfig:
    """`expiry` must not be longer than the hosts'."""

    mode: Mode = Mode.TOTAL
    repeat: float = 0.5
    resend: float = 5.0
    refresh: float = 15.0
    expiry: float = 50.0
    capacity: int = 1_000_000
    early: int = 4096
    time_to_live: float = 1.0
    lasting: bool = False


class Cursor(Struct, frozen=True, array_like=True):
    """What a durable subscriber keeps with the position up to which it has consumed the bus.

    `logs`: of each host the log on which its ranks and numbers rest. `former`: of each topic the numbers below its
    baseline of which it is not known yet what they are.
    """

    version: int
    topics: tuple[tuple[str, int, int], ...]
    unplaced: tuple[tuple[tuple[int, int], ...], ...]
    seen: tuple[tuple[str, int, int, int, tuple[int, ...]], ...]
    logs: tuple[tuple[int, str], ...] = ()
    former: tuple[tuple[tuple[int, int], ...], ...] = ()
