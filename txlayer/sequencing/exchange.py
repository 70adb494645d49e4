"""How publishers, subscribers and hosts reach each other: letters to names, many of them in one packet.

A name with a `/` in it is a client's (`client/role`), one without is a host's. Letters may be lost and doubled, the
roles see to that; on the way from one sender to one receiver they keep their order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import msgspec

from txlayer.errors import DecodeError
from txlayer.ordering.messages import AnyMessage

_logger = logging.getLogger(__name__)

Letter: TypeAlias = tuple[str, AnyMessage]
Receive: TypeAlias = Callable[[list[AnyMessage]], None]
"""Takes the messages of one packet for one name; called on a thread of the exchange."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Letter]).decode


def pack(letters: Sequence[Letter]) -> bytes:
    """To bytes."""
    return _encode(letters)


def unpack(packet: bytes) -> list[Letter]:
    """From bytes; raises `DecodeError` and nothing else."""
    try:
        return _decode(packet)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise DecodeError(f"not a packet of the ordering layer: {exc}") from exc


def is_client(name: str) -> bool:
    """Whether the name is that of a publisher or a subscriber."""
    return "/" in name


class Exchange(Protocol):
    """One end of the way between clients and hosts."""

    def listen(self, name: str, receive: Receive) -> None:
        """Take letters to this name from now on; in force when it returns."""

    def silence(self, name: str, receive: Receive) -> None:
        """Hand it no more letters to this name; whoever has taken the name over goes on."""

    def send(self, letters: Sequence[Letter]) -> None:
        """Never blocks; what does not fit is dropped, and asked for again by the roles."""

    def close(self) -> None: ...


@dataclass(slots=True)
class Listeners:
    """Who takes letters here."""

    by_name: dict[str, Receive] = field(default_factory=dict)
    unreadable: int = 0

    def remove(self, name: str, receive: Receive) -> None:
        """Unless another one listens under this name by now."""
        if self.by_name.get(name) == receive:
            del self.by_name[name]

    def take(self, packet: bytes) -> None:
        """Hand the letters of a packet to those who listen. A packet that cannot be read is counted and dropped."""
        try:
            letters = unpack(packet)
        except DecodeError as exc:
            self.unreadable += 1
            _logger.warning("%s", exc)
            return
        self.deliver(letters)

    def deliver(self, letters: Sequence[Letter]) -> None:
        """Letters in order, those of one name together."""
        by_name: dict[str, list[AnyMessage]] = {}
        for to, message in letters:
            if to in self.by_name:
                by_name.setdefault(to, []).append(message)
        for to, messages in by_name.items():
            receive = self.by_name.get(to)
            if receive is not None:
                receive(messages)
