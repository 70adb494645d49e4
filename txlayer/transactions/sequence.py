"""Events of one transaction at one subscriber: in order, without a gap, each processed once (TOPS 4.5.3)."""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer.messages import Numbered
from txlayer.tokens import EMPTY_DIGEST, extend_digest


@dataclass(slots=True)
class Sequence:
    """Takes events in any order, gives them out in sequence."""

    ahead: int
    ready: list[Numbered] = field(default_factory=list)
    early: dict[int, Numbered] = field(default_factory=dict)
    processed: int = 0
    digest: bytes = EMPTY_DIGEST
    last: int | None = None
    wanted_digest: bytes = b""

    def take(self, event: Numbered) -> None:
        """An event arrived."""
        if event.number <= len(self.ready) or event.number > len(self.ready) + self.ahead:
            return
        if self.last is not None and event.number > self.last:
            return
        self.early[event.number] = event
        while (following := self.early.pop(len(self.ready) + 1, None)) is not None:
            self.ready.append(following)
            self.digest = extend_digest(self.digest, following)

    def end(self, last: int, digest: bytes) -> None:
        """That was the last event."""
        self.last, self.wanted_digest = last, digest

    def next(self) -> Numbered | None:
        """The event to process now."""
        return self.ready[self.processed] if self.processed < len(self.ready) else None

    def gap(self) -> tuple[int, int] | None:
        """What is missing, as far as is known."""
        first = len(self.ready) + 1
        if self.early:
            return first, min(self.early) - 1
        if self.last is not None and first <= self.last:
            return first, self.last
        return None

    def complete(self) -> bool:
        """Whether everything was processed."""
        return self.last is not None and self.processed >= self.last

    def intact(self) -> bool:
        """Whether these are the events that the coordinator sent, no more and no other."""
        return self.last == len(self.ready) and self.digest == self.wanted_digest

    def events(self) -> tuple[Numbered, ...]:
        """All events so far, in order."""
        return tuple(self.ready)
