"""A publisher's ordering module: numbers are asked for, events released in order, confirmed, and kept for a while.

Events of a topic are asked for in batches and released in the order of their serials. An answer that comes later than
the guard time is not used, because the host may be about to void it; nor is one whose number is not above the last
one used. Then everything that is not released is asked for again under the next generation. After the bus has taken
a batch its publication is confirmed until the host acknowledges it. If the host has voided the numbers instead, the
same events are published again under new ones: they keep their serials, by which a subscriber knows them.

In causal mode only one topic has requests under way, and the next one follows when all of them are acknowledged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

from txlayer.errors import Backpressure
from txlayer.ordering.deadlines import Deadlines
from txlayer.ordering.directory import Directory, check_topic
from txlayer.ordering.effects import Accepted, Claimed, Effect, Failed, Handed, Offer, Publish, Report, Send, Tick
from txlayer.ordering.messages import (
    Acknowledged,
    AnyMessage,
    Create,
    Event,
    Gone,
    Published,
    Refused,
    Resend,
    Stamped,
    Voided,
)
from txlayer.ordering.publisher_lane import Item, Lane, Release, Request
from txlayer.ordering.retained import Retained, Sent
from txlayer.ordering.timestamp import Stamp, fault_in, host_of

PublisherEvent: TypeAlias = Tick | Offer | Handed | Claimed | Stamped | Acknowledged | Voided | Resend | Refused

_CONFIRMED_AGAIN = 8192


@dataclass(frozen=True, slots=True)
class PublisherConfig:
    """`guard` must be shorter than the hosts' lease by more than the longest time an event is on the bus."""

    guard: float = 3.0
    repeat: float = 0.5
    batch: int = 64
    window: int = 4
    retention: float = 60.0
    retained: int = 100_000
    retained_bytes: int = 64 * 1024 * 1024
    buffer: int = 65_536
    causal: bool = False


