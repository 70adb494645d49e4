"""What the driver tells a site's process, and what that answers: JSON lines on its standard input and output."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from txlayer.messages import Item, Terms, TxId


class Order(msgspec.Struct, frozen=True, tag=True):
    """To a site."""


class Run(Order, frozen=True):
    """Live through a transaction."""

    call: str
    coordinator: str
    terms: Terms
    items: tuple[Item, ...]
    abort: bool
    keyed: bool


class Help(Order, frozen=True):
    """Publish in a transaction of another site, whether or not that is allowed."""

    call: str
    tx: TxId


class Die(Order, frozen=True):
    """End by SIGKILL, exactly so many steps of the runtime from now."""

    after: int


class Heal(Order, frozen=True):
    """No more faults of your own."""


class Rest(Order, frozen=True):
    """What is left to do?"""


class Close(Order, frozen=True):
    """Close the site and end."""


AnyOrder: TypeAlias = Run | Help | Die | Heal | Rest | Close


class Ready(msgspec.Struct, frozen=True, tag=True):
    life: int


class Open(msgspec.Struct, frozen=True, tag=True):
    call: str
    tx: TxId


class Finished(msgspec.Struct, frozen=True, tag=True):
    call: str


class Left(msgspec.Struct, frozen=True, tag=True):
    """`remembered` are tombstones of members; they may stay while their coordinator lists them as `settled`."""

    work: tuple[str, ...]
    remembered: tuple[TxId, ...]
    settled: tuple[TxId, ...]


class Closed(msgspec.Struct, frozen=True, tag=True):
    threads: tuple[str, ...]


AnyAnswer: TypeAlias = Ready | Open | Finished | Left | Closed
