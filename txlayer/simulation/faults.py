"""Which faults a world has, and how often: drawn from its seed, about half of the kinds switched off (swarm)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from random import Random


@dataclass(slots=True)
class Faults:
    """Rates of faults; zero is off. Ids of the catalogue are counted where they strike."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    late: float = 0.0
    partition: float = 0.0
    one_way: float = 0.0
    crash: float = 0.0
    crash_at_point: float = 0.0
    pause: float = 0.0
    slow_disk: float = 0.0
    slow_handler: float = 0.0
    failing_handler: float = 0.0
    failing_prepare: float = 0.0
    failing_compensation: float = 0.0
    forged: float = 0.0
    corrupt: float = 0.0
    presence_flap: float = 0.0
    full_disk: float = 0.0
    old_log: float = 0.0

    def heal(self) -> None:
        """No more faults."""
        for rate in fields(self):
            setattr(self, rate.name, 0.0)


_HIGHEST = {
    "loss": 0.25,
    "duplicate": 0.25,
    "reorder": 0.3,
    "late": 0.05,
    "partition": 0.15,
    "one_way": 0.15,
    "crash": 0.25,
    "crash_at_point": 0.004,
    "pause": 0.2,
    "slow_disk": 0.3,
    "slow_handler": 0.2,
    "failing_handler": 0.08,
    "failing_prepare": 0.05,
    "failing_compensation": 0.9,
    "forged": 0.1,
    "corrupt": 0.02,
    "presence_flap": 0.05,
    "full_disk": 0.05,
    "old_log": 0.3,
}


def draw(rng: Random) -> Faults:
    """The faults of one world."""
    faults = Faults()
    for name, highest in _HIGHEST.items():
        enabled, rate = rng.random() < 0.5, rng.random()
        if enabled:
            setattr(faults, name, highest * rate * rate)
    return faults
