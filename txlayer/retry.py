"""Trying a transaction again that did not commit: a deadlock, a lock that was held too long, a member that was away.

An abort is definite, and so is a census that was not fulfilled: in one shot the vote of a member that waits for a lock
may come too late for it. No distributed member has done anything then. Local members act on the commit call whatever
the others vote (`outcome.called`), and act again. An outcome that is unknown is not tried again: ask for it.
"""

from __future__ import annotations

from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from txlayer.errors import CensusUnfulfilled, TransactionAborted


def retrying(attempts: int = 5, first: float = 0.05, longest: float = 2.0) -> Retrying:
    """For `for attempt in retrying(): with attempt: ...`, or `retrying()(function, ...)`.

    Pauses are drawn at random up to a bound that doubles from `first` to `longest` seconds, so two transactions that
    stood in each other's way do not meet again. After the last attempt the last error is raised.
    """
    return Retrying(
        retry=retry_if_exception_type((TransactionAborted, CensusUnfulfilled)),
        wait=wait_random_exponential(multiplier=first, max=longest),
        stop=stop_after_attempt(attempts),
        reraise=True,
    )
