"""The bus port: what the layer needs from a message bus, and no more.

Adapters (`txlayer.adapters`) implement it over a real bus; layers such as the total order offer it again over the bus
that they use, so they stack. Applications get one from `txlayer.connect(url)`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from txlayer.delivery import Delivery, Gap
from txlayer.receipt import Receipt

Handler = Callable[[Delivery], object]
"""Called for each event, one after the other per subscription, on its own thread."""

Receiver = Callable[[Sequence[Delivery]], object]
"""Called with all that has arrived together, on the thread that receives; for layers. Must not wait for the bus."""

WatchHandler = Callable[[str, bytes | None], object]
"""Called with key and latest value; None: the value was removed."""


class Ack(enum.Enum):
    """Who acknowledges an event to the broker."""

    AUTO = "auto"
    """The subscription does, once the handler has returned (or the event is dead-lettered)."""
    MANUAL = "manual"
    """The handler does, by `delivery.ack()`, from any thread, once the event is durable on its side."""


@dataclass(frozen=True)
class Retry:
    """How often a failing handler is called again before the event goes to the dead letters."""

    attempts: int = 5
    first_wait: float = 0.05
    longest_wait: float = 5.0


@dataclass(frozen=True)
class Capabilities:
    """What this bus promises."""

    order: str
    """`"publisher"`: events of one publisher on one topic arrive in order. `"key"`: those with one key do."""
    durable: bool
    """A named subscription gets what was published while it was away."""
    native_headers: bool
    """Headers travel beside the payload. False: the payload is inside an envelope."""
    wildcards: bool
    max_payload: int | None
    """Largest payload in bytes; None where the bus states no limit."""


@dataclass(frozen=True)
class Identity:
    """Who holds a name: the incarnation is made with a site's log, the life counts its starts."""

    incarnation: str
    life: int = 1


class Standing(enum.Enum):
    """What is known of a site."""

    ALIVE = "alive"
    DEAD = "dead"


@dataclass(frozen=True)
class SiteView:
    """A site as others see it."""

    name: str
    identity: Identity
    standing: Standing
    info: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Stats:
    """What a subscription has seen so far."""

    handled: int = 0
    """Events that the handler has returned from, at the first attempt or a later one."""
    duplicates: int = 0
    missing: int = 0
    """Numbers that never came."""
    dead_letters: int = 0
    """Events that were put aside instead, because the handler kept failing."""
    blocked: str = ""
    """Why it stands still: the broker refuses the dead letter of an event. Empty while it goes on."""


class Subscription(Protocol):
    """A running subscription."""

    @property
    def topics(self) -> frozenset[str]: ...

    @property
    def native(self) -> object:
        """The driver's own object that receives for this subscription."""

    @property
    def closed(self) -> bool: ...

    @property
    def error(self) -> Exception | None:
        """Why it stopped by itself (the name was taken over, the position is gone); None while it runs."""

    @property
    def stats(self) -> Stats: ...

    def add(self, *topics: str) -> None:
        """Subscribe to more topics; in force when it returns."""

    def remove(self, *topics: str) -> None:
        """Unsubscribe from some topics; nothing of them is handed to the handler after it returns."""

    def unsubscribe(self) -> None:
        """End it for good: a durable name is forgotten by the broker."""

    def close(self, timeout: float = 5.0) -> None:
        """Stop receiving. A durable name goes on collecting. A handler that runs is waited for up to `timeout`."""


class Watch(Protocol):
    """A running watch of latest values."""

    def snapshot(self) -> dict[str, bytes]:
        """The latest value of each key, as far as it has arrived here."""

    def catch_up(self) -> None:
        """Wait until the handler has been told of what is here now. Not from the handler itself."""

    @property
    def closed(self) -> bool: ...

    def close(self) -> None: ...


class Presence(Protocol):
    """This process is present under a name, until it leaves or dies."""

    @property
    def lost(self) -> bool:
        """A later life of the same incarnation has taken the name over: stop working under it."""

    def update(self, info: Mapping[str, str]) -> None:
        """Change what others see beside the name."""

    def leave(self) -> None: ...


class Bus(Protocol):
    """A connection to a message bus. All methods may be called from any thread."""

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def native(self) -> object:
        """The driver's own object that publishes (`paho.mqtt.client.Client`, `confluent_kafka.Producer`, ...)."""

    def topic(self, *levels: str) -> str:
        """A topic name that this bus allows, made of levels of any text."""

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        key: bytes | None = None,
        type: str = "",
    ) -> Receipt:
        """Hand an event over. Never blocks on the broker; raises `Backpressure` when too much is waiting already."""

    def say(self, topic: str, payload: bytes) -> None:
        """Hand over a message whose sender says it again until it is answered: no receipt, no number, it may get lost.

        It leaves with the next `flush`, together with what was said before.
        """

    def flush(self) -> None:
        """Let go of what was said. Never blocks on the broker."""

    def subscribe(
        self,
        topics: str | Sequence[str],
        handler: Handler,
        *,
        durable: str | None = None,
        identity: Identity | None = None,
        ack: Ack = Ack.AUTO,
        retry: Retry | None = None,
        on_gap: Callable[[Gap], object] | None = None,
    ) -> Subscription:
        """Receive events published from now on; when it returns the broker knows of it.

        `durable` names a subscription that outlives the process: its next holder gets what was published meanwhile.
        One live holder per name; `identity` lets a later life of the same holder take it over at once.
        """

    def receive(
        self,
        topics: Sequence[str],
        receiver: Receiver,
        *,
        durable: str | None = None,
        identity: Identity | None = None,
    ) -> Subscription:
        """For a layer that knows its own messages: as `subscribe` with `Ack.MANUAL`, but without a thread of its own.

        Nothing is retried, put aside, or recognised as a duplicate or a gap.
        """

    def announce(self, key: str, value: bytes | None) -> Receipt:
        """Make `value` the latest value of `key` (`kind/name`), for those who watch now and later. None removes it."""

    def watch(self, prefix: str, handler: WatchHandler | None = None) -> Watch:
        """Follow the latest values below `prefix`; those announced before the call are there when it returns."""

    def enter(self, name: str, identity: Identity, info: Mapping[str, str] | None = None) -> Presence:
        """Be present under `name`: others learn within seconds when this process dies. `NameTaken` if it is held."""

    def close(self, timeout: float = 5.0) -> None:
        """Finish: waits for receipts and running handlers up to `timeout`, then fails what is left."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
