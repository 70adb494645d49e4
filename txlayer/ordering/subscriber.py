"""A subscriber's ordering module: subscriptions, one operation at a time, and the buffer that restores the order.

A new topic is subscribed at the bus first; what comes is kept. Then its rank is asked for, and the whole new set, with
a version, goes up the chain. The answer has the counters as they were when it passed: that of the new topic is its
baseline, what is at or below it was published before. Until the answer is here every event with an entry for that topic
is held back. Clocks of the other topics are not touched. An unsubscribed topic is forgotten at once; the bus lets go of
it when the cursor without it is kept.

A sign of life goes up the chain from time to time. Its answer tells how far each topic has come, so that a loss at the
very end is noticed too; and if it does not come for longer than the expiry, delivery stops until the subscription is
renewed, because the hosts may have removed it.

A host that comes with another log has other ranks and counts from 1, one that is retired has none: its topics are
subscribed anew, and what may have been missed is reported as a gap that is not certain. What still comes under numbers
of the former log is dropped.
"""

from __future__ import annotations

from typing import TypeAlias

from txlayer.ordering.admission import fault_in_message, is_ahead, is_former
from txlayer.ordering.bounded_buffer import BoundedBuffer
from txlayer.ordering.deferred import Deferred
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
from txlayer.ordering.former_logs import FormerLogs
from txlayer.ordering.messages import AnyMessage, Event, Locate, Located, Refused, Register, Registered, Void
from txlayer.ordering.operation import Operation, unanswered
from txlayer.ordering.subscriber_config import Cursor, Mode, SubscriberConfig
from txlayer.ordering.timestamp import host_of
from txlayer.ordering.waits import Waits

