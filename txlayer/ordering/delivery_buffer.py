"""Where a subscriber's events wait for their turn (TNO figure 17, repaired).

The event with number n on topic T is next when n - 1 events of T are behind us and, for every entry (t, v) of its stamp
whose topic we subscribe to, at least v events of t are. A void number is stepped over without further condition.

An event waits on exactly one unmet condition at a time: behind its predecessor on its own topic or, as the first of its
topic, on one entry of its stamp. When a topic's clock moves, only the lanes that wait for that value are looked at
again, and each goes on with its stamp where it stopped. No step looks at everything that is buffered.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from txlayer.ordering.effects import Deliver, Effect, Gap, Report
from txlayer.ordering.messages import Event, Void
from txlayer.ordering.seen import Seen
from txlayer.ordering.timestamp import GONE, WINDOW
from txlayer.ranges import Ranges


@dataclass(slots=True)
class Lane:
    """One subscribed topic."""

    topic: str
    rank: int
    clock: int
    items: dict[int, Event | Void] = field(default_factory=dict)
    voids: Ranges = field(default_factory=Ranges)
    lost: Ranges = field(default_factory=Ranges)
    doubtful: Ranges = field(default_factory=Ranges)
    unplaced: Ranges = field(default_factory=Ranges)
    former: Ranges = field(default_factory=Ranges)
    """Below the baseline, but a former holder of the rank may give them to events that we should have got.

    Whether such an event was published before the baseline was told, nobody knows: the gap is not certain."""
    known: int = 0
    checked: int = 0
    filled: int = 0
    parked: bool = False
    waiting: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class DeliveryBuffer:
    """Lanes by rank, and what waits in them."""

    across: bool = True
    capacity: int = 1_000_000
    lanes: dict[int, Lane] = field(default_factory=dict)
    pending: dict[int, list[int]] = field(default_factory=dict)
    seen: Seen = field(default_factory=Seen)
    size: int = 0
    dropped: int = 0
    halted: list[int] = field(default_factory=list)
    """Ranks of lanes that have come to a halt, or hold another up, since this was last looked at."""

    def add(self, topic: str, rank: int, clock: int) -> Lane:
        """A topic whose baseline is known."""
        lane = self.lanes[rank] = Lane(topic, rank, clock)
        return lane

    def expect(self, rank: int) -> None:
        """A topic whose baseline is on its way: whatever has an entry for it must wait."""
        self.pending.setdefault(rank, [])
        for lane in self.lanes.values():
            lane.checked = 0

    def settle(self, rank: int) -> list[Effect]:
        """The baseline is known, or will not come."""
        return self._run([self.lanes[other] for other in self.pending.pop(rank, ()) if other in self.lanes])

    def remove(self, rank: int) -> list[Effect]:
        """The topic is no longer subscribed: nothing waits for it."""
        lane = self.lanes.pop(rank, None)
        if lane is None:
            return []
        self.size -= len(lane.items)
        self.seen.forget(rank)
        return self._run([self.lanes[other] for _, other in lane.waiting if other in self.lanes])

    def take(self, event: Event, now: float) -> list[Effect]:
        """An event of a subscribed topic has come from the bus."""
        lane, number = self.lanes[event.stamp.rank], event.stamp.number
        if self.repeated(lane, number):
            self.dropped += 1
            return self.passed_by(lane, event) if lane.former else []
        if self.size >= self.capacity and number > lane.clock + 1:
            # The next one of a topic is taken all the same: others may wait for nothing else.
            lane.known = max(lane.known, number)
            self.halted.append(lane.rank)
            return [Report(f"buffer full ({self.size} events): {lane.topic} {number} dropped, to be asked for again")]
        return self._insert(lane, number, event)

    def repeated(self, lane: Lane, number: int) -> bool:
        """At or below the clock, buffered already, or void already: the first of event and void counts."""
        return number <= lane.clock or number in lane.items or number in lane.voids

    def passed_by(self, lane: Lane, event: Event) -> list[Effect]:
        """An event that a former holder has numbered since the baseline was told: its stamp does not know of us."""
        number = event.stamp.number
        had = self.seen.knows(event.publisher, lane.rank, event.serial)
        return [Gap(lane.topic, number, number, certain=False)] if lane.former.remove(number) and not had else []

    def settle_former(self, void: Void) -> list[Effect]:
        """The holder says what became of such numbers: lost, in doubt, or void for certain, and published again."""
        lane = self.lanes[void.rank]
        spans = ((max(first, void.first), min(last, void.last)) for first, last in lane.former.pairs())
        gaps: list[Effect] = [Gap(lane.topic, *span, certain=False) for span in spans if span[0] <= span[1]]
        lane.former.cut(void.first, void.last)
        return gaps if void.lost or void.doubtful else []

    def _insert(self, lane: Lane, number: int, item: Event | Void) -> list[Effect]:
        lane.items[number] = item
        self.size += 1
        lane.known = max(lane.known, number)
        if number == lane.clock + 1 and not lane.parked:
            return self._run([lane])
        self.halted.append(lane.rank)
        return []

    def take_void(self, void: Void, now: float) -> list[Effect]:
        """Numbers of a subscribed topic that are no events."""
        lane = self.lanes[void.rank]
        if void.last <= lane.clock:
            return []
        if void.lost and void.placed:
            return [] if self.repeated(lane, void.first) else self._insert(lane, void.first, void)
        first = max(void.first, lane.clock + 1)
        for number in self.kept_from_void(lane, first, void.last):
            self._void(lane, first, number - 1, void)
            first = number + 1
        self._void(lane, first, void.last, void)
        lane.known = max(lane.known, void.last)
        return [] if lane.parked else self._run([lane])

    def kept_from_void(self, lane: Lane, first: int, last: int) -> list[int]:
        """Events that came before the void: they stay."""
        if last - first < len(lane.items):
            return [number for number in range(first, last + 1) if number in lane.items]
        return sorted(number for number in lane.items if first <= number <= last)

    def _void(self, lane: Lane, first: int, last: int, void: Void) -> None:
        lane.voids.add(first, last)
        if void.doubtful:
            lane.doubtful.add(first, last)
        elif void.lost:
            lane.lost.add(first, last)

    def _run(self, ready: list[Lane]) -> list[Effect]:
        """Let lanes go as far as they can, and those that they set free."""
        effects: list[Effect] = []
        for lane in ready:
            lane.parked = False
        while ready:
            lane = ready.pop()
            if self.lanes.get(lane.rank) is lane and not lane.parked:
                self._run_lane(lane, ready, effects)
        return effects

    def _run_lane(self, lane: Lane, ready: list[Lane], effects: list[Effect]) -> None:
        start = lane.clock
        while True:
            number = lane.clock + 1
            item = lane.items.get(number)
            if item is None:
                end = lane.voids.end_of(number)
                if end is None:
                    break
                self._step_over(lane, number, end, effects)
            elif self.blocked(lane, item):
                break
            else:
                del lane.items[number]
                self.size -= 1
                self.pass_item(lane, number, item, effects)
            lane.checked = 0
        self.halted.append(lane.rank)
        if lane.clock > start:
            ready.extend(self.woken(lane))

    def woken(self, lane: Lane) -> list[Lane]:
        """Lanes whose wait for this one is over."""
        free: list[Lane] = []
        while lane.waiting and lane.waiting[0][0] <= lane.clock:
            other = self.lanes.get(heapq.heappop(lane.waiting)[1])
            if other is not None:
                other.parked = False
                free.append(other)
        return free

    def blocked(self, lane: Lane, item: Event | Void) -> bool:
        """Whether an entry is unmet; then the lane is parked on that one."""
        if not self.across:
            return False
        stamp = item.stamp if isinstance(item, Event) else item
        ranks, values = stamp.ranks, stamp.values
        for at in range(lane.checked, len(ranks)):
            other = self.lanes.get(ranks[at])
            if other is not None:
                if self.unmet(other, values[at]):
                    lane.checked, lane.parked = at, True
                    if values[at] < GONE:
                        other.known = max(other.known, values[at])
                    self.halted.append(other.rank)
                    heapq.heappush(other.waiting, (values[at], lane.rank))
                    return True
            elif ranks[at] in self.pending:
                lane.checked, lane.parked = at, True
                self.pending[ranks[at]].append(lane.rank)
                return True
        return False

    def unmet(self, other: Lane, value: int) -> bool:
        """Whether fewer events of the other topic are behind us than the stamp says."""
        return other.clock < value

    def pass_item(self, lane: Lane, number: int, item: Event | Void, effects: list[Effect]) -> None:
        """It is the item's turn."""
        lane.clock = number
        if isinstance(item, Void):
            effects.append(Gap(lane.topic, number, number))
        elif item.stamp.base and item.stamp.base in lane.unplaced:
            # Its base was stepped over here, so its stamp does not tell everything: it cannot be placed.
            self._remember(lane, number, number)
            effects.append(Gap(lane.topic, number, number))
        else:
            self.deliver(lane, item, effects)

    def deliver(self, lane: Lane, event: Event, effects: list[Effect], out_of_order: bool = False) -> None:
        """To the application, unless it has had the event under another number."""
        publisher, serial = event.publisher, event.serial
        if self.seen.knows(publisher, lane.rank, serial):
            self.dropped += 1
            return
        # Published again: whoever got it before the void has it in its first place, so here it is out of order.
        late = out_of_order or event.again
        self.seen.add(publisher, lane.rank, serial)
        effects.append(Deliver(lane.topic, event, late))

    def _step_over(self, lane: Lane, first: int, last: int, effects: list[Effect]) -> None:
        for ranges, certain in ((lane.lost, True), (lane.doubtful, False)):
            for gap_first, gap_last in ranges.pairs():
                if gap_first <= last and gap_last >= first:
                    effects.append(Gap(lane.topic, max(first, gap_first), min(last, gap_last), certain))
            ranges.forget_below(last + 1)
        self._remember(lane, first, last)
        lane.clock = last
        lane.voids.forget_below(last + 1)

    def _remember(self, lane: Lane, first: int, last: int) -> None:
        lane.unplaced.add(first, last)
        lane.unplaced.forget_below(last - 4 * WINDOW)

    def missing(self, lane: Lane) -> int | None:
        """The first number that is known to exist and has not come."""
        number = max(lane.clock, lane.filled) + 1
        while number <= lane.known:
            if number not in lane.items:
                end = lane.voids.end_of(number)
                if end is None:
                    break
                number = end
            number += 1
        lane.filled = number - 1  # each number is looked at once
        return number if number <= lane.known else None

    def learn(self, rank: int, value: int) -> None:
        """So many numbers of a topic exist."""
        lane = self.lanes.get(rank)
        if lane is not None:
            lane.known = max(lane.known, value)
