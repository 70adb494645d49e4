"""The lowest of values that leave in the order in which they came, without looking at all of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field


@dataclass(slots=True)
class Lowest:
    """Holds only values that can still become the lowest: a later one that is lower makes those before it useless."""

    _values: deque[int] = field(default_factory=deque)

    def add(self, value: int) -> None:
        """It has come."""
        while self._values and self._values[-1] > value:
            self._values.pop()
        self._values.append(value)

    def remove(self, value: int) -> None:
        """The one that came first of those that are here has left."""
        if self._values and self._values[0] == value:
            self._values.popleft()

    @property
    def value(self) -> int | None:
        """None if nothing is here."""
        return self._values[0] if self._values else None
