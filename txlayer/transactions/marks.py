"""Low-water marks of other coordinators, as one site knows them.

A mark says: all transactions below `below` are finished, those in `open` excepted. Being finished is for ever, so
marks only add up, in whatever order they arrive. Callers that never confirm leave many open, so they are kept sorted.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from txlayer.messages import Standing, TxId

Peer = tuple[str, str]


@dataclass(slots=True)
class Marks:
    """One mark per coordinator and incarnation."""

    known: dict[Peer, Standing] = field(default_factory=dict)

    def finished(self, tx: TxId) -> bool:
        """Whether its coordinator has finished with this transaction."""
        standing = self.known.get((tx.coordinator, tx.incarnation))
        return standing is not None and not _open(standing, tx.number)

    def advance(self, peer: Peer, news: Standing) -> bool:
        """Take a mark in; whether it says anything new."""
        known = self.known.setdefault(peer, Standing())
        if news == known:  # as most are: every census brings one
            return False
        news = Standing(news.below, tuple(sorted(news.open)))
        low, high = (known, news) if news.below > known.below else (news, known)
        # What the lower one says nothing about is not looked at one by one.
        cut = bisect_left(high.open, low.below)
        still = tuple(number for number in high.open[:cut] if _open(low, number))
        if high is known and len(still) == cut:
            return False
        self.known[peer] = Standing(high.below, still + high.open[cut:])
        return True


def _open(standing: Standing, number: int) -> bool:
    """Whether this mark leaves it open."""
    place = bisect_left(standing.open, number)
    return number >= standing.below or standing.open[place : place + 1] == (number,)
