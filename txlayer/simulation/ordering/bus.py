"""A bus that delivers in any order within a bound, doubles and, where the plan says so, loses what it acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from txlayer.ordering.messages import Event, Void
from txlayer.simulation.clock import Clock
from txlayer.simulation.ordering.history import History
from txlayer.simulation.ordering.plan import Plan


@dataclass(slots=True)
class Bus:
    """Who is subscribed at the bus gets what is published from then on. Durable subscribers get it again on demand."""

    clock: Clock
    rng: Random
    plan: Plan
    history: History
    deliver: Callable[[str, Event | Void], None]
    subscribers: dict[str, dict[str, None]] = field(default_factory=dict)
    stored: dict[str, list[tuple[str, Event | Void]]] = field(default_factory=dict)
    lossless: bool = False

    def publish(self, topic: str, body: Event | Void) -> None:
        """To all who are subscribed now."""
        plan, rng = self.plan, self.rng
        lost = isinstance(body, Event) and self._loses()
        for name in self.subscribers.get(topic, ()):
            if name in self.stored:
                self.stored[name].append((topic, body))
            if lost or (plan.bus_loss and self._loses()):
                self.history.faults["M1"] += 1
                continue
            self._plan(name, body)
            if plan.bus_duplicate and rng.random() < plan.bus_duplicate:
                self.history.faults["M2"] += 1
                self._plan(name, body)

    def _loses(self) -> bool:
        return not self.lossless and bool(self.plan.bus_loss) and self.rng.random() < self.plan.bus_loss / 2

    def _plan(self, name: str, body: Event | Void) -> None:
        self.clock.after(0.001 + self.plan.bus_spread * self.rng.random(), lambda: self.deliver(name, body))

    def again(self, name: str) -> None:
        """Everything that a durable subscriber has not consumed, in the order in which its queue holds it."""
        for _, body in self.stored[name]:
            self.clock.after(0.0, lambda body=body: self.deliver(name, body))  # type: ignore[misc]
