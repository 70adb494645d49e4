"""What a site writes down of what it does and sees, line by line, so that it outlives the site.

Times are of the monotonic clock, which all processes of one machine share. A line that is about a message is written
before the message leaves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec

from txlayer.messages import Item, Outcome, Terms, TxId


class Line(msgspec.Struct, frozen=True, tag=True):
    """One thing that happened."""


class OfCall(Line, frozen=True):
    """What a caller does or hears."""

    call: str


class OfTx(Line, frozen=True):
    """What happens in a transaction."""

    tx: TxId


class Started(Line, frozen=True):
    life: int


class Asked(OfCall, frozen=True):
    """A caller begins. `keyed`: under a key of its own, so that it can ask and repeat after a crash."""

    coordinator: str
    terms: Terms
    items: tuple[Item, ...]
    keyed: bool


class Opened(OfCall, frozen=True):
    tx: TxId


class Published(OfCall, frozen=True):
    item: Item


class Helped(OfTx, frozen=True):
    """A second publisher's event, or a stranger's."""

    item: Item


class Called(OfCall, frozen=True):
    at: float


class Told(OfCall, frozen=True):
    outcome: Outcome
    at: float


class Done(OfCall, frozen=True):
    """The caller has nothing left to do."""


class Chosen(OfTx, frozen=True):
    scope: str


class Joined(OfTx, frozen=True):
    member: bytes


class Voted(OfTx, frozen=True):
    """Yes."""

    at: float


class Begun(OfTx, frozen=True):
    members: tuple[bytes, ...]


class Decided(OfTx, frozen=True):
    commit: bool
    final: tuple[bytes, ...]
    at: float


class Created(OfCall, frozen=True):
    tx: TxId


class Registered(Line, frozen=True):
    """A coordinator answers a reader: from now on it misses nothing."""

    reader: str
    kind: str
    at: float


class Delivered(OfTx, frozen=True):
    """An event reached the application."""


class Notified(OfTx, frozen=True):
    number: int


class Handled(OfTx, frozen=True):
    """An event, by a member without a resource."""

    value: str


class Committed(OfTx, frozen=True):
    """A member without a resource hears of the commit."""

    at: float


class Public(OfTx, frozen=True):
    """The copy of an event for the world outside."""

    number: int
    at: float


class Parked(OfTx, frozen=True):
    """A compensation waits for an operator."""


AnyLine: TypeAlias = (
    Started | Asked | Opened | Published | Helped | Called | Told | Done | Chosen | Joined | Voted | Begun | Decided
    | Created | Registered | Delivered | Notified | Handled | Committed | Public
    | Parked
)  # fmt: skip
_decode = msgspec.json.Decoder(AnyLine).decode


class Pen:
    """Appends lines to a file; each is whole, whatever happens to the process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, line: AnyLine) -> None:
        """Written when it returns, as far as the death of this process goes."""
        os.write(self._file, msgspec.json.encode(line) + b"\n")


def read(path: Path) -> Iterator[AnyLine]:
    """All lines of a site."""
    if path.exists():
        for line in path.read_bytes().splitlines():
            yield _decode(line)
