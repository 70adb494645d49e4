"""Timers of one site, by the monotonic clock: jumps of the wall clock mean nothing here."""

from __future__ import annotations

import heapq
import time
from dataclasses import dataclass, field
from math import inf

from txlayer.effects import TimerKey

_SLACK = 1000


@dataclass(slots=True)
class Timers:
    """Which keys fire when. A cancelled entry stays in the heap until it is due or too many of them wait."""

    live: dict[TimerKey, int] = field(default_factory=dict)
    heap: list[tuple[float, int, TimerKey]] = field(default_factory=list)
    count: int = 0

    def set(self, key: TimerKey, seconds: float) -> None:
        """Fire once after so many seconds; replaces the timer of the same key."""
        self.count += 1
        self.live[key] = self.count
        heapq.heappush(self.heap, (time.monotonic() + seconds, self.count, key))
        if len(self.heap) > 2 * len(self.live) + _SLACK:
            self.heap = [entry for entry in self.heap if self.live.get(entry[2]) == entry[1]]
            heapq.heapify(self.heap)

    def cancel(self, key: TimerKey) -> None:
        """Do not fire."""
        self.live.pop(key, None)

    def next_due(self) -> float:
        """When the next one is due, by the monotonic clock; infinite if there is none."""
        while self.heap and self.live.get(self.heap[0][2]) != self.heap[0][1]:
            heapq.heappop(self.heap)
        return self.heap[0][0] if self.heap else inf

    def due(self) -> list[TimerKey]:
        """Those that are due now."""
        fired = []
        while self.heap and self.heap[0][0] <= time.monotonic():
            _, count, key = heapq.heappop(self.heap)
            if self.live.get(key) == count:
                del self.live[key]
                fired.append(key)
        return fired
