"""Who reads what a site coordinates: its followers and durable local members, for its operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from txlayer.effects import Append, Drop
from txlayer.errors import UsageError
from txlayer.logs.record_log import RecordLog
from txlayer.messages import ChainKind
from txlayer.records import ChainEntry, ChainPosition, Reader
from txlayer.tokens import Keyring
from txlayer.transactions.chain import Chain
from txlayer.transactions.seat import Seat


@dataclass(frozen=True, slots=True)
class ReaderView:
    """One site that reads a chain of this one."""

    name: str
    chain: str
    """`commits`: it follows; `calls`: it is a durable local member."""
    types: tuple[str, ...]
    behind: int
    """Transactions that it has not acknowledged."""
    stale: bool
    """It needs some that are not kept any more, and has not followed anew."""


def readers_of(chains: Mapping[ChainKind, Chain]) -> list[ReaderView]:
    """All of them, by name."""
    views = [
        ReaderView(name, kind.value, reading.types, chain.next - 1 - reading.upto, reading.stale)
        for kind, chain in chains.items()
        for name, reading in chain.readers.items()
    ]
    return sorted(views, key=lambda view: (view.name, view.chain))


def no_reader(name: str) -> UsageError:
    """What to say of one that is not registered."""
    return UsageError(f"{name!r} reads nothing of this site; `txlayer readers list` shows who does")


def encode_readers(views: list[ReaderView]) -> bytes:
    """For the way to an operator."""
    return msgspec.msgpack.encode(views)


def decode_readers(data: bytes) -> list[ReaderView]:
    """From a site."""
    return msgspec.msgpack.decode(data, type=list[ReaderView])


# Offline


def chains_of(log: RecordLog) -> dict[ChainKind, Chain]:
    """The chains of a site that does not run."""
    seat = Seat(log.header.site, log.header.incarnation, log.header.life, Keyring(log.header.secret))
    chains = {kind: Chain(seat, kind) for kind in ChainKind}
    for record in log.records.values():
        if isinstance(record, ChainEntry | ChainPosition | Reader):
            chains[record.kind].recover(record)
    for chain in chains.values():
        chain.resume()
    return chains


def remove_in(log: RecordLog, name: str) -> None:
    """Remove a reader in the log of a site that does not run. Durable on return."""
    effects = [effect for chain in chains_of(log).values() for effect in chain.remove(name)]
    if not effects:
        raise no_reader(name)
    for effect in effects:
        if isinstance(effect, Append):
            log.append(effect.key, effect.record)
            log.records[effect.key] = effect.record
        elif isinstance(effect, Drop):
            log.drop(effect.key)
            log.records.pop(effect.key, None)
    log.write()
    log.sync()