SubscriberEvent: TypeAlias = Tick | Want | BusSubscribed | Claimed | Located | Registered | Refused | Event | Void


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
        self.logs = FormerLogs()
        self._refusal: str | None = None
        self._wanted: tuple[str, ...] = ()
        self._operation: Operation | None = None
        self._deferred = Deferred()
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

    @property
    def wanted(self) -> tuple[str, ...]:
        """What the application wants, or wanted when its cursor was kept."""
        return self._wanted

    def waits_for(self) -> str:
        """Why what was asked for is not in force yet."""
        return self._refusal or unanswered(self._operation, self.topics, self.ranks, self.directory)

    # What comes from the bus

    def _on_bus(self, message: Event | Void, now: float) -> list[Effect]:
        fault = fault_in_message(message, self.directory, self.config.mode)
        if fault is not None:
            return [Report(fault)]
        if is_ahead(message, self.directory):
            return self._deferred.keep_early(message, self.config.early)
        if is_former(message, self.directory):
            self.buffer.dropped += 1
            return []
        rank = message.stamp.rank if isinstance(message, Event) else message.rank
        if self.stopped:
            self._deferred.park(message, self.config.capacity)
            return []
        if rank not in self.buffer.lanes:
            if self._operation is not None:
                self._operation.hold(rank, message, self.ranks, self.config.capacity)
            return []
        return self._take(message, now)

    def _on_claimed(self, event: Claimed, now: float) -> list[Effect]:
        reason, replaced = self.directory.follow(event)
        if reason is not None:
            return [Report(reason)]
        effects = self._begin_anew(event, now) if replaced or self.logs.differs(event) else []
        early = self._deferred.take_early()
        return [*effects, *(effect for message in early for effect in self._on_bus(message, now))]

    def _begin_anew(self, claim: Claimed, now: float) -> list[Effect]:
        host, log = claim.host, self.logs.leave(claim.host)
        effects: list[Effect] = [
            Report(f"host {claim.name} (rank {host}) no longer has its log: its topics begin anew")
        ]
        for topic in [topic for topic, rank in self.ranks.items() if host_of(rank) == host]:
            rank = self.ranks.pop(topic)
            self.directory.homes.pop(topic, None)
            if topic in self.topics:
                self.logs.pass_by(self.buffer.lanes[self.topics.pop(topic)], log)
            effects.extend([*self.buffer.remove(rank), *self.buffer.settle(rank)])
        left = self._break_off(effects)
        return [*effects, *self._begin(now, tuple(rank for rank in left if host_of(rank) != host))]

    def _break_off(self, effects: list[Effect]) -> tuple[int, ...]:
        """End the operation where it stands: what the hosts may have of us, besides what we have ourselves."""
        operation, self._operation, self._repeat_at = self._operation, None, None
        if operation is None:
            return ()
        self.version += bool(operation.version)  # an answer to it comes too late
        known = (self.ranks[topic] for topic in operation.added if topic in self.ranks)
        asked = (*known,) if operation.version else ()
        for rank in asked:
            effects.extend(self.buffer.settle(rank))  # the next operation takes a later baseline
        return (*operation.old, *operation.left, *asked)

    def _take(self, message: Event | Void, now: float) -> list[Effect]:
        buffer = self.buffer
        if isinstance(message, Event):
            effects = buffer.take(message, now)
        else:
            current = message.epoch >= self.directory.claims[host_of(message.rank)].epoch
            effects = buffer.settle_former(message) if current else []
            effects.extend(buffer.take_void(message, now))
        self._waits.look_again(now)
        return effects

    # Subscribing and unsubscribing

    def _on_want(self, event: Want, now: float) -> list[Effect]:
        for topic in event.topics:
            check_topic(topic)
        self._wanted = tuple(sorted({*event.topics}))
        return self._begin(now) if self._operation is None else self._let_go(self._operation, now)

    def _let_go(self, operation: Operation, now: float) -> list[Effect]:
        """Nothing waits for a topic that is no longer wanted, also while the hosts are about to have it."""
        unwanted = [topic for topic in operation.added if topic not in self._wanted]
        if not operation.version and unwanted:
            self._operation, self._repeat_at = None, None
            leaving: list[Effect] = [BusUnsubscribe(topic) for topic in unwanted]
            return [*leaving, *self._begin(now, (*operation.old, *operation.left))]
        operation.added = tuple(topic for topic in operation.added if topic in self._wanted)
        effects: list[Effect] = []
        for topic in unwanted:
            operation.left = (*operation.left, self.ranks[topic])
            operation.unsubscribed.pop(topic, None)
            effects.extend([BusUnsubscribe(topic), *self.buffer.settle(self.ranks[topic])])
        self._waits.look_again(now)
        return effects

    def _begin(self, now: float, left: tuple[int, ...] = ()) -> list[Effect]:
        """From what there is to what is wanted. `left`: topics that the hosts may still have of us."""
        self._refusal = None
        self.logs.keep_only(self._wanted)
        added = tuple(topic for topic in self._wanted if topic not in self.topics)
        again = tuple(self.ranks[topic] for topic in added if self.ranks.get(topic) in left)
        old = tuple(sorted({*self.topics.values(), *left}.difference(again)))
        if self._wanted == tuple(sorted(self.topics)) and len(old) == len(self.topics):
            if not old:
                self.stopped, self.valid_until, self._refresh_at = False, None, None  # nobody confirms an empty set
            return []
        removed = [topic for topic in self.topics if topic not in self._wanted]
        self._operation = Operation(self._wanted, added, old, dict.fromkeys(added), again)
        effects: list[Effect] = [BusSubscribe(topic) for topic in added]
        for topic in removed:
            effects.extend(self.buffer.remove(self.topics.pop(topic)))
        self._waits.look_again(now)
        effects.extend(self._proceed(now))
        if removed and Checkpoint() not in effects:
            # A restart must not bring a topic back that the bus has not kept for us meanwhile.
            effects.append(Checkpoint())
        return [*effects, *(BusUnsubscribe(topic) for topic in removed)]

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
            self.directory.homes[topic] = message.host
        self._refusal = None
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
        self._operation, self._repeat_at, self._refusal = None, None, None
        self._extend(message.sent, now)
        effects = self._renew(values) if operation.renewal else []
        for topic in operation.added:
            rank = self.ranks[topic]
            self.topics[topic] = rank
            self.buffer.add(topic, rank, values[rank])
            effects.extend(self.logs.gaps(topic, values[rank]))
        self.logs.rest_on(self.topics.values(), self.directory)
        for topic in operation.added:
            effects.extend(self.buffer.settle(self.ranks[topic]))
        effects.append(Changed(tuple(topic for topic in operation.target if topic in self.topics)))
        for topic in operation.added:
            for held in operation.held_of(topic, self.ranks[topic]):
                effects.extend(self._take(held, now))
            self._expect_former(message, topic, operation, now)
        effects.extend(self._unpark(now))
        self._waits.look_again(now)
        return [*effects, *self._begin(now, operation.left)]

    def _expect_former(self, message: Registered, topic: str, operation: Operation, now: float) -> None:
        """What a former holder numbers from now on lies below the baseline, and is missing: it is to be reported."""
        if self.config.mode is Mode.UNRELIABLE:
            return
        rank = self.ranks[topic]
        former, baseline = self.buffer.lanes[rank].former, dict(zip(message.ranks, message.values, strict=False))[rank]
        for other, first, last in message.unsure:
            if other == rank:
                former.add(first, min(last, baseline))
        for held in operation.held_of(topic, rank):
            if isinstance(held, Event):
                former.remove(held.stamp.number)  # published before we were subscribed
        self._waits.watch_former(rank, now)

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
        return [effect for message in self._deferred.take_parked() for effect in self._on_bus(message, now)]

    def _on_refused(self, message: Refused, now: float) -> list[Effect]:
        known = self.directory.claims.get(message.host)
        if known is not None and message.epoch < known.epoch:
            return []
        effects: list[Effect] = [Report(f"{message.about} {message.topic}: {message.reason}")]
        operation = self._operation
        if message.topic in self.logs.passed:
            # It was subscribed and shall be again: asked for until a host has it.
            before, self._refusal = self._refusal, message.reason
            return effects if before != message.reason else []
        if message.about == "locate" and operation is not None and message.topic in operation.added:
            return [*effects, *self._abandon(operation, message, now)]
        version = self.version if operation is None else operation.version
        if message.about in ("register", "limit") and message.version == version:
            name = self.directory.name_of(message.host) or f"of rank {message.host}"
            if message.about == "register":
                effects.extend(self._register_again(message, now))
            self._refusal = f"refused by host {name}: {message.reason}"
        return effects

    def _register_again(self, message: Refused, now: float) -> list[Effect]:
        """A sign of life was refused: register at once. A registration was: again when it would be repeated anyway."""
        operation, at_once = self._operation, self._operation is None
        if operation is None:
            ranks = tuple(sorted(self.topics.values()))
            operation = self._operation = Operation(tuple(sorted(self.topics)), (), ranks, {})
        if not message.current:
            # The hosts have removed us: whatever came since may lack entries that we needed.
            self.stopped = operation.renewal = True
        self.version = max(self.version, message.current)
        if operation.version:
            self.version += 1
            operation.version = self.version
        return self._proceed(now) if at_once else []

    def _abandon(self, operation: Operation, message: Refused, now: float) -> list[Effect]:
        self._operation, self._repeat_at = None, None
        self._wanted = tuple(sorted(self.topics))
        effects: list[Effect] = [BusUnsubscribe(topic) for topic in operation.added]
        effects.append(Failed(message.topic, 0, message.reason))
        old = tuple(sorted({*operation.old, *operation.left}))
        if operation.version == 0 and old == tuple(sorted(self.topics.values())):
            return effects
        self._operation = Operation(self._wanted, (), old, {})
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
            self.buffer.add(topic, rank, clock).former = lane.former
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

    def cursor(self, tracks: int = 1024) -> Cursor:
        """What to keep, together with the consumed position. Topics that are being added are not in it.

        `tracks`: of so many publishers and topics, those heard last, it tells what was seen.
        """
        lanes = [self.buffer.lanes[rank] for rank in self.topics.values()]
        passed = self.logs.passed
        return Cursor(
            self.version,
            (
                *((lane.topic, lane.rank, lane.clock) for lane in lanes),
                *((topic, one.rank, one.clock) for topic, one in passed.items()),
            ),
            (*(lane.unplaced.pairs() for lane in lanes), *(() for _ in passed)),
            self.buffer.seen.dump(tracks),
            self.logs.in_cursor(),
            (*(lane.former.pairs() for lane in lanes), *(() for _ in passed)),
        )

    def resume(self, cursor: Cursor, now: float) -> list[Effect]:
        """Go on where the cursor stands. The bus gives again what was not consumed then."""
        self.version = cursor.version
        self.logs.current = dict(cursor.logs)
        self.buffer.seen.load(cursor.seen)
        former = cursor.former or ((),) * len(cursor.topics)
        for (topic, rank, clock), unplaced, unsure in zip(cursor.topics, cursor.unplaced, former, strict=True):
            self.topics[topic] = self.ranks[topic] = rank
            self.directory.homes[topic] = host_of(rank)
            lane = self.buffer.add(topic, rank, clock)
            for first, last in unplaced:
                lane.unplaced.add(first, last)
            for first, last in unsure:
                lane.former.add(first, last)
            self._waits.watch_former(rank, now)
        self._wanted = tuple(sorted(self.topics))
        self.stopped = bool(self.topics)  # until the hosts confirm that they still have us
        self._refresh_at = now if self.topics else None
        effects: list[Effect] = [BusSubscribe(topic) for topic in self._wanted]
        for host, log in cursor.logs:
            claim = self.directory.claims.get(host)
            if claim is not None and claim.incarnation != log:
                effects.extend(self._begin_anew(claim, now))
        return effects
