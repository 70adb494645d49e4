"""Where a host gives out numbers: requests, confirmations, leases and voids.

Requests are idempotent: one is known by (publisher, topic, generation, seq), a repetition gets the same answer, one
ahead of its turn waits for its predecessor by being ignored (go-back-N). A publisher that is in doubt starts a new
generation; what was open in the old one is voided. A ticket whose lease ends before its publisher has confirmed is
voided too, so that nobody waits for ever at a number that will not come.
"""

from __future__ import annotations

from collections import deque

from txlayer.ordering.effects import Effect, Erase, Persist, Send
from txlayer.ordering.host_state import HostState
from txlayer.ordering.messages import Acknowledged, Create, Published, Stamped, Voided
from txlayer.ordering.records import TicketRecord
from txlayer.ordering.timestamp import place_of
from txlayer.ordering.topic_manager import DONE, READY, VOID, Line, Ticket, TopicManager
from txlayer.ordering.void_book import VoidBook


class TicketDesk:
    """Tickets of all topics of a host."""

    __slots__ = ("_durable", "_lease", "_leases", "_retained", "state", "unsure_until", "voids")

    def __init__(self, state: HostState) -> None:
        self.state = state
        self.voids = VoidBook(state)
        self._durable = state.config.durable_tickets
        self._lease = state.config.lease
        self._leases: deque[Ticket] = deque()
        self._retained: deque[Ticket] = deque()
        self.unsure_until: float | None = None

    def create(self, message: Create, manager: TopicManager, now: float, effects: list[Effect]) -> Ticket | None:
        """Take a request; returns a new ticket that has its numbers and wants its entries."""
        line, generation, seq = manager.lines.get(message.publisher), message.generation, message.seq
        if line is None:
            if seq != message.low:
                return None  # its turn comes, and with it the line: one without tickets would stay for ever
            line = manager.lines[message.publisher] = Line(message.publisher, generation, seq)
        elif generation > line.generation:
            self._start_over(message, line, effects)
        elif generation < line.generation:
            return None
        if seq != line.expected:
            if seq < line.expected:
                self._again(message, line, effects)
            return None
        slot, count, values = manager.slot, message.count, self.state.counters.values
        first = values[slot] + 1
        last = values[slot] = first + count - 1
        ticket = Ticket(manager, line, generation, seq, first, last, count, now + self._lease)
        if last > manager.reserved:
            self._reserve(manager, last, effects)
        line.expected = seq + count
        manager.keep(ticket)
        self._leases.append(ticket)
        return ticket

    def _reserve(self, manager: TopicManager, last: int, effects: list[Effect]) -> None:
        # On disk before any number of the block is given: the driver holds what follows.
        manager.reserved = last + self.state.config.block
        effects.append(self.state.persist(manager))

    def _start_over(self, message: Create, line: Line, effects: list[Effect]) -> None:
        line.generation, line.expected = message.generation, message.low
        for ticket in list(line.tickets.values()):
            if ticket.seq >= message.low:
                del line.tickets[ticket.seq]
                if ticket.state < DONE:
                    effects.extend(self._void(ticket))

    def _again(self, message: Create, line: Line, effects: list[Effect]) -> None:
        ticket = line.tickets.get(message.seq)
        if ticket is None or ticket.count != message.count:
            return
        if ticket.state == READY:
            effects.append(self._answer(ticket))
        elif ticket.state == VOID:
            effects.append(self._nack(ticket))

    def complete(self, ticket: Ticket, values: tuple[int, ...], effects: list[Effect]) -> None:
        """All entries are there: the publisher may use the numbers."""
        ticket.values = values
        ticket.state = READY
        if self._durable:
            effects.append(self._persist(ticket))
        effects.append(self._answer(ticket))

    def _answer(self, ticket: Ticket) -> Effect:
        manager, state = ticket.manager, self.state
        stamp = manager.stamp(ticket, state.epoch, state.config.deltas)
        answer = Stamped(manager.name, ticket.generation, ticket.seq, ticket.count, stamp)
        return Send(ticket.line.publisher, answer)

    def _nack(self, ticket: Ticket) -> Effect:
        voided = Voided(ticket.manager.name, ticket.generation, ticket.seq, ticket.first, self.state.epoch)
        return Send(ticket.line.publisher, voided)

    def published(self, message: Published, manager: TopicManager, now: float) -> list[Effect]:
        """A publisher says that the bus has the events."""
        ticket = manager.by_first.get(message.first)
        if ticket is None:
            return self._published_unknown(message, manager, now)
        if ticket.line.publisher != message.publisher or ticket.seq != message.seq or ticket.count != message.count:
            reason = f"number {message.first} of {manager.name} is bound to {ticket.line.publisher}/{ticket.seq}"
            return self.state.refuse(message.publisher, "published", manager.name, reason, number=message.first)
        if ticket.state == VOID:
            return [self._nack(ticket)]
        effects = [] if ticket.line.tickets.get(ticket.seq) is ticket else self._void_rivals(ticket)
        if ticket.state != DONE:
            ticket.state = DONE
            manager.rebase(ticket)
            if self._durable:
                effects.append(self._persist(ticket))
        acknowledged = Acknowledged(manager.name, ticket.seq, ticket.first, self.state.epoch)
        effects.append(Send(message.publisher, acknowledged))
        return effects

    def _void_rivals(self, ticket: Ticket) -> list[Effect]:
        # After a lost tail the same request may have got a second number.
        rival = ticket.line.tickets.get(ticket.seq)
        if rival is None or rival is ticket or rival.state >= DONE:
            return []
        return self._void(rival)

    def _published_unknown(self, message: Published, manager: TopicManager, now: float) -> list[Effect]:
        last = message.first + message.count - 1
        if message.first in manager.voided:
            nack = Voided(manager.name, 0, message.seq, message.first, self.state.epoch)
            return [Send(message.publisher, nack)]
        if last > self.state.given(manager):
            reason = f"number {last} of {manager.name} was never given"
            return self.state.refuse(message.publisher, "published", manager.name, reason, number=message.first)
        effects: list[Effect] = []
        if message.first <= manager.floor:
            reason = f"whether number {message.first} of {manager.name} is void is no longer known"
            return self.state.refuse(message.publisher, "published", manager.name, reason, number=message.first)
        if message.first in manager.unsure:
            effects.extend(self._adopt(message, manager, now))
            manager.unsure.cut(message.first, last)
        elif message.first <= manager.forgotten:
            effects.extend(self._adopt(message, manager, now))
        acknowledged = Acknowledged(manager.name, message.seq, message.first, self.state.epoch)
        return [*effects, Send(message.publisher, acknowledged)]

    def _adopt(self, message: Published, manager: TopicManager, now: float) -> list[Effect]:
        # Given before a restart that forgot it, and published: it counts, and it knows its publisher again.
        last = message.first + message.count - 1
        line = manager.lines.get(message.publisher)
        if line is None:
            line = Line(message.publisher, 0, message.seq + message.count)
            manager.lines[message.publisher] = line
        until = now + self._lease
        ticket = Ticket(manager, line, line.generation, message.seq, message.first, last, message.count, until)
        ticket.state = DONE
        manager.adopt(ticket)
        self._leases.append(ticket)
        return self._void_rivals(ticket)

    def _void(self, ticket: Ticket) -> list[Effect]:
        ticket.state = VOID
        effects: list[Effect] = [self._persist(ticket)] if self._durable else []
        return [*effects, *self.voids.add(ticket.manager, ticket.first, ticket.last)]

    def _persist(self, ticket: Ticket) -> Persist:
        rank, line = ticket.manager.rank, ticket.line
        record = TicketRecord(
            rank, line.publisher, ticket.generation, ticket.seq, ticket.first, ticket.count, ticket.state,
            ticket.ranks, ticket.values or (),
        )  # fmt: skip
        return Persist(f"ticket/{place_of(rank)}/{ticket.first}", record)

    def restore(self, record: TicketRecord, manager: TopicManager, now: float) -> None:
        """A ticket from the log. What was given and answered keeps its meaning."""
        line = manager.lines.get(record.publisher)
        if line is None:
            line = manager.lines[record.publisher] = Line(record.publisher, record.generation, 0)
        until = now + self._lease
        last = record.first + record.count - 1
        ticket = Ticket(manager, line, record.generation, record.seq, record.first, last, record.count, until)
        ticket.state, ticket.ranks, ticket.values = record.state, record.ranks, record.values
        if record.generation >= line.generation:
            line.generation = record.generation
            line.expected = record.seq + record.count
        manager.keep(ticket)
        self._leases.append(ticket)

    def expire(self, now: float) -> list[Effect]:
        """Void what was open for too long; forget what is long closed."""
        effects: list[Effect] = []
        while self._leases and (self._leases[0].until <= now or self._leases[0].state >= DONE):
            ticket = self._leases.popleft()
            if ticket.state < DONE:
                effects.extend(self._void(ticket))
                effects.append(self._nack(ticket))
            self._retained.append(ticket)
        if self.unsure_until is not None and self.unsure_until <= now:
            effects.extend(self.void_unsure())
        effects.extend(self._retire(now))
        return effects

    def void_unsure(self) -> list[Effect]:
        """Numbers that a restart has skipped: nobody will confirm them any more."""
        self.unsure_until = None
        effects: list[Effect] = []
        doubtful = not self._durable
        for manager in self.state.places:
            for first, last in manager.unsure.pairs():
                effects.extend(self.voids.add(manager, first, last, doubtful))
            manager.unsure.forget_below(manager.reserved + 1)
            manager.forgotten = 0  # whoever has published them has said so by now
        return effects

    def _retire(self, now: float) -> list[Effect]:
        touched: dict[int, list[Ticket]] = {}
        retention, excess = self.state.config.retention, len(self._retained) - self.state.config.retained
        # The same sum as in `next_deadline`: rounded otherwise, a tick at that time would find nothing to do for ever.
        while self._retained and (self._retained[0].until + retention <= now or excess > 0):
            excess -= 1
            ticket = self._retained.popleft()
            touched.setdefault(ticket.manager.rank, []).append(ticket)
        effects: list[Effect] = []
        for tickets in touched.values():
            effects.extend(self._retire_topic(tickets[0].manager, tickets))
        return effects

    def _retire_topic(self, manager: TopicManager, tickets: list[Ticket]) -> list[Effect]:
        # The topic's record says "all closed up to here" before the records of those tickets go.
        durable = self._durable
        effects: list[Effect] = [self.state.persist(manager)] if durable else []
        manager.forget(tickets)
        for ticket in tickets:
            if durable:
                effects.append(Erase(f"ticket/{place_of(manager.rank)}/{ticket.first}"))
            if not ticket.line.tickets and manager.lines.get(ticket.line.publisher) is ticket.line:
                del manager.lines[ticket.line.publisher]
        return effects

    def next_deadline(self) -> float | None:
        """When the next lease ends."""
        times = [self._leases[0].until] if self._leases else []
        if self._retained:
            times.append(self._retained[0].until + self.state.config.retention)
        if self.unsure_until is not None:
            times.append(self.unsure_until)
        return min(times, default=None)
