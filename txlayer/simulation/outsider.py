"""The outsider: reads everything, publishes anything, has no secret.

For every kind of message it takes each one that it sees and replays it, alters it, or makes one up in its name, as
far as it can at the given level: without a seal it can write any field, with an enrolment secret or signatures it can
only repeat frames or break them. Tokens it never has, unless they were revealed. The harm done is counted by kind:
runs in which a checker complains. Delay alone is no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from random import Random

import msgspec

from txlayer import messages as m
from txlayer.codec import KINDS
from txlayer.security import BrokerSeal, Seal, SecretSeal, SignedSeal
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
    seal: Seal
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


class AttackedWorld(World):
    """A world without faults but for the outsider."""

    def __init__(self, seed: int, plan: Plan, seals: Callable[[str], Seal], attack: Attack) -> None:
        super().__init__(seed, plan)
        self.seals = {name: seals(name) for name in self.nodes}
        self.attack = attack
        self.seal = self.seals["s0"]

    def send(self, source: str, target: str, message: m.AnyMessage) -> None:
        self.seal = self.seals[source]
        super().send(source, target, message)
        self._attack(source, [target], message)

    def broadcast(self, source: str, event_type: str, message: m.AnyMessage) -> None:
        self.seal = self.seals[source]
        super().broadcast(source, event_type, message)
        self._attack(source, list(self.nodes), message)

    def _attack(self, source: str, targets: list[str], message: m.AnyMessage) -> None:
        frame = self.seals[source].close(message)
        for forged in self.attack.frames(message, frame):
            for target in targets:
                if target in self.nodes:
                    delay = 0.0001 + 0.01 * self.rng.random() * self.rng.random()
                    self.clock.after(delay, partial(self._deliver, target, forged))


def attack(level: str, seeds: Iterable[int], kinds: Iterable[str] = KINDS) -> dict[str, int]:
    """For each kind of message: in how many runs the outsider did harm."""
    harmed: dict[str, int] = {}
    seals = _seals(level)
    for kind in kinds:
        for seed in seeds:
            for setting in SETTINGS:
                plan = setting.plan()
                plan.faults = Faults(reorder=0.05)
                plan.crash = ("", 0)
                world = AttackedWorld(seed, plan, seals, Attack(kind, seals("s0"), Random(f"{kind} {seed}")))
                history = world.run()
                harmed[kind] = harmed.get(kind, 0) + bool(history.violations)
    return {kind: count for kind, count in harmed.items() if count}


def _seals(level: str) -> Callable[[str], Seal]:
    if level == "broker":
        return lambda _: BrokerSeal()
    if level == "secret":
        return lambda _: SecretSeal([b"enrolled together"])
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    names = [f"s{number}" for number in range(5)]
    keys = {name: Ed25519PrivateKey.from_private_bytes(name.encode() * 16) for name in names}
    public = {name: key.public_key() for name, key in keys.items()}
    return lambda name: SignedSeal(name, keys[name], public)
