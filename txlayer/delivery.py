"""An event as a subscriber receives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn, Protocol

import msgspec

from txlayer import metadata
from txlayer.errors import DecodeError
from txlayer.metadata import Metadata, Position

REPLAY_FOR = "txlayer-replay-for"
"""Header of a replayed dead letter: the durable name that it is for, empty for subscriptions without a name."""


class _NoHeaders(dict[str, str]):
    """An empty dict that stays so, because it is shared; a copy of it is a dict like any other."""

    __slots__ = ()

    def _refuse(self, *args: object, **more: object) -> NoReturn:
        raise TypeError("the headers of a delivery cannot be changed: take a copy, dict(delivery.headers)")

    __setitem__ = __ior__ = update = setdefault = _refuse

    def __reduce__(self) -> tuple[type[dict[str, str]], tuple[()]]:
        return dict, ()


NO_HEADERS: Mapping[str, str] = _NoHeaders()
"""Shared by the many events without headers: a dict for each is one more thing for the garbage collector."""


class Window(Protocol):
    """What an acknowledgement goes to."""

    def settle(self, delivery: Delivery) -> None: ...


class Delivery(msgspec.Struct, gc=False, eq=False):
    """One event at one subscriber. `ack()` tells the broker that it is safe here.

    Many of them wait at a time, so the garbage collector does not visit them; the cycle through the window ends with
    the acknowledgement or with the connection.
    """

    topic: str
    payload: bytes
    key: bytes | None = None
    headers: Mapping[str, str] = NO_HEADERS
    packed: bytes | None = None
    """The compact metadata, as they came."""
    _cloud_prefix: str = ""
    native: object = None
    """The driver's own message on MQTT; (topic, partition) on Kafka, where `token` is the offset."""
    redelivered: bool = False
    """This subscription has been given the same event before."""
    out_of_order: bool = False
    """On an ordered bus: it has no place in the order, or came after it."""
    place: int | None = None
    """On an ordered bus: its number in its topic."""
    settled: bool = False
    _window: Window | None = None
    token: int = 0
    """By what the adapter acknowledges it: packet id, offset."""

    def held_by(self, window: Window, token: int) -> None:
        """For adapters: `window` gets the acknowledgement."""
        self._window = window
        self.token = token

    def ack(self) -> None:
        """Acknowledge; from any thread, any number of times. One for a connection that is gone does nothing."""
        window = self._window
        if window is not None and not self.settled:
            window.settle(self)

    @property
    def metadata(self) -> Metadata | None:
        """What travelled beside the payload; None for the event of a publisher that sends nothing."""
        if self.packed:
            try:
                return metadata.unpack(self.packed)[0]
            except DecodeError:
                return None
        if metadata.is_cloud_event(self.headers, self._cloud_prefix):
            return metadata.from_cloud_headers(self.headers, self._cloud_prefix)
        return None

    @property
    def position(self) -> Position | None:
        """Stream and number, where the publisher numbers its events."""
        if self.packed:
            return metadata.position(self.packed)
        return metadata.cloud_position(self.headers, self._cloud_prefix) if self.headers else None

    def __repr__(self) -> str:
        return f"Delivery({self.topic!r}, {len(self.payload)} bytes)"


@dataclass(frozen=True)
class Gap:
    """Events of one publisher on one topic that never came: numbers `first` to `last` of `stream`.

    On an ordered bus they are numbers of the topic, and `stream` is empty. Not `certain`: nobody knows whether there
    were events behind them.
    """

    topic: str
    stream: str
    first: int
    last: int
    certain: bool = True
