"""The time that a host's roles are told: it stands still while the bus does.

A lease measures how long a publisher had the chance to publish. While the broker is down nobody has; if the lease went
on, everything that was under way would be void when the broker is back. The host sends itself a beat over the bus, and
time passes only as long as beats come back.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

BEAT = 0.5
_SLACK = 2.0


@dataclass(slots=True)
class HostClock:
    """Seconds; begins at 0."""

    heard: float = field(default_factory=time.monotonic)
    read_at: float = field(default_factory=time.monotonic)
    elapsed: float = 0.0
    beat_at: float = 0.0

    def hear(self) -> None:
        """A beat has come back."""
        self.now()
        self.heard = time.monotonic()

    def now(self) -> float:
        """The time for the roles."""
        real = time.monotonic()
        self.elapsed += max(0.0, min(real, self.heard + _SLACK) - self.read_at)
        self.read_at = real
        return self.elapsed

    @property
    def stands(self) -> bool:
        """Whether no beat has come back for so long that time does not pass."""
        return time.monotonic() > self.heard + _SLACK

    def beat_due(self) -> bool:
        """Whether to send the next beat; then it counts as sent."""
        real = time.monotonic()
        if real < self.beat_at:
            return False
        self.beat_at = real + BEAT
        return True
