"""The manager of one topic: its tickets, its sequencing group, and the base of its stamps (TNO 3.4).

A ticket binds numbers to one request of one publisher. It is OPEN while its stamp is being filled, READY when the
publisher may use it, DONE when the bus has the events, VOID when nobody may use the numbers. A number never changes
hands: what is in doubt is voided, and the events get new numbers.

The sequencing group is the topic and every topic that shares a subscription with it. (Groups from two subscriptions,
as published, let two subscribers disagree when a third leaves.)
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable
from itertools import compress
from operator import ne

from msgspec import Struct

from txlayer.ordering.counters import Counters
from txlayer.ordering.timestamp import WINDOW, Stamp
from txlayer.ranges import Ranges

OPEN, READY, DONE, VOID = range(4)


class Ticket(Struct, eq=False, gc=False):
    """Numbers `first` to `last` for the request `seq` of a publisher.

    Many of them wait at a time, so the garbage collector does not visit them: they end when they are forgotten.
    """

    manager: TopicManager
    line: Line
    generation: int
    seq: int
    first: int
    last: int
    count: int
    until: float
    state: int = OPEN
    ranks: tuple[int, ...] = ()
    values: tuple[int, ...] | None = None


class Line:
    """The requests of one publisher on one topic."""

    __slots__ = ("expected", "generation", "publisher", "tickets")

    def __init__(self, publisher: str, generation: int, expected: int) -> None:
        self.publisher = publisher
        self.generation = generation
        self.expected = expected
        self.tickets: dict[int, Ticket] = {}


class TopicManager:
    """State of one topic; the host does the talking."""

    __slots__ = (
        "base",
        "base_ranks",
        "base_values",
        "by_first",
        "closed",
        "doubtful",
        "floor",
        "forgotten",
        "history",
        "lines",
        "mark",
        "name",
        "needs_up",
        "partners",
        "rank",
        "ranks",
        "read",
        "reserved",
        "slot",
        "stale",
        "unsure",
        "voided",
        "whole",
    )

    def __init__(self, name: str, rank: int, slot: int) -> None:
        self.name = name
        self.rank = rank
        self.slot = slot
        self.reserved = 0
        self.closed = 0
        self.floor = 0
        self.forgotten = 0
        """Up to here all was settled before a restart that has forgotten whose numbers they were."""
        self.lines: dict[str, Line] = {}
        self.by_first: dict[int, Ticket] = {}
        self.history: list[Ticket] = []
        self.voided = Ranges()
        self.unsure = Ranges()
        self.doubtful = Ranges()
        self.partners: dict[int, int] = {}
        self.whole = 0
        self.ranks: tuple[int, ...] = ()
        self.read: Callable[[list[int]], tuple[int, ...]] = lambda values: ()
        self.needs_up = False
        self.stale = False
        self.mark = 0
        self.base = 0
        self.base_ranks: tuple[int, ...] = ()
        self.base_values: tuple[int, ...] = ()

    def join(self, ranks: tuple[int, ...], related: bool, whole: bool) -> None:
        """A subscription with this topic has come."""
        self.stale = True
        self.whole += whole
        for other in ranks if related else ():
            self.partners[other] = self.partners.get(other, 0) + 1

    def leave(self, ranks: tuple[int, ...], related: bool, whole: bool) -> None:
        """A subscription with this topic has gone."""
        self.stale = True
        self.whole -= whole
        for other in ranks if related else ():
            self.partners[other] -= 1
            if not self.partners[other]:
                del self.partners[other]

    def regroup(self, counters: Counters, highest_own: int) -> None:
        """Lay the stamps out anew after a subscription has changed."""
        self.stale = False
        self.ranks = tuple(sorted(rank for rank in self.group() if rank != self.rank))
        self.read = counters.reader(self.ranks)
        self.needs_up = bool(self.ranks) and self.ranks[0] < highest_own

    def group(self) -> list[int]:
        """The sequencing group, from the live subscriptions."""
        return list(self.partners)

    def stamp(self, ticket: Ticket, epoch: int, deltas: bool) -> Stamp:
        """What the publisher attaches: all entries, or those that differ from the base."""
        first, ranks, values = ticket.first, ticket.ranks, ticket.values
        assert values is not None
        if not (ranks and deltas and self.usable_base(ticket)):
            return Stamp(self.rank, first, epoch, 0, ranks, values)
        if values == self.base_values:
            return Stamp(self.rank, first, epoch, self.base)
        changed = [*map(ne, values, self.base_values)]
        return Stamp(self.rank, first, epoch, self.base, (*compress(ranks, changed),), (*compress(values, changed),))

    def usable_base(self, ticket: Ticket) -> bool:
        """The base comes before this number, after the last subscription change, and is published for certain."""
        return (
            self.mark < self.base < ticket.first
            and ticket.first - self.base <= WINDOW
            and ticket.ranks is self.base_ranks
            and not self.whole
        )

    def rebase(self, ticket: Ticket) -> None:
        """The ticket's events are published: later stamps may rest on the last of them."""
        if ticket.values is not None and ticket.last > self.base:
            self.base, self.base_ranks, self.base_values = ticket.last, ticket.ranks, ticket.values

    def keep(self, ticket: Ticket) -> None:
        """Remember a ticket, by its number and in its line."""
        self.by_first[ticket.first] = ticket
        self.history.append(ticket)
        ticket.line.tickets[ticket.seq] = ticket

    def find(self, number: int) -> Ticket | None:
        """The ticket that a number belongs to, if it is remembered."""
        at = bisect_right(self.history, number, key=lambda ticket: ticket.first) - 1
        if at < 0 or self.history[at].last < number:
            return None
        return self.by_first.get(self.history[at].first)

    def close_prefix(self) -> int:
        """Everything up to here is published or void; tells how much."""
        limit = self.unsure.firsts[0] - 1 if self.unsure else None
        at = bisect_right(self.history, self.closed, key=lambda ticket: ticket.first)
        while at < len(self.history) and self.history[at].state >= DONE:
            last = self.history[at].last
            if limit is not None and last > limit:
                break
            self.closed = max(self.closed, last)
            at += 1
        return self.closed

    def adopt(self, ticket: Ticket) -> None:
        """Remember a ticket of an earlier life, whose number lies below those that were given since."""
        self.by_first[ticket.first] = ticket
        insort(self.history, ticket, key=lambda ticket: ticket.first)

    def forget(self, tickets: list[Ticket]) -> None:
        """Drop closed tickets."""
        for ticket in tickets:
            del self.by_first[ticket.first]
            if ticket.line.tickets.get(ticket.seq) is ticket:
                del ticket.line.tickets[ticket.seq]
        gone = 0
        while gone < len(self.history) and self.history[gone].first not in self.by_first:
            gone += 1
        del self.history[:gone]
