"""A chain: what one coordinator committed, or was called to commit, for sites that do not vote.

Followers apply exactly what the distributed members committed; durable local members apply what the publisher called.
Both are entered in a durable registry, so one that was away is known. Entries have gapless numbers and contain the
events; a reader acknowledges the prefix that it has applied. An entry is forgotten when every reader has it, or when
more than the retention limit are kept: a reader that needs an older one is told that it is stale.

Of a reader that gave its registration back, or that an operator removed, only the number of that is kept: late copies
do not bring it back. If it is seen again, or goes on all the same, it is told that it is stale.
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
    released: dict[str, int] = field(default_factory=dict)
    """Who wants nothing any more, with its last registration; as many as there may be readers, the latest."""
    entries: dict[int, ChainEntry] = field(default_factory=dict)

    def read_by_anyone(self) -> bool:
        """Whether entries are needed at all."""
        return bool(self.readers)

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
            return [Surface("reader refused", None, f"{full}: raise bounds.readers, or see `txlayer readers`")]
        missed = known is None or max(known.upto, follow.upto) + 1 < self.low
        latest = self._latest(follow.reader)
        if missed and (follow.upto >= 0 or follow.registration <= latest):
            return [self._stale(follow.reader, max(latest, follow.registration) if follow.upto >= 0 else latest)]
        effects: list[Effect] = []
        if known is None or missed:
            last, number = self.next - 1, follow.registration
            self.released.pop(follow.reader, None)
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
        """A reader wants nothing any more."""
        released = m.Followed(
            self.seat.site, self.seat.incarnation, self.kind, follow.upto, follow.registration, follow.reader
        )
        if known is not None and not self._news(known, follow):
            return []
        effects: list[Effect] = []
        if known is not None or follow.registration > self._latest(follow.reader):
            effects = self._let_go(follow.reader, follow.registration)
        return [*effects, Send(follow.reader, released)]

    def remove(self, name: str) -> list[Effect]:
        """An operator says that a reader will not come back: nothing is kept for it any more. Empty if it is none."""
        return self._let_go(name, self.readers[name].registration) if name in self.readers else []

    def on_present(self, name: str) -> list[Effect]:
        """A site is there again. If it was removed meanwhile and does not know, it reads what nobody sends."""
        return [self._stale(name, self.released[name])] if name in self.released else []

    def _let_go(self, name: str, registration: int) -> list[Effect]:
        self.readers.pop(name, None)
        self.released.pop(name, None)
        self.released[name] = registration
        effects: list[Effect] = [
            Append(self._reader_key(name), Reader(self.kind, name, (), 0, registration=registration))
        ]
        if len(self.released) > self.seat.bounds.readers:
            oldest = next(iter(self.released))
            del self.released[oldest]
            effects.append(Drop(self._reader_key(oldest)))
        return [*effects, *self._forget()]

    def on_ack(self, ack: m.ChainAck) -> list[Effect]:
        """A reader has applied everything up to a number that exists."""
        reading = self.readers.get(ack.reader)
        if reading is None or not reading.upto < ack.upto < self.next:
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
            if reading.upto + 1 >= self.next:
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
        elif not record.types:
            self.released[record.name] = record.registration
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

    def _latest(self, name: str) -> int:
        known = self.readers.get(name)
        return known.registration if known is not None else self.released.get(name, 0)

    def _stale(self, name: str, registration: int) -> Send:
        """Of who is not registered: whatever comes next it will not get either."""
        low = self.low if name in self.readers else self.next + 1
        return Send(name, m.Stale(self.seat.site, self.seat.incarnation, self.kind, low, registration, name))

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
        return Append(self._reader_key(name), record)

    def _drop_below(self, low: int) -> list[Effect]:
        if low <= self.low:
            return []
        gone = range(self.low, low)
        self.low = low
        position = Append(f"p/{self.kind.value}", ChainPosition(self.kind, self.low, self.next))
        for number in gone:
            self.entries.pop(number, None)
        behind = self.entries or any(reading.stale for reading in self.readers.values())
        stop = [] if behind else [CancelTimer(("chain", self.kind, "retry"))]
        return [position, *(Drop(self._entry_key(number)) for number in gone), *stop]

    def _reader_key(self, name: str) -> str:
        return f"r/{self.kind.value}/{name}"

    def _entry_key(self, number: int) -> str:
        return f"e/{self.kind.value}/{number}"

    def _timer(self) -> SetTimer:
        attempts = [r.attempt for r in self.readers.values() if r.upto + 1 < self.next]
        pause = self.seat.patience.backoff(self.seat.patience.retry, min(attempts, default=0))
        return SetTimer(("chain", self.kind, "retry"), pause)
