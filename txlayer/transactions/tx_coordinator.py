"""The coordinator of one transaction: census, events, votes, decision (HTS 4, TOPS 4.6).

Event coordinator and tx coordinator sit side by side here, as TOPS 4.5.2 places them. Nothing is logged before the
decision: a coordinator that restarts presumes abort for whatever it has no record of. A commit is in the log before
it is sent, is sent until every member of the final list has acknowledged, and is forgotten only then, and only after
the caller confirmed that it knows. An abort needs neither record nor acknowledgement: whoever asks is told.

Local members act on two messages of their own. *Called* says that the publisher called commit; what the distributed
members decide does not touch them. *Withdrawn* says that it never will. When the distributed part aborts early, the
transaction therefore stays open for its locals until the publisher calls or withdraws.

An only member with a single resource is not asked to prepare: that it decides is logged, then it is asked, and from
then on nothing but its answer counts: no deadline, no lost presence, no publisher's abort.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from txlayer import messages as m
from txlayer.effects import (
    AddEntry,
    Append,
    Broadcast,
    CancelTimer,
    Drop,
    Effect,
    Predicate,
    PublishPlain,
    Send,
    SetTimer,
    Surface,
)
from txlayer.messages import AnyMessage, ChainKind, Status, Terms, TxId, TxType, Visibility
from txlayer.records import Decided, DelegationOpened
from txlayer.tokens import member_hash, reveals
from txlayer.transactions.ballot import Ballot, Ruling
from txlayer.transactions.census import Census
from txlayer.transactions.event_coordinator import EventCoordinator
from txlayer.transactions.scope import has_locals
from txlayer.transactions.seat import Seat


class Phase(Enum):
    """Where a transaction is, seen from its coordinator."""

    CENSUS = "census"
    OPEN = "open"
    VOTING = "voting"
    DELEGATED = "delegated"
    COMMITTED = "committed"
    ABORTED = "aborted"
    ENDED = "ended"


UNDECIDED = (Phase.CENSUS, Phase.OPEN, Phase.VOTING)
OUTCOME_ATTEMPTS = 12
TIMERS = ("window", "retry", "votes", "deadline", "linger")


@dataclass(slots=True)
class TxCoordinator:
    """One transaction at its coordinator."""

    seat: Seat
    tx: TxId
    terms: Terms
    key: str
    publisher: str
    life: int
    census: Census
    events: EventCoordinator
    ballot: Ballot
    callers: dict[str, None]
    hashes: m.Hashes
    phase: Phase = Phase.CENSUS
    called: bool = False
    attempt: int = 0
    wanted: tuple[str, int] | None = None
    unacknowledged: dict[bytes, bytes] = field(default_factory=dict)
    confirmed: bool = False
    lingering: bool = False
    recorded: bool = False
    restarted: bool = False
    outcome: m.Outcome | None = None
    decision: m.Decision | None = None

    @classmethod
    def create(
        cls, seat: Seat, tx: TxId, create: m.Create, present: int | None, predicate: Predicate | None
    ) -> TxCoordinator:
        """A new transaction; `start` says what to do first."""
        events = EventCoordinator(create.terms, create.publisher, seat.limits)
        events.take_all(create.items, create.publisher)
        census = Census(tx, create.terms, present, predicate)
        ballot = Ballot({}, create.terms.settle_for)
        callers = {create.publisher: None}
        return cls(
            seat, tx, create.terms, create.key, create.publisher, create.life, census, events, ballot, callers,
            seat.keyring.hashes(tx),
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

    # Census

    def on_join(self, join: m.Join) -> list[Effect]:
        """A subscriber wants to be a member. What it repeats proves that it answers this census."""
        if self.phase is not Phase.CENSUS or join.hashes != self.hashes:
            return []
        self.census.on_join(join)
        return self._close_census() if self.census.complete() else []

    def on_decline(self, decline: m.Decline) -> list[Effect]:
        """A subscriber is there and does not want to be a member."""
        if self.phase is not Phase.CENSUS:
            return []
        self.census.on_decline(decline.answer)
        return self._close_census() if self.census.complete() else []

    def _close_census(self) -> list[Effect]:
        reason = self.census.failure()
        if reason:
            return self._fail_census(reason)
        votes = self.ballot.votes
        self.ballot = Ballot(dict(self.census.joined), self.terms.settle_for)
        if self.terms.one_shot:
            return self._count_one_shot(votes)
        self.phase = Phase.OPEN
        begin = m.Begin(self.tx, tuple(self.ballot.members), self.terms.type)
        created = m.Created(self.key, self.tx, len(self.ballot.members))
        return [
            CancelTimer(("c", self.tx, "window")),
            CancelTimer(("c", self.tx, "retry")),
            Broadcast(self.terms.type, begin),
            Send(self.publisher, created),
        ]

    def _fail_census(self, reason: str) -> list[Effect]:
        token = self.seat.keyring.token(self.tx, "abort")
        failed = Broadcast(self.terms.type, m.CensusFailed(self.tx, token, reason))
        self.decision = m.Decision(self.tx, token, (), reason)
        return [failed, *self._withdraw_locals(), *self._conclude(Status.REFUSED, 0, reason)]

    # Events and publishers

    def on_create_again(self, caller: str) -> list[Effect]:
        """Whoever knows the key repeats the creation: it missed the answer."""
        self.callers[caller] = None
        if self.outcome is not None:
            return [Send(caller, self.outcome)]
        if self.phase is Phase.CENSUS or self.terms.one_shot:
            return []
        return [Send(caller, m.Created(self.key, self.tx, len(self.ballot.members)))]

    def on_inquire(self, inquire: m.Inquire) -> list[Effect]:
        """A caller asks; one that knows the key may confirm."""
        if inquire.key:
            self.callers[inquire.publisher] = None
        outcome = self.outcome or m.Outcome(self.tx, self.key, Status.PENDING, final=False)
        return [Send(inquire.publisher, outcome)]

    def on_submit(self, submit: m.Submit) -> list[Effect]:
        """A publisher's event: number it and pass it on."""
        publisher = submit.publisher
        if not self.events.may_publish(publisher):
            return [Send(publisher, m.Refused(self.key, self.tx, f"{publisher} may not publish in this transaction"))]
        if submit.number <= self.events.upto(publisher):
            return [Send(publisher, m.Accepted(self.tx, publisher, self.events.upto(publisher)))]
        if self.called or self.phase not in (Phase.OPEN, Phase.ABORTED):
            return [Send(publisher, m.Refused(self.key, self.tx, "the transaction takes no more events"))]
        over = self.events.over_limit((submit.item,))
        if over:
            return [Send(publisher, m.Refused(self.key, self.tx, over)), *self._withdraw(over, publisher)]
        taken = self.events.on_submit(submit)
        effects: list[Effect] = [Broadcast(self.terms.type, m.Event(self.tx, event)) for event in taken]
        if self.terms.visibility is Visibility.PUBLIC:
            effects += self._plain(taken)
        if taken:
            effects.append(Send(publisher, m.Accepted(self.tx, publisher, self.events.upto(publisher))))
        return effects + self._call_if_complete()

    def on_commit_request(self, request: m.CommitRequest) -> list[Effect]:
        """A publisher commits: as soon as all its events are in."""
        if not self.events.may_end(request.publisher):
            reason = f"{request.publisher} may not commit this transaction"
            return [Send(request.publisher, m.Refused(self.key, self.tx, reason))]
        if self.called:
            return [Send(request.publisher, self.outcome)] if self.outcome is not None else []
        self.wanted = (request.publisher, request.submitted)
        self.callers[request.publisher] = None
        return self._call_if_complete()

    def on_abort(self, abort: m.Abort) -> list[Effect]:
        """A publisher aborts: every scope before its commit call, the distributed one after it."""
        if not self.events.may_end(abort.publisher):
            reason = f"{abort.publisher} may not abort this transaction"
            return [Send(abort.publisher, m.Refused(self.key, self.tx, reason))]
        if self.outcome is not None and (self.called or self.phase is not Phase.ABORTED):
            return [Send(abort.publisher, self.outcome)]
        return self._withdraw(abort.reason or "aborted by its publisher", abort.publisher)

    def on_extend(self, extend: m.ExtendDeadline) -> list[Effect]:
        """The publisher waits longer for votes."""
        if self.phase is not Phase.VOTING or not self.events.may_end(extend.publisher):
            return []
        seconds = max(extend.seconds, 0.0)
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

    def _record_call(self) -> list[Effect]:
        """The call is known before any local member can act on it: under the same key it must not be made again."""
        if not has_locals(self.terms):
            return []
        self.recorded = True
        called = Append(f"d/{self.tx}", self._record(Status.ABORTED, (), "its coordinator restarted"))
        return [called, AddEntry(ChainKind.CALLS, self.tx, self.terms, tuple(self.events.events))]

    # Votes

    def on_vote(self, vote: m.Vote) -> list[Effect]:
        """A vote: checked by its token, counted once, and only for what it voted on."""
        if self.phase not in UNDECIDED:
            return []
        if self.phase is Phase.CENSUS:
            return self._on_one_shot_vote(vote)
        join = self.ballot.members.get(vote.member)
        value = self._value_of(vote, join)
        if value is None or (value and self.phase is not Phase.VOTING):
            return [Surface("vote ignored", self.tx)]
        ruling = self.ballot.on_vote(vote.member, value, vote.reason)
        if ruling is None and self.phase is Phase.VOTING:
            ruling = self.ballot.ruling()
        return self._rule(ruling) if ruling is not None else []

    def _on_one_shot_vote(self, vote: m.Vote) -> list[Effect]:
        join = vote.join
        if not self.terms.one_shot or join is None or join.hashes != self.hashes:
            return [Surface("vote ignored", self.tx)]
        value = self._value_of(vote, join)
        if value is None or member_hash(join.pseudonym) != vote.member:
            return [Surface("vote ignored", self.tx)]
        if self.census.on_join(join) is not None:
            self.ballot.votes.setdefault(vote.member, value)
            if not value and self.terms.settle_for is None:
                return self._rule(Ruling(False, reason=vote.reason or "a member voted no", by=join.identity))
        return self._close_census() if self.census.complete() else []

    def _count_one_shot(self, votes: dict[bytes, bool]) -> list[Effect]:
        self.phase = Phase.VOTING
        for member, value in votes.items():
            self.ballot.on_vote(member, value, "")
        ruling = self.ballot.ruling()
        assert ruling is not None, "in one shot a join and its vote are one message"
        return self._rule(ruling)

    def _value_of(self, vote: m.Vote, join: m.Join | None) -> bool | None:
        """What a vote says; None if it is not a vote of this member."""
        if join is None:
            return None
        if reveals(vote.token, join.pseudonym.no):
            return False
        if not reveals(vote.token, join.pseudonym.yes):
            return None
        return vote.last == len(self.events.events) and vote.digest == self.events.digest

    def _prepare(self) -> list[Effect]:
        self.phase = Phase.VOTING
        self.attempt = 0
        ruling = self.ballot.ruling()
        if ruling is not None:
            return self._rule(ruling)
        return [
            Broadcast(self.terms.type, self._prepare_message()),
            self._timer("votes", self.terms.vote_within),
            self._timer("retry", self.seat.patience.retry),
        ]

    def _on_votes_overdue(self) -> list[Effect]:
        if self.phase is not Phase.VOTING:
            return []
        ruling = self.ballot.on_missing()
        if ruling is not None:
            return self._rule(ruling)
        missing = m.VotesMissing(self.tx, len(self.ballot.missing()), self.attempt)
        return [Send(self.publisher, missing), self._timer("votes", self.terms.vote_within)]

    def on_presence_lost(self, site: str, life: int) -> list[Effect]:
        """A site is gone: as a member that gave its name it votes no, as the only one who may end this it aborts."""
        if self.phase not in UNDECIDED:
            return []
        if site == self.publisher and life >= self.life and site != self.seat.site and not self.terms.committers:
            return self._withdraw("its publisher is gone", site)
        if self.phase is Phase.CENSUS:
            return self._on_left_census(site)
        member = self.ballot.member_called(site)
        if member is None:
            return []
        ruling = self.ballot.on_vote(member, False, f"{site} is gone")
        if ruling is None and self.phase is Phase.VOTING:
            ruling = self.ballot.ruling()
        return self._rule(ruling) if ruling is not None else []

    def _on_left_census(self, site: str) -> list[Effect]:
        if self.census.present is not None:
            self.census.present = max(self.census.present - 1, 0)
        member = next((known for known, join in self.census.joined.items() if join.identity == site), None)
        if member is not None:
            del self.census.joined[member]
            self.ballot.votes.pop(member, None)
        return self._close_census() if self.census.complete() else []

    # One phase

    def _one_phase(self) -> bool:
        members = list(self.ballot.members.values())
        return len(members) == 1 and members[0].one_phase and not self.ballot.votes

    def _delegate(self) -> list[Effect]:
        self.phase = Phase.DELEGATED
        self.attempt = 0
        self.recorded = True
        (member,) = self.ballot.members
        record = DelegationOpened(
            self.tx, self.terms, self.ballot.members[member].pseudonym, len(self.events.events), self.events.digest,
            self.key, self.publisher, self.called, tuple(self.events.events),
        )  # fmt: skip
        return [
            Append(f"d/{self.tx}", record),
            CancelTimer(("c", self.tx, "deadline")),
            Broadcast(self.terms.type, self._delegate_message(member)),
            self._timer("retry", self.seat.patience.retry),
        ]

    def on_delegated(self, answer: m.Delegated) -> list[Effect]:
        """The only member has decided."""
        join = self.ballot.members.get(answer.member)
        if self.phase is not Phase.DELEGATED or join is None:
            return []
        if reveals(answer.token, join.pseudonym.yes):
            return self._commit((answer.member,))
        if not reveals(answer.token, join.pseudonym.no):
            return [Surface("vote ignored", self.tx)]
        return self._delegate_refused(answer, join)

    def _delegate_refused(self, answer: m.Delegated, join: m.Join) -> list[Effect]:
        reason = answer.reason or "the only member refused"
        self.phase = Phase.ABORTED
        self.decision = m.Decision(self.tx, self.seat.keyring.token(self.tx, "abort"), (), reason)
        record = self._record(Status.ABORTED, (), reason)
        by = join.identity or answer.member.hex()
        self.outcome = m.Outcome(self.tx, self.key, Status.ABORTED, 0, self.called, reason, by)
        return [
            Append(f"d/{self.tx}", record),
            Broadcast(self.terms.type, self.decision),
            *self._tell(),
            *self._linger(),
        ]

    # Decision

    def _rule(self, ruling: Ruling) -> list[Effect]:
        return self._commit(ruling.final) if ruling.commit else self._abort(ruling.reason, ruling.by)

    def _commit(self, final: tuple[bytes, ...]) -> list[Effect]:
        self.phase = Phase.COMMITTED
        self.attempt = 0
        self.recorded = True
        self.unacknowledged = {member: self.ballot.members[member].pseudonym.done for member in final}
        on_commit = self.terms.visibility is Visibility.PUBLIC_ON_COMMIT
        public = tuple(e for e in self.events.events if e.item.type == self.terms.type) if on_commit else ()
        record = self._record(Status.COMMITTED, final, "", public)
        self.decision = m.Decision(self.tx, self.seat.keyring.token(self.tx, "commit"), final)
        self.outcome = m.Outcome(self.tx, self.key, Status.COMMITTED, len(final), self.called)
        return [
            Append(f"d/{self.tx}", record),
            *self._chain_entry(),
            *(CancelTimer(("c", self.tx, name)) for name in ("window", "votes", "deadline")),
            Broadcast(self.terms.type, self.decision),
            *self._tell(),
            *(PublishPlain(self.tx, event) for event in public),
            self._timer("retry", self.seat.patience.retry),
            *self._linger(),
            *self._finish_if_done(),
        ]

    def _chain_entry(self) -> list[Effect]:
        """What followers read: they rank as local, so a limit of distributed keeps them out."""
        if not has_locals(self.terms):
            return []
        return [AddEntry(ChainKind.COMMITS, self.tx, self.terms, tuple(self.events.events))]

    def _abort(self, reason: str, by: str = "") -> list[Effect]:
        """The distributed part aborts. Locals wait for the publisher's call, unless it was made."""
        token = self.seat.keyring.token(self.tx, "abort")
        self.decision = m.Decision(self.tx, token, (), reason)
        effects: list[Effect] = [Broadcast(self.terms.type, self.decision)]
        if has_locals(self.terms) and not self.called:
            self.phase = Phase.ABORTED
            self.outcome = m.Outcome(self.tx, self.key, Status.ABORTED, 0, False, reason, by, final=False)
            stop = [CancelTimer(("c", self.tx, name)) for name in ("window", "votes", "retry")]
            return [*effects, *stop, *self._tell()]
        return effects + self._conclude(Status.ABORTED, 0, reason, by)

    def _withdraw(self, reason: str, by: str) -> list[Effect]:
        """A publisher gives up, or is given up on. After its commit call that reaches the distributed scope only."""
        if self.phase in UNDECIDED and self.terms.tx_type is TxType.DISTRIBUTED:
            if self.called:
                return self._abort(reason, by)
            token = self.seat.keyring.token(self.tx, "abort")
            self.decision = m.Decision(self.tx, token, (), reason)
            abort = Broadcast(self.terms.type, self.decision)
            return [abort, *self._withdraw_locals(), *self._conclude(Status.ABORTED, 0, reason, by)]
        if self.called or self.phase not in (Phase.OPEN, Phase.ABORTED):
            return []
        if self.outcome is not None:
            reason, by = self.outcome.reason, self.outcome.by
        return [*self._withdraw_locals(), *self._conclude(Status.ABORTED, 0, reason, by)]

    def _withdraw_locals(self) -> list[Effect]:
        if not has_locals(self.terms) or self.called:
            return []
        token = self.seat.keyring.token(self.tx, "withdrawn")
        return [Broadcast(self.terms.type, m.Withdrawn(self.tx, token))]

    def _on_deadline(self) -> list[Effect]:
        if self.phase in UNDECIDED or (self.phase is Phase.ABORTED and not self.called):
            return self._withdraw("not complete in time", self.seat.site)
        return []

    def _conclude(self, status: Status, members: int, reason: str = "", by: str = "") -> list[Effect]:
        """The end of a transaction that no member acknowledges.

        Where local members act on the call, the caller's confirmation is waited for: repeated under the same key,
        it must not reach them twice.
        """
        self.phase = Phase.ABORTED
        self.outcome = m.Outcome(self.tx, self.key, status, members, self.called, reason, by)
        self.confirmed = not (self.called and has_locals(self.terms))
        record = [] if self.confirmed else [Append(f"d/{self.tx}", self._record(status, (), reason))]
        self.recorded = self.recorded or not self.confirmed
        return [*record, *self._tell(), *self._linger(), *self._finish_if_done()]

    def _tell(self) -> list[Effect]:
        """The outcome, to all who may confirm it."""
        assert self.outcome is not None
        return [Send(caller, self.outcome) for caller in self.callers]

    def _record(
        self, status: Status, final: tuple[bytes, ...], reason: str, public: tuple[m.Numbered, ...] = ()
    ) -> Decided:
        done = tuple(self.ballot.members[member].pseudonym.done for member in final)
        caller = self.wanted[0] if self.wanted is not None else self.publisher
        local = self.terms.tx_type is TxType.LOCAL
        return Decided(
            self.tx, self.terms.type, status, final, done, self.key, caller, self.called, reason, public, local
        )  # fmt: skip

    # After the decision

    def on_ack(self, ack: m.Ack) -> list[Effect]:
        """A member has applied the commit."""
        expected = self.unacknowledged.get(ack.member)
        if expected is None or not reveals(ack.token, expected):
            return []
        del self.unacknowledged[ack.member]
        return self._finish_if_done()

    def on_confirm(self, confirm: m.Confirm) -> list[Effect]:
        """The caller knows the outcome."""
        if self.outcome is None or not self.outcome.final or confirm.publisher not in self.callers:
            return []
        self.confirmed = True
        return self._finish_if_done()

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

    def settled(self) -> bool:
        """Whether only the caller's confirmation is missing."""
        return self.outcome is not None and not self.unacknowledged and not self.lingering and not self.confirmed

    def retire(self) -> list[Effect]:
        """Forget a settled transaction although its caller never confirmed."""
        self.confirmed = True
        return self._finish_if_done()

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

    def _linger(self) -> list[Effect]:
        """Locals that missed the call may still ask for a while."""
        if not self.called or not has_locals(self.terms) or self.terms.one_shot:
            return []
        self.lingering = True
        return [self._timer("linger", self.seat.patience.linger)]

    def _finish_if_done(self) -> list[Effect]:
        if self.unacknowledged or not self.confirmed or self.lingering or self.phase is Phase.ENDED:
            return []
        self.phase = Phase.ENDED
        forget: list[Effect] = [Drop(f"d/{self.tx}")] if self.recorded else []
        return forget + [CancelTimer(("c", self.tx, name)) for name in TIMERS]

    # Restart

    @classmethod
    def recover(cls, seat: Seat, record: Decided | DelegationOpened) -> TxCoordinator:
        """A transaction as the log remembers it."""
        terms = record.terms if isinstance(record, DelegationOpened) else Terms(record.type)
        census = Census(record.tx, terms)
        events = EventCoordinator(terms, record.publisher, seat.limits)
        self = cls(
            seat, record.tx, terms, record.key, record.publisher, 0, census, events, Ballot({}, terms.settle_for), {},
            seat.keyring.hashes(record.tx),
        )  # fmt: skip
        self.callers[record.publisher] = None
        self.called = record.called
        self.recorded = self.restarted = True
        if isinstance(record, DelegationOpened):
            self.phase = Phase.DELEGATED
            self.events.events, self.events.digest = list(record.events), record.digest
            join = m.Join(record.tx, record.pseudonym, self.hashes)
            self.ballot.members[member_hash(record.pseudonym)] = join
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
        again: list[Effect] = [PublishPlain(self.tx, event) for event in public]
        return again + self._on_retry(m.Standing())

    # Messages

    def _census(self, standing: m.Standing) -> m.Census:
        shot = self.terms.one_shot
        events = tuple(self.events.events) if shot else ()
        hashes = self.hashes
        return m.Census(
            self.tx, self.terms, hashes, standing, self.attempt, events, self.events.digest if shot else b""
        )

    def _prepare_message(self) -> m.Prepare:
        return m.Prepare(
            self.tx, tuple(self.ballot.members), len(self.events.events), self.events.digest, self.terms.type
        )

    def _delegate_message(self, member: bytes) -> m.Delegate:
        return m.Delegate(self.tx, member, len(self.events.events), self.events.digest, self.terms.type)

    def _called(self) -> m.Called:
        token = self.seat.keyring.token(self.tx, "called")
        return m.Called(self.tx, self.terms, token, len(self.events.events), self.events.digest)

    def _start_local(self) -> list[Effect]:
        if self.terms.one_shot:
            return self._conclude(Status.COMMITTED, 0)
        self.phase = Phase.OPEN
        return [
            Send(self.publisher, m.Created(self.key, self.tx, 0)),
            self._timer("deadline", self.terms.complete_within),
        ]

    def _plain(self, events: list[m.Numbered]) -> list[Effect]:
        return [PublishPlain(self.tx, event) for event in events if event.item.type == self.terms.type]

    def _timer(self, name: str, seconds: float) -> SetTimer:
        return SetTimer(("c", self.tx, name), seconds)
