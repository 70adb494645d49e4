"""A subscriber's ordering module: subscriptions, one operation at a time, and the buffer that restores the order.

A new topic is subscribed at the bus first; what comes is kept. Then its rank is asked for, and the whole new set, with
a version, goes up the chain. The answer has the counters as they were when it passed: that of the new topic is its
baseline, what is at or below it was published before. Until the answer is here every event with an entry for that topic
is held back. Clocks of the other topics are not touched. An unsubscribed topic is forgotten at once.

A sign of life goes up the chain from time to time. Its answer tells how far each topic has come, so that a loss at the
very end is noticed too; and if it does not come for longer than the expiry, delivery stops until the subscription is
renewed, because the hosts may have removed it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from txlayer.ordering.bounded_buffer import BoundedBuffer
from txlayer.ordering.delivery_buffer import DeliveryBuffer
from txlayer.ordering.directory import Directory, check_topic
from txlayer.ordering.effects import (
    BusSubscribe,
    BusSubscribed,
    BusUnsubscribe,
    Changed,
    Checkpoint,
    Claimed,
    Effect,
    Failed,
    Gap,
    Report,
    Send,
    Tick,
    Want,
)
from txlayer.ordering.messages import AnyMessage, Event, Locate, Located, Refused, Register, Registered, Void
from txlayer.ordering.subscriber_config import Cursor, Mode, SubscriberConfig
from txlayer.ordering.timestamp import fault_in, fault_in_entries, host_of
from txlayer.ordering.waits import Waits

SubscriberEvent: TypeAlias = Tick | Want | BusSubscribed | Claimed | Located | Registered | Refused | Event | Void


@dataclass(slots=True)
class _Operation:
    """From one set of topics to the next."""

    target: tuple[str, ...]
    added: tuple[str, ...]
    old: tuple[int, ...]
    unsubscribed: dict[str, None]
    version: int = 0
    saved: int = 0
    held: dict[str, list[Event | Void]] = field(default_factory=dict)
    renewal: bool = False


class Subscriber:
    """One subscriber; its name outlives it only if it is durable (`resume`)."""

    def __init__(self, name: str, config: SubscriberConfig) -> None:
        self.name = name
        self.config = config
        self.directory = Directory()
        across = config.mode is not Mode.PER_TOPIC
        self.buffer: DeliveryBuffer = (
            BoundedBuffer(capacity=config.capacity, time_to_live=config.time_to_live)
            if config.mode is Mode.UNRELIABLE
            else DeliveryBuffer(across=across, capacity=config.capacity)
        )
        self.ranks: dict[str, int] = {}
        self.topics: dict[str, int] = {}
        self.version = 0
        self.valid_until: float | None = None
        self.stopped = False
        self._wanted: tuple[str, ...] = ()
        self._operation: _Operation | None = None
        self._parked: list[Event | Void] = []
        self._early: list[Event | Void] = []
        self._waits = Waits(name, self.buffer, self.directory, config)
        self._repeat_at: float | None = None
        self._refresh_at: float | None = None

    def step(self, event: SubscriberEvent | AnyMessage, now: float) -> list[Effect]:
        """One event in, effects out."""
        match event:
            case Event() | Void():
                return self._on_bus(event, now)
            case Want():
                return self._on_want(event, now)
            case BusSubscribed():
                return self._on_bus_subscribed(event, now)
            case Located():
                return self._on_located(event, now)
            case Registered():
                return self._on_registered(event, now)
            case Refused():
                return self._on_refused(event, now)
            case Claimed():
                return self._on_claimed(event, now)
            case Tick():
                return self._on_tick(now)
            case _:
                return [Report(f"a {type(event).__name__}, which is not for subscribers")]

    def next_deadline(self) -> float | None:
        """When to step this subscriber with a tick, at the latest."""
        live = self.buffer.next_deadline() if isinstance(self.buffer, BoundedBuffer) else None
        ends = self.valid_until if not self.stopped else None
        times = (self._waits.next_deadline(), self._repeat_at, self._refresh_at, live, ends)
        return min((time for time in times if time is not None), default=None)

    @property
    def at_rest(self) -> bool:
        """Whether no operation is under way."""
        return self._operation is None and not self.stopped

    # What comes from the bus

    def _on_bus(self, message: Event | Void, now: float) -> list[Effect]:
        fault = self._fault_in(message)
        if fault is not None:
            return [Report(fault)]
        if self._ahead(message):
            return self._keep_early(message)
        rank = message.stamp.rank if isinstance(message, Event) else message.rank
        if self.stopped:
            self._parked.append(message)
            if len(self._parked) > self.config.capacity:
                self._parked.clear()  # they are asked for again, or declared
            return []
        if rank not in self.buffer.lanes:
            self._hold(rank, message)
            return []
        return self._take(message, now)

    def _fault_in(self, message: Event | Void) -> str | None:
        if isinstance(message, Event):
            fault = fault_in(message.stamp)
            if fault is None and message.stamp.base and self.config.mode is Mode.UNRELIABLE:
                fault = f"stamp {message.stamp.rank}/{message.stamp.number} rests on a base, which this mode cannot use"
            rank, epoch = message.stamp.rank, message.stamp.epoch
        else:
            fault = fault_in_entries(message.rank, message.ranks, message.values)
            rank, epoch = message.rank, message.epoch
            if message.first < 1 or message.last < message.first:
                fault = f"void {message.first} to {message.last}"
        if fault is None and (host_of(rank) not in self.directory.claims or epoch < 1):
            fault = f"topic of rank {rank}: epoch {epoch} of its host is not known here"
        return fault

    def _ahead(self, message: Event | Void) -> bool:
        """Whether the message is of an epoch that the directory has not shown yet."""
        rank, epoch = (
            (message.stamp.rank, message.stamp.epoch) if isinstance(message, Event) else (message.rank, message.epoch)
        )
        return epoch > self.directory.claims[host_of(rank)].epoch

    def _keep_early(self, message: Event | Void) -> list[Effect]:
        if len(self._early) >= self.config.early:
            return [Report("too many events of an epoch that is not known here: dropped, to be asked for again")]
        self._early.append(message)
        return []

    def _on_claimed(self, event: Claimed, now: float) -> list[Effect]:
        reason = self.directory.see(event)
        if reason is not None:
            return [Report(reason)]
        early, self._early = self._early, []
        return [effect for message in early for effect in self._on_bus(message, now)]

    def _hold(self, rank: int, message: Event | Void) -> None:
        if self._operation is None:
            return
        for topic in self._operation.added:
            held = self._operation.held.setdefault(topic, [])
            if self.ranks.get(topic, rank) == rank and len(held) < self.config.capacity:
                held.append(message)  # beyond the bound they are asked for again

    def _take(self, message: Event | Void, now: float) -> list[Effect]:
        buffer = self.buffer
        effects = buffer.take(message, now) if isinstance(message, Event) else buffer.take_void(message, now)
        self._waits.look_again(now)
        return effects

    # Subscribing and unsubscribing

    def _on_want(self, event: Want, now: float) -> list[Effect]:
        for topic in event.topics:
            check_topic(topic)
        self._wanted = tuple(sorted({*event.topics}))
        return self._begin(now) if self._operation is None else []

    def _begin(self, now: float) -> list[Effect]:
        if self._wanted == tuple(sorted(self.topics)):
            return []
        added = tuple(topic for topic in self._wanted if topic not in self.topics)
        removed = [topic for topic in self.topics if topic not in self._wanted]
        old = tuple(sorted(self.topics.values()))
        self._operation = _Operation(self._wanted, added, old, dict.fromkeys(added))
        effects: list[Effect] = [BusSubscribe(topic) for topic in added]
        for topic in removed:
            rank = self.topics.pop(topic)
            effects.append(BusUnsubscribe(topic))
            effects.extend(self.buffer.remove(rank))
        self._waits.look_again(now)
        return [*effects, *self._proceed(now)]

    def _on_bus_subscribed(self, event: BusSubscribed, now: float) -> list[Effect]:
        if self._operation is None or event.topic not in self._operation.unsubscribed:
            return []
        del self._operation.unsubscribed[event.topic]
        return self._proceed(now)

    def _proceed(self, now: float) -> list[Effect]:
        """The next message of the operation, or the same again."""
        operation = self._operation
        if operation is None or operation.unsubscribed:
            return []
        self._repeat_at = now + self.config.repeat
        unknown = [topic for topic in operation.target if topic not in self.ranks]
        if unknown:
            return self._locate(unknown)
        if not operation.version:
            self.version += 1
            operation.version = self.version
            for topic in operation.added:
                self.buffer.expect(self.ranks[topic])
        effects: list[Effect] = []
        if operation.saved != operation.version:
            operation.saved = operation.version
            effects.append(Checkpoint())
        new = tuple(sorted(self.ranks[topic] for topic in operation.target))
        register = self._register(operation.version, new, operation.old, False, now, operation.renewal)
        return [*effects, *register]

    def _locate(self, topics: list[str]) -> list[Effect]:
        by_host: dict[str, list[str]] = {}
        for topic in topics:
            home = self.directory.home(topic)
            if home is not None:
                by_host.setdefault(home.name, []).append(topic)
        return [Send(name, Locate(self.name, tuple(asked))) for name, asked in by_host.items()]

    def _register(
        self, version: int, new: tuple[int, ...], old: tuple[int, ...], refresh: bool, now: float, anew: bool = False
    ) -> list[Effect]:
        concerned = (*new, *old)
        lowest = self.directory.name_of(host_of(max(concerned))) if concerned else None
        if lowest is None:
            return []
        related, whole = self.config.mode is not Mode.PER_TOPIC, self.config.mode is Mode.UNRELIABLE
        lasting = self.config.lasting
        message = Register(self.name, version, new, old, refresh, related, whole, now, anew=anew, lasting=lasting)
        return [Send(lowest, message)]

    def _on_located(self, message: Located, now: float) -> list[Effect]:
        known = self.directory.claims.get(message.host)
        if known is None or message.epoch < known.epoch:
            return [Report(f"ranks from host {message.host} in epoch {message.epoch}: not its holder")]
        for topic, rank in zip(message.topics, message.ranks, strict=False):
            if host_of(rank) != message.host or self.ranks.get(topic, rank) != rank:
                return [Report(f"topic {topic} changed its rank from {self.ranks.get(topic)} to {rank}")]
            self.ranks[topic] = rank
        return self._proceed(now)

    def _on_registered(self, message: Registered, now: float) -> list[Effect]:
        values = dict(zip(message.ranks, message.values, strict=False))
        operation = self._operation
        if message.sent > now:
            return [Report(f"an answer to what was asked at {message.sent}, which is to come")]
        if message.refresh:
            return self._refreshed(message, values, now) if message.version == self.version else []
        if operation is None or message.version != operation.version:
            return []
        unknown = [topic for topic in operation.target if self.ranks[topic] not in values]
        if unknown:
            return [Report(f"version {message.version} is answered without the counters of {', '.join(unknown)}")]
        self._operation, self._repeat_at = None, None
        self._extend(message.sent, now)
        effects = self._renew(values) if operation.renewal else []
        for topic in operation.added:
            rank = self.ranks[topic]
            self.topics[topic] = rank
            self.buffer.add(topic, rank, values[rank])
        for topic in operation.added:
            effects.extend(self.buffer.settle(self.ranks[topic]))
        effects.append(Changed(operation.target))
        for topic in operation.added:
            for held in operation.held.get(topic, ()):
                rank = held.stamp.rank if isinstance(held, Event) else held.rank
                if rank == self.ranks[topic]:
                    effects.extend(self._take(held, now))
        effects.extend(self._unpark(now))
        self._waits.look_again(now)
        return [*effects, *self._begin(now)]

    def _extend(self, sent: float, now: float) -> None:
        self.valid_until = sent + self.config.expiry if self._wanted else None
        self._refresh_at = now + self.config.refresh if self._wanted else None

    def _refreshed(self, message: Registered, values: dict[int, int], now: float) -> list[Effect]:
        if self.stopped and message.sent + self.config.expiry <= now:
            return []
        self._extend(message.sent, now)
        for rank, value in values.items():
            self.buffer.learn(rank, value)
            self._waits.watch(rank, now)
        return self._unpark(now)

    def _unpark(self, now: float) -> list[Effect]:
        self.stopped = False
        parked, self._parked = self._parked, []
        effects: list[Effect] = []
        for message in parked:
            effects.extend(self._on_bus(message, now))
        return effects

    def _on_refused(self, message: Refused, now: float) -> list[Effect]:
        known = self.directory.claims.get(message.host)
        if known is not None and message.epoch < known.epoch:
            return []
        effects: list[Effect] = [Report(f"{message.about} {message.topic}: {message.reason}")]
        operation = self._operation
        if message.about == "locate" and operation is not None and message.topic in operation.added:
            return [*effects, *self._abandon(operation, message, now)]
        version = self.version if operation is None else operation.version
        if message.about == "register" and message.version == version:
            effects.extend(self._register_again(message, now))
        return effects

    def _register_again(self, message: Refused, now: float) -> list[Effect]:
        operation = self._operation
        if operation is None:
            ranks = tuple(sorted(self.topics.values()))
            operation = self._operation = _Operation(tuple(sorted(self.topics)), (), ranks, {})
        if not message.current:
            # The hosts have removed us: whatever came since may lack entries that we needed.
            self.stopped = operation.renewal = True
        self.version = max(self.version, message.current)
        if operation.version:
            self.version += 1
            operation.version = self.version
        return self._proceed(now)

    def _abandon(self, operation: _Operation, message: Refused, now: float) -> list[Effect]:
        self._operation, self._repeat_at = None, None
        self._wanted = tuple(sorted(self.topics))
        effects: list[Effect] = [BusUnsubscribe(topic) for topic in operation.added]
        effects.append(Failed(message.topic, 0, message.reason))
        if operation.version == 0 and operation.old == tuple(sorted(self.topics.values())):
            return effects
        self._operation = _Operation(self._wanted, (), operation.old, {})
        return [*effects, *self._proceed(now)]

    def _renew(self, values: dict[int, int]) -> list[Effect]:
        """Registered anew after an expiry: go on from the new baselines, and say what was passed over."""
        effects: list[Effect] = []
        for topic, rank in self.topics.items():
            lane = self.buffer.lanes[rank]
            if values[rank] > lane.clock:
                effects.append(Gap(topic, lane.clock + 1, values[rank]))
            clock = max(lane.clock, values[rank])
            self.buffer.size -= len(lane.items)
            self.buffer.add(topic, rank, clock)
        return effects

    # Time

    def _on_tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(self.buffer, BoundedBuffer) and not self.stopped:
            effects.extend(self.buffer.expire(now))
            self.buffer.halted.clear()
        if self._repeat_at is not None and self._repeat_at <= now:
            effects.extend(self._proceed(now))
        if self._refresh_at is not None and self._refresh_at <= now:
            self._refresh_at = now + (self.config.repeat if self.stopped else self.config.refresh / 3)
            if self._operation is None:
                ranks = tuple(sorted(self.topics.values()))
                effects.extend(self._register(self.version, ranks, (), refresh=True, now=now))
        if self.valid_until is not None and self.valid_until <= now and not self.stopped:
            self.stopped = True
            effects.append(Report(f"no answer to signs of life for {self.config.expiry} s: delivery waits"))
        effects.extend(self._waits.ask(now))
        return effects

    # Durable subscribers

    def cursor(self) -> Cursor:
        """What to keep, together with the consumed position. Topics that are being added are not in it."""
        lanes = [self.buffer.lanes[rank] for rank in self.topics.values()]
        return Cursor(
            self.version,
            tuple((lane.topic, lane.rank, lane.clock) for lane in lanes),
            tuple(lane.unplaced.pairs() for lane in lanes),
            self.buffer.seen.dump(),
        )

    def resume(self, cursor: Cursor, now: float) -> list[Effect]:
        """Go on where the cursor stands. The bus gives again what was not consumed then."""
        self.version = cursor.version
        self.buffer.seen.load(cursor.seen)
        for (topic, rank, clock), unplaced in zip(cursor.topics, cursor.unplaced, strict=True):
            self.topics[topic] = self.ranks[topic] = rank
            lane = self.buffer.add(topic, rank, clock)
            for first, last in unplaced:
                lane.unplaced.add(first, last)
        self._wanted = tuple(sorted(self.topics))
        self.stopped = bool(self.topics)  # until the hosts confirm that they still have us
        self._refresh_at = now if self.topics else None
        return [BusSubscribe(topic) for topic in self._wanted]
