"""Small roles for the tests of the ordering layer."""

from __future__ import annotations

from typing import Any, TypeVar

from txlayer.ordering import effects as fx
from txlayer.ordering.host import Host
from txlayer.ordering.host_state import HostConfig
from txlayer.ordering.messages import Create, Event, Register
from txlayer.ordering.publisher import Publisher, PublisherConfig
from txlayer.ordering.records import AnyRecord
from txlayer.ordering.subscriber import Subscriber
from txlayer.ordering.subscriber_config import Mode, SubscriberConfig
from txlayer.ordering.timestamp import Stamp

M = TypeVar("M")
ALONE = fx.Neighbours(None, None)


def host(name: str = "a", rank: int = 0, neighbours: fx.Neighbours = ALONE, **config: Any) -> Host:
    """A host that has started."""
    made = Host(name, rank, (f"{name}.*",), f"log-{name}", HostConfig(**config))
    made.start([], neighbours, 0.0)
    return made


def sent(effects: list[fx.Effect], kind: type[M]) -> list[M]:
    """Messages of one kind that the effects send."""
    messages = (effect.message for effect in effects if isinstance(effect, fx.Send))
    return [message for message in messages if isinstance(message, kind)]


def of(effects: list[fx.Effect], kind: type[M]) -> list[M]:
    """Effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


def published(effects: list[fx.Effect], kind: type[M]) -> list[M]:
    """What the effects publish, of one kind."""
    return [effect.body for effect in effects if isinstance(effect, fx.Publish) and isinstance(effect.body, kind)]


def create(seq: int = 1, topic: str = "a.x", publisher: str = "p", generation: int = 1, count: int = 1,
           low: int | None = None) -> Create:  # fmt: skip
    """A request."""
    return Create(publisher, topic, generation, seq, count, seq if low is None else low)


def register(subscriber: str, version: int, new: tuple[int, ...], old: tuple[int, ...] = (), **more: Any) -> Register:
    """A subscription."""
    return Register(subscriber, version, new, old, **more)


def event(rank: int, number: int, entries: dict[int, int] | None = None, *, publisher: str = "p",
          serial: int | None = None, base: int = 0, epoch: int = 1) -> Event:  # fmt: skip
    """An event on the bus."""
    pairs = sorted((entries or {}).items())
    stamp = Stamp(rank, number, epoch, base, tuple(r for r, _ in pairs), tuple(v for _, v in pairs))
    return Event(publisher, number if serial is None else serial, stamp, b"")


def publisher(**config: Any) -> Publisher:
    """A publisher that knows host a."""
    made = Publisher("p", PublisherConfig(**config))
    made.step(fx.Claimed(0, "a", 1, "log-a", ("a.*",)), 0.0)
    return made


def subscriber(mode: Mode = Mode.TOTAL, **config: Any) -> Subscriber:
    """A subscriber that knows hosts a (rank 0) and b (rank 1)."""
    made = Subscriber("s", SubscriberConfig(mode=mode, **config))
    made.step(fx.Claimed(0, "a", 1, "log-a", ("a.*",)), 0.0)
    made.step(fx.Claimed(1, "b", 1, "log-b", ("b.*",)), 0.0)
    return made


def durable(effects: list[fx.Effect], disk: dict[str, AnyRecord]) -> None:
    """Write what the effects persist."""
    for effect in effects:
        if isinstance(effect, fx.Persist):
            disk[effect.key] = effect.record
        elif isinstance(effect, fx.Erase):
            disk.pop(effect.key, None)
