"""Numbers that nobody may use: subscribers step over them, so no publisher is ever told that such a number counts.

A void outlives its ticket, and a restart: a publisher that was cut off may confirm long after its lease. It is on disk
before it is said. There are at most so many; when the oldest is forgotten its topic remembers how far that goes
(`floor`), and of numbers up to there the host says that it does not know.
"""

from __future__ import annotations

from collections import deque

from txlayer.ordering.effects import Effect, Erase, Persist, Publish
from txlayer.ordering.host_state import HostState
from txlayer.ordering.messages import Void
from txlayer.ordering.records import VoidRecord
from txlayer.ordering.timestamp import place_of
from txlayer.ordering.topic_manager import TopicManager


class VoidBook:
    """The void ranges of all topics of a host, the oldest first."""

    __slots__ = ("_ranges", "state")

    def __init__(self, state: HostState) -> None:
        self.state = state
        self._ranges: deque[tuple[TopicManager, int, int]] = deque()

    def add(self, manager: TopicManager, first: int, last: int, doubtful: bool = False) -> list[Effect]:
        """These numbers are void from now on: written down, then said."""
        record = VoidRecord(manager.rank, first, last, doubtful)
        self.restore(record, manager)
        effects: list[Effect] = [Persist(_key(manager, first), record)]
        while len(self._ranges) > self.state.config.voids:
            effects.extend(self._forget_oldest())
        void = Void(manager.rank, first, last, self.state.epoch, doubtful=doubtful)
        return [*effects, Publish(manager.name, void)]

    def restore(self, record: VoidRecord, manager: TopicManager) -> None:
        """A void from the log."""
        manager.voided.add(record.first, record.last)
        if record.doubtful:
            manager.doubtful.add(record.first, record.last)
        manager.unsure.cut(record.first, record.last)
        self._ranges.append((manager, record.first, record.last))

    def _forget_oldest(self) -> list[Effect]:
        manager, first, last = self._ranges.popleft()
        manager.voided.cut(first, last)
        manager.doubtful.cut(first, last)
        manager.floor = max(manager.floor, last)
        return [self.state.persist(manager), Erase(_key(manager, first))]


def _key(manager: TopicManager, first: int) -> str:
    return f"void/{place_of(manager.rank)}/{first}"
