"""Events that the application has got and not acknowledged, in the order in which they were handed over.

Acknowledged is a prefix: an event counts when all before it are acknowledged too. So of each topic the lowest number
that is out tells how far a cursor may go, and of each publisher the lowest serial what it may have seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from txlayer.ordering.messages import Event
from txlayer.sequencing.lowest import Lowest

Track = tuple[str, int, int, int, tuple[int, ...]]


class _Handed:
    __slots__ = ("number", "publisher", "rank", "serial", "settled")

    def __init__(self, event: Event) -> None:
        self.rank = event.stamp.rank
        self.number = event.stamp.number
        self.publisher = event.publisher
        self.serial = event.serial
        self.settled = False


class HandedOut:
    """Of one subscription; not thread-safe."""

    def __init__(self) -> None:
        self._order: deque[_Handed] = deque()
        self._tokens: dict[int, _Handed] = {}
        self._next_token = 0
        self._numbers: dict[int, Lowest] = {}
        self._serials: dict[tuple[str, int], Lowest] = {}

    def __len__(self) -> int:
        return len(self._order)

    def add(self, event: Event) -> int:
        """It goes to the application; the token by which it is acknowledged."""
        self._next_token += 1
        one = self._tokens[self._next_token] = _Handed(event)
        self._append(one)
        return self._next_token

    def settle(self, token: int) -> bool:
        """It is acknowledged; whether more counts now than before."""
        one = self._tokens.pop(token, None)
        if one is None:
            return False
        one.settled = True
        moved = False
        while self._order and self._order[0].settled:
            self._leave(self._order.popleft())
            moved = True
        return moved

    def forget(self, gone: Callable[[int], bool]) -> None:
        """Topics of these ranks are no more."""
        order, self._order = self._order, deque()
        self._numbers.clear()
        self._serials.clear()
        for one in order:
            if not gone(one.rank):
                self._append(one)

    def clock(self, rank: int, clock: int) -> int:
        """How far a cursor of this topic may go."""
        lowest = self._numbers.get(rank)
        return clock if lowest is None or lowest.value is None else min(clock, lowest.value - 1)

    def seen(self, track: Track) -> Track:
        """What may count as seen of a publisher: nothing from the first on that is out."""
        publisher, rank, low, high, holes = track
        lowest = self._serials.get((publisher, rank))
        first = lowest.value if lowest is not None else None
        if first is None or first > high:
            return track
        return publisher, rank, min(low, first), first - 1, tuple(hole for hole in holes if hole < first)

    def _append(self, one: _Handed) -> None:
        self._order.append(one)
        self._numbers.setdefault(one.rank, Lowest()).add(one.number)
        self._serials.setdefault((one.publisher, one.rank), Lowest()).add(one.serial)

    def _leave(self, one: _Handed) -> None:
        numbers, serials = self._numbers[one.rank], self._serials[one.publisher, one.rank]
        numbers.remove(one.number)
        serials.remove(one.serial)
        if numbers.value is None:
            del self._numbers[one.rank]
        if serials.value is None:
            del self._serials[one.publisher, one.rank]
