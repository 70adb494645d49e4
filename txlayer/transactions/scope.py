"""Scope and scope limit (TOPS 4.4.3, table 4-A and figure 4-I).

A subscriber asks for a scope, the initiator limits how weak it may be, the type of the transaction how strong. Too
weak a scope for the limit becomes none, as in the table; what figure 4-I has no place for is a usage error.
"""

from __future__ import annotations

from txlayer.errors import UsageError
from txlayer.messages import ChainKind, Limit, Scope, Terms, TxType

_RANK = {Scope.NONE: 0, Scope.NON_TRANSACTIONAL: 1, Scope.LOCAL: 2, Scope.FOLLOWER: 2, Scope.DISTRIBUTED: 3}
_FLOOR = {Limit.NONE: 1, Limit.LOCAL: 2, Limit.DISTRIBUTED: 3}
_CEILING = {TxType.LOCAL: 2, TxType.DISTRIBUTED: 3}


def check_limit(tx_type: TxType, limit: Limit) -> None:
    """A limit above the type of the transaction would exclude everyone."""
    if _FLOOR[limit] > _CEILING[tx_type]:
        raise UsageError(f"a {tx_type.value} transaction cannot be limited to {limit.value}: use limit none or local")


def granted(requested: Scope, tx_type: TxType, limit: Limit) -> Scope:
    """What a subscriber gets that asks for `requested`."""
    if _RANK[requested] > _CEILING[tx_type]:
        raise UsageError(f"scope {requested.value} is too strong for a {tx_type.value} transaction")
    if requested is Scope.FOLLOWER and tx_type is TxType.LOCAL:
        raise UsageError("a local transaction has no decision to follow: use scope local, durable")
    return requested if _RANK[requested] >= _FLOOR[limit] else Scope.NONE


def chain_for(scope: Scope, durable: bool) -> ChainKind | None:
    """The chain that brings transactions to a subscriber of this scope; None if it hears of them as they happen."""
    if scope is Scope.FOLLOWER:
        return ChainKind.COMMITS
    return ChainKind.CALLS if scope is Scope.LOCAL and durable else None


def has_locals(terms: Terms) -> bool:
    """Whether anyone may take part without a vote."""
    return terms.limit is not Limit.DISTRIBUTED


def one_shot_allowed(terms: Terms) -> bool:
    """In one shot events are seen before membership is settled: only where that harms nobody."""
    return has_locals(terms) or bool(terms.require.only)
