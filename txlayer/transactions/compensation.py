"""Compensation of committed work (HTS 3.2, 5.5).

A compensatable member commits when it votes and keeps the events. If the decision is abort, or does not name it, it
undoes them last first, as one unit of work with a marker, so that a crash in between leaves all of it or nothing.
That is its own durable work: the coordinator is told when it is done, or when it failed for good and is parked for an
operator. It is never dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from txlayer.effects import Compensate, CompensationDone, Effect, SetTimer, Surface
from txlayer.messages import Numbered, TxId
from txlayer.transactions.seat import Patience

ATTEMPTS = 5


@dataclass(slots=True)
class Compensation:
    """The undoing of one transaction at one member."""

    tx: TxId
    events: tuple[Numbered, ...]
    patience: Patience
    attempt: int = 1
    done: bool = False
    parked: bool = False

    def start(self) -> list[Effect]:
        """Undo, last event first."""
        return [Compensate(self.tx, self._undo_order(), self.attempt)]

    def on_done(self, result: CompensationDone) -> list[Effect]:
        """Done, or to be tried again, or parked."""
        if self.done or self.parked:
            return []
        if result.ok:
            self.done = True
            return []
        self.attempt += 1
        if self.attempt > ATTEMPTS:
            self.parked = True
            return [Surface("parked", self.tx, result.reason)]
        return [SetTimer(("m", self.tx, "compensate"), self.patience.backoff(self.patience.retry, self.attempt))]

    def _undo_order(self) -> tuple[Numbered, ...]:
        return tuple(reversed(self.events))
