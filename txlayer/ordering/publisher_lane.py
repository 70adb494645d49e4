"""What a publisher has under way on one topic: events that wait for numbers, requests, releases."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from txlayer.ordering.messages import Beside, Published
from txlayer.ordering.timestamp import Stamp


@dataclass(slots=True)
class Item:
    """An event. `released`: it has been on the bus, perhaps under a number that was voided.

    `told`: its application has had its word about it, and gets no second one. `given_up`: that word was "unknown".
    """

    serial: int
    payload: bytes
    deadline: float | None
    released: bool = False
    beside: Beside | None = None
    told: bool = False
    given_up: bool = False

    def overdue(self, now: float) -> bool:
        """Whether its application must be told now."""
        return self.deadline is not None and self.deadline <= now and not self.told


@dataclass(slots=True)
class Request:
    """Events for which numbers were asked for."""

    seq: int
    items: list[Item]
    asked: float
    stamp: Stamp | None = None


@dataclass(slots=True)
class Release:
    """Events that are with the bus under their numbers, until the host has acknowledged it."""

    seq: int
    first: int
    items: list[Item]
    unhanded: dict[int, None]


@dataclass(slots=True)
class Lane:
    """One topic."""

    topic: str
    generation: int = 1
    serial: int = 0
    seq: int = 1
    last_number: int = 0
    rank: int | None = None
    waiting: deque[Item] = field(default_factory=deque)
    requests: deque[Request] = field(default_factory=deque)
    releases: dict[int, Release] = field(default_factory=dict)
    reminders: dict[int, Published] = field(default_factory=dict)

    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not (self.waiting or self.requests or self.releases)

    def outstanding(self) -> list[Item]:
        """Events that have been asked for and not released."""
        return [item for request in self.requests for item in request.items]

    def release_of(self, number: int) -> Release | None:
        """The release that holds a number which the bus has not acknowledged."""
        found = self.releases.get(number)
        if found is not None:
            return found
        return next((release for release in reversed(self.releases.values()) if number in release.unhanded), None)

    def forget_numbers(self) -> list[Item]:
        """Of a log that is gone. What was on the bus under them and not acknowledged."""
        released = [item for release in self.releases.values() for item in release.items]
        self.releases.clear()
        self.reminders.clear()
        self.rank, self.last_number = None, 0
        return released

    def withdraw(self) -> list[Item]:
        """Take back all requests; their numbers will not be used. What was asked for, in order."""
        items = self.outstanding()
        if self.requests:
            self.seq = self.requests[0].seq
        self.requests.clear()
        self.generation += 1
        return items
