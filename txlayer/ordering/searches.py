"""Numbers that a subscriber waits for although their publication was confirmed: found again, or declared lost.

The host knows whose number it was and asks that publisher, which keeps what it sent for a while. If nobody has it any
more the subscriber is told so, with the entries of the lost event's stamp where they are known: what comes before it
still comes before what comes after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer.ordering.deadlines import Deadlines
from txlayer.ordering.effects import Effect, Report, Send
from txlayer.ordering.host_state import HostState
from txlayer.ordering.messages import Gone, Missing, Published, Resend, Void
from txlayer.ordering.topic_manager import DONE, TopicManager

_AT_ONCE = 64


@dataclass(slots=True)
class _Search:
    asked: int = 0
    subscribers: dict[str, None] = field(default_factory=dict)


class Searches:
    """What is being looked for."""

    __slots__ = ("_times", "open", "state")

    def __init__(self, state: HostState) -> None:
        self.state = state
        self.open: dict[tuple[int, int], _Search] = {}
        self._times: Deadlines[tuple[int, int]] = Deadlines()

    def missing(self, message: Missing, manager: TopicManager, now: float) -> list[Effect]:
        """A subscriber asks."""
        if message.last > self.state.given(manager):
            return [Report(f"{message.subscriber} waits for {message.last} of {manager.name}, which was never given")]
        effects: list[Effect] = []
        number = message.first
        while number <= min(message.last, message.first + _AT_ONCE):
            end = manager.voided.end_of(number)
            if end is not None:
                doubtful = manager.doubtful.end_of(number)
                end = end if doubtful is None else min(end, doubtful)
                void = Void(manager.rank, number, end, self.state.epoch, doubtful=doubtful is not None)
                effects.append(Send(message.subscriber, void))
                number = end
            else:
                effects.extend(self._look_for(message.subscriber, manager, number, now))
            number += 1
        return effects

    def _look_for(self, subscriber: str, manager: TopicManager, number: int, now: float) -> list[Effect]:
        ticket = manager.find(number)
        if ticket is None:
            forgotten = number in manager.unsure or number <= manager.forgotten  # its publisher is about to remind us
            return [] if forgotten else [self._lost(subscriber, manager, number)]
        if ticket.state != DONE:
            return []  # its lease settles it
        key = (manager.rank, number)
        search = self.open.get(key)
        if search is not None:
            search.subscribers[subscriber] = None
            return []
        self.open[key] = _Search(1, {subscriber: None})
        self._times.set(key, now + self.state.config.search)
        return [Send(ticket.line.publisher, Resend(manager.name, number))]

    def found(self, message: Published, manager: TopicManager) -> None:
        """The publisher has sent it again, if it is the one whose number it is. Whoever still misses it asks again."""
        ticket = manager.by_first.get(message.first)
        if ticket is None or ticket.line.publisher != message.publisher or ticket.count != message.count:
            return
        for number in range(ticket.first, ticket.last + 1):
            self._end(manager, number)

    def gone(self, message: Gone, manager: TopicManager) -> list[Effect]:
        """The publisher does not have it any more."""
        ticket = manager.find(message.number)
        if ticket is None or ticket.line.publisher != message.publisher:
            return []
        return self._declare(manager, message.number)

    def expire(self, now: float) -> list[Effect]:
        """Ask again; give up after a few times."""
        effects: list[Effect] = []
        for key in self._times.due(now):
            manager, search = self.state.manager(key[0]), self.open[key]
            assert manager is not None
            ticket = manager.find(key[1])
            if ticket is None or search.asked >= self.state.config.searches:
                effects.extend(self._declare(manager, key[1]))
                continue
            search.asked += 1
            self._times.set(key, now + self.state.config.search)
            effects.append(Send(ticket.line.publisher, Resend(manager.name, key[1])))
        return effects

    def next_deadline(self) -> float | None:
        """When to ask again."""
        return self._times.next()

    def _declare(self, manager: TopicManager, number: int) -> list[Effect]:
        search = self._end(manager, number)
        return [self._lost(name, manager, number) for name in search.subscribers] if search else []

    def _end(self, manager: TopicManager, number: int) -> _Search | None:
        key = (manager.rank, number)
        self._times.clear(key)
        return self.open.pop(key, None)

    def _lost(self, subscriber: str, manager: TopicManager, number: int) -> Effect:
        ticket, epoch = manager.find(number), self.state.epoch
        if ticket is None and number <= manager.floor:
            return Send(subscriber, Void(manager.rank, number, number, epoch, doubtful=True))  # it may have been void
        if ticket is None or ticket.values is None:
            return Send(subscriber, Void(manager.rank, number, number, epoch, lost=True))
        void = Void(manager.rank, number, number, epoch, True, True, ticket.ranks, ticket.values)
        return Send(subscriber, void)
