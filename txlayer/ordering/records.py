"""What a host of topic managers keeps on disk: one live record per key."""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import Struct

from txlayer.errors import LogCorrupt


class _Record(Struct, frozen=True, tag=True, array_like=True, gc=False):
    pass


class EpochRecord(_Record, frozen=True):
    """The epoch of the last life, and that in which the log began. Durable before the host says a word."""

    epoch: int
    first: int = 1


class ChainRecord(_Record, frozen=True):
    """The hosts that this one has heard of: two that have forgotten the one between them would link past it."""

    hosts: tuple[tuple[int, str], ...]


class TopicRecord(_Record, frozen=True):
    """A topic: its rank, and how far its numbers are reserved. All at or below `closed` are published or void.

    Of those at or below `floor` it is no longer known which.
    """

    rank: int
    name: str
    reserved: int
    closed: int
    floor: int = 0


class SubscriptionRecord(_Record, frozen=True):
    """The last version of a subscription that concerned this host."""

    subscriber: str
    version: int
    ranks: tuple[int, ...]
    related: bool
    whole: bool
    lasting: bool = False


class TicketRecord(_Record, frozen=True):
    """A ticket that was answered or closed (host with durable tickets)."""

    rank: int
    publisher: str
    generation: int
    seq: int
    first: int
    count: int
    state: int
    ranks: tuple[int, ...]
    values: tuple[int, ...]


class VoidRecord(_Record, frozen=True):
    """Numbers that nobody may use. `doubtful`: skipped by a restart that had forgotten what was given."""

    rank: int
    first: int
    last: int
    doubtful: bool = False


AnyRecord: TypeAlias = EpochRecord | ChainRecord | TopicRecord | SubscriptionRecord | TicketRecord | VoidRecord

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyRecord).decode


def encode_record(record: AnyRecord) -> bytes:
    """To bytes."""
    return _encode(record)


def decode_record(body: bytes) -> AnyRecord:
    """From bytes."""
    try:
        record: AnyRecord = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise LogCorrupt(f"not a record of a sequencer host: {exc}") from exc
    return record
