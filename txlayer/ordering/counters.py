"""The counters a host knows, in one list: its own topics' exactly, lower-ranked ones as far as they have passed by."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter


class Counters:
    """`values[slot[rank]]`. Unknown topics get a slot when they are first mentioned."""

    __slots__ = ("slot", "values")

    def __init__(self) -> None:
        self.slot: dict[int, int] = {}
        self.values: list[int] = []

    def slot_of(self, rank: int) -> int:
        """Where the counter of a topic is kept."""
        slot = self.slot.get(rank)
        if slot is None:
            slot = self.slot[rank] = len(self.values)
            self.values.append(0)
        return slot

    def get(self, rank: int) -> int:
        """The counter of a topic; 0 if it was never heard of."""
        slot = self.slot.get(rank)
        return 0 if slot is None else self.values[slot]

    def raise_to(self, rank: int, value: int) -> None:
        """Counters only rise."""
        slot = self.slot_of(rank)
        if value > self.values[slot]:
            self.values[slot] = value

    def reader(self, ranks: tuple[int, ...]) -> Callable[[list[int]], tuple[int, ...]]:
        """A function that reads the counters of these topics in one go."""
        slots = [self.slot_of(rank) for rank in ranks]
        if not slots:
            return lambda values: ()
        if len(slots) == 1:
            only = slots[0]
            return lambda values: (values[only],)
        return itemgetter(*slots)
