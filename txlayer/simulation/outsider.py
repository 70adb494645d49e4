"""The outsider: reads everything, publishes anything, has no secret.

For every kind of message it takes each one that it sees and replays it, alters it, or makes one up in its name, as
far as it can at the given level: without a seal it can write any field, with an enrolment secret or signatures it can
only repeat frames or break them. Tokens it never has, unless they were revealed. The harm done is counted by kind:
runs in which a checker complains. Delay alone is no harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from random import Random

import msgspec

from txlayer import messages as m
from txlayer.codec import KINDS
from txlayer.security import BrokerSeal
from txlayer.simulation.bus import SimulatedBus, seals
from txlayer.simulation.faults import Faults
from txlayer.simulation.plan import Plan
from txlayer.simulation.sweep import ANONYMOUS, DURABLE, FOLLOWER, PLAIN, Configuration, _terms
from txlayer.simulation.world import World

LEVELS = ("broker", "secret", "signed")
# Without a seal: everything but what tokens settle (votes, delegations, acknowledgements, failed censuses) can be
# forged. The value of a decision cannot, but its final list can.
SETTLED_BY_TOKENS = {"Vote", "Delegated", "Ack", "CensusFailed", "Withdrawn", "Compensated", "Unknown"}
ADMITTED = frozenset(KINDS) - SETTLED_BY_TOKENS
SETTINGS = (
    Configuration("outsider", (PLAIN, ANONYMOUS, PLAIN, FOLLOWER), _terms(settle_for=m.Conditions(1))),
    Configuration("outsider, one shot", (PLAIN, PLAIN, PLAIN, DURABLE), _terms(one_shot=True), coordinator="s1"),
)


@dataclass(slots=True)
class Attack:
    """What the outsider does with frames of one kind."""

    kind: str
    rng: Random
    forged: int = 0

    def frames(self, message: m.AnyMessage, frame: bytes) -> list[bytes]:
        """What it puts on the bus after it has seen a message."""
        if type(message).__name__ != self.kind or self.forged > 40:
            return []
        self.forged += 1
        altered = bytearray(frame)
        altered[self.rng.randrange(len(altered))] ^= 1 << self.rng.randrange(8)
        own = BrokerSeal().close(self._made_up(message))
        return [frame, bytes(altered), own]

    def _made_up(self, message: m.AnyMessage) -> m.AnyMessage:
        """The same message with one field to the outsider's liking."""
        fields = [f.name for f in msgspec.structs.fields(type(message)) if f.name not in ("tx", "join")]
        if not fields:
            return message
        name = self.rng.choice(fields)
        made: m.AnyMessage = msgspec.structs.replace(message, **{name: self._liked(getattr(message, name))})
        return made

    def _liked(self, value: object) -> object:
        match value:
            case bool():
                return not value
            case int():
                return value + self.rng.choice([-1, 1, 1000])
            case float():
                return 0.0
            case bytes():
                return self.rng.randbytes(len(value))
            case str():
                return "s9"
            case tuple():
                return value[:-1] if value else value
            case m.Standing():
                return m.Standing(10**6)
            case m.Status():
                return m.Status.ABORTED if value is m.Status.COMMITTED else m.Status.COMMITTED
            case _:
                return value


class AttackedBus(SimulatedBus):
    """A bus with the outsider on it."""

    attack: Attack

    def send(self, source: str, target: str, message: m.AnyMessage) -> None:
        super().send(source, target, message)
        self._attack(source, [target], message)

    def broadcast(self, source: str, message: m.AnyMessage) -> None:
        super().broadcast(source, message)
        self._attack(source, list(self.world.nodes), message)

    def _attack(self, source: str, targets: list[str], message: m.AnyMessage) -> None:
        for forged in self.attack.frames(message, self.frame(source, message)):
            for target in targets:
                if target in self.world.nodes:
                    delay = 0.0001 + 0.01 * self.world.rng.random() * self.world.rng.random()
                    self.world.clock.after(delay, partial(self.deliver, target, forged))


class AttackedWorld(World):
    """A world without faults but for the outsider."""

    def __init__(self, seed: int, plan: Plan, attack: Attack) -> None:
        self._attack = attack
        super().__init__(seed, plan)

    def make_bus(self) -> SimulatedBus:
        bus = AttackedBus(self, seals(self.plan.level))
        bus.attack = self._attack
        return bus


def attack(level: str, seeds: Iterable[int], kinds: Iterable[str] = KINDS) -> dict[str, int]:
    """For each kind of message: in how many runs the outsider did harm."""
    harmed: dict[str, int] = {}
    for kind in kinds:
        for seed in seeds:
            for setting in SETTINGS:
                plan = setting.plan()
                plan.faults = Faults(reorder=0.05)
                plan.crash = ("", 0)
                plan.level = level
                history = AttackedWorld(seed, plan, Attack(kind, Random(f"{kind} {seed}"))).run()
                harmed[kind] = harmed.get(kind, 0) + bool(history.violations)
    return {kind: count for kind, count in harmed.items() if count}
