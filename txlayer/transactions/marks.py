"""Low-water marks of other coordinators, as one site knows them.

A mark says: all transactions below `below` are finished, those in `open` excepted. Being finished is for ever, so
marks only add up, in whatever order they arrive.
"""

from __future__ import annotations

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
        return standing is not None and tx.number < standing.below and tx.number not in standing.open

    def advance(self, peer: Peer, news: Standing) -> bool:
        """Take a mark in; whether it says anything new."""
        known = self.known.get(peer, Standing())
        if news.below > known.below:
            merged = Standing(news.below, tuple(number for number in news.open if self._open(known, number)))
        else:
            still = tuple(number for number in known.open if number >= news.below or number in news.open)
            merged = Standing(known.below, still)
        self.known[peer] = merged
        return merged != known

    @staticmethod
    def _open(known: Standing, number: int) -> bool:
        return number >= known.below or number in known.open
