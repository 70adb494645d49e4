"""A publisher's side of a transaction, the same whether its coordinator is beside it or far away (TOPS 4.6).

It says everything until it is answered: create under a key, events with numbers of its own, the commit request with
their count, the abort. How long a caller waits for an answer is its own affair: several may wait for the same one, and
who has given up can ask again by transaction or by key. The outcome is confirmed when the caller has taken note of it,
not when it arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from txlayer import messages as m
from txlayer.effects import CancelTimer, Effect, Opened, Resolve, Send, SetTimer, Surface
from txlayer.messages import NOBODY, Asked, Item, Outcome, Status, Terms, TxId
from txlayer.transactions.seat import Seat, brief


@dataclass(slots=True)
class Publisher:
    """One call of an application: a transaction that it began, joined or asks about."""

    seat: Seat
    call: str
    coordinator: str
    serial: int = 0
    below: int = 0
    coordinator_life: int = 0
    terms: Terms | None = None
    items: tuple[Item, ...] = ()
    tx: TxId | None = None
    key: str = ""
    joined: bool = False
    joining: bool = False
    asking: bool = False
    """What became of it is asked, beside whatever else is said."""
    submitted: int = 0
    unaccepted: dict[int, Item] = field(default_factory=dict)
    ending: str = ""
    reason: str = ""
    late: str = ""
    outcome: Outcome | None = None
    confirmed: bool = False
    attempt: int = 0
    ended: bool = False

    def begin(self) -> list[Effect]:
        """Open a transaction; in one shot this is all there is to say."""
        if self.terms is not None and self.terms.one_shot:
            self.ending = "commit"
        return self._say(self._create())

    def join(self) -> list[Effect]:
        """Take part in a transaction that is open: how many events of this site does its coordinator have?"""
        self.joined = self.joining = True
        return self._say(*self._pending())

    def publish(self, item: Item) -> list[Effect]:
        """Submit the next event."""
        if self.tx is None or self.ending:
            return [Surface("usage error", self.tx, f"{self.call}: publish between begin and commit")]
        if self.outcome is not None and self.outcome.final:
            return self._on_late_event("it has ended") if self.outcome.status is Status.COMMITTED else []
        self.submitted += 1
        self.unaccepted[self.submitted] = item
        return self._say(m.Submit(self.tx, self.seat.site, self.submitted, item))

    def commit(self) -> list[Effect]:
        """Ask for the commit."""
        if self.outcome is not None and self.outcome.final:
            return [Resolve(self.call, self.outcome)]
        if self._only_asks():
            return [Surface("usage error", self.tx, f"{self.call}: only the caller that began it can commit")]
        self.ending = "commit"
        return self._say(*self._pending())

    def abort(self, reason: str) -> list[Effect]:
        """Give it up."""
        if self.outcome is not None and self.outcome.final:
            return [Resolve(self.call, self.outcome)]
        self.ending, self.reason = "abort", brief(reason)
        return self._say(*self._pending())

    def ask(self) -> list[Effect]:
        """What became of it? Of a transaction that was begun here that comes by itself, once it is to end."""
        if self.outcome is not None and self.outcome.final:
            return [Resolve(self.call, self.outcome)]
        self.asking = self.terms is None
        return self._say(*self._pending()) if self.asking or self.ending else []

    def _only_asks(self) -> bool:
        return self.terms is None and not self.joined

    def wait_longer(self, seconds: float) -> list[Effect]:
        """Votes are missing; be patient."""
        if self.tx is None:
            return []
        return [Send(self.coordinator, m.ExtendDeadline(self.tx, self.seat.site, seconds, self.attempt))]

    def confirm(self) -> list[Effect]:
        """The caller knows."""
        if self.outcome is None or self.confirmed:
            return []
        self.confirmed = self.ended = True
        stop = [CancelTimer(("p", self.call, "retry"))]
        if self.outcome.tx is None or self.outcome.status in (Status.UNKNOWN, Status.FINISHED):
            return [*stop]
        return [*stop, Send(self.coordinator, m.Confirm(self.outcome.tx, self.seat.site))]

    def on_created(self, created: m.Created) -> list[Effect]:
        """Open for events."""
        if self.tx is not None or self.terms is None or not self._mine(created):
            return []
        self.tx = created.tx
        self.attempt = 0
        opened = Opened(self.call, created.tx, created.members)
        return [CancelTimer(("p", self.call, "retry")), opened, *self._say(*self._pending())]

    def on_hello(self, hello: m.Hello) -> list[Effect]:
        """The coordinator is in another life than the one this was meant for."""
        over = self.outcome is not None and self.outcome.final
        if self.tx is not None or over or self.terms is None or hello.life <= self.coordinator_life:
            return []
        self.coordinator_life = hello.life
        return self._say(self._create())

    def on_not_sent(self, reason: str) -> list[Effect]:
        """What it has to say is too large for the bus: nothing of it may commit."""
        if self.terms is not None and self.tx is not None:
            return self.abort(reason)
        return self.on_refused(m.Refused(self.call, self.tx, reason, self.coordinator, self._asked()))

    def on_accepted(self, accepted: m.Accepted) -> list[Effect]:
        """Events are in the transaction. After a join, those of an earlier time are counted on."""
        opened: list[Effect] = []
        if self.joining:
            self.joining = False
            self.submitted = self.submitted or accepted.upto
            opened = [Opened(self.call, accepted.tx, 0, accepted.type)]
        for number in [number for number in self.unaccepted if number <= accepted.upto]:
            del self.unaccepted[number]
        self.attempt = 0
        return opened if self._pending() else [*opened, CancelTimer(("p", self.call, "retry"))]

    def on_outcome(self, outcome: Outcome) -> list[Effect]:
        """What became of it. While it is undecided, or undecided for local members, nothing is resolved."""
        if (self.outcome is not None and self.outcome.final) or not self._mine(outcome):
            return []
        if outcome.status is Status.PENDING or (not outcome.final and self.tx is None):
            return []
        if not outcome.final:
            first = self.outcome is None
            self.outcome = outcome
            return [Surface("distributed part aborted", outcome.tx, self.call)] if first else []
        self.outcome = outcome = self._for_caller(outcome)
        self.tx = self.tx or outcome.tx
        self.unaccepted.clear()
        return [CancelTimer(("p", self.call, "retry")), Resolve(self.call, outcome)]

    def on_refused(self, refused: m.Refused) -> list[Effect]:
        """The coordinator will not do it. Its name tells that from a census that was not fulfilled.

        A question is never refused: that answers something said before. An event may be, when another publisher has
        called commit: who began the transaction or wants its commit hears of its outcome all the same.
        """
        if self._only_asks():
            return []
        if refused.event and refused.tx == self.tx and (self.terms is not None or self.ending == "commit"):
            return self._on_late_event(refused.reason)
        outcome = Outcome(
            refused.tx, self.call, Status.REFUSED, reason=refused.reason, by=self.coordinator, answers=refused.answers
        )
        return self.on_outcome(outcome)

    def _on_late_event(self, reason: str) -> list[Effect]:
        """An event is not in the transaction: if that commits, its outcome says so."""
        self.late = f"not all events of {self.seat.site} are in it: {reason}"
        self.unaccepted.clear()
        if self.outcome is not None:
            self.outcome = self._for_caller(self.outcome)
        return [Surface("event refused", self.tx, f"{self.call}: {reason}")]

    def _for_caller(self, outcome: Outcome) -> Outcome:
        """The same whichever question it answers; of a commit, also that events came too late for it."""
        reason = self.late if self.late and outcome.status is Status.COMMITTED else outcome.reason
        return replace(outcome, reason=reason, answers=NOBODY)

    def on_votes_missing(self, missing: m.VotesMissing) -> list[Effect]:
        """Who began it may wait longer or abort. Another who called commit hears why it waits, and may abort too."""
        what = "votes missing" if self.terms is not None else "commit waits for votes"
        return [Surface(what, missing.tx, self.call)]

    def on_retry(self) -> list[Effect]:
        """Say it again."""
        if self.outcome is not None and self.outcome.final:
            return []
        self.attempt += 1
        return self._say(*self._pending())

    def _mine(self, answer: m.Created | Outcome) -> bool:
        """Whether this speaks of the transaction of this call: a late copy may be of another one under its key."""
        if self.tx is not None:
            return answer.tx == self.tx
        return answer.answers == self._asked()

    def _asked(self) -> Asked:
        return (self.seat.incarnation, self.seat.life, self.serial)

    def _pending(self) -> list[m.AnyMessage]:
        """Everything that has not been answered."""
        said = [] if self._only_asks() else self._unanswered()
        return [*said, m.Inquire(self.seat.site, self.tx, self.key, self._asked(), self.below)] if self.asking else said

    def _unanswered(self) -> list[m.AnyMessage]:
        if self.tx is None:
            return [self._create()]
        if self.joining and not self.submitted:
            return [m.Submit(self.tx, self.seat.site, 0, Item("", b""))]
        events: list[m.AnyMessage] = [
            m.Submit(self.tx, self.seat.site, number, item) for number, item in self.unaccepted.items()
        ]
        if self.ending == "commit":
            return [*events, m.CommitRequest(self.tx, self.seat.site, self.submitted)]
        if self.ending == "abort":
            return [m.Abort(self.tx, self.seat.site, self.reason)]
        return events

    def _say(self, *messages: m.AnyMessage) -> list[Effect]:
        if not messages:
            return []
        sends: list[Effect] = [Send(self.coordinator, message) for message in messages]
        pause = self.seat.patience.backoff(self.seat.patience.retry, self.attempt)
        return [*sends, SetTimer(("p", self.call, "retry"), pause)]

    def _create(self) -> m.Create:
        assert self.terms is not None
        return m.Create(
            self.call, self.seat.site, self.seat.life, self.terms, self.items,
            self.coordinator_life, self.serial, self.below, self.coordinator, self.seat.incarnation,
        )  # fmt: skip
