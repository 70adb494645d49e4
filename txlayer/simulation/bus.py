"""The bus of a world: real frames under real seals, over a network that misbehaves, with a stranger on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from txlayer import messages as m
from txlayer.effects import Received
from txlayer.errors import DecodeError, MissingExtra
from txlayer.runtime.inbox import received
from txlayer.security import BrokerSeal, Seal, SecretSeal, SignedSeal
from txlayer.simulation.network import Network

if TYPE_CHECKING:
    from txlayer.simulation.world import World

MOST_REMEMBERED = 5000


class SimulatedBus:
    """Closes messages with the seal of their sender, carries frames, opens them once for all who receive them."""

    def __init__(self, world: World, seals: Callable[[str], Seal]) -> None:
        self.world = world
        self.network = Network(world.clock, world.rng, world.faults, world.history, self.deliver)
        self.seals = {name: seals(name) for name in world.nodes}
        self.delivered: dict[str, list[bytes]] = {}
        self._events: dict[bytes, Received | None] = {}
        self._stolen: list[bytes] = []

    def send(self, source: str, target: str, message: m.AnyMessage) -> None:
        """To one inbox."""
        world = self.world
        world.observer.observe(source, message)
        if target not in world.nodes:
            return
        self.network.carry(source, target, self.frame(source, message))

    def broadcast(self, source: str, message: m.AnyMessage) -> None:
        """To everyone."""
        world = self.world
        world.observer.observe(source, message)
        frame = self.frame(source, message)
        for name in world.nodes:
            self.network.carry(source, name, frame)
        if world.faults.forged and world.rng.random() < world.faults.forged:
            self._forge(message, frame)

    def frame(self, source: str, message: m.AnyMessage) -> bytes:
        """A message as the bus carries it."""
        return self.seals[source].close(message)

    def open(self, target: str, frame: bytes) -> Received | None:
        """What a frame says; the same for every receiver, so it is opened once."""
        if frame not in self._events:
            if len(self._events) > MOST_REMEMBERED:
                self._events.clear()
            self._events[frame] = self._opened(target, frame)
        return self._events[frame]

    def _opened(self, target: str, frame: bytes) -> Received | None:
        try:
            return received(self.seals[target], frame)
        except DecodeError:
            self.world.history.faults["M8"] += 1
            return None

    def deliver(self, target: str, frame: bytes) -> None:
        """A frame arrives."""
        world = self.world
        node, now = world.nodes[target], world.clock.now
        if not node.up:
            return
        if now < node.paused_until:
            world.clock.after(node.paused_until - now, lambda: self.deliver(target, frame))
            return
        if world.faults.corrupt and world.rng.random() < world.faults.corrupt:
            frame = self._corrupted(frame)
        event = self.open(target, frame)
        if event is None:
            return
        world.history.events += 1
        if world.plan.replay:
            self.delivered.setdefault(target, []).append(frame)
        world.hash.update(f"{now:.6f} {target} {type(event.message).__name__}".encode() + frame)
        world.trace(target, event.message)
        if isinstance(event.message, m.Followed):
            world.observer.registered(target, event.message)
        node.take(event)

    def _corrupted(self, frame: bytes) -> bytes:
        """Without a seal the bus must be trusted to cut a frame short rather than to change it."""
        spot = self.world.rng.randrange(len(frame))
        if self.world.plan.level == "broker":
            return frame[:spot]
        return frame[:spot] + bytes([frame[spot] ^ 1]) + frame[spot + 1 :]

    def _forge(self, message: m.AnyMessage, frame: bytes) -> None:
        """A stranger repeats frames and makes up votes and decisions with tokens that it does not have.

        Members it knows as the list of them does, once they have joined: before that nobody could guess it.
        """
        world, rng = self.world, self.world.rng
        world.history.faults["M7"] += 1
        self._stolen = [*self._stolen[-20:], frame]
        target = rng.choice(list(world.nodes))
        old = rng.choice(self._stolen)
        world.clock.after(2.0 * rng.random(), lambda: self.deliver(target, old))
        tx = getattr(message, "tx", None)
        joined = world.history.joined.get(tx, {}) if tx is not None else {}
        if tx is None or not joined:
            return
        fake = rng.randbytes(32)
        members = [world.observer.keyring(name).member(tx) for name in joined]
        if rng.random() < 0.5:
            forged: m.AnyMessage = m.Vote(tx, rng.choice(members), fake, 0, b"")
            target = tx.coordinator
        else:
            forged = m.Decision(tx, fake, tuple(members))
        unsealed = BrokerSeal().close(forged)
        world.clock.after(0.01 * rng.random(), lambda: self.deliver(target, unsealed))


def seals(level: str) -> Callable[[str], Seal]:
    """The seal of each site at a security level."""
    if level == "broker":
        return lambda _: BrokerSeal()
    if level == "secret":
        return lambda _: SecretSeal([b"enrolled together"])
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as exc:
        raise MissingExtra("signed", "cryptography") from exc

    names = [f"s{number}" for number in range(6)]
    keys = {name: Ed25519PrivateKey.from_private_bytes(name.encode() * 16) for name in names}
    public = {name: key.public_key() for name, key in keys.items()}
    return lambda name: SignedSeal(name, keys[name], public)
