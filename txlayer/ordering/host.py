"""A host of topic managers: one link of the multistage sequencer (TNO 3.4, figures 15 to 19, repaired).

Hosts form a chain by rank. A stamp that needs counters of higher-ranked hosts travels host by host over links that
keep order, through every host in between, so that no two stamps overtake each other: FIFO links between the managers
alone do not prevent that, and then three subscribers can wait for each other for ever. Subscriptions take the same
way. Inside a host everything is a function call. Answers go straight home.

Every start raises the epoch, durably, before the host says a word. Then it asks the next lower host for the counters
that it may have missed, and only then serves. Messages of older epochs are dropped. A newer holder of the same rank
fences this one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from txlayer.errors import LogCorrupt
from txlayer.ordering.directory import Directory, covers, is_topic
from txlayer.ordering.effects import Claimed, Effect, Neighbours, Persist, Report, Send, Tick
from txlayer.ordering.filling import fault_in_fill, fill_in
from txlayer.ordering.founding import Founding
from txlayer.ordering.host_state import HostConfig, HostState
from txlayer.ordering.link import DownLink, UpLink
from txlayer.ordering.messages import (
    Chained,
    Complete,
    Create,
    Fill,
    Gone,
    Hail,
    Hello,
    Locate,
    Located,
    Missing,
    Published,
    Register,
    Registered,
    Seek,
    Sought,
    Welcome,
)
from txlayer.ordering.records import (
    AnyRecord,
    ChainRecord,
    EpochRecord,
    SubscriptionRecord,
    TicketRecord,
    TopicRecord,
    VoidRecord,
)
from txlayer.ordering.registry import Registry
from txlayer.ordering.searches import Searches
from txlayer.ordering.ticket_desk import TicketDesk
from txlayer.ordering.timestamp import GONE, host_of, log_of, log_since, place_of
from txlayer.ordering.topic_manager import OPEN, TopicManager

HostEvent: TypeAlias = (
    Tick | Claimed | Neighbours | Locate | Create | Published | Gone | Register | Missing | Hail | Hello | Complete
    | Chained | Seek | Sought
)  # fmt: skip


class Host:
    """`step` takes what happened and returns what to do. Start it with `start`."""

    def __init__(self, name: str, rank: int, patterns: tuple[str, ...], incarnation: str, config: HostConfig) -> None:
        self.state = HostState(name, rank, config)
        self.patterns = patterns
        self._largest_batch = config.largest_batch
        self.incarnation = incarnation
        self.desk = TicketDesk(self.state)
        self.registry = Registry(self.state)
        self.searches = Searches(self.state)
        self.directory = Directory()
        self.founding = Founding(self.state, self.directory)
        self.up: UpLink | None = None
        self.down: DownLink | None = None
        self.behind = False
        self.fenced: str | None = None
        self._hello_at: float | None = None
        self._hail_at: float | None = None
        self._handlers: dict[type, Callable[..., list[Effect]]] = {
            Create: self._on_create,
            Published: self._on_published,
            Chained: self._on_chained,
            Complete: self._on_complete,
            Locate: self._on_locate,
            Register: self._on_subscriber,
            Missing: self._on_missing,
            Gone: self._on_gone,
            Hail: self._on_hail,
            Hello: self._on_hello,
            Seek: self._on_seek,
            Sought: self._on_sought,
            Tick: self._on_tick,
            Claimed: self._on_claimed,
            Neighbours: self._on_neighbours,
        }

    def step(self, event: HostEvent, now: float) -> list[Effect]:
        """One event in, effects out."""
        return self._handlers[type(event)](event, now)

    def takes(self, event: object) -> bool:
        """Whether it is something that is said to hosts."""
        return type(event) in self._handlers

    @property
    def serving(self) -> bool:
        """Whether numbers may be given: not fenced, and nothing missed that had passed by."""
        return self.fenced is None and not self.behind

    def claim(self) -> Claimed:
        """What the directory shows of this host."""
        state = self.state
        return Claimed(state.rank, state.name, state.epoch, self.incarnation, self.patterns, state.first_epoch)

    def start(
        self,
        records: Iterable[AnyRecord],
        neighbours: Neighbours,
        now: float,
        known_epoch: int = 0,
        retired: frozenset[int] = frozenset(),
    ) -> list[Effect]:
        """Begin a life, from what the log holds.

        `known_epoch`: the last one that the directory shows of this rank. `retired`: hosts that are gone for good.
        """
        records = list(records)
        neighbours = self._remembered(records, neighbours, retired)
        epochs = [record for record in records if isinstance(record, EpochRecord)]
        self.state.epoch = max([known_epoch, *(record.epoch for record in epochs)]) + 1
        self.state.first_epoch = epochs[0].first if epochs else self.state.epoch
        self._restore(records, now)
        self.behind = bool(epochs) and neighbours.lower is not None
        effects: list[Effect] = [Persist("epoch", EpochRecord(self.state.epoch, self.state.first_epoch))]
        effects.extend(self._on_claimed(self.claim(), now))
        effects.extend(self._on_neighbours(neighbours, now))
        if self.state.config.durable_tickets:
            effects.extend(self.desk.void_unsure())  # whatever was answered is in the log
        else:
            self.desk.unsure_until = now + self.state.config.lease
        return effects

    def _remembered(self, records: list[AnyRecord], shown: Neighbours, retired: frozenset[int]) -> Neighbours:
        """The neighbours among all hosts that were ever heard of: the directory may have lost some."""
        members = self.directory.members
        for record in records:
            if isinstance(record, ChainRecord):
                members.update({rank: name for rank, name in record.hosts if rank not in members})
        members.update(neighbour for neighbour in (shown.lower, shown.upper) if neighbour is not None)
        for rank in retired:
            members.pop(rank, None)
        return self.directory.neighbours(self.state.rank)

    def _restore(self, records: list[AnyRecord], now: float) -> None:
        state = self.state
        topics = sorted((record for record in records if isinstance(record, TopicRecord)), key=lambda r: r.rank)
        for record in topics:
            manager = state.add_topic(record.name)
            self.directory.homes[record.name] = state.rank
            if manager.rank != record.rank:
                raise LogCorrupt(f"topic {record.name} has rank {record.rank}, its place in the log is {manager.rank}")
            manager.reserved, manager.closed, manager.floor = record.reserved, record.closed, record.floor
            manager.forgotten = record.closed
            manager.unsure.add(record.closed + 1, record.reserved)
            state.counters.values[manager.slot] = self._first_free(record) - 1
            manager.mark = state.given(manager)
        tickets = (record for record in records if isinstance(record, TicketRecord))
        for ticket in sorted(tickets, key=lambda ticket: (ticket.rank, ticket.first)):
            home = state.places[place_of(ticket.rank)]
            self.desk.restore(ticket, home, now)
            home.unsure.cut(ticket.first, ticket.first + ticket.count - 1)
        for void in (record for record in records if isinstance(record, VoidRecord)):
            self.desk.voids.restore(void, state.places[place_of(void.rank)])
        # A topic that exists is claimed, whatever patterns this life was given: others ask before they create it.
        named = (name for name in state.topics if not any(covers(pattern, name) for pattern in self.patterns))
        self.patterns = (*self.patterns, *sorted(named))
        for subscription in (record for record in records if isinstance(record, SubscriptionRecord)):
            self.registry.restore(subscription, now)

    def _first_free(self, record: TopicRecord) -> int:
        # What was given of the block is not known: go on behind it.
        return record.reserved + 1

    # Publishing

    def _on_create(self, message: Create, now: float) -> list[Effect]:
        state = self.state
        manager = state.topics.get(message.topic)
        if manager is None or self.behind or self.fenced is not None:
            return self._cannot_create(message, now)
        if not 1 <= message.count <= self._largest_batch or message.low > message.seq:
            reason = f"{message.count} numbers from {message.seq} on, released below {message.low}"
            return self.state.refuse(message.publisher, "create", message.topic, reason)
        if manager.stale:
            self._regroup(manager)
        if manager.needs_up and not (self.up and self.up.session):
            return []  # no way up the chain yet: the publisher asks again
        effects: list[Effect] = []
        ticket = self.desk.create(message, manager, now, effects)
        if ticket is None:
            return effects
        ticket.ranks = manager.ranks
        values = manager.read(state.counters.values)
        if manager.needs_up:
            fill = Fill(
                self.state.rank, self.state.epoch, manager.rank, ticket.first, ticket.last, ticket.ranks,
                self._blanked(ticket.ranks, values),
            )  # fmt: skip
            effects.extend(self._upwards(fill))
        else:
            self.desk.complete(ticket, values, effects)
        return effects

    def _regroup(self, manager: TopicManager) -> None:
        self.state.regroup(manager)
        for rank in manager.ranks:
            claim = self.directory.claims.get(host_of(rank))
            if claim is not None and log_of(rank) < log_since(claim.first):
                self.state.counters.raise_to(rank, GONE)

    def _blanked(self, ranks: tuple[int, ...], values: tuple[int, ...]) -> tuple[int, ...]:
        own = self.state.rank
        return tuple(value if host_of(rank) >= own else 0 for rank, value in zip(ranks, values, strict=True))

    def _cannot_create(self, message: Create, now: float) -> list[Effect]:
        if self.behind and self.fenced is None:
            return []  # soon
        away = self._away(message.topic)
        if away is not None:
            return [Send(away, message)]
        reason = self._refusal(message.topic) or self.founding.stuck(message.topic, now)
        if reason is not None:
            return self.state.refuse(message.publisher, "create", message.topic, reason)
        asking = self.founding.ask(message.topic, now)
        if asking is not None:
            return asking
        effects = self._new_topic(message.topic)
        effects.extend(self._on_create(message, now))
        return effects

    def _away(self, topic: str) -> str | None:
        """The host that has the topic, if it is known to be another one."""
        host = self.directory.homes.get(topic, self.state.rank)
        return self.directory.name_of(host) if host != self.state.rank and self.fenced is None else None

    def _refusal(self, topic: str) -> str | None:
        if self.fenced is not None:
            return self.fenced
        if not is_topic(topic):
            return f"{topic[:200]!r} is no topic: the ordered bus takes no wildcards"
        owner = self.directory.home(topic)
        if owner is None:
            return f"no host claims topic {topic!r}"
        if owner.host != self.state.rank:
            return f"topic {topic!r} belongs to host {owner.name} (rank {owner.host}, epoch {owner.epoch})"
        if topic not in self.state.topics and len(self.state.places) >= self.state.config.topics:
            return f"host {self.state.name} has {len(self.state.places)} topics, its limit"
        return None

    def _new_topic(self, topic: str) -> list[Effect]:
        # Its rank is durable before its first number: the driver holds what follows.
        self.directory.homes[topic] = self.state.rank
        return [self.state.persist(self.state.add_topic(topic))]

    def _on_seek(self, message: Seek, now: float) -> list[Effect]:
        return [] if self.fenced is not None else self.founding.answer(message, now)

    def _on_sought(self, message: Sought, now: float) -> list[Effect]:
        create, effects = self.founding.answered(message, now)
        create = create and message.topic not in self.state.topics and self._refusal(message.topic) is None
        return [*effects, *(self._new_topic(message.topic) if create else ())]

    def _on_published(self, message: Published, now: float) -> list[Effect]:
        manager = self.state.topics.get(message.topic)
        if manager is None:
            return self.state.refuse(message.publisher, "published", message.topic, "unknown topic")
        if self.behind or self.fenced is not None:
            return []
        effects = self.desk.published(message, manager, now)
        if self.searches.open:
            self.searches.found(message, manager)
        return effects

    def _on_gone(self, message: Gone, now: float) -> list[Effect]:
        manager = self.state.topics.get(message.topic)
        return [] if manager is None else self.searches.gone(message, manager)

    def _on_missing(self, message: Missing, now: float) -> list[Effect]:
        manager = self.state.manager(message.rank)
        if not self.serving:
            return []
        if manager is None:
            return self.state.refuse(message.subscriber, "missing", "", f"no topic of rank {message.rank} here")
        if not 1 <= message.first <= message.last:
            return self.state.refuse(message.subscriber, "missing", manager.name, f"{message.first} to {message.last}")
        return self.searches.missing(message, manager, now)

    # Subscribing

    def _on_locate(self, message: Locate, now: float) -> list[Effect]:
        if self.behind and self.fenced is None:
            return []
        effects: list[Effect] = []
        for topic in message.topics:
            away = self._away(topic)
            if away is not None:
                effects.append(Send(away, Locate(message.sender, (topic,))))
                continue
            reason = self._refusal(topic) or self.founding.stuck(topic, now)
            if reason is not None:
                return self.state.refuse(message.sender, "locate", topic, reason)
            if topic not in self.state.topics:
                asking = self.founding.ask(topic, now)
                effects.extend(self._new_topic(topic) if asking is None else asking)
        here = tuple(topic for topic in message.topics if topic in self.state.topics)
        ranks = tuple(self.state.topics[topic].rank for topic in here)
        if message.topics and not here:
            return effects
        return [*effects, Send(message.sender, Located(self.state.rank, self.state.epoch, here, ranks))]

    def _on_subscriber(self, message: Register, now: float) -> list[Effect]:
        """A subscription from the subscriber itself. Counters are the word of hosts alone."""
        if message.ranks or message.values or message.unsure:
            return self.state.refuse(message.subscriber, "register", "", "counters of a subscriber", message.version)
        return self._on_register(message, now)

    def _on_register(self, message: Register, now: float) -> list[Effect]:
        """A subscription, from the subscriber itself or up the chain."""
        if not self.serving:
            return []
        higher = any(host_of(rank) < self.state.rank for rank in (*message.new, *message.old))
        unsure = [] if message.refresh else self._unsure(message)
        refused = self._cannot_register(message, unsure)
        if refused or (higher and not (self.up and self.up.session)):
            return refused
        for rank, value in zip(message.ranks, message.values, strict=False):
            if host_of(rank) > self.state.rank:
                self.state.counters.raise_to(rank, value)
        effects = self.registry.store(message, now)
        ranks, values = self._with_own(message)
        told = (*message.unsure, *unsure)
        if higher:
            onward = Register(
                message.subscriber, message.version, message.new, message.old, message.refresh, message.related,
                message.whole, message.sent, ranks, values, message.anew, message.lasting, told,
            )  # fmt: skip
            return [*effects, *self._upwards(onward)]
        done = Registered(message.version, message.refresh, message.sent, ranks, values, told)
        return [*effects, Send(message.subscriber, done)]

    def _cannot_register(self, message: Register, unsure: list[tuple[int, int, int]]) -> list[Effect]:
        """What to say of a subscription that is not taken; nothing if it is."""
        reason, most = self.registry.fault_in(message), self.state.config.unsure_ranges
        if reason is not None:
            current = self.registry.version_of(message.subscriber)
            return self.state.refuse(message.subscriber, "register", "", reason, message.version, current)
        if self.registry.is_full(message):
            reason = f"host {self.state.name} has {len(self.registry.known)} subscribers, its limit"
            return self.state.refuse(message.subscriber, "limit", "", reason, message.version)
        if len(unsure) > most + len(message.new):
            reason = f"{len(unsure)} ranges of numbers are in doubt, more than {most} are not told"
            return [Report(f"{message.subscriber} waits, at most for a lease: {reason}")]
        return []

    def _with_own(self, message: Register) -> tuple[tuple[int, ...], tuple[int, ...]]:
        own = [rank for rank in message.new if self.state.owns(rank)]
        values = tuple(self.state.counters.get(rank) for rank in own)
        return (*message.ranks, *own), (*message.values, *values)

    def _unsure(self, message: Register) -> list[tuple[int, int, int]]:
        """Numbers below the new baselines that may be of events to come: a former holder may still be giving them."""
        added = sorted({*message.new}.difference(message.old))
        managers = [manager for rank in added if (manager := self.state.manager(rank)) is not None]
        return [(manager.rank, *pair) for manager in managers for pair in manager.unsure.pairs()]

    # The chain

    def _upwards(self, body: Fill | Register | Welcome) -> list[Effect]:
        assert self.up is not None
        return [Send(self.up.name, self.up.frame(self.state.rank, self.state.epoch, body))]

    def _on_chained(self, frame: Chained, now: float) -> list[Effect]:
        if self.fenced is not None or self.down is None or self._former(frame.host, frame.epoch):
            return []
        if not self.down.takes(frame, self.state.epoch):
            # The sender has restarted, or has not heard that we have: begin the link anew.
            return self._hello(now) if self._hello_at is None and self.down.outdated(frame, self.state.epoch) else []
        body = frame.body
        if isinstance(body, Welcome):
            return self._on_welcome(body)
        if isinstance(body, Register):
            return self._on_register(body, now)
        return self._on_fill(body)

    def _on_fill(self, fill: Fill) -> list[Effect]:
        fault = fault_in_fill(self.state, fill)
        if fault is not None:
            return [Report(fault)]
        if fill.last <= self.state.counters.get(fill.rank):
            return []  # a replay
        values = fill_in(self.state, fill)
        if host_of(fill.ranks[0]) >= self.state.rank:
            home = self.directory.name_of(fill.home)
            return [Send(home, Complete(fill.epoch, fill.rank, fill.first, values))] if home else []
        if not (self.up and self.up.session):
            return []
        return self._upwards(Fill(fill.home, fill.epoch, fill.rank, fill.first, fill.last, fill.ranks, values))

    def _on_complete(self, message: Complete, now: float) -> list[Effect]:
        manager = self.state.manager(message.rank)
        if manager is None or not self.serving or message.epoch != self.state.epoch:
            return []
        ticket = manager.by_first.get(message.first)
        if ticket is None or ticket.state != OPEN or len(message.values) != len(ticket.ranks):
            return []
        effects: list[Effect] = []
        self.desk.complete(ticket, message.values, effects)
        return effects

    def _on_neighbours(self, event: Neighbours, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if event.lower is None:
            self.down, self._hello_at, self.behind = None, None, False
        elif self.down is None or (self.down.host, self.down.name) != event.lower:
            self.down = DownLink(*event.lower)
            effects.extend(self._hello(now))
        if event.upper is None:
            self.up, self._hail_at = None, None
        elif self.up is None or (self.up.host, self.up.name) != event.upper:
            self.up = UpLink(*event.upper)
            effects.extend(self._hail(now))
        return effects

    def _hail(self, now: float) -> list[Effect]:
        assert self.up is not None
        self._hail_at = now + self.state.config.repeat
        return [Send(self.up.name, Hail(self.state.rank, self.state.epoch))]

    def _hello(self, now: float) -> list[Effect]:
        assert self.down is not None
        self._hello_at = now + self.state.config.repeat
        return [Send(self.down.name, Hello(self.state.rank, self.state.epoch))]

    def _former(self, host: int, epoch: int) -> bool:
        """Whether a newer holder of the rank is known. Links of two former hosts must not cross those of the new."""
        claim = self.directory.claims.get(host)
        return claim is not None and epoch < claim.epoch

    def _on_hail(self, message: Hail, now: float) -> list[Effect]:
        if self.down is None or self.down.host != message.host or self._former(message.host, message.epoch):
            return []
        return self._hello(now)

    def _on_hello(self, message: Hello, now: float) -> list[Effect]:
        if self.up is None or self.up.host != message.host or not self.serving:
            return []
        if self._former(message.host, message.epoch) or not self.up.open(message.epoch):
            return [Report(f"host of rank {message.host} says hello in epoch {message.epoch}: a newer one holds it")]
        self._hail_at = None
        counters = self.state.counters
        ranks = tuple(rank for rank in sorted(counters.slot) if host_of(rank) >= self.state.rank)
        return self._upwards(Welcome(ranks, tuple(counters.get(rank) for rank in ranks)))

    def _on_welcome(self, welcome: Welcome) -> list[Effect]:
        for rank, value in zip(welcome.ranks, welcome.values, strict=False):
            if host_of(rank) > self.state.rank:
                self.state.counters.raise_to(rank, value)
        self._hello_at, self.behind = None, False
        return []

    # Directory and time

    def _on_claimed(self, claim: Claimed, now: float) -> list[Effect]:
        state = self.state
        newer = claim.epoch > state.epoch or (claim.epoch == state.epoch and claim.incarnation != self.incarnation)
        if claim.host == state.rank and claim != self.claim() and newer:
            self.fenced = f"host {state.name} of epoch {state.epoch} is fenced by {claim.name}, epoch {claim.epoch}"
            return [Report(self.fenced)]
        known, before = self.directory.members.get(claim.host), self.directory.claims.get(claim.host)
        refused, replaced = self.directory.follow(claim)
        effects: list[Effect] = [] if refused is None else [Report(refused)]
        if replaced:
            for manager in state.places:
                manager.stale = True
            effects.append(Report(f"host {claim.name} (rank {claim.host}) comes with another log: its topics are new"))
        if self.directory.members.get(claim.host) != known:
            effects.append(Persist("chain", ChainRecord(tuple(sorted(self.directory.members.items())))))
        if claim.host != state.rank and (before is None or before.patterns != claim.patterns):
            taken = [manager.name for manager in state.places if self.directory.claimant(manager.name) == claim]
            if taken:
                effects.append(
                    Report(f"host {claim.name} claims {len(taken)} topics of this host, which stay: {taken[:9]}")
                )
        return effects

    def _on_tick(self, event: Tick, now: float) -> list[Effect]:
        if self.fenced is not None:
            return []
        effects = [*self.desk.expire(now), *self.registry.expire(now), *self.searches.expire(now)]
        if self._hello_at is not None and self._hello_at <= now:
            effects.extend(self._hello(now))
        if self._hail_at is not None and self._hail_at <= now:
            effects.extend(self._hail(now))
        return effects

    def next_deadline(self) -> float | None:
        """When to step this host with a tick, at the latest."""
        if self.fenced is not None:
            return None
        times = (
            self.desk.next_deadline(), self.registry.next_deadline(), self.searches.next_deadline(), self._hello_at,
            self._hail_at,
        )  # fmt: skip
        return min((time for time in times if time is not None), default=None)

    def group_of(self, topic: str) -> tuple[int, ...]:
        """The sequencing group of a topic, for whoever looks in from outside."""
        manager = self.state.topics[topic]
        return tuple(sorted({manager.rank, *manager.group()}))


__all__ = ["Host", "HostConfig", "HostEvent", "TopicManager"]
