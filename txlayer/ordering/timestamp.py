"""Ranks and stamps.

A topic's rank is (rank of its host, place of creation there), packed into one integer: a smaller one ranks higher, and
it never changes. A stamp binds one number of one topic to the counters of the other topics of its sequencing group:
the event comes after that many events of each of them.

A stamp without a base holds every entry. One with a base holds only the entries that differ from those of the event
with that earlier number on the same topic; whoever has placed the base has met the rest already.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Number = Annotated[int, Meta(ge=0, le=1 << 53)]
"""Whatever is counted here, as it may come over the wire: sums of a few of them can still be written."""
Seconds = Annotated[float, Meta(ge=0.0, le=1e12)]

_PLACES = 1 << 32
WINDOW = 4096
"""A base is at most so many numbers old: subscribers remember for so long what they stepped over."""


def rank_at(host: int, place: int) -> int:
    """The rank of the topic that was created at this place of this host."""
    return host * _PLACES + place


def host_of(rank: int) -> int:
    """The rank of the host that owns the topic."""
    return rank // _PLACES


def place_of(rank: int) -> int:
    """Where on its host the topic was created."""
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
