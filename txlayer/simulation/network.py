"""A bus that loses, doubles, delays, reorders and cuts, as its faults say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from txlayer.simulation.clock import Clock
from txlayer.simulation.faults import Faults
from txlayer.simulation.history import History


@dataclass(slots=True)
class Network:
    """Carries frames between sites. `deliver` is called when one arrives."""

    clock: Clock
    rng: Random
    faults: Faults
    history: History
    deliver: Callable[[str, bytes], None]
    cut: dict[tuple[str, str], None] = field(default_factory=dict)
    carried: int = 0
    drop_next: Callable[[str, str, bytes], bool] | None = None

    def carry(self, source: str, target: str, frame: bytes) -> None:
        """Take a frame from one site to another, perhaps."""
        self.carried += 1
        if (source, target) in self.cut:
            self.history.faults["M5"] += 1
            return
        if self.drop_next is not None and self.drop_next(source, target, frame):
            self.history.faults["M1"] += 1
            return
        rng, faults = self.rng, self.faults
        draw = rng.random()
        if draw < faults.loss:
            self.history.faults["M1"] += 1
            return
        self._plan(target, frame)
        if rng.random() < faults.duplicate:
            self.history.faults["M2"] += 1
            self._plan(target, frame)

    def _plan(self, target: str, frame: bytes) -> None:
        rng, faults = self.rng, self.faults
        delay = 0.001 + 0.004 * rng.random()
        if rng.random() < faults.reorder:
            self.history.faults["M3"] += 1
            delay += 0.5 * rng.random()
        if rng.random() < faults.late:
            self.history.faults["M4"] += 1
            delay += 20.0 * rng.random()
        self.clock.after(delay, lambda: self.deliver(target, frame))
