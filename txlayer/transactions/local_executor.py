"""Subscribers that do not vote: local members and listeners (TOPS 4.2.1, 4.6.2, 4.6.3).

A local member runs the events in a unit of its own, fails alone, and commits when the publisher has called commit;
what the distributed members decide does not concern it. The call and the events are in its log before it commits, so
that a crash neither loses nor doubles them. In one shot the call is in the census: it commits on receipt.

A listener gets the events as plain notifications, each once, and never hears of an abort.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer import messages as m
from txlayer.effects import (
    Append,
    ApplyWhole,
    AwaitLog,
    CancelTimer,
    CommitUnit,
    Drop,
    Effect,
    FinishUnit,
    ForgetMarker,
    HandlerDone,
    Notify,
    RunHandler,
    Send,
    SetTimer,
    Surface,
    UnitCommitted,
    WholeApplied,
)
from txlayer.messages import Hashes, Terms, TxId
from txlayer.records import LocalIntent
from txlayer.tokens import reveals
from txlayer.transactions.seat import Seat
from txlayer.transactions.sequence import Sequence

MOST_DOUBTS = 25
TIMERS = ("doubt", "gap", "apply")


@dataclass(slots=True)
class LocalExecutor:
    """One local member of one transaction, there by chance: it gets what is sent while it is."""

    seat: Seat
    tx: TxId
    terms: Terms
    hashes: Hashes
    sequence: Sequence
    attempts: int = 1
    parts: tuple[str, ...] = ()
    handler_attempt: int = 1
    running: bool = False
    started: bool = False
    committing: bool = False
    done: bool = False
    recorded: bool = False
    doubts: int = 0
    events: tuple[m.Numbered, ...] = ()

    @property
    def type(self) -> str:
        """Of the transaction."""
        return self.terms.type

    def start(self, census: m.Census) -> list[Effect]:
        """Listen; in one shot, act."""
        if census.terms.one_shot:
            self.sequence.end(len(census.events), census.digest)
            for event in census.events:
                self.sequence.take(event)
        return [self._doubt_timer(), *self._go_on()]

    def on_event(self, event: m.Numbered) -> list[Effect]:
        """An event of the transaction."""
        self.sequence.take(event)
        return self._go_on()

    def on_called(self, called: m.Called) -> list[Effect]:
        """The publisher called commit."""
        if self.sequence.last is None and reveals(called.token, self.hashes.called):
            self.sequence.end(called.last, called.digest)
        return self._go_on()

    def on_withdrawn(self, withdrawn: m.Withdrawn) -> list[Effect]:
        """The publisher will never call."""
        if not reveals(withdrawn.token, self.hashes.withdrawn) or self.done or self._has_everything():
            return []
        return self._give_up()

    def on_handler_done(self, result: HandlerDone) -> list[Effect]:
        """A failure is this member's alone."""
        if self.done or not self.running or result.number != self.sequence.processed + 1:
            return []
        self.running = False
        if result.ok:
            self.sequence.processed += 1
            self.handler_attempt = 1
            return self._go_on()
        if self.handler_attempt < self.attempts:
            self.handler_attempt += 1
            return self._go_on()
        return [Surface("local member failed", self.tx, result.reason), *self._give_up()]

    def on_committed(self, result: UnitCommitted) -> list[Effect]:
        """Applied, or failed alone."""
        if not self.committing or self.done:
            return []
        return self._finish([] if result.ok else [Surface("local member failed", self.tx, result.reason)])

    def on_applied(self, result: WholeApplied) -> list[Effect]:
        """After a restart: applied, at last or long ago."""
        if not self.committing or self.done:
            return []
        if result.ok:
            return self._finish([])
        self.doubts += 1
        return [SetTimer(("m", self.tx, "apply"), self.seat.patience.backoff(self.seat.patience.retry, self.doubts))]

    def on_timer(self, name: str) -> list[Effect]:
        """Ask, or try again."""
        if self.done:
            return []
        if name == "apply":
            return [ApplyWhole(self.tx, self.events, self.doubts + 1)]
        if name == "gap":
            gap = self.sequence.gap()
            return self._ask_for(gap) if gap is not None else []
        self.doubts += 1
        if self.committing:
            return []
        if self.doubts > MOST_DOUBTS:
            return self._give_up()
        return [Send(self.tx.coordinator, m.InDoubt(self.tx, self.type, "local")), self._doubt_timer()]

    def on_below_mark(self) -> list[Effect]:
        """The coordinator has finished: a call that has not come will not come, a tombstone is not needed."""
        give_up = [] if self.done or self._has_everything() else self._give_up()
        if not self.done:
            return []
        forget: list[Effect] = [Drop(f"m/{self.tx}"), AwaitLog(), ForgetMarker(self.tx)] if self.recorded else []
        return [*give_up, *forget]

    @classmethod
    def recover(cls, seat: Seat, record: LocalIntent) -> LocalExecutor:
        """A call that was logged; perhaps it was applied."""
        nothing = Hashes(b"", b"", b"", b"")
        terms = record.terms or Terms(record.type)
        self = cls(seat, record.tx, terms, nothing, Sequence(0), committing=True, recorded=True)
        self.events = record.events
        return self

    def resume(self) -> list[Effect]:
        """Apply it; the marker tells whether it was."""
        return [ApplyWhole(self.tx, self.events)]

    def _has_everything(self) -> bool:
        """The call and all events are here: a coordinator that has ended meanwhile cannot take them back."""
        return self.committing or (self.sequence.last is not None and self.sequence.gap() is None)

    def _go_on(self) -> list[Effect]:
        if self.done or self.running or self.committing:
            return []
        event = self.sequence.next()
        if event is not None:
            self.running = self.started = True
            return [RunHandler(self.tx, event, self.handler_attempt)]
        gap = self.sequence.gap()
        if gap is not None:
            return self._ask_for(gap)
        if not self.sequence.complete():
            return []
        if not self.sequence.intact():
            return [Surface("local member failed", self.tx, "not the events that were sent"), *self._give_up()]
        self.committing = self.recorded = True
        intent = LocalIntent(self.tx, self.type, self.sequence.events(), self.terms, self.parts)
        return [Append(f"m/{self.tx}", intent), CommitUnit(self.tx)]

    def _ask_for(self, gap: tuple[int, int]) -> list[Effect]:
        timer = SetTimer(("m", self.tx, "gap"), self.seat.patience.backoff(self.seat.patience.gap, self.doubts))
        return [Send(self.tx.coordinator, m.Resend(self.tx, *gap)), timer]

    def _give_up(self) -> list[Effect]:
        undo: list[Effect] = [FinishUnit(self.tx, False)] if self.started else []
        return self._finish(undo)

    def _finish(self, effects: list[Effect]) -> list[Effect]:
        self.done = True
        self.sequence = Sequence(0)
        self.events = ()
        return effects + [CancelTimer(("m", self.tx, name)) for name in TIMERS]

    def _doubt_timer(self) -> SetTimer:
        return SetTimer(("m", self.tx, "doubt"), self.seat.patience.backoff(self.seat.patience.in_doubt, self.doubts))


@dataclass(slots=True)
class Listener:
    """A non-transactional subscriber."""

    tx: TxId
    type: str
    seen: dict[int, None] = field(default_factory=dict)

    def on_event(self, event: m.Numbered) -> list[Effect]:
        """Each event once."""
        if event.number in self.seen:
            return []
        self.seen[event.number] = None
        return [Notify(self.tx, event)]
