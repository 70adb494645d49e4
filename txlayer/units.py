"""The names of units of work.

A transaction may have several at one site: that of the member, named like the transaction, the one that undoes it, and
one for each chain that brings the transaction to subscribers who follow. Each has a marker of its own, and none waits
for another.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from txlayer.messages import ChainKind, Numbered, TxId

UNDO = "~undo"
_CHAINS = {kind.value: kind for kind in ChainKind}


def undo_of(unit: TxId) -> TxId:
    """The unit that compensates `unit`."""
    return replace(unit, nonce=f"{unit.nonce}{UNDO}")


def undone_by(unit: TxId) -> TxId:
    """The unit that this one undoes, or itself."""
    return replace(unit, nonce=unit.nonce.removesuffix(UNDO))


def entry_of(tx: TxId, kind: ChainKind) -> TxId:
    """The unit in which a site applies a transaction that it reads from a chain."""
    return replace(tx, nonce=f"{tx.nonce}~{kind.value}")


def chain_of(unit: TxId) -> ChainKind | None:
    """The chain that brought the work of a unit; None for a member's."""
    _, tilde, kind = unit.nonce.rpartition("~")
    return _CHAINS.get(kind) if tilde else None


def transaction_of(unit: TxId) -> TxId:
    """Whose unit it is."""
    return replace(unit, nonce=unit.nonce.partition("~")[0])


class UndoRecord(msgspec.Struct, frozen=True, array_like=True):
    """What is stored beside work that may have to be undone: under which log, as which member, and the events.

    A site undoes by its log, which has the same events. This is what is left of them where the log is lost.
    """

    log: str
    member: bytes
    events: tuple[Numbered, ...]

    def encode(self) -> bytes:
        """MessagePack."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> UndoRecord:
        """What cannot be read is of no log that is known."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.MsgspecError:
            return cls("", b"", ())
