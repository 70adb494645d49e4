"""Who must take part in a transaction: conditions for `require=` and `settle_for=`."""

from __future__ import annotations

from txlayer.errors import UsageError
from txlayer.messages import Conditions


def at_least(count: int) -> Conditions:
    """So many members or more."""
    _check_count("at_least", count)
    return Conditions(at_least=count)


def at_most(count: int) -> Conditions:
    """No more members than this; later answers are turned away."""
    _check_count("at_most", count)
    return Conditions(at_most=count)


def _check_count(name: str, count: object) -> None:
    if not isinstance(count, int) or count < 0:
        raise UsageError(f"{name}({count!r}): a count is a whole number, not negative")


def named(*sites: str) -> Conditions:
    """These sites among others."""
    return Conditions(at_least=len(set(sites)), named=tuple(sites))


def only(*sites: str) -> Conditions:
    """No distributed member but these. They need not all take part; add `named` for that."""
    return Conditions(only=tuple(sites))


def all_of(*conditions: Conditions) -> Conditions:
    """All of these at once."""
    most = [one.at_most for one in conditions if one.at_most is not None]
    closed = [set(one.only) for one in conditions if one.only]
    return Conditions(
        at_least=max((one.at_least for one in conditions), default=0),
        at_most=min(most) if most else None,
        named=tuple(dict.fromkeys(name for one in conditions for name in one.named)),
        only=tuple(sorted(set.intersection(*closed))) if closed else (),
    )
