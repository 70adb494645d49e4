"""Constraints on who takes part (HTS 4.1 conditions, TOPS 4.4.4).

`require` is tested once, at the census; everyone who joined must then agree. `settle_for` is tested at the census, at
every member that drops out and in both phases; members may drop out as long as it holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from txlayer.errors import UsageError
from txlayer.messages import Conditions, Join, Terms, TxType
from txlayer.transactions.scope import check_limit, one_shot_allowed

LEAST_SECONDS = 0.001
MOST_SECONDS = 1e8


def unmet(conditions: Conditions, members: Sequence[Join]) -> str:
    """Why these members do not satisfy the conditions; empty if they do."""
    if len(members) < conditions.at_least:
        return f"{len(members)} of at least {conditions.at_least} members"
    if conditions.at_most is not None and len(members) > conditions.at_most:
        return f"{len(members)} members, at most {conditions.at_most} allowed"
    identities = {join.identity for join in members}
    absent = [name for name in conditions.named if name not in identities]
    if absent:
        return f"{', '.join(absent)} did not take part"
    return ""


def admits(terms: Terms, join: Join) -> bool:
    """Whether this answer may become a distributed member at all."""
    return all(
        not conditions.only or join.identity in conditions.only
        for conditions in (terms.require, terms.settle_for)
        if conditions is not None
    )


def capacity(terms: Terms) -> int | None:
    """The most members that the conditions allow."""
    bounds = [c.at_most for c in (terms.require, terms.settle_for) if c is not None and c.at_most is not None]
    return min(bounds) if bounds else None


def check_terms(terms: Terms) -> None:
    """Refuse what can never work, with the change that would make it work."""
    check_limit(terms.tx_type, terms.limit)
    for name in ("census_within", "vote_within", "complete_within"):
        if not LEAST_SECONDS <= getattr(terms, name) <= MOST_SECONDS:
            raise UsageError(f"{name} must lie between {LEAST_SECONDS} and {MOST_SECONDS} seconds")
    local = terms.tx_type is TxType.LOCAL
    if local and (terms.require != Conditions() or terms.settle_for is not None):
        raise UsageError("a local transaction has no census: leave require and settle_for out")
    if terms.one_shot and not local and not one_shot_allowed(terms):
        raise UsageError("one shot shows the events before members are known: limit none or local, or require.only")
    for conditions in (terms.require, terms.settle_for):
        if conditions is None:
            continue
        if conditions.at_most is not None and conditions.at_most < conditions.at_least:
            raise UsageError(f"at least {conditions.at_least} and at most {conditions.at_most} members exclude all")
        if conditions.only and not set(conditions.named) <= set(conditions.only):
            raise UsageError("a named member is not among the only ones allowed")
