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
        known = self.known.get(peer, Standing())
        if news.below > known.below:
            merged = Standing(news.below, tuple(number for number in sorted(news.open) if _open(known, number)))
        else:
            news = Standing(news.below, tuple(sorted(news.open)))
            merged = Standing(known.below, tuple(number for number in known.open if _open(news, number)))
        self.known[peer] = merged
        return merged != known


def _open(standing: Standing, number: int) -> bool:
    """Whether this mark leaves it open."""
    place = bisect_left(standing.open, number)
    return number >= standing.below or standing.open[place : place + 1] == (number,)
