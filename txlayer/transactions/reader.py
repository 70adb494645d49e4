"""A reader of a chain: a follower, or a durable local member.

It asks to be registered until it is answered, applies entries in the order of their numbers and one at a time, makes
its position durable and acknowledges the prefix that it has applied. The marker that the resource keeps in the same
transaction as the work tells after a crash whether the next entry was applied already. Aborts are none of its
business: an entry exists or does not. It is applied in a unit of its own, whatever else the site is in the transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer import messages as m
from txlayer.effects import (
    Append,
    ApplyWhole,
    CancelTimer,
    Drop,
    Effect,
    ForgetMarker,
    Send,
    SetTimer,
    Surface,
    WholeApplied,
)
from txlayer.messages import ChainKind, TxId
from txlayer.records import Cursor
from txlayer.transactions.seat import Seat
from txlayer.units import entry_of, transaction_of


@dataclass(slots=True)
class ChainReader:
    """One chain of one coordinator, at the site that reads it."""

    seat: Seat
    coordinator: str
    incarnation: str
    kind: ChainKind
    types: tuple[str, ...]
    upto: int = -1
    stale: bool = False
    buffer: dict[int, m.Commit] = field(default_factory=dict)
    applying: TxId | None = None
    """The unit of the next entry."""
    attempt: int = 0
    registration: int = 1
    asked: int = 0
    released: bool = False
    """The coordinator knows that nothing is read here any more."""

    def start(self) -> list[Effect]:
        """Ask to be registered; what the log says of an earlier time is kept."""
        self.asked = 0
        return [*self._save(), *self._ask()]

    def resume(self) -> list[Effect]:
        """After a restart: say where to go on, or again that it cannot: a crash may have come before that was heard."""
        return [self._tell_stale()] if self.stale and self.types else self._ask()

    def on_followed(self, followed: m.Followed) -> list[Effect]:
        """Registered. Where a later registration is known this site has lost its log: it asks under the next number."""
        if followed.registration < self.registration:  # an answer to an earlier one: this one may have been lost
            return []
        if not self.types:
            self.released = True
            return []
        if self.upto < 0 and followed.registration > self.registration:
            return self._ask_above(followed.registration)
        stop: list[Effect] = [CancelTimer(("reader", self.key(), "ask"))]
        if self.upto >= 0 or self.stale:
            return stop
        self.upto = followed.upto
        return [*stop, *self._save(), *self._apply_next()]

    def give_back(self, types: tuple[str, ...]) -> list[Effect]:
        """Read less; nothing at all of a chain without types. What is being applied is finished."""
        left = tuple(name for name in self.types if name not in types)
        if left == self.types:
            return []
        self.types = left
        self.registration += 1
        return self.start()

    def given_back(self) -> list[Effect]:
        """How it is forgotten, once nothing is read and its coordinator knows."""
        if not self.released or self.applying is not None:
            return []
        stop = [CancelTimer(("reader", self.key(), name)) for name in ("ask", "apply")]
        return [Drop(f"k/{'/'.join(self.key())}"), *stop]

    def on_commit(self, commit: m.Commit) -> list[Effect]:
        """An entry; applied when everything before it is."""
        if self.stale or self.upto < 0:
            return []
        if commit.number <= self.upto:
            return [self._ack()]
        if commit.number <= self.upto + 4 * self.seat.bounds.reader_window:
            self.buffer.setdefault(commit.number, commit)
        return self._apply_next()

    def on_applied(self, done: WholeApplied) -> list[Effect]:
        """The entry is applied, or must be tried again: a follower has no way to refuse."""
        if self.applying != done.tx:
            return []
        if not done.ok:
            self.attempt += 1
            pause = self.seat.patience.backoff(self.seat.patience.retry, self.attempt)
            failed = Surface("entry failed", transaction_of(done.tx), done.reason)
            return [failed, SetTimer(("reader", self.key(), "apply"), pause)]
        self.applying = None
        self.attempt = 0
        return [*self._advance(), ForgetMarker(done.tx), self._ack(), *self._apply_next()]

    def on_stale(self, stale: m.Stale) -> list[Effect]:
        """Too much was missed, perhaps before it heard that it is registered."""
        if self.stale or not self.types or stale.registration < self.registration:
            return []
        if self.upto < 0 and stale.registration > self.registration:  # of a log that this site has lost
            return self._ask_above(stale.registration)
        here = self.upto
        while here + 1 in self.buffer:
            here += 1
        if here + 1 >= stale.low:  # nothing is missing here: the acknowledgement was lost, or comes when it is applied
            return [self._ack()]
        self.stale = True
        self.buffer.clear()
        return [*self._save(), CancelTimer(("reader", self.key(), "ask")), self._tell_stale()]

    def on_timer(self, name: str) -> list[Effect]:
        """Ask again, or try again."""
        if name == "ask":
            self.asked += 1
            return self._ask()
        entry = self.buffer.get(self.upto + 1)
        if self.applying is None or entry is None:  # it fell behind in the meantime: a snapshot will have it
            self.applying = None
            return []
        return [self._apply(entry)]

    def key(self) -> tuple[str, str, str]:
        """Which chain this is."""
        return (self.coordinator, self.incarnation, self.kind.value)

    def _apply_next(self) -> list[Effect]:
        effects: list[Effect] = []
        while self.applying is None and (entry := self.buffer.get(self.upto + 1)) is not None:
            if entry.tx is None or entry.terms is None or entry.terms.type not in self.types:
                effects += [*self._advance(), self._ack()]
                continue
            self.applying = self._unit(entry)
            effects.append(self._apply(entry))
        return effects

    def _apply(self, entry: m.Commit) -> ApplyWhole:
        assert entry.terms is not None, "an entry with a transaction has its terms"
        return ApplyWhole(self._unit(entry), entry.events, self.attempt + 1, entry.terms)

    def _unit(self, entry: m.Commit) -> TxId:
        """Not that of the transaction: this site may be a member of it too."""
        assert entry.tx is not None
        return entry_of(entry.tx, self.kind)

    def _advance(self) -> list[Effect]:
        self.buffer.pop(self.upto + 1, None)
        self.upto += 1
        return self._save()

    def _ask_above(self, registration: int) -> list[Effect]:
        self.registration = registration + 1
        return self.start()

    def _save(self) -> list[Effect]:
        record = Cursor(
            self.coordinator, self.incarnation, self.kind, self.types, self.upto, self.stale, self.registration
        )
        return [Append(f"k/{'/'.join(self.key())}", record)]

    def _tell_stale(self) -> Surface:
        return Surface("stale", None, f"{self.kind.value} of {self.coordinator}: load a snapshot, follow anew")

    def _ack(self) -> Send:
        return Send(self.coordinator, m.ChainAck(self.seat.site, self.kind, self.incarnation, self.upto))

    def _ask(self) -> list[Effect]:
        follow = m.Follow(self.seat.site, self.kind, self.incarnation, self.types, self.upto, self.registration)
        pause = self.seat.patience.backoff(self.seat.patience.in_doubt, self.asked)
        return [Send(self.coordinator, follow), SetTimer(("reader", self.key(), "ask"), pause)]
