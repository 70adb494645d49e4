"""What a subscriber waits for: numbers that exist and have not come. After a while their hosts are asked for them.

So are, without waiting, numbers below a baseline that a former holder of the rank may have given to events meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer.ordering.deadlines import Deadlines
from txlayer.ordering.delivery_buffer import DeliveryBuffer, Lane
from txlayer.ordering.directory import Directory
from txlayer.ordering.effects import Effect, Send
from txlayer.ordering.messages import Missing
from txlayer.ordering.subscriber_config import Mode, SubscriberConfig
from txlayer.ordering.timestamp import host_of
from txlayer.ranges import Ranges

_AT_ONCE = 63
_RUNS = 16


@dataclass(slots=True)
class Waits:
    """One time per topic: when to ask for what it cannot go on without."""

    name: str
    buffer: DeliveryBuffer
    directory: Directory
    config: SubscriberConfig
    _times: Deadlines[int] = field(default_factory=Deadlines)
    _missed: dict[int, int] = field(default_factory=dict)
    _former: Deadlines[int] = field(default_factory=Deadlines)

    def look_again(self, now: float) -> None:
        """Some topics have come to a halt."""
        halted, self.buffer.halted = self.buffer.halted, []
        for rank in halted:
            self.watch(rank, now)

    def watch(self, rank: int, now: float) -> None:
        """Start to wait for what a topic cannot go on without."""
        lane = self.buffer.lanes.get(rank)
        if lane is None or self.config.mode is Mode.UNRELIABLE:
            return
        number = self.buffer.missing(lane)
        if number is None:
            self._times.clear(rank)
        elif self._missed.get(rank) != number or rank not in self._times.times:
            self._missed[rank] = number
            self._times.set(rank, now + self.config.resend)

    def watch_former(self, rank: int, now: float) -> None:
        """Ask from time to time until the holder knows what its former one has done."""
        if self.buffer.lanes[rank].former:
            self._former.set(rank, now + self.config.resend)

    def ask(self, now: float) -> list[Effect]:
        """For what has been waited for long enough."""
        effects = [effect for rank in self._times.due(now) for effect in self.ask_for(rank, now)]
        return [*effects, *(effect for rank in self._former.due(now) for effect in self.ask_for_former(rank, now))]

    def ask_for_former(self, rank: int, now: float) -> list[Effect]:
        """What is not known yet of the numbers below the baseline."""
        lane, host = self.buffer.lanes.get(rank), self.directory.name_of(host_of(rank))
        if lane is None or not lane.former:
            return []
        self._former.set(rank, now + self.config.resend)
        return [Send(host, Missing(self.name, rank, *run)) for run in lane.former.pairs()[:_RUNS] if host]

    def ask_for(self, rank: int, now: float) -> list[Effect]:
        """What this topic waits for, if it is still the same."""
        lane = self.buffer.lanes.get(rank)
        number = self.buffer.missing(lane) if lane is not None else None
        host = self.directory.name_of(host_of(rank))
        if lane is None or number is None or host is None:
            return []
        asked, self._missed[rank] = self._missed.get(rank), number
        self._times.set(rank, now + self.config.resend)
        if asked != number:
            return []
        return [Send(host, Missing(self.name, rank, *run)) for run in self._holes(lane, number)]

    def next_deadline(self) -> float | None:
        """When to ask."""
        times = (self._times.next(), self._former.next())
        return min((time for time in times if time is not None), default=None)

    def _holes(self, lane: Lane, number: int) -> list[tuple[int, int]]:
        """What is missing from `number` on, as far as it is asked for at once."""
        holes = Ranges()
        for one in range(number, min(lane.known, number + _AT_ONCE) + 1):
            if one not in lane.items and one not in lane.voids:
                holes.add(one, one)
        return list(holes.pairs())
