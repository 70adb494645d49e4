"""The ordered bus: the port of any bus, with one order of events at every subscriber.

Events travel on the bus below, with their place in a header; publishers and subscribers of it that do not use the order
go on as before. Latest values, presence and the layer's own topics pass through.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from txlayer import dead_letters
from txlayer.adapters.base import check_label
from txlayer.adapters.lane import Lane, LaneOptions
from txlayer.adapters.topics import check_name
from txlayer.connect import connect
from txlayer.delivery import Gap
from txlayer.errors import Closed, UsageError
from txlayer.ordering import effects as fx
from txlayer.ordering.directory import check_topic
from txlayer.ordering.publisher import Publisher, PublisherConfig
from txlayer.ordering.subscriber import Subscriber
from txlayer.ordering.subscriber_config import Mode, SubscriberConfig
from txlayer.ports import (
    Ack,
    Bus,
    Capabilities,
    Handler,
    Identity,
    Presence,
    Receiver,
    Retry,
    Subscription,
    Watch,
    WatchHandler,
)
from txlayer.receipt import Receipt
from txlayer.sequencing import claims, embedded
from txlayer.sequencing.bus_exchange import BusExchange
from txlayer.sequencing.claims import Claim
from txlayer.sequencing.cursor_values import CursorValues
from txlayer.sequencing.embedded import EMBEDDED
from txlayer.sequencing.exchange import Exchange
from txlayer.sequencing.keeper import Keeper
from txlayer.sequencing.loop import Loop
from txlayer.sequencing.publishing import Publishing
from txlayer.sequencing.sequencer import Sequencer
from txlayer.sequencing.subscription import OrderedSubscription
from txlayer.sequencing.tcp_exchange import TcpExchange

_BUFFER_BYTES = 64 * 1024 * 1024
_LASTING = 6 * 86_400.0
_RESEND = 2.0


def ordered(
    target: str | Bus,
    sequencer: str | None = None,
    *,
    mode: str = "total",
    deadline: float = 30.0,
    time_to_live: float = 1.0,
    log: str | None = None,
    **options: Any,
) -> OrderedBus:
    """Open a bus whose subscribers all get events in the same order.

    `sequencer` says where the hosts are: `mqtt://host:1883/seq` (a bus, and the name of the chain), `tcp://host:port`
    (one of them, directly), `"embedded"` (in this process, with its log in `log`); by default they are on the bus
    itself. `mode`: total, causal, per-topic or unreliable (then `time_to_live` counts). `deadline`: how many seconds an
    event or a subscription waits for the hosts before it fails. Other options are the bus's.
    """
    try:
        chosen = Mode(mode)
    except ValueError:
        raise UsageError(f"mode {mode!r}; known: {', '.join(mode.value for mode in Mode)}") from None
    if log is not None and sequencer != EMBEDDED:
        raise UsageError(f"log={log!r} is for sequencer={EMBEDDED!r}; a host of its own has its own log")
    bus = connect(target, **options) if isinstance(target, str) else target
    owned: list[Bus] = [bus] if isinstance(target, str) else []
    try:
        way = _Way(bus, owned, sequencer, target if isinstance(target, str) else None, log)
        buffer_bytes = int(options.get("buffer_bytes", _BUFFER_BYTES))
        return OrderedBus(bus, way, chosen, deadline, time_to_live, buffer_bytes)
    except BaseException:
        for one in reversed(owned):
            one.close()
        raise


class _Way:
    """How an ordered bus reaches its hosts, and what it has opened for that."""

    def __init__(self, bus: Bus, owned: list[Bus], sequencer: str | None, target: str | None, log: str | None) -> None:
        self.owned = owned
        self.host: Sequencer | None = None
        self.exchange: Exchange
        self.follow: Callable[[claims.Found], Callable[[], None]]
        if sequencer is not None and sequencer.startswith("tcp://"):
            tcp = TcpExchange(sequencer)
            self.exchange = tcp
            self.follow = tcp.follow
            return
        control, chain = bus, claims.CHAIN
        if sequencer not in (None, EMBEDDED):
            assert sequencer is not None
            url, chain = claims.split_chain(sequencer)
            if target is None or url != target.partition("?")[0].rstrip("/"):
                control = connect(url)
                owned.append(control)
        exchange = BusExchange(control, chain)
        self.exchange = exchange
        self.follow = lambda found: claims.watch(control, chain, found).close
        if sequencer == EMBEDDED:
            try:
                self.host = embedded.start(control, exchange, chain, log)
            except BaseException:
                exchange.close()
                raise

    def close(self) -> None:
        if self.host is not None:
            self.host.close()
        self.exchange.close()


class OrderedBus:
    """Made by `ordered`. All methods may be called from any thread."""

    def __init__(
        self, bus: Bus, way: _Way, mode: Mode, deadline: float, time_to_live: float, buffer_bytes: int
    ) -> None:
        self._bus = bus
        self._way = way
        self._mode = mode
        self._deadline = deadline
        self._time_to_live = time_to_live
        self._client = os.urandom(8).hex()
        self._own = bus.topic("txlayer", "v1", "x")[:-1]
        self._lock = threading.Lock()
        self._subscriptions: list[OrderedSubscription] = []
        self._numbers = itertools.count(1)
        self._claims: dict[int, fx.Claimed] = {}
        self._closing = False
        self._loop = Loop(f"ordered-{self._client}")
        publisher = Publisher(f"{self._client}/p", PublisherConfig(causal=mode is Mode.CAUSAL))
        self._publishing = Publishing(publisher, bus, way.exchange.send, self._loop, deadline, buffer_bytes)
        way.exchange.listen(publisher.name, self._publishing.take)
        self._unfollow = way.follow(self._found)

    @property
    def capabilities(self) -> Capabilities:
        return replace(self._bus.capabilities, wildcards=False)

    @property
    def native(self) -> object:
        return self._bus.native

    def topic(self, *levels: str) -> str:
        return self._bus.topic(*levels)

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        key: bytes | None = None,
        type: str = "",
    ) -> Receipt:
        """As on any bus. The receipt completes when the event has its place in the order and the broker has it."""
        self._check_open()
        if topic.startswith(self._own):
            return self._bus.publish(topic, payload, headers=headers, key=key, type=type)
        check_topic(topic)
        check_name(topic)
        return self._publishing.publish(topic, payload, headers, key, type)

    def say(self, topic: str, payload: bytes) -> None:
        """Beside the order: who says a thing until it is answered knows it when it comes twice or late."""
        self._check_open()
        self._bus.say(topic, payload)

    def flush(self) -> None:
        self._bus.flush()

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
        """As on any bus, without wildcards. When it returns, the hosts know of it."""
        self._check_open()
        names = [topics] if isinstance(topics, str) else list(topics)
        own = [name for name in names if name.startswith(self._own)]
        if own and len(own) == len(names):
            return self._bus.subscribe(
                names, handler, durable=durable, identity=identity, ack=ack, retry=retry, on_gap=on_gap
            )
        if own:
            raise UsageError(f"{own[0]} is not ordered: subscribe to it apart from {names}")
        options = LaneOptions(handler, ack, retry or Retry(), on_gap, durable or "")
        holder = identity or Identity(os.urandom(8).hex())
        subscription = self._open(options, durable, holder)

        def below(needed: list[str], take: Handler) -> Subscription:
            way = Ack.AUTO if durable is None else Ack.MANUAL
            return self._bus.subscribe(needed, take, durable=durable, identity=holder, ack=way)

        with self._lock:
            self._subscriptions = [one for one in self._subscriptions if not one.closed]
            self._subscriptions.append(subscription)
            known = list(self._claims.values())
        try:
            subscription.start(names, below, known)
        except BaseException:
            subscription.close()
            raise
        return subscription

    def receive(
        self,
        topics: Sequence[str],
        receiver: Receiver,
        *,
        durable: str | None = None,
        identity: Identity | None = None,
    ) -> Subscription:
        """Of the layer's own topics, which are not ordered."""
        self._check_open()
        if ordered := [topic for topic in topics if not topic.startswith(self._own)]:
            raise UsageError(f"{ordered[0]} is ordered: subscribe to it")
        return self._bus.receive(topics, receiver, durable=durable, identity=identity)

    def _open(self, options: LaneOptions, durable: str | None, holder: Identity) -> OrderedSubscription:
        config = SubscriberConfig(mode=self._mode, resend=_RESEND, time_to_live=self._time_to_live)
        name, keeper = f"{self._client}/{next(self._numbers)}", None
        if durable is not None:
            check_label(durable)
            if self._mode is Mode.UNRELIABLE:
                raise UsageError("the unreliable mode has no durable subscriptions: what it skipped is not kept")
            config = replace(config, lasting=True, expiry=_LASTING)
            name, keeper = f"{durable}/d", Keeper(CursorValues(self._bus, durable, holder), self._loop)
        made: list[OrderedSubscription] = []
        lane = Lane(
            options,
            dead_letters.burial(self._bus),
            on_low=lambda: made[0].has_room() if made else None,
            numbered=False,
        )
        role = Subscriber(name, config)
        made.append(OrderedSubscription(role, self._way.exchange, self._loop, lane, keeper, self._deadline))
        return made[0]

    def announce(self, key: str, value: bytes | None) -> Receipt:
        return self._bus.announce(key, value)

    def watch(self, prefix: str, handler: WatchHandler | None = None) -> Watch:
        return self._bus.watch(prefix, handler)

    def enter(self, name: str, identity: Identity, info: Mapping[str, str] | None = None) -> Presence:
        return self._bus.enter(name, identity, info)

    def close(self, timeout: float = 5.0) -> None:
        deadline = time.monotonic() + timeout
        with self._lock:
            if self._closing:
                return
            self._closing = True
            subscriptions = list(self._subscriptions)
        self._publishing.close(timeout)
        for subscription in reversed(subscriptions):
            subscription.close(max(0.0, deadline - time.monotonic()))
        self._unfollow()
        self._way.close()
        self._loop.close()
        for bus in reversed(self._way.owned):
            bus.close(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _found(self, claim: Claim) -> None:
        event = claim.event()
        with self._lock:
            self._claims[claim.host] = event
            subscriptions = list(self._subscriptions)
        self._publishing.take([event])
        for subscription in subscriptions:
            subscription.take([event])

    def _check_open(self) -> None:
        if self._closing:
            raise Closed("the ordered bus is closed")
