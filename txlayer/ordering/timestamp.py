"""Ranks and stamps.

A topic's rank is (rank of its host, the host's log, place of creation there), packed into one integer: a smaller one
ranks higher, and it never changes. A host that comes with another log has no rank in common with what it was before:
counters and stamps from that time say nothing about its topics. A stamp binds one number of one topic to the counters
of the other topics of its sequencing group: the event comes after that many events of each of them.

A stamp without a base holds every entry. One with a base holds only the entries that differ from those of the event
with that earlier number on the same topic; whoever has placed the base has met the rest already.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Number = Annotated[int, Meta(ge=0, le=1 << 53)]
"""Whatever is counted here, as it may come over the wire: sums of a few of them can still be written."""
Seconds = Annotated[float, Meta(ge=0.0, le=1e12)]

_LOGS = 1 << 20
_PLACES = 1 << 20
GONE = 1 << 53
"""In place of the counter of a topic whose log is gone: after everything that was published under it. Who has not heard
of that yet waits until it has; otherwise an event of that log could still come behind this one for some."""
LOWEST_HOST = (1 << 12) - 1
WINDOW = 4096
"""A base is at most so many numbers old: subscribers remember for so long what they stepped over."""


def rank_at(host: int, place: int, log: int = 0) -> int:
    """The rank of the topic that was created at this place of this log of this host."""
    return (host * _LOGS + log) * _PLACES + place


def log_since(epoch: int) -> int:
    """Which log of its host it is that began in this epoch."""
    return (epoch - 1) % _LOGS


def host_of(rank: int) -> int:
    """The rank of the host that owns the topic."""
    return rank // (_LOGS * _PLACES)


def log_of(rank: int) -> int:
    """The log of that host in which the topic was created."""
    return rank // _PLACES % _LOGS


def place_of(rank: int) -> int:
    """Where in that log the topic was created."""
    return rank % _PLACES


class Stamp(Struct, frozen=True, array_like=True, gc=False):
    """`values[i]` events of the topic `ranks[i]` come before the event `number` of the topic `rank`."""

    rank: Number
    number: Number
    epoch: Number
    base: Number = 0
    ranks: tuple[Number, ...] = ()
    values: tuple[Number, ...] = ()


def fault_in(stamp: Stamp) -> str | None:
    """Why this cannot be a stamp; None if it can."""
    if stamp.rank < 0 or stamp.number < 1 or stamp.epoch < 1:
        return f"stamp {stamp.rank}/{stamp.number} of epoch {stamp.epoch} is out of range"
    if not 0 <= stamp.base < stamp.number or (stamp.base and stamp.number - stamp.base > 2 * WINDOW):
        return f"stamp {stamp.rank}/{stamp.number} has base {stamp.base}"
    return fault_in_entries(stamp.rank, stamp.ranks, stamp.values)


def fault_in_entries(rank: int, ranks: tuple[int, ...], values: tuple[int, ...]) -> str | None:
    """Why these cannot be entries of a stamp of `rank`; None if they can."""
    if len(ranks) != len(values):
        return f"stamp of {rank} has {len(ranks)} topics and {len(values)} values"
    previous = -1
    for other in ranks:
        if other <= previous or other == rank:
            return f"stamp of {rank} has an entry for {other} out of its place"
        previous = other
    if values and min(values) < 0:
        return f"stamp of {rank} has a negative counter"
    return None
