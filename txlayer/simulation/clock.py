"""Simulated time: a heap of things to come. Nothing else in the world knows what time it is."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Clock:
    """Runs actions in the order of their times; at equal times in the order in which they were planned."""

    now: float = 0.0
    _planned: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: int = 0

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Plan an action."""
        self._count += 1
        heapq.heappush(self._planned, (self.now + seconds, self._count, action))

    def run(self, end: float, most: int) -> bool:
        """Run the actions that come before `end`, at most so many of them; whether there may be more."""
        planned = self._planned
        for _ in range(most):
            if not planned or planned[0][0] >= end:
                return False
            self.now, _, action = heapq.heappop(planned)
            action()
        return True

    def advance(self) -> bool:
        """Run the next action; False if there is none."""
        if not self._planned:
            return False
        self.now, _, action = heapq.heappop(self._planned)
        action()
        return True

    def next_time(self) -> float | None:
        """When something happens next."""
        return self._planned[0][0] if self._planned else None
