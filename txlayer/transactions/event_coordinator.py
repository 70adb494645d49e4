"""The event coordinator: one order for the events of a transaction (TOPS 4.5.1, 4.5.3).

Every publisher numbers its own submissions; they are taken in that order, each once, and get the next number of the
transaction. A commit request says how many events its publisher submitted, because it can overtake them; it waits
until they are all in. Who may publish, commit and abort is fixed in the terms and checked here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from txlayer.errors import UsageError
from txlayer.messages import Access, Item, Numbered, Submit, Terms
from txlayer.tokens import EMPTY_DIGEST, extend_digest

_AROUND_ITEM, _AROUND_HEADER = 32, 8
"""Bytes of a message around an event and around a header of it, at most: lengths, the number."""


def size_of(item: Item, publisher: str) -> int:
    """Bytes that an event takes in a message, which may hold all events of its transaction."""
    headers = sum(_AROUND_HEADER + len(name.encode()) + len(value.encode()) for name, value in item.headers)
    return _AROUND_ITEM + len(item.payload) + len(item.type.encode()) + len(publisher.encode()) + headers


def size_of_terms(terms: Terms) -> int:
    """Bytes that the attributes and whatever else was agreed take in a message."""
    return len(msgspec.msgpack.encode(terms))


@dataclass(slots=True)
class Limits:
    """Bounds on what one transaction may hold. Over one of them is a refusal that names it.

    `bytes`: events with their headers, and the transaction's own attributes: a message may have to hold them all.
    `ahead`: how far the events of one publisher may come before one that is missing; those beyond are said again.
    """

    events: int = 10_000
    bytes: int = 8 * 1024 * 1024
    ahead: int = 256


def check_answer(attributes: tuple[tuple[str, str], ...], limits: Limits) -> None:
    """Refuse what a member says of itself if no message could hold it."""
    size = size_of(Item("", b"", attributes), "")
    if size > limits.bytes:
        raise UsageError(f"on_join answered with {size} bytes of attributes, at most {limits.bytes}: not taking part")


@dataclass(slots=True)
class EventCoordinator:
    """Numbers the events of one transaction."""

    terms: Terms
    initiator: str
    limits: Limits
    events: list[Numbered] = field(default_factory=list)
    digest: bytes = EMPTY_DIGEST
    size: int = 0
    accepted: dict[str, int] = field(default_factory=dict)
    early: dict[tuple[str, int], Item] = field(default_factory=dict)
    waiting: int = 0
    """Bytes in `early`."""

    def __post_init__(self) -> None:
        self.size = size_of_terms(self.terms)

    def may_publish(self, site: str) -> bool:
        """The initiator; with multi-publisher access everyone, or those whom the terms list."""
        if site == self.initiator:
            return True
        return self.terms.access is Access.MULTI and (not self.terms.publishers or site in self.terms.publishers)

    def may_end(self, site: str) -> bool:
        """Who may commit and abort: the initiator, and with multi-publisher access those whom the terms list."""
        return site == self.initiator or (self.terms.access is Access.MULTI and site in self.terms.committers)

    def on_submit(self, submit: Submit) -> list[Numbered]:
        """The events that this submission puts in order: none, itself, or also some that came early."""
        publisher = submit.publisher
        if not self._wanted(submit):
            return []
        self.early[publisher, submit.number] = submit.item
        self.waiting += size_of(submit.item, publisher)
        taken = []
        while (item := self.early.pop((publisher, self.upto(publisher) + 1), None)) is not None:
            self.accepted[publisher] = self.upto(publisher) + 1
            self.waiting -= size_of(item, publisher)
            taken.append(self._number(item, publisher))
        return taken

    def _wanted(self, submit: Submit) -> bool:
        """The next event of its publisher is always taken, and a window of those after it, each once."""
        first = self.upto(submit.publisher) + 1
        within = first <= submit.number < first + self.limits.ahead
        return within and (submit.publisher, submit.number) not in self.early

    def give_up(self, publisher: str) -> None:
        """An event of this publisher was refused: what waits behind it will not be taken."""
        for key in [key for key in self.early if key[0] == publisher]:
            self.waiting -= size_of(self.early.pop(key), publisher)

    def take_all(self, items: tuple[Item, ...], publisher: str) -> None:
        """One shot: all events are known at the start."""
        for item in items:
            self._number(item, publisher)
        if items:
            self.accepted[publisher] = len(items)

    def upto(self, publisher: str) -> int:
        """How many events of this publisher are in."""
        return self.accepted.get(publisher, 0)

    def over_limit(self, submit: Submit) -> str:
        """Which limit this event would break, together with those that wait for an earlier one; empty if none."""
        if not self._wanted(submit):
            return ""
        if len(self.events) + len(self.early) >= self.limits.events:
            return f"more than {self.limits.events} events in one transaction: raise limits.events"
        if self.size + self.waiting + size_of(submit.item, submit.publisher) > self.limits.bytes:
            return f"more than {self.limits.bytes} bytes in one transaction: raise limits.bytes"
        return ""

    def between(self, first: int, last: int) -> list[Numbered]:
        """Events that a member asks for again."""
        return self.events[max(first, 1) - 1 : max(last, 0)]  # a negative number would count from the end

    def _number(self, item: Item, publisher: str) -> Numbered:
        event = Numbered(len(self.events) + 1, item, publisher)
        self.events.append(event)
        self.digest = extend_digest(self.digest, event)
        self.size += size_of(item, publisher)
        return event
