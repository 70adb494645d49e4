"""What a session makes of connections that keep breaking: how long it pauses, when it gives something up."""

from __future__ import annotations

import random
import threading

LONGEST_PAUSE = 10.0
FIGHT_SECONDS = 30.0
LOST_FIGHT = 3
_MOST_FRUITLESS = 6


class Pauses:
    """Of all sessions of one bus between attempts to connect: they end as soon as one of them has reached the broker.

    Each pauses by chance. A bus that could speak while the session that hears still pauses would miss all answers.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.reached = 0
        """How often one of them has."""

    def reach(self) -> None:
        """One of them has a connection."""
        with self._changed:
            self.reached += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """One of them stops, and has said so by its event."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, seconds: float, reached: int, stopping: threading.Event) -> None:
        """Unless one has reached the broker since that was so often."""
        with self._changed:
            self._changed.wait_for(lambda: stopping.is_set() or self.reached != reached, seconds)


class Patience:
    """Counts. Pure but for the jitter."""

    def __init__(self) -> None:
        self.fruitless = 0
        """Connections in a row on which nothing came through."""
        self._losses: list[tuple[float, int]] = []

    def progress(self) -> None:
        """Something came through."""
        self.fruitless = 0

    def begin(self) -> float:
        """Another connection is about to be made: how long to wait before."""
        self.fruitless += 1
        if self.fruitless < 3:
            return 0.0
        return random.uniform(0, min(LONGEST_PAUSE, 0.05 * 2.0 ** (self.fruitless - 1)))

    @property
    def exhausted(self) -> bool:
        """So often in a row that something sent must be the reason."""
        return self.fruitless > _MOST_FRUITLESS

    def lost(self, now: float, beside: int) -> bool:
        """A connection under a durable name broke, while the `beside`-th connection of its neighbour stayed.

        Another client with our client id makes the broker end our connection, and not every broker says so. We would
        end its connection in turn, and so on: when a durable name is thrown out again and again, its holder gives up.
        """
        recent = [(at, place) for at, place in self._losses if now - at < FIGHT_SECONDS and place == beside]
        self._losses = [*recent, (now, beside)]
        return len(self._losses) >= LOST_FIGHT
