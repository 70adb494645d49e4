"""The coordinator of one transaction: events in, one decision out (HTS 4, TOPS 4.6).

Event coordinator and tx coordinator sit side by side here, as TOPS 4.5.2 places them. Nothing is logged before the
call: a coordinator that restarts presumes abort for whatever it has no record of. `Coordinated` holds the state and
the decision, `Voting` census and votes, `TxCoordinator` what publishers say, what members ask, timers and restarts.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from txlayer import messages as m
from txlayer.effects import (
    Broadcast,
    Effect,
    Predicate,
    PublishPlain,
    Send,
    Settle,
    Surface,
)
from txlayer.messages import AnyMessage, Status, Terms, TxId, TxType, Visibility
from txlayer.records import Decided, DelegationOpened, Settlement, Settling
from txlayer.tokens import member_hash
from txlayer.transactions.ballot import Ballot
from txlayer.transactions.census import Census
from txlayer.transactions.constraints import LEAST_SECONDS, MOST_SECONDS
from txlayer.transactions.coordinated import OUTCOME_ATTEMPTS, UNDECIDED, Phase
from txlayer.transactions.event_coordinator import EventCoordinator
from txlayer.transactions.scope import has_locals
from txlayer.transactions.seat import Seat
from txlayer.transactions.voting import Voting


@dataclass(slots=True)
class TxCoordinator(Voting):
    """One transaction at its coordinator."""

    @classmethod
    def create(
        cls, seat: Seat, tx: TxId, create: m.Create, present: dict[str, None] | None, predicate: Predicate | None
    ) -> TxCoordinator:
        """A new transaction; `start` says what to do first."""
        events = EventCoordinator(create.terms, create.publisher, seat.limits)
        events.take_all(create.items, create.publisher)
        census = Census(tx, create.terms, present, predicate, most=seat.bounds.members)
        ballot = Ballot({}, create.terms.settle_for)
        return cls(
            seat, tx, create.terms, create.key, create.publisher, create.life, census, events, ballot,
            {create.publisher: create.asked},
            seat.keyring.hashes(tx, seat.finishers), create.incarnation,
        )  # fmt: skip

    def start(self, standing: m.Standing) -> list[Effect]:
        """Announce the transaction. In one shot that is all its publisher ever says, and the call with it."""
        effects: list[Effect] = []
        if self.terms.one_shot:
            self.called = True
            effects += self._record_call()
        effects.append(Broadcast(self.terms.type, self._census(standing)))
        if self.terms.one_shot and self.terms.visibility is Visibility.PUBLIC:
            effects += self._plain(self.events.events)
        if self.terms.tx_type is TxType.LOCAL:
            return effects + self._start_local()
        return [
            *effects,
            self._timer("window", self.terms.census_within),
            self._timer("deadline", self.terms.census_within + self.terms.complete_within),
            self._timer("retry", self.seat.patience.retry),
        ]

    def on_timer(self, name: str, standing: m.Standing) -> list[Effect]:
        """One of this transaction's timers ran out."""
        if name == "window":
            return self._close_census() if self.phase is Phase.CENSUS else []
        if name == "retry":
            return self._on_retry(standing)
        if name == "votes":
            return self._on_votes_overdue()
        if name == "deadline":
            return self._on_deadline()
        self.lingering = False
        return self._finish_if_done()

    def on_create_again(self, create: m.Create) -> list[Effect]:
        """Its publisher repeats the creation: it missed the answer. Another site has no part in this, but its key."""
        asked = create.asked
        if create.publisher != self.publisher:
            taken = f"a transaction of {self.publisher} has this key: ask what became of that, or use a key of your own"
            return [Send(create.publisher, m.Refused(self.key, None, taken, self.seat.site, asked))]
        self._will_tell(create.publisher, asked)
        if self.outcome is not None:
            return [Send(create.publisher, replace(self.outcome, answers=asked))]
        if self.phase is Phase.CENSUS or self.terms.one_shot:
            return []
        return [Send(create.publisher, m.Created(self.key, self.tx, len(self.ballot.members), asked))]

    def on_inquire(self, inquire: m.Inquire) -> list[Effect]:
        """A caller asks; one that knows the key is told again when there is more to tell."""
        if inquire.key == self.key:
            self._will_tell(inquire.publisher, inquire.asked)
        outcome = self.outcome or m.Outcome(self.tx, self.key, Status.PENDING, final=False)
        if self.phase is Phase.COMMITTED and self.decision is not None:
            outcome = replace(outcome, named=self.decision.final)
        return [Send(inquire.publisher, replace(outcome, answers=inquire.asked))]

    def on_submit(self, submit: m.Submit) -> list[Effect]:
        """A publisher's event: number it and pass it on."""
        publisher = submit.publisher
        if self.restarted:  # whose own events are all that it is about, nobody can tell any more
            known = self.outcome is not None and publisher in (self.publisher, self._caller())
            return [Send(publisher, self._outcome_for(publisher))] if known else []
        if not self.events.may_publish(publisher):
            return [self._refuse_event(submit, f"{publisher} may not publish in this transaction")]
        if submit.number <= self.events.upto(publisher):
            return [Send(publisher, m.Accepted(self.tx, publisher, self.events.upto(publisher), self.terms.type))]
        if self.called or self.phase not in (Phase.OPEN, Phase.ABORTED):
            return [self._refuse_event(submit, "the transaction takes no more events")]
        over = self.events.over_limit(submit)
        if over:
            self.events.give_up(publisher)
            ends = self._withdraw(over, publisher) if self.events.may_end(publisher) else []
            return [self._refuse_event(submit, over), *ends]
        taken = self.events.on_submit(submit)
        effects: list[Effect] = [Broadcast(self.terms.type, m.Event(self.tx, event)) for event in taken]
        if self.terms.visibility is Visibility.PUBLIC:
            effects += self._plain(taken)
        if taken:
            effects.append(Send(publisher, m.Accepted(self.tx, publisher, self.events.upto(publisher))))
        return effects + self._call_if_complete()

    def _refuse_event(self, submit: m.Submit, reason: str) -> Send:
        refused = m.Refused(self.key, self.tx, reason, event=submit.number, publisher=submit.publisher)
        return Send(submit.publisher, refused)

    def on_commit_request(self, request: m.CommitRequest) -> list[Effect]:
        """A publisher commits: as soon as all its events are in."""
        if self.restarted:
            return [Send(request.publisher, self._outcome_for(request.publisher))] if self.outcome is not None else []
        if not self.events.may_end(request.publisher):
            reason = f"{request.publisher} may not commit this transaction"
            return [Send(request.publisher, m.Refused(self.key, self.tx, reason, publisher=request.publisher))]
        if self.called:
            return [Send(request.publisher, self.outcome)] if self.outcome is not None else []
        self.wanted = (request.publisher, request.submitted)
        self._will_tell(request.publisher)
        return self._call_if_complete()

    def on_abort(self, abort: m.Abort) -> list[Effect]:
        """A publisher aborts: every scope before its commit call, the distributed one after it."""
        if self.restarted:
            return [Send(abort.publisher, self.outcome)] if self.outcome is not None else []
        if not self.events.may_end(abort.publisher):
            reason = f"{abort.publisher} may not abort this transaction"
            return [Send(abort.publisher, m.Refused(self.key, self.tx, reason, publisher=abort.publisher))]
        if self.outcome is not None and (self.called or self.phase is not Phase.ABORTED):
            return [Send(abort.publisher, self.outcome)]
        return self._withdraw(abort.reason or "aborted by its publisher", abort.publisher)

    def on_not_sent(self, reason: str) -> list[Effect]:
        """What members have to hear is too large for the bus: an abort is not."""
        if self.phase in UNDECIDED:
            return self._withdraw(reason, self.seat.site)
        return [Surface("not sent", self.tx, reason)]

    def on_extend(self, extend: m.ExtendDeadline) -> list[Effect]:
        """The publisher waits longer for votes."""
        if self.phase is not Phase.VOTING or not self.events.may_end(extend.publisher):
            return []
        if not LEAST_SECONDS <= extend.seconds <= MOST_SECONDS:
            return []
        seconds = extend.seconds
        return [
            self._timer("votes", seconds),
            self._timer("deadline", seconds + self.terms.vote_within),
        ]

    def _call_if_complete(self) -> list[Effect]:
        if self.wanted is None or self.called or self.phase not in (Phase.OPEN, Phase.ABORTED):
            return []
        publisher, submitted = self.wanted
        if self.events.upto(publisher) < submitted:
            return []
        self.called = True
        effects = self._record_call()
        if has_locals(self.terms):
            effects.append(Broadcast(self.terms.type, self._called()))
        if self.terms.tx_type is TxType.LOCAL:
            return effects + self._conclude(Status.COMMITTED, 0)
        if self.phase is Phase.ABORTED:
            assert self.outcome is not None
            return effects + self._conclude(Status.ABORTED, 0, self.outcome.reason, self.outcome.by)
        return effects + (self._delegate() if self._one_phase() else self._prepare())

    def _on_deadline(self) -> list[Effect]:
        if self.phase in UNDECIDED or (self.phase is Phase.ABORTED and not self.called):
            return self._withdraw("not complete in time", self.seat.site)
        return []

    def on_in_doubt(self, question: m.InDoubt) -> list[Effect]:
        """Say again what the asker must have missed."""
        message: AnyMessage | None = None
        if question.state == "local":
            message = self._of_locals()
        elif self.phase is Phase.OPEN:
            message = m.Begin(self.tx, tuple(self.ballot.members), self.terms.type)
        elif self.phase is Phase.VOTING:
            message = self._prepare_message()
        elif self.phase is Phase.DELEGATED:
            message = self._delegate_message(next(iter(self.ballot.members)))
        elif self.decision is not None:
            message = self.decision
        return [Broadcast(self.terms.type, message)] if message is not None else []

    def _of_locals(self) -> AnyMessage | None:
        """Called, if the events are still here; after a restart it is too late for those who were there by chance."""
        if self.restarted:
            return m.Withdrawn(self.tx, self.seat.keyring.token(self.tx, "withdrawn"))
        return self._called() if self.called else None

    def on_resend(self, resend: m.Resend) -> list[Effect]:
        """A member misses events."""
        again = self.events.between(resend.first, min(resend.last, resend.first + self.seat.limits.ahead))
        return [Broadcast(self.terms.type, m.Event(self.tx, event)) for event in again]

    def _on_retry(self, standing: m.Standing) -> list[Effect]:
        again = self._repeat(standing)
        if not again:
            return []
        pause = self.seat.patience.backoff(self.seat.patience.retry, self.attempt)
        self.attempt += 1
        return [*again, self._timer("retry", pause)]

    def _repeat(self, standing: m.Standing) -> list[Effect]:
        if self.phase is Phase.CENSUS:
            return [Broadcast(self.terms.type, self._census(standing))]
        if self.phase is Phase.VOTING:
            return [Broadcast(self.terms.type, self._prepare_message())]
        if self.phase is Phase.DELEGATED:
            return [Broadcast(self.terms.type, self._delegate_message(next(iter(self.ballot.members))))]
        if self.phase is not Phase.COMMITTED:
            return []
        assert self.decision is not None
        assert self.outcome is not None
        again: list[Effect] = []
        if self.unacknowledged or (self.restarted and self.attempt == 0):
            again.append(Broadcast(self.terms.type, self.decision))
        if not self.confirmed and self.attempt < OUTCOME_ATTEMPTS:
            again += self._tell()
        return again

    @classmethod
    def recover(cls, seat: Seat, record: Decided | DelegationOpened | Settling) -> TxCoordinator:
        """A transaction as the log remembers it."""
        terms = Terms(record.type, limit=record.limit) if isinstance(record, Decided) else record.terms
        census = Census(record.tx, terms)
        initiator = record.initiator or record.publisher
        events = EventCoordinator(terms, initiator, seat.limits)
        self = cls(
            seat, record.tx, terms, record.key, initiator, 0, census, events, Ballot({}, terms.settle_for), {},
            seat.keyring.hashes(record.tx, seat.finishers), "",
        )  # fmt: skip
        for caller in dict.fromkeys((initiator, record.publisher)):
            self._will_tell(caller)
        if initiator != record.publisher:
            self.wanted = (record.publisher, 0)
        self.called = record.called
        self.recorded = self.restarted = True
        if isinstance(record, DelegationOpened):
            self.phase = Phase.DELEGATED
            self.events.events, self.events.digest = list(record.events), record.digest
            join = m.Join(record.tx, record.pseudonym, self.hashes)
            self.ballot.members[member_hash(record.pseudonym)] = join
            return self
        if isinstance(record, Settling):
            self.phase = Phase.SETTLING
            self.events.events = list(record.events)
            for pseudonym in record.members:
                self.ballot.members[member_hash(pseudonym)] = m.Join(record.tx, pseudonym, self.hashes)
            return self
        committed = record.status is Status.COMMITTED and not record.local
        self.phase = Phase.COMMITTED if committed else Phase.ABORTED
        self.unacknowledged = dict(zip(record.final, record.done, strict=True))
        token = seat.keyring.token(record.tx, "commit" if committed else "abort")
        self.decision = None if record.local else m.Decision(record.tx, token, record.final, record.reason)
        self.outcome = m.Outcome(record.tx, record.key, record.status, len(record.final), record.called, record.reason)
        return self

    def resume(self, public: tuple[m.Numbered, ...] = ()) -> list[Effect]:
        """Go on where the log stops. The world outside may see an event a second time."""
        if self.phase is Phase.SETTLING:
            return [Settle(self.tx, self.terms.type, Settlement(True, tuple(self.ballot.members)))]
        again: list[Effect] = [PublishPlain(self.tx, event) for event in public]
        return again + self._on_retry(m.Standing())

    def _start_local(self) -> list[Effect]:
        if self.terms.one_shot:
            return self._conclude(Status.COMMITTED, 0)
        self.phase = Phase.OPEN
        return [
            Send(self.publisher, m.Created(self.key, self.tx, 0, self.callers[self.publisher])),
            self._timer("deadline", self.terms.complete_within),
        ]
