"""What a site writes down: one live record per key, replaced or dropped as its matter moves on.

The log holds for every key the last record only, so its size follows what is unfinished, not what has happened.
A new field goes at the end and has a default: an older log is read by newer code.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import Struct

from txlayer.errors import LogCorrupt
from txlayer.messages import ChainKind, Hashes, Limit, Numbered, Pseudonym, Standing, Status, Terms, TxId


class Record(Struct, frozen=True, array_like=True, tag=True, tag_field="@"):
    """Root of everything in a log."""


class NumbersReserved(Record, frozen=True):
    """Transaction numbers below `upto` may have been used."""

    upto: int


class Decided(Record, frozen=True):
    """Coordinator: the decision. Only commits are kept, and refusals of a delegate (presumed abort).

    `publisher` called, and is told; `initiator` is named where it is another one: the key is its own.
    """

    tx: TxId
    type: str
    status: Status
    final: tuple[bytes, ...]
    done: tuple[bytes, ...]
    key: str
    publisher: str
    called: bool = False
    reason: str = ""
    public: tuple[Numbered, ...] = ()
    local: bool = False
    initiator: str = ""
    limit: Limit = Limit.NONE


class Settling(Record, frozen=True):
    """Coordinator: about to put a commit into the shared register; from here on only what stands there counts."""

    tx: TxId
    terms: Terms
    members: tuple[Pseudonym, ...]
    key: str
    publisher: str
    called: bool
    events: tuple[Numbered, ...] = ()
    initiator: str = ""


class DelegationOpened(Record, frozen=True):
    """Coordinator: from here on only this member knows the decision."""

    tx: TxId
    terms: Terms
    pseudonym: Pseudonym
    last: int
    digest: bytes
    key: str
    publisher: str
    called: bool
    events: tuple[Numbered, ...] = ()
    initiator: str = ""


class ChainEntry(Record, frozen=True):
    """Coordinator: entry of a chain that some reader has not applied yet."""

    kind: ChainKind
    number: int
    tx: TxId
    terms: Terms
    events: tuple[Numbered, ...]


class ChainPosition(Record, frozen=True):
    """Coordinator: entries below `low` are gone; the next one gets a number of at least `next`."""

    kind: ChainKind
    low: int
    next: int


class Reader(Record, frozen=True):
    """Coordinator: a site that reads a chain, here or away."""

    kind: ChainKind
    name: str
    types: tuple[str, ...]
    upto: int
    stale: bool = False
    registration: int = 1


class Retired(Record, frozen=True):
    """Coordinator: commits that are forgotten, as ranges of numbers; up to `upto` it is not known which.

    `keys_lost`: some of them had a key that callers may ask by, and that is forgotten too.
    """

    upto: int
    keys_lost: bool = False
    commits: tuple[tuple[int, int], ...] = ()


class ForgottenKey(Record, frozen=True):
    """Coordinator: the key of a transaction that is forgotten and had an effect."""

    key: str
    number: int
    committed: bool


class Intent(Record, frozen=True):
    """Member: about to prepare and vote yes, with what it needs to recognise the decision and to undo."""

    tx: TxId
    terms: Terms
    hashes: Hashes
    members: tuple[bytes, ...]
    last: int
    digest: bytes
    compensatable: bool = False
    delegated: bool = False
    identity: bool = False
    events: tuple[Numbered, ...] = ()
    begin: bytes = b""
    parts: tuple[str, ...] = ()
    """Which subscribers took part, by name, here and below; empty: not known."""
    attributes: tuple[tuple[str, str], ...] = ()
    """What it says of itself in its join, here and below: in one shot that travels with the vote."""


class VotedNo(Record, frozen=True):
    """Member: said no, or is about to. Never to be taken back."""

    tx: TxId
    type: str
    reason: str = ""
    delegated: bool = False
    terms: Terms | None = None
    """None, here and below: not known."""
    parts: tuple[str, ...] = ()
    hashes: Hashes | None = None
    identity: bool = False
    attributes: tuple[tuple[str, str], ...] = ()
    lost: bool = False
    """There was an intent, and the work behind it is gone: a yes may have been said."""


class MemberDecided(Record, frozen=True):
    """Member: the decision as it arrived; applied or to be applied, then a tombstone until the mark passes."""

    tx: TxId
    type: str
    commit: bool
    frame: bytes
    compensatable: bool = False
    events: tuple[Numbered, ...] = ()
    parked: bool = False
    undone: bool = False
    terms: Terms | None = None
    parts: tuple[str, ...] = ()


class LocalIntent(Record, frozen=True):
    """Local member: the publisher called; all events are here. A tombstone once it is applied."""

    tx: TxId
    type: str
    events: tuple[Numbered, ...]
    terms: Terms | None = None
    parts: tuple[str, ...] = ()


class Cursor(Record, frozen=True):
    """Reader: how far it has applied a chain. `upto` < 0: asked to follow, not answered yet."""

    coordinator: str
    incarnation: str
    kind: ChainKind
    types: tuple[str, ...]
    upto: int
    stale: bool = False
    registration: int = 1


class PeerMark(Record, frozen=True):
    """Member: the low-water mark by which records of this coordinator were dropped."""

    coordinator: str
    incarnation: str
    standing: Standing


class Heuristic(Record, frozen=True):
    """An operator has ended a transaction here, in place of those who should have. It is kept for the records."""

    tx: TxId
    type: str
    part: str
    commit: bool
    time: float
    """By the wall clock."""


AnyRecord: TypeAlias = (
    NumbersReserved
    | Decided
    | Settling
    | DelegationOpened
    | ChainEntry
    | ChainPosition
    | Reader
    | Retired
    | ForgottenKey
    | Intent
    | VotedNo
    | MemberDecided
    | LocalIntent
    | Cursor
    | PeerMark
    | Heuristic
)


class Settlement(Struct, frozen=True, array_like=True):
    """What stands in the shared register for one transaction: the first that was written, for ever."""

    commit: bool
    final: tuple[bytes, ...] = ()
    reason: str = ""


_encoder = msgspec.msgpack.Encoder()
_settlement = msgspec.msgpack.Decoder(Settlement)
_decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)


def encode_record(record: AnyRecord) -> bytes:
    """A record as a log stores it."""
    return _encoder.encode(record)


def encode_settlement(settlement: Settlement) -> bytes:
    """A settlement as a register stores it."""
    return _encoder.encode(settlement)


def decode_settlement(data: bytes) -> Settlement:
    """Read a settlement back."""
    try:
        return _settlement.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError) as exc:
        raise LogCorrupt(f"a settlement cannot be read: {exc}") from exc


def decode_record(data: bytes) -> AnyRecord:
    """Read a record back; `LogCorrupt` for anything that is none."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError) as exc:
        raise LogCorrupt(f"a record cannot be read: {exc}") from exc
