"""When things are due: a heap in which a later word about a key replaces the earlier one."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

_SPARE = 64
"""So many entries that no longer count may stay, beside as many as those that do: then the heap is made anew."""
K = TypeVar("K", str, int, tuple[int, int])


@dataclass(slots=True)
class Deadlines(Generic[K]):
    """One time per key."""

    times: dict[K, float] = field(default_factory=dict)
    heap: list[tuple[float, K]] = field(default_factory=list)

    def set(self, key: K, at: float) -> None:
        """Be due at this time, and no longer at another."""
        if self.times.get(key) != at:
            self.times[key] = at
            heapq.heappush(self.heap, (at, key))
            if len(self.heap) > 2 * len(self.times) + _SPARE:
                self.heap = [(time, key) for key, time in self.times.items()]
                heapq.heapify(self.heap)

    def arm(self, key: K, at: float) -> None:
        """Be due at this time unless a time is set already."""
        if key not in self.times:
            self.set(key, at)

    def clear(self, key: K) -> None:
        """Be due no more."""
        self.times.pop(key, None)

    def due(self, now: float) -> list[K]:
        """Take out what is due."""
        keys: list[K] = []
        while self.heap and self.heap[0][0] <= now:
            at, key = heapq.heappop(self.heap)
            if self.times.get(key) == at:
                del self.times[key]
                keys.append(key)
        return keys

    def next(self) -> float | None:
        """The next time that something is due."""
        while self.heap and self.times.get(self.heap[0][1]) != self.heap[0][0]:
            heapq.heappop(self.heap)
        return self.heap[0][0] if self.heap else None
