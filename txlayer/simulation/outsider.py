"""The outsider: reads everything, publishes anything, has no secret.

For every kind of message it replays each one that it sees, at once and later, alters it, changes any field of it, and
makes up others of what it has read so far. It puts them under every seal that it can make: none, a secret that it
guessed, a key of its own in its own name and in others', a seal that it has read on another frame. The harm done is
counted by kind: runs in which a checker complains, and where messages are sealed also those in which a transaction did
not end as it does without the outsider. Delay alone is no harm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from random import Random

import msgspec

from txlayer import messages as m
from txlayer.codec import KINDS, VERSION, Frame, decode_frame, encode_body, encode_frame
from txlayer.security import BrokerSeal, SecretSeal, SignedSeal
from txlayer.simulation.attacked import SETTINGS, Setting
from txlayer.simulation.bus import SimulatedBus, seals
from txlayer.simulation.forgeries import NOBODY, Read
from txlayer.simulation.history import History
from txlayer.simulation.plan import Plan
from txlayer.simulation.world import World

LEVELS = ("broker", "secret", "signed")
# Without a seal these do nothing, forged or not: a token that only its owner can reveal settles them, or nobody acts on
# them. All others can do harm; docs/protocol.md says which.
HARMLESS = frozenset(
    ["CensusFailed", "Resend", "Delegated", "Ack", "Compensated", "InDoubt", "Finish", "Unknown", "Called", "Withdrawn"]
) | {"AskMark"}
ADMITTED = frozenset(KINDS) - HARMLESS
# An operator speaks to the runtime of a site, which the simulated world has not.
UNREACHED = frozenset(["Operate", "Operated"])
# Admitted, though no checker has complained of them in these seeds: they end or delay a transaction, or make a reader
# load a snapshot for nothing, which is no violation, or take a lost message or an operator to do more.
NOT_SHOWN = UNREACHED | {
    "Abort", "Accepted", "Decline", "Event", "ExtendDeadline", "Inquire", "Relay", "Stale", "VotesMissing",
}  # fmt: skip
SEEDS_TO_SHOW = 8
MOST_FORGED = 60


@dataclass(slots=True)
class Attack:
    """What the outsider does with one kind of message."""

    kind: str
    level: str
    rng: Random
    read: Read = field(init=False)
    seen: int = 0
    forged: int = 0

    def __post_init__(self) -> None:
        self.read = Read(self.rng)

    def frames(self, message: m.AnyMessage, frame: bytes) -> list[bytes]:
        """What it puts on the bus after it has seen a message."""
        self.read.read(message)
        if self.forged > MOST_FORGED:
            return []
        made = self.read.invent(self.kind) if self.rng.random() < 0.3 else []
        found: list[bytes] = []
        if type(message).__name__ == self.kind:
            self.seen += 1
            altered = bytearray(frame)
            altered[self.rng.randrange(len(altered))] ^= 1 << self.rng.randrange(8)
            found = [frame, bytes(altered)]
            made = [*made, *self._changed(message)]
        self.forged += len(made)
        return found + [sealed for one in made for sealed in self._seal(one, frame)]

    def _changed(self, message: m.AnyMessage) -> list[m.AnyMessage]:
        """The same message, with each field in turn to the outsider's liking."""
        names = [f.name for f in msgspec.structs.fields(type(message)) if f.name not in ("tx", "join")]
        return [msgspec.structs.replace(message, **{name: self._liked(getattr(message, name))}) for name in names]

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
                return NOBODY
            case tuple():
                return value[:-1] if value else value
            case m.Standing():
                return m.Standing(10**6)
            case m.Status():
                return m.Status.ABORTED if value is m.Status.COMMITTED else m.Status.COMMITTED
            case _:
                return value

    def _seal(self, message: m.AnyMessage, stolen: bytes) -> list[bytes]:
        """Under every seal that it can make at this level."""
        plain = BrokerSeal().close(message)
        if self.level == "broker":
            return [plain]
        read = decode_frame(stolen)
        body = encode_body(message)
        under_stolen_seal = encode_frame(Frame(VERSION, read.sender, body, read.seal))
        if self.level == "secret":
            return [plain, under_stolen_seal, SecretSeal([b"a secret that it guessed"]).close(message)]
        return [plain, under_stolen_seal, *(_signed(name).close(message) for name in (NOBODY, read.sender))]


def _signed(name: str) -> SignedSeal:
    """A key of its own, in whatever name."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return SignedSeal(name, Ed25519PrivateKey.from_private_bytes(b"a key of the outsider, all alone"), {})


class AttackedBus(SimulatedBus):
    """A bus with the outsider on it."""

    attack: Attack

    def send(self, source: str, target: str, message: m.AnyMessage) -> None:
        super().send(source, target, message)
        self._attack(source, [target, self.world.rng.choice(list(self.world.nodes))], message)

    def broadcast(self, source: str, message: m.AnyMessage) -> None:
        super().broadcast(source, message)
        self._attack(source, list(self.world.nodes), message)

    def _attack(self, source: str, targets: list[str], message: m.AnyMessage) -> None:
        for forged in self.attack.frames(message, self.frame(source, message)):
            for target in targets:
                if target in self.world.nodes:
                    delay = 0.0001 + 0.01 * self.world.rng.random() * self.world.rng.random()
                    late = 3.0 * self.world.rng.random() if self.world.rng.random() < 0.2 else 0.0
                    self.world.clock.after(delay + late, partial(self.deliver, target, forged))


class AttackedWorld(World):
    """A world without faults but for the outsider."""

    def __init__(self, seed: int, plan: Plan, attack: Attack) -> None:
        self._attack = attack
        super().__init__(seed, plan)

    def make_bus(self) -> SimulatedBus:
        bus = AttackedBus(self, seals(self.plan.level))
        bus.attack = self._attack
        return bus


@dataclass(slots=True)
class Attacked:
    """What came of the outsider: for each kind, in how many runs it did harm, and whether it had what it needs."""

    harmed: dict[str, int] = field(default_factory=dict)
    seen: dict[str, None] = field(default_factory=dict)
    """Kinds of which a genuine message passed by, to be replayed and altered."""
    forged: dict[str, None] = field(default_factory=dict)
    """Kinds of which it put at least one on the bus."""
    runs: int = 0


def attack(level: str, seeds: Iterable[int], kinds: Iterable[str] = KINDS) -> Attacked:
    """Try every kind of message in every setting."""
    result = Attacked()
    for seed in seeds:
        for setting in SETTINGS:
            undisturbed = _ends(_run(setting, level, seed, Attack("", level, Random(seed))))
            result.runs += 1
            for kind in kinds:
                one = Attack(kind, level, Random(f"{kind} {seed}"))
                history = _run(setting, level, seed, one)
                result.runs += 1
                stopped = level != "broker" and setting.steady and _ends(history) != undisturbed
                if history.violations or stopped:
                    result.harmed[kind] = result.harmed.get(kind, 0) + 1
                result.seen.update({kind: None} if one.seen else {})
                result.forged.update({kind: None} if one.forged else {})
    return result


def attack_one(work: tuple[str, int]) -> Attacked:
    """One seed at one level, for work that is shared among processes."""
    level, seed = work
    return attack(level, [seed])


def _run(setting: Setting, level: str, seed: int, attack: Attack) -> History:
    return AttackedWorld(seed, setting.plan(level), attack).run()


def _ends(history: History) -> list[m.Status | None]:
    """How each transaction ended for its caller."""
    return [call.outcomes[-1].status if call.outcomes else None for call in history.calls.values()]
