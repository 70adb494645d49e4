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


class Started(Line, frozen=True):
    life: int


class Asked(Line, frozen=True):
    """A caller begins. `keyed`: under a key of its own, so that it can ask and repeat after a crash."""

    call: str
    coordinator: str
    terms: Terms
    items: tuple[Item, ...]
    keyed: bool


class Opened(Line, frozen=True):
    call: str
    tx: TxId


class Published(Line, frozen=True):
    call: str
    item: Item


class Helped(Line, frozen=True):
    """A second publisher's event, or a stranger's."""

    tx: TxId
    item: Item


class Called(Line, frozen=True):
    call: str
    at: float


class Told(Line, frozen=True):
    call: str
    outcome: Outcome


class Done(Line, frozen=True):
    call: str


class Chosen(Line, frozen=True):
    tx: TxId
    scope: str


class Joined(Line, frozen=True):
    tx: TxId
    member: bytes


class Voted(Line, frozen=True):
    """Yes."""

    tx: TxId
    at: float


class Begun(Line, frozen=True):
    tx: TxId
    members: tuple[bytes, ...]


class Decided(Line, frozen=True):
    tx: TxId
    commit: bool
    final: tuple[bytes, ...]
    at: float


class Created(Line, frozen=True):
    call: str
    tx: TxId


class Registered(Line, frozen=True):
    """A coordinator answers a reader: from now on it misses nothing."""

    reader: str
    kind: str
    at: float


class Delivered(Line, frozen=True):
    tx: TxId


class Notified(Line, frozen=True):
    tx: TxId
    number: int


class Handled(Line, frozen=True):
    """An event, by a member without a resource."""

    tx: TxId
    value: str


class Committed(Line, frozen=True):
    """A member without a resource hears of the commit."""

    tx: TxId
    at: float


class Public(Line, frozen=True):
    """The copy of an event for the world outside."""

    tx: TxId
    number: int
    at: float


class Parked(Line, frozen=True):
    tx: TxId


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
