"""The names of units of work.

A transaction may have several at one site: that of the member, named like the transaction, the one that undoes it, and
one for each chain that brings the transaction to subscribers who follow. Each has a marker of its own, and none waits
for another.
"""

from __future__ import annotations

from msgspec.structs import replace

from txlayer.messages import ChainKind, TxId

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
