"""For a bus that loses messages: a bounded buffer and a time to live (TNO section 4, repaired).

An event that has waited for its time to live, or the oldest one when the buffer is full, is delivered although
something before it has not come. First whatever is buffered and comes before it is delivered, in order; then the
clocks move to what its stamp says, and the numbers that were passed over are remembered. An event that comes after its
place is delivered at once and flagged `out_of_order`, if it is one of those; otherwise it is a duplicate.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field

from txlayer.ordering.delivery_buffer import DeliveryBuffer, Lane
from txlayer.ordering.effects import Effect
from txlayer.ordering.messages import Event, Void
from txlayer.ranges import Ranges

_REMEMBERED = 65_536


@dataclass(slots=True)
class BoundedBuffer(DeliveryBuffer):
    """Stamps must be whole: an event may have to be placed without its predecessor."""

    time_to_live: float = 1.0
    skipped: dict[int, Ranges] = field(default_factory=dict)
    arrivals: deque[tuple[float, int, int]] = field(default_factory=deque)
    numbers: dict[int, list[int]] = field(default_factory=dict)
    moved: dict[int, None] = field(default_factory=dict)

    def take(self, event: Event, now: float) -> list[Effect]:
        """An event has come: in time, late, or again."""
        lane, number = self.lanes[event.stamp.rank], event.stamp.number
        effects: list[Effect] = []
        skipped = self.skipped.get(lane.rank)
        if number <= lane.clock and skipped is not None and skipped.remove(number):
            self.deliver(lane, event, effects, out_of_order=True)
            return effects
        if self.repeated(lane, number):
            self.dropped += 1
            return effects
        while self.size >= self.capacity:
            effects.extend(self._force_oldest())
        if self.repeated(lane, number):  # making room has passed it
            return [*effects, *self.take(event, now)]
        self.arrivals.append((now + self.time_to_live, lane.rank, number))
        heapq.heappush(self.numbers.setdefault(lane.rank, []), number)
        return [*effects, *self._insert(lane, number, event)]

    def take_void(self, void: Void, now: float) -> list[Effect]:
        """Void numbers are not waited for; lost ones are those that nobody waits for anyway."""
        if void.lost:
            return []
        skipped = self.skipped.get(void.rank)
        if skipped is not None and void.first <= self.lanes[void.rank].clock:
            skipped.cut(void.first, min(void.last, self.lanes[void.rank].clock))
        return DeliveryBuffer.take_void(self, void, now)

    def remove(self, rank: int) -> list[Effect]:
        """The topic is no longer subscribed."""
        self.skipped.pop(rank, None)
        self.numbers.pop(rank, None)
        return DeliveryBuffer.remove(self, rank)

    def expire(self, now: float) -> list[Effect]:
        """Deliver what has waited for too long."""
        effects: list[Effect] = []
        while self.arrivals and (self.arrivals[0][0] <= now or not self._buffered(*self.arrivals[0][1:])):
            if self._buffered(*self.arrivals[0][1:]):
                effects.extend(self._force_oldest())
            else:
                self.arrivals.popleft()
        return effects

    def next_deadline(self) -> float | None:
        """When the oldest event has waited for too long."""
        while self.arrivals and not self._buffered(*self.arrivals[0][1:]):
            self.arrivals.popleft()
        return self.arrivals[0][0] if self.arrivals else None

    def _buffered(self, rank: int, number: int) -> bool:
        lane = self.lanes.get(rank)
        return lane is not None and number in lane.items

    def _force_oldest(self) -> list[Effect]:
        while True:
            _, rank, number = self.arrivals.popleft()
            if self._buffered(rank, number):
                break
        effects: list[Effect] = []
        self.force(rank, number, effects)
        ready: list[Lane] = []
        moved, self.moved = self.moved, {}
        for lane in (self.lanes[rank] for rank in moved):
            lane.checked = 0
            ready.extend((lane, *self.woken(lane)))
        return [*effects, *self._run(ready)]

    def force(self, rank: int, upto: int, effects: list[Effect]) -> None:
        """Bring a topic's clock to `upto`; deliver on the way what is buffered, with what comes before it."""
        todo: list[tuple[int, int, Event | None]] = [(rank, upto, None)]
        while todo:
            rank, upto, ready = todo.pop()
            lane = self.lanes[rank]
            if ready is not None:
                self._pass(lane, upto, ready, effects)
                continue
            number = self._first_up_to(lane, upto)
            if number is None:
                self._skip(lane, upto)
                continue
            item = lane.items.pop(number)
            self.size -= 1
            todo.append((rank, upto, None))
            if isinstance(item, Event):
                todo.append((rank, number, item))
                todo.extend(self.befores(item))

    def befores(self, item: Event) -> list[tuple[int, int, Event | None]]:
        """What the stamp puts before the event, as far as it is subscribed and not yet behind us."""
        stamp = item.stamp
        pairs = zip(stamp.ranks, stamp.values, strict=True)
        return [(rank, v, None) for rank, v in pairs if rank in self.lanes and self.lanes[rank].clock < v]

    def _first_up_to(self, lane: Lane, upto: int) -> int | None:
        numbers = self.numbers.get(lane.rank, [])
        while numbers and numbers[0] not in lane.items:
            heapq.heappop(numbers)
        return heapq.heappop(numbers) if numbers and numbers[0] <= upto else None

    def _pass(self, lane: Lane, number: int, event: Event, effects: list[Effect]) -> None:
        late = number <= lane.clock
        if late:
            self.skipped.setdefault(lane.rank, Ranges()).remove(number)
        else:
            self._skip(lane, number - 1)
            lane.clock = number
            self.moved[lane.rank] = None
        self.deliver(lane, event, effects, out_of_order=late)

    def _skip(self, lane: Lane, upto: int) -> None:
        if upto <= lane.clock:
            return
        skipped = self.skipped.setdefault(lane.rank, Ranges())
        first = lane.clock + 1
        for void_first, void_last in lane.voids.pairs():
            skipped.add(first, min(void_first - 1, upto))
            first = max(first, void_last + 1)
        skipped.add(first, upto)
        skipped.forget_below(upto - _REMEMBERED)
        lane.voids.forget_below(upto + 1)
        lane.clock = upto
        self.moved[lane.rank] = None