class Publisher:
    """One life of one publisher; its name is not used by another."""

    def __init__(self, name: str, config: PublisherConfig) -> None:
        self.name = name
        self.config = config
        self.directory = Directory()
        self._lanes: dict[str, Lane] = {}
        self._times: Deadlines[str] = Deadlines()
        self._retained = Retained(config.retention, config.retained, config.retained_bytes)
        self._epochs: dict[int, int] = {}
        self._held: deque[tuple[str, Item]] = deque()
        self._turn: str | None = None
        self.buffered = 0

    def step(self, event: PublisherEvent | AnyMessage, now: float) -> list[Effect]:
        """One event in, effects out."""
        match event:
            case Offer():
                return self._on_offer(event, now)
            case Stamped():
                return self._on_stamped(event, now)
            case Handed():
                return self._on_handed(event, now)
            case Acknowledged():
                return self._on_acknowledged(event, now)
            case Voided():
                return self._on_voided(event, now)
            case Resend():
                return self._on_resend(event)
            case Refused():
                return self._on_refused(event, now)
            case Claimed():
                return self._on_claimed(event, now)
            case Tick():
                return self._on_tick(now)
            case _:
                return [Report(f"a {type(event).__name__}, which is not for publishers")]

    def next_deadline(self) -> float | None:
        """When to step this publisher with a tick, at the latest."""
        times = (self._times.next(), self._retained.next_deadline())
        return min((time for time in times if time is not None), default=None)

    def _on_claimed(self, event: Claimed, now: float) -> list[Effect]:
        known = self.directory.claims.get(event.host)
        reason, replaced = self.directory.follow(event)
        if reason is not None:
            return [Report(reason)]
        if replaced:
            return self._begin_anew(event, now)
        if known is None or known.epoch == event.epoch:
            return []
        # The host has restarted and may have forgotten what it gave: tell it what was published.
        lanes: dict[str, Lane] = {}
        for topic, sent in self._retained.latest(_CONFIRMED_AGAIN):
            if host_of(sent.event.stamp.rank) == event.host:
                lane = lanes[topic] = self._lanes[topic]
                if sent.first not in lane.releases:
                    lane.reminders[sent.first] = Published(self.name, topic, sent.seq, sent.first, sent.count)
        for topic in lanes:
            self._times.arm(topic, now + self.config.repeat)
        return [Send(event.name, message) for lane in lanes.values() for message in lane.reminders.values()]

    def _begin_anew(self, claim: Claimed, now: float) -> list[Effect]:
        """The host has another log: it counts from 1, and knows nothing of the numbers that were given before."""
        effects: list[Effect] = []
        for lane in list(self._lanes.values()):
            if lane.rank is not None and host_of(lane.rank) == claim.host:
                released = lane.forget_numbers()
                self._retained.drop_topic(lane.topic)
                self.buffered -= len(released)
                reason = f"host {claim.name} no longer has its log: {lane.topic} may have reached some, or none"
                effects.extend(self._in_doubt(lane, released, reason))
                effects.extend(self._start_over(lane, now))
        return [*effects, *self._take_turns(now)]

    def _on_offer(self, event: Offer, now: float) -> list[Effect]:
        check_topic(event.topic)
        if self.buffered >= self.config.buffer:
            raise Backpressure(f"{self.buffered} events wait for their place in the order")
        lane = self._lanes.setdefault(event.topic, Lane(event.topic))
        lane.serial += 1
        self.buffered += 1
        item = Item(lane.serial, event.payload, event.deadline, beside=event.beside)
        if self.config.causal:
            self._held.append((event.topic, item))
            return self._take_turns(now)
        lane.waiting.append(item)
        return self._ask(lane, now)

    # Asking for numbers

    def _take_turns(self, now: float) -> list[Effect]:
        """Causal mode: let the next events through if they are of the topic that is under way, or it is done."""
        if self._turn is not None and self._lanes[self._turn].idle():
            self._turn = None
        if not self._held or self._turn not in (None, self._held[0][0]):
            return []
        self._turn = self._held[0][0]
        lane = self._lanes[self._turn]
        while self._held and self._held[0][0] == self._turn:
            lane.waiting.append(self._held.popleft()[1])
        return self._ask(lane, now)

    def _ask(self, lane: Lane, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while lane.waiting and len(lane.requests) < self.config.window:
            items = [lane.waiting.popleft() for _ in range(min(len(lane.waiting), self.config.batch))]
            request = Request(lane.seq, items, now)
            lane.seq += len(items)
            lane.requests.append(request)
            effects.extend(self._create(lane, request))
        if lane.requests or lane.releases:
            self._times.arm(lane.topic, now + self.config.repeat)
        return effects

    def _create(self, lane: Lane, request: Request) -> list[Effect]:
        home = self.directory.home(lane.topic)
        if home is None:
            return []
        low = lane.requests[0].seq
        return [Send(home.name, Create(self.name, lane.topic, lane.generation, request.seq, len(request.items), low))]

    def _start_over(self, lane: Lane, now: float, again: list[Item] | None = None) -> list[Effect]:
        """Next generation: nothing that the old one was given will be used. `again` goes first."""
        lane.waiting.extendleft(reversed([*(again or []), *lane.withdraw()]))
        return self._ask(lane, now)

    def _on_stamped(self, message: Stamped, now: float) -> list[Effect]:
        lane = self._lanes.get(message.topic)
        if lane is None or message.generation != lane.generation:
            return []
        reason = self._fault(lane, message)
        if reason is not None:
            return [Report(reason)]
        request = next((request for request in lane.requests if request.seq == message.seq), None)
        if request is None or len(request.items) != message.count:
            return []
        if self._too_late(request, now) or message.stamp.number <= lane.last_number:
            return self._start_over(lane, now)
        request.stamp = message.stamp
        return self._release(lane, now)

    def _fault(self, lane: Lane, message: Stamped) -> str | None:
        stamp = message.stamp
        fault = fault_in(stamp)
        if fault is not None:
            return fault
        host = host_of(stamp.rank)
        if stamp.epoch < self._epochs.get(host, 0):
            return f"stamp of {lane.topic} is of epoch {stamp.epoch}, host {host} is in {self._epochs[host]}"
        if self.directory.is_gone(host, stamp.epoch):
            return f"stamp of {lane.topic} is of epoch {stamp.epoch}, host {host} no longer has that log"
        if self._of_former(host, stamp.epoch):
            return f"stamp of {lane.topic} is of epoch {stamp.epoch}, which a newer holder of rank {host} has ended"
        if lane.rank is not None and lane.rank != stamp.rank:
            return f"topic {lane.topic} changed its rank from {lane.rank} to {stamp.rank}"
        self._epochs[host] = stamp.epoch
        lane.rank = stamp.rank
        self.directory.homes[lane.topic] = host
        return None

    def _of_former(self, host: int, epoch: int) -> bool:
        """Whether a newer holder is known: who has subscribed there would not get what the former one still numbers."""
        claim = self.directory.claims.get(host)
        return claim is not None and epoch < claim.epoch

    def _too_late(self, request: Request, now: float) -> bool:
        return now - request.asked > self.config.guard

    # Releasing and confirming

    def _release(self, lane: Lane, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while lane.requests and lane.requests[0].stamp is not None:
            if self._too_late(lane.requests[0], now) or lane.requests[0].stamp.number <= lane.last_number:
                return [*effects, *self._start_over(lane, now)]
            effects.extend(self._release_one(lane, lane.requests.popleft(), now))
        return [*effects, *self._ask(lane, now)]

    def _release_one(self, lane: Lane, request: Request, now: float) -> list[Effect]:
        stamp = request.stamp
        assert stamp is not None
        first, count = stamp.number, len(request.items)
        numbers = range(first, first + count)
        lane.last_number = numbers[-1]
        lane.releases[first] = Release(request.seq, first, request.items, dict.fromkeys(numbers))
        effects: list[Effect] = []
        for number, item in zip(numbers, request.items, strict=True):
            own = Stamp(stamp.rank, number, stamp.epoch, stamp.base, stamp.ranks, stamp.values)
            event = Event(self.name, item.serial, own, item.payload, item.released, item.beside)
            item.released = True
            self._retained.keep(lane.topic, Sent(event, request.seq, first, count), now)
            effects.append(Publish(lane.topic, event))
        self._times.arm(lane.topic, now + self.config.repeat)
        return effects

    def _on_handed(self, event: Handed, now: float) -> list[Effect]:
        lane = self._lanes[event.topic]
        effects: list[Effect] = []
        number, end = event.number, event.number + event.count
        while number < end:
            release = lane.release_of(number)
            if release is None:
                number += 1
                continue
            last = min(end, release.first + len(release.items))
            for one in range(number, last):
                release.unhanded.pop(one, None)
            number = last
            if not release.unhanded:
                effects.extend(self._confirm(lane, release))
        return effects

    def last_serial(self, topic: str) -> int:
        """The serial of the event that was offered last."""
        return self._lanes[topic].serial

    def forget(self, topic: str, number: int) -> None:
        """The bus does not take this event: whoever asks for it is told that it is gone."""
        self._retained.drop(topic, number)

    def _confirm(self, lane: Lane, release: Release) -> list[Effect]:
        home = self.directory.home(lane.topic)
        if home is None:
            return []
        message = Published(self.name, lane.topic, release.seq, release.first, len(release.items))
        return [Send(home.name, message)]

    def _on_acknowledged(self, message: Acknowledged, now: float) -> list[Effect]:
        lane = self._lanes.get(message.topic)
        if lane is None or self._former(message):
            return []
        lane.reminders.pop(message.first, None)
        release = lane.releases.pop(message.first, None)
        if release is None:
            return []
        self.buffered -= len(release.items)
        effects: list[Effect] = [Accepted(lane.topic, item.serial) for item in release.items if not item.told]
        return [*effects, *self._take_turns(now)]

    def _former(self, message: Acknowledged | Voided) -> bool:
        """Whether the word is that of a host that no longer holds the topic."""
        home = self.directory.home(message.topic)
        return home is not None and message.epoch < home.epoch

    def _on_voided(self, message: Voided, now: float) -> list[Effect]:
        lane = self._lanes.get(message.topic)
        if lane is None or self._former(message):
            return []
        release = lane.releases.pop(message.first, None)
        if release is not None:
            return self._release_again(lane, release, now)
        reminder = lane.reminders.pop(message.first, None)
        if reminder is not None:
            return self._start_over(lane, now, self._taken_back(reminder))
        if message.generation == lane.generation and any(request.seq == message.seq for request in lane.requests):
            return self._start_over(lane, now)
        return []

    def _release_again(self, lane: Lane, release: Release, now: float) -> list[Effect]:
        """Under new numbers; but not what was given up: its application does not expect it any more."""
        for number in range(release.first, release.first + len(release.items)):
            self._retained.drop(lane.topic, number)  # it is void: nobody will ask for it
        again = [item for item in release.items if not item.given_up]
        self.buffered -= len(release.items) - len(again)
        return self._start_over(lane, now, again) if again else self._take_turns(now)

    def _taken_back(self, reminder: Published) -> list[Item]:
        """Events that were acknowledged by a host that has forgotten them, and has voided their numbers since."""
        numbers = range(reminder.first, reminder.first + reminder.count)
        kept = [sent.event for number in numbers if (sent := self._retained.get(reminder.topic, number)) is not None]
        self.buffered += len(kept)
        return [Item(event.serial, event.payload, None, True, event.beside, told=True) for event in kept]

    def _on_resend(self, message: Resend) -> list[Effect]:
        home = self.directory.home(message.topic)
        sent = self._retained.get(message.topic, message.number)
        if home is None:
            return []
        if sent is None:
            return [Send(home.name, Gone(self.name, message.topic, message.number))]
        published = Published(self.name, message.topic, sent.seq, sent.first, sent.count)
        return [Publish(message.topic, sent.event), Send(home.name, published)]

    def _on_refused(self, message: Refused, now: float) -> list[Effect]:
        lane = self._lanes.get(message.topic)
        claim = self.directory.claims.get(message.host)
        if message.epoch < max(self._epochs.get(message.host, 0), claim.epoch if claim else 0):
            return [Report(f"refused by a former holder of rank {message.host}, epoch {message.epoch}")]
        if lane is not None and message.about == "create":
            return self._give_up(lane, [item for item in lane.outstanding() if not item.released], message.reason, now)
        effects: list[Effect] = [Report(f"{message.about} of {message.topic}: {message.reason}")]
        if lane is not None and message.about == "published":
            effects.extend(self._not_confirmed(lane, message, now))
        return effects

    def _not_confirmed(self, lane: Lane, message: Refused, now: float) -> list[Effect]:
        """The host cannot say what became of these numbers, and will not be able to."""
        lane.reminders.pop(message.number, None)
        release = lane.releases.pop(message.number, None)
        if release is None:
            return []
        self.buffered -= len(release.items)
        return [*self._in_doubt(lane, release.items, message.reason), *self._take_turns(now)]

    def _in_doubt(self, lane: Lane, items: list[Item], reason: str) -> list[Effect]:
        effects: list[Effect] = [Failed(lane.topic, i.serial, reason, unknown=True) for i in items if not i.told]
        for item in items:
            item.told = item.given_up = True
        return effects

    # Time

    def _on_tick(self, now: float) -> list[Effect]:
        self._retained.expire(now)
        effects: list[Effect] = self._overdue_turns(now)
        for topic in self._times.due(now):
            effects.extend(self._repeat(self._lanes[topic], now))
        return effects

    def _overdue_turns(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while self._held and self._held[0][1].deadline is not None and self._held[0][1].deadline <= now:
            topic, item = self._held.popleft()
            self.buffered -= 1
            effects.append(Failed(topic, item.serial, f"no place in the order of {topic}: {self._turn} holds it up"))
        return effects

    def _repeat(self, lane: Lane, now: float) -> list[Effect]:
        effects = self._overdue(lane, now)
        if effects:
            return effects
        if not lane.idle() or lane.reminders:
            self._times.arm(lane.topic, now + self.config.repeat)
        home = self.directory.home(lane.topic)
        effects.extend(Send(home.name, message) for message in lane.reminders.values() if home)
        for release in list(lane.releases.values()):
            if not release.unhanded:
                effects.extend(self._confirm(lane, release))
        if lane.requests and self._too_late(lane.requests[0], now):
            return [*effects, *self._start_over(lane, now)]
        for request in lane.requests:
            if request.stamp is None:
                effects.extend(self._create(lane, request))
        return [*effects, *self._ask(lane, now)]

    def _overdue(self, lane: Lane, now: float) -> list[Effect]:
        """What has reached its deadline. Released events go on being confirmed: they are on the bus."""
        home = self.directory.home(lane.topic)
        nobody = f"no answer from host {home.name}" if home else "no answer from a host that claims the topic"
        released = [item for release in lane.releases.values() for item in release.items if item.overdue(now)]
        reason = f"on the bus, and its place in the order of {lane.topic} is not acknowledged: {nobody}"
        effects = self._in_doubt(lane, released, reason)
        items = [item for item in (*lane.outstanding(), *lane.waiting) if item.overdue(now)]
        if items:
            effects.extend(self._give_up(lane, items, f"no place in the order of {lane.topic}: {nobody}", now))
        elif effects:
            self._times.arm(lane.topic, now + self.config.repeat)
        return effects

    def _give_up(self, lane: Lane, items: list[Item], reason: str, now: float) -> list[Effect]:
        serials = {item.serial for item in items}
        # What was released once, under a number that was voided, may have reached some.
        effects: list[Effect] = [Failed(lane.topic, item.serial, reason, unknown=item.released) for item in items]
        self.buffered -= len(items)
        left = [*lane.withdraw(), *lane.waiting]
        lane.waiting = deque(item for item in left if item.serial not in serials)
        self._times.arm(lane.topic, now + self.config.repeat)
        return [*effects, *self._take_turns(now)]
