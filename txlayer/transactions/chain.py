"""A chain: what one coordinator committed, or was called to commit, for sites that do not vote.

Followers apply exactly what the distributed members committed; durable local members apply what the publisher called.
Both are entered in a durable registry, so one that was away is known. Entries have gapless numbers and contain the
events; a reader acknowledges the prefix that it has applied. An entry is forgotten when every reader has it, or when
more than the retention limit are kept: a reader that needs an older one is told that it is stale.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer import messages as m
from txlayer.effects import Append, CancelTimer, Drop, Effect, Send, SetTimer, Surface
from txlayer.messages import ChainKind
from txlayer.records import ChainEntry, ChainPosition, Reader
from txlayer.transactions.seat import Seat


@dataclass(slots=True)
class Reading:
    """One reader, as the coordinator knows it."""

    types: tuple[str, ...]
    upto: int
    sent: int
    attempt: int = 0
    stale: bool = False
    registration: int = 1


@dataclass(slots=True)
class Chain:
    """One chain at its coordinator."""

    seat: Seat
    kind: ChainKind
    low: int = 1
    next: int = 1
    readers: dict[str, Reading] = field(default_factory=dict)
    entries: dict[int, ChainEntry] = field(default_factory=dict)

    def read_by_anyone(self) -> bool:
        """Whether entries are needed at all."""
        return any(reading.types for reading in self.readers.values())

    def add(self, tx: m.TxId, terms: m.Terms, events: tuple[m.Numbered, ...]) -> Append:
        """The record of the next entry. Call `announce` for what to send once it is durable."""
        entry = ChainEntry(self.kind, self.next, tx, terms, events)
        self.entries[entry.number] = entry
        self.next += 1
        return Append(self._entry_key(entry.number), entry)

    def announce(self) -> list[Effect]:
        """Pass new entries on to readers that keep up, and keep within retention."""
        effects: list[Effect] = []
        for name in sorted(self.readers):
            effects += self._push(name)
        return effects + self._retain() + [self._timer()]

    def on_follow(self, follow: m.Follow) -> list[Effect]:
        """Register a reader, or let one go on where it stopped.

        Only a registration that was not known starts anew: a late copy of an older one would let a reader that fell
        behind go on after what it missed.
        """
        known = self.readers.get(follow.reader)
        if not follow.types:
            return self._release(follow, known)
        if known is None and len(self.readers) >= self.seat.bounds.readers:
            full = f"{follow.reader}: more than {self.seat.bounds.readers} readers of {self.kind.value}"
            return [Surface("reader refused", None, f"{full}: raise bounds.readers")]
        missed = known is None or not known.types or max(known.upto, follow.upto) + 1 < self.low
        latest = known.registration if known is not None else 0
        if missed and (follow.upto >= 0 or follow.registration <= latest):
            return [self._stale(follow.reader, latest)]
        effects: list[Effect] = []
        if known is None or missed:
            last, number = self.next - 1, follow.registration
            self.readers[follow.reader] = known = Reading(follow.types, last, last, registration=number)
            effects = [self._register(follow.reader)]
        elif known.stale or self._news(known, follow):
            known.stale = False
            if follow.registration >= latest:
                known.types, known.registration = follow.types, follow.registration
            effects = [self._register(follow.reader)]
        known.upto = known.sent = max(known.upto, min(follow.upto, self.next - 1))
        followed = m.Followed(
            self.seat.site, self.seat.incarnation, self.kind, known.upto, known.registration, follow.reader
        )
        forget = self._forget()
        return [*effects, *forget, Send(follow.reader, followed), *self._push(follow.reader), self._timer()]

    def _release(self, follow: m.Follow, known: Reading | None) -> list[Effect]:
        """A reader wants nothing any more. Its last registration is kept: late copies of it do not bring it back."""
        released = m.Followed(
            self.seat.site, self.seat.incarnation, self.kind, follow.upto, follow.registration, follow.reader
        )
        if known is not None and not self._news(known, follow):
            return [Send(follow.reader, released)] if not known.types else []
        self.readers[follow.reader] = Reading((), follow.upto, follow.upto, 0, True, follow.registration)
        return [self._register(follow.reader), *self._forget(), Send(follow.reader, released)]

    def on_ack(self, ack: m.ChainAck) -> list[Effect]:
        """A reader has applied everything up to a number that exists."""
        reading = self.readers.get(ack.reader)
        if reading is None or not reading.types or not reading.upto < ack.upto < self.next:
            return []
        if reading.stale and ack.upto + 1 < self.low:
            return []
        reading.upto, reading.sent, reading.attempt = ack.upto, max(reading.sent, ack.upto), 0
        effects: list[Effect] = []
        if reading.stale:  # it had what was dropped; only its acknowledgement was late
            reading.stale = False
            effects = [self._register(ack.reader)]
        return effects + self._forget() + self._push(ack.reader)

    def on_retry(self) -> list[Effect]:
        """Say again what readers have not acknowledged."""
        effects: list[Effect] = []
        for name in sorted(self.readers):
            reading = self.readers[name]
            if reading.upto + 1 >= self.next or not reading.types:
                continue
            reading.attempt += 1
            if reading.stale:
                effects.append(self._stale(name, reading.registration))
                continue
            reading.sent = reading.upto
            effects += self._push(name)
        return [*effects, self._timer()] if effects else []

    def recover(self, record: ChainEntry | ChainPosition | Reader) -> None:
        """Take up a record."""
        if isinstance(record, ChainEntry):
            self.entries[record.number] = record
            self.next = max(self.next, record.number + 1)
        elif isinstance(record, ChainPosition):
            self.low, self.next = max(self.low, record.low), max(self.next, record.next)
        else:
            self.readers[record.name] = Reading(
                record.types, record.upto, record.upto, stale=record.stale, registration=record.registration
            )

    def resume(self) -> list[Effect]:
        """Go on after the whole log has been read."""
        self.entries = {number: self.entries[number] for number in sorted(self.entries) if number >= self.low}
        for reading in self.readers.values():
            if not reading.stale:  # what was dropped, this reader had acknowledged
                reading.upto = reading.sent = max(reading.upto, self.low - 1)
        return self.on_retry()

    @staticmethod
    def _news(known: Reading, follow: m.Follow) -> bool:
        """Whether this registration is later than the known one. A reader that lost its log counts from one again."""
        if follow.registration == known.registration:
            return follow.types != known.types
        return follow.registration > known.registration

    def _stale(self, name: str, registration: int) -> Send:
        return Send(name, m.Stale(self.seat.site, self.seat.incarnation, self.kind, self.low, registration, name))

    def _push(self, name: str) -> list[Effect]:
        reading = self.readers[name]
        effects: list[Effect] = []
        while (
            not reading.stale
            and reading.sent + 1 < self.next
            and reading.sent - reading.upto < self.seat.bounds.reader_window
        ):
            entry = self.entries.get(reading.sent + 1)
            if entry is None:
                break
            effects.append(Send(name, self._message(entry, name)))
            reading.sent += 1
        return effects

    def _message(self, entry: ChainEntry, name: str) -> m.Commit:
        site, incarnation = self.seat.site, self.seat.incarnation
        if entry.terms.type not in self.readers[name].types:
            return m.Commit(site, incarnation, self.kind, entry.number, None, reader=name)
        return m.Commit(site, incarnation, self.kind, entry.number, entry.tx, entry.terms, entry.events, name)

    def _forget(self) -> list[Effect]:
        current = [reading.upto for reading in self.readers.values() if not reading.stale]
        return self._drop_below(min(current, default=self.next - 1) + 1)

    def _retain(self) -> list[Effect]:
        """More entries than are kept: whoever still needs the oldest is stale, and that is remembered."""
        low = self.next - self.seat.bounds.chain_entries
        effects: list[Effect] = []
        for name in sorted(self.readers):
            reading = self.readers[name]
            if not reading.stale and reading.upto + 1 < low:
                reading.stale = True
                effects.append(self._register(name))
        return effects + self._drop_below(low)

    def _register(self, name: str) -> Append:
        reading = self.readers[name]
        record = Reader(self.kind, name, reading.types, reading.upto, reading.stale, reading.registration)
        return Append(f"r/{self.kind.value}/{name}", record)

    def _drop_below(self, low: int) -> list[Effect]:
        if low <= self.low:
            return []
        gone = range(self.low, low)
        self.low = low
        position = Append(f"p/{self.kind.value}", ChainPosition(self.kind, self.low, self.next))
        for number in gone:
            self.entries.pop(number, None)
        behind = self.entries or any(reading.stale and reading.types for reading in self.readers.values())
        stop = [] if behind else [CancelTimer(("chain", self.kind, "retry"))]
        return [position, *(Drop(self._entry_key(number)) for number in gone), *stop]

    def _entry_key(self, number: int) -> str:
        return f"e/{self.kind.value}/{number}"

    def _timer(self) -> SetTimer:
        attempts = [r.attempt for r in self.readers.values() if r.types and r.upto + 1 < self.next]
        pause = self.seat.patience.backoff(self.seat.patience.retry, min(attempts, default=0))
        return SetTimer(("chain", self.kind, "retry"), pause)
