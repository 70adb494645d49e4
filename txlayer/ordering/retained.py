"""What a publisher has sent and keeps for a while, to send it again to who has not got it. Bounded three ways."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from txlayer.ordering.messages import Event

_OVERHEAD = 256


@dataclass(frozen=True, slots=True)
class Sent:
    """An event, and the request that it was published with."""

    event: Event
    seq: int
    first: int
    count: int


@dataclass(slots=True)
class Retained:
    """By topic and number, the oldest first."""

    seconds: float
    most: int
    most_bytes: int
    bytes: int = 0
    sent: dict[tuple[str, int], Sent] = field(default_factory=dict)
    until: deque[tuple[float, tuple[str, int]]] = field(default_factory=deque)

    def keep(self, topic: str, sent: Sent, now: float) -> None:
        """From now on."""
        key = (topic, sent.event.stamp.number)
        self.sent[key] = sent
        self.until.append((now + self.seconds, key))
        self.bytes += len(sent.event.payload) + _OVERHEAD

    def get(self, topic: str, number: int) -> Sent | None:
        """If it is still there."""
        return self.sent.get((topic, number))

    def drop(self, topic: str, number: int) -> None:
        """Keep it no longer."""
        self._drop((topic, number))

    def drop_topic(self, topic: str) -> None:
        """Keep nothing of it any longer."""
        for key in [key for key in self.sent if key[0] == topic]:
            self._drop(key)
        self.until = deque(entry for entry in self.until if entry[1][0] != topic)

    def latest(self, most: int) -> Iterator[tuple[str, Sent]]:
        """The last ones, with their topics, the latest first."""
        for _, key in islice(reversed(self.until), most):
            sent = self.sent.get(key)
            if sent is not None:
                yield key[0], sent

    def expire(self, now: float) -> None:
        """Drop what is old, or too much."""
        while self.until and (self.until[0][0] <= now or len(self.until) > self.most or self.bytes > self.most_bytes):
            self._drop(self.until.popleft()[1])

    def next_deadline(self) -> float | None:
        """When the next one becomes old."""
        return self.until[0][0] if self.until else None

    def _drop(self, key: tuple[str, int]) -> None:
        sent = self.sent.pop(key, None)
        if sent is not None:
            self.bytes -= len(sent.event.payload) + _OVERHEAD
