"""The half of a bus that does not depend on the driver.

An adapter derives from `BusBase` and adds what only its driver can do: `publish`, the subscriptions, the latest values,
and what the bus announces when this process dies.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from txlayer import dead_letters
from txlayer.adapters.lane import Lane, LaneOptions
from txlayer.adapters.streams import Streams
from txlayer.delivery import Gap
from txlayer.errors import Backpressure, Closed, NameTaken, UsageError
from txlayer.ports import (
    Ack,
    Capabilities,
    Handler,
    Identity,
    Receiver,
    Retry,
    Stats,
    Subscription,
    Watch,
    WatchHandler,
)
from txlayer.presence import SITES, Holder
from txlayer.receipt import Receipt
from txlayer.ticker import Ticker

EVENT_OVERHEAD = 256
"""Bytes that a waiting event is counted for beside its payload: empty ones fill a buffer too."""

DURABLE = "durable"
"""Kind of the latest values that tell who holds a durable name."""

_logger = logging.getLogger(__name__)
_LAST_EVENT_SECONDS = 5.0
_LABEL = re.compile(r"[A-Za-z0-9._:-]{1,120}")


class _Closable(Protocol):
    @property
    def closed(self) -> bool: ...

    def close(self, timeout: float = ...) -> None: ...


class BusBase(ABC):
    """State and calls that are the same on every bus."""

    _receives = False
    """Whether a thread of the bus's own, which holds nothing, puts events into lanes: it may run a receiver."""

    def __init__(self, name: str, cloudevents: bool) -> None:
        self._name = name
        self._cloudevents = cloudevents
        self._streams = Streams()
        self._ticker = Ticker(name)
        self._lock = threading.Lock()
        self._closing = self._closed = False
        self._things: list[_Closable] = []

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities: ...

    @property
    @abstractmethod
    def native(self) -> object: ...

    @abstractmethod
    def topic(self, *levels: str) -> str: ...

    @abstractmethod
    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        key: bytes | None = None,
        type: str = "",
    ) -> Receipt: ...

    def say(self, topic: str, payload: bytes) -> None:
        """As any event, where the driver has nothing cheaper."""
        self.publish(topic, payload)

    def flush(self) -> None:
        return  # where the driver sends at once, nothing waits

    @abstractmethod
    def announce(self, key: str, value: bytes | None) -> Receipt: ...

    @abstractmethod
    def watch(self, prefix: str, handler: WatchHandler | None = None) -> Watch: ...

    @abstractmethod
    def _open_subscription(
        self, topics: Sequence[str], options: LaneOptions, holder: Holder | None
    ) -> SubscriptionBase:
        """`holder` holds the durable name `options.name`; None for a subscription without a name."""

    @abstractmethod
    def _at_death(self, key: str, will: bytes) -> Callable[[], None]:
        """Arrange that `will` is announced when this process dies, if the bus can; the result undoes it."""

    @abstractmethod
    def _shut_down(self, timeout: float) -> None:
        """Flush up to `timeout`, disconnect, fail what is left."""

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
        topics = [topics] if isinstance(topics, str) else list(topics)
        options = LaneOptions(handler, ack, retry or Retry(), on_gap, durable or "")
        return self._subscribe(topics, options, durable, identity)

    def receive(
        self,
        topics: Sequence[str],
        receiver: Receiver,
        *,
        durable: str | None = None,
        identity: Identity | None = None,
    ) -> Subscription:
        options = LaneOptions(ack=Ack.MANUAL, name=durable or "", receiver=receiver)
        return self._subscribe(topics, options, durable, identity)

    def _subscribe(
        self, topics: Sequence[str], options: LaneOptions, durable: str | None, identity: Identity | None
    ) -> Subscription:
        self._check_open()
        holder = None
        if durable is not None:
            holder = self._hold(durable, identity or Identity(self._streams.publisher.hex()), topics)
        try:
            subscription = self._open_subscription(topics, options, holder)
        except BaseException:
            if holder is not None:
                holder.leave()
            raise
        self._remember(subscription)
        subscription.mind_name()
        return subscription

    def _hold(self, durable: str, identity: Identity, topics: Sequence[str]) -> Holder:
        check_label(durable)
        holder = Holder(self, self._ticker, f"{DURABLE}/{durable}", identity, {"topics": "\n".join(topics)})
        holder.listen()
        holder.enter()
        return holder

    def enter(self, name: str, identity: Identity, info: Mapping[str, str] | None = None) -> SitePresence:
        self._check_open()
        check_label(name)
        key = f"{SITES}/{name}"
        holder = Holder(self, self._ticker, key, identity, info)
        holder.listen()
        try:
            undo = self._at_death(key, holder.will)
        except BaseException:
            holder.leave()
            raise
        try:
            holder.enter()
        except BaseException:
            undo()
            raise
        presence = SitePresence(holder, undo)
        self._remember(presence)
        return presence

    def close(self, timeout: float = 5.0) -> None:
        deadline = time.monotonic() + timeout
        with self._lock:
            if self._closing:
                return
            self._closing = True
            things, self._things = self._things, []
        for thing in reversed(things):
            thing.close(max(0.0, deadline - time.monotonic()))
        with self._lock:
            self._closed = True
        self._ticker.close()
        # Whatever the handlers have used up, the last words of those who leave get a moment.
        self._shut_down(max(min(timeout, 1.0), deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lane(self, options: LaneOptions, on_low: Callable[[], None] = lambda: None) -> Lane:
        return Lane(options, dead_letters.burial(self), on_low=on_low, threaded=not self._receives)

    def _check_open(self) -> None:
        if self._closing:
            raise Closed(f"bus {self._name} is closed")

    def _remember(self, thing: _Closable) -> None:
        with self._lock:
            self._things = [other for other in self._things if not other.closed]
            if not self._closing:
                self._things.append(thing)
                return
        thing.close()
        raise Closed(f"bus {self._name} was closed meanwhile")


def buffer_full(waiting: int, limit: int) -> Backpressure:
    """The error for a publisher that is faster than the broker."""
    return Backpressure(f"{waiting} bytes wait for the broker; the limit is buffer_bytes={limit}: wait, or raise it")


def as_bytes(payload: object) -> bytes:
    """A payload of our own: a buffer that the caller changes later must not change what is sent."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise UsageError(f"a payload is bytes, not {type(payload).__name__}: encode it first")


def name_lost() -> NameTaken:
    return NameTaken("a later holder has taken this durable name over")


class SitePresence:
    """A site's presence: its holder, and what the bus would say at its death."""

    def __init__(self, holder: Holder, undo_will: Callable[[], None]) -> None:
        self._holder = holder
        self._undo_will = undo_will
        self.closed = False

    @property
    def lost(self) -> bool:
        return self._holder.lost

    def update(self, info: Mapping[str, str]) -> None:
        self._holder.update(info)

    def leave(self) -> None:
        if not self.closed:
            self.closed = True
            self._holder.leave()
            self._undo_will()

    def close(self, timeout: float = 0.0) -> None:
        self.leave()


def check_label(name: str) -> None:
    """Names of sites and durable subscriptions become part of topics, client ids and group ids."""
    if not _LABEL.fullmatch(name):
        raise UsageError(f"name {name!r}: 1 to 120 letters, digits, '.', '_', '-' or ':'")


class SubscriptionBase(ABC):
    """What every subscription does, whatever the driver."""

    def __init__(self, topics: Sequence[str], lane: Lane, holder: Holder | None) -> None:
        self._topics = set(topics)
        self._lane = lane
        self._holder = holder
        self._error: Exception | None = None
        self._ending = threading.Lock()
        self.closed = False
        lane.on_failed = self.fail

    @property
    @abstractmethod
    def native(self) -> object: ...

    @abstractmethod
    def add(self, *topics: str) -> None: ...

    @abstractmethod
    def remove(self, *topics: str) -> None: ...

    @abstractmethod
    def _stop(self, forget: bool) -> None:
        """Stop receiving; `forget`: for good."""

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._topics)

    @property
    def error(self) -> Exception | None:
        return self._error

    @property
    def stats(self) -> Stats:
        """How many events were handled, came twice, never came, or became dead letters."""
        return self._lane.stats

    def unsubscribe(self) -> None:
        self._end(True, _LAST_EVENT_SECONDS)

    def close(self, timeout: float = _LAST_EVENT_SECONDS) -> None:
        """`timeout` is for the handler that is running."""
        self._end(False, timeout)

    def _check_open(self) -> None:
        if self.closed:
            raise Closed("the subscription is closed")

    def fail(self, error: Exception) -> None:
        """It cannot go on: `error` says why."""
        self._end(False, _LAST_EVENT_SECONDS, error)

    def mind_name(self) -> None:
        """Once it runs: end when its durable name is another's, also if it was lost while this was being opened."""
        if self._holder is not None:
            self._holder.on_lost = self._on_lost
            if self._holder.lost:
                self._on_lost()

    def _on_lost(self) -> None:
        self.fail(name_lost())

    def _end(self, forget: bool, timeout: float, error: Exception | None = None) -> None:
        with self._ending:
            if self.closed:
                return
            self._error = error
            self.closed = True
        if error is not None:
            _logger.error("subscription to %s stopped: %s", sorted(self._topics), error)
        self._lane.close(timeout)
        try:
            self._stop(forget)
        finally:
            if self._holder is not None:
                self._holder.leave(forget=forget)
