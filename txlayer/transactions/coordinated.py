"""The state of one transaction at its coordinator, its decision, and what follows from it (HTS 4.3, TOPS 4.6.3).

A commit is in the log before it is sent, is sent until every member of the final list has acknowledged, and is
forgotten only then, and only after the caller confirmed that it knows. An abort needs neither record nor
acknowledgement: whoever asks is told.

Local members act on two messages of their own. *Called* says that the publisher called commit; what the distributed
members decide does not touch them. *Withdrawn* says that it never will. When the distributed part aborts early, the
transaction therefore stays open for its locals until the publisher calls or withdraws.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from msgspec.structs import replace

from txlayer import messages as m
from txlayer.effects import (
    AddEntry,
    Append,
    Broadcast,
    CancelTimer,
    Drop,
    Effect,
    PublishPlain,
    Send,
    SetTimer,
    Settle,
)
from txlayer.messages import NOBODY, Asked, ChainKind, Status, Terms, TxId, TxType, Visibility
from txlayer.records import Decided, Settlement, Settling
from txlayer.tokens import reveals
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
    SETTLING = "settling"
    COMMITTED = "committed"
    ABORTED = "aborted"
    ENDED = "ended"


UNDECIDED = (Phase.CENSUS, Phase.OPEN, Phase.VOTING)
OUTCOME_ATTEMPTS = 12
TIMERS = ("window", "retry", "votes", "deadline", "linger")


@dataclass(slots=True)
class Coordinated:
    """One transaction at its coordinator: state, decision, aftermath."""

    seat: Seat
    tx: TxId
    terms: Terms
    key: str
    publisher: str
    life: int
    census: Census
    events: EventCoordinator
    ballot: Ballot
    callers: dict[str, Asked]
    """Who is told the outcome, each with the creation or question that was last heard of it."""
    hashes: m.Hashes
    incarnation: str
    phase: Phase = Phase.CENSUS
    called: bool = False
    attempt: int = 0
    wanted: tuple[str, int] | None = None
    unacknowledged: dict[bytes, bytes] = field(default_factory=dict)
    confirmed: bool = False
    retired: bool = False
    """Its caller has not confirmed, and may still ask."""
    lingering: bool = False
    recorded: bool = False
    restarted: bool = False
    outcome: m.Outcome | None = None
    decision: m.Decision | None = None

    def _record_call(self) -> list[Effect]:
        """The call is known before any local member can act on it: under the same key it must not be made again."""
        if not has_locals(self.terms):
            return []
        self.recorded = True
        called = Append(f"d/{self.tx}", self._record(Status.ABORTED, (), "its coordinator restarted"))
        return [called, AddEntry(ChainKind.CALLS, self.tx, self.terms, tuple(self.events.events))]

    def _chain_entry(self) -> list[Effect]:
        """What followers read: they rank as local, so a limit of distributed keeps them out."""
        if not has_locals(self.terms):
            return []
        return [AddEntry(ChainKind.COMMITS, self.tx, self.terms, tuple(self.events.events))]

    def _rule(self, ruling: Ruling) -> list[Effect]:
        if not ruling.commit:
            return self._abort(ruling.reason, ruling.by)
        return self._settle(ruling.final) if self.hashes.finishers else self._commit(ruling.final)

    def _settle(self, final: tuple[bytes, ...]) -> list[Effect]:
        """Where others may finish this, what stands in the register decides: the first to write, they or this site."""
        self.phase = Phase.SETTLING
        self.recorded = True
        record = Settling(
            self.tx, self.terms, tuple(self.ballot.members[member].pseudonym for member in final), self.key,
            self._caller(), self.called, tuple(self.events.events), self._initiator(),
        )  # fmt: skip
        stop = (CancelTimer(("c", self.tx, name)) for name in ("window", "votes", "deadline", "retry"))
        return [Append(f"d/{self.tx}", record), *stop, Settle(self.tx, self.terms.type, Settlement(True, final))]

    def on_settled(self, settlement: Settlement) -> list[Effect]:
        """The register has spoken."""
        if self.phase is not Phase.SETTLING:
            return []
        if settlement.commit:
            return self._commit(settlement.final)
        return self._abort(settlement.reason or "aborted by a finisher")

    def _commit(self, final: tuple[bytes, ...]) -> list[Effect]:
        self.phase = Phase.COMMITTED
        self.attempt = 0
        self.recorded = True
        self.unacknowledged = {member: self.ballot.members[member].pseudonym.done for member in final}
        public = self._public_on_commit()
        record = self._record(Status.COMMITTED, final, "", public)
        self.decision = m.Decision(self.tx, self.seat.keyring.token(self.tx, "commit"), final)
        self.outcome = m.Outcome(self.tx, self.key, Status.COMMITTED, len(final), self.called)
        return [
            Append(f"d/{self.tx}", record),
            *self._chain_entry(),
            *(CancelTimer(("c", self.tx, name)) for name in ("window", "votes", "deadline")),
            Broadcast(self.terms.type, self.decision, patient=not any(self.ballot.members[one].waits for one in final)),
            *self._tell(),
            *(PublishPlain(self.tx, event) for event in public),
            self._timer("retry", self.seat.patience.retry),
            *self._linger(),
            *self._finish_if_done(),
        ]

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

    def _public_on_commit(self) -> tuple[m.Numbered, ...]:
        if self.terms.visibility is not Visibility.PUBLIC_ON_COMMIT:
            return ()
        return tuple(event for event in self.events.events if event.item.type == self.terms.type)

    def _conclude(self, status: Status, members: int, reason: str = "", by: str = "") -> list[Effect]:
        """The end of a transaction that no member acknowledges.

        Where local members act on the call, the caller's confirmation is waited for: repeated under the same key,
        it must not reach them twice.
        """
        self.phase = Phase.ABORTED
        self.outcome = m.Outcome(self.tx, self.key, status, members, self.called, reason, by)
        self.confirmed = not (self.called and has_locals(self.terms))
        public = self._public_on_commit() if status is Status.COMMITTED else ()
        record = [] if self.confirmed else [Append(f"d/{self.tx}", self._record(status, (), reason, public))]
        self.recorded = self.recorded or not self.confirmed
        outside = (PublishPlain(self.tx, event) for event in public)
        return [*record, *self._tell(), *outside, *self._linger(), *self._finish_if_done()]

    def _will_tell(self, caller: str, asked: Asked = NOBODY) -> None:
        self.callers[caller] = asked if asked != NOBODY else self.callers.get(caller, NOBODY)

    def _tell(self) -> list[Effect]:
        """The outcome, to all who are to know."""
        return [
            Send(caller, replace(self._outcome_for(caller), answers=asked)) for caller, asked in self.callers.items()
        ]

    def _outcome_for(self, caller: str) -> m.Outcome:
        """After a restart it is forgotten which events are in: only who called knows that its own all were."""
        assert self.outcome is not None
        if not self.restarted or caller == self._caller() or self.outcome.status is not Status.COMMITTED:
            return self.outcome
        return replace(self.outcome, reason=f"its coordinator restarted: perhaps not all events of {caller} are in it")

    def _record(
        self, status: Status, final: tuple[bytes, ...], reason: str, public: tuple[m.Numbered, ...] = ()
    ) -> Decided:
        done = tuple(self.ballot.members[member].pseudonym.done for member in final)
        local = self.terms.tx_type is TxType.LOCAL
        return Decided(
            self.tx, self.terms.type, status, final, done, self.key, self._caller(), self.called, reason, public, local,
            self._initiator(), self.terms.limit,
        )  # fmt: skip

    def _caller(self) -> str:
        """Who called commit, or would have."""
        return self.wanted[0] if self.wanted is not None else self.publisher

    def _initiator(self) -> str:
        """Whose key it is, where that is not who called."""
        return self.publisher if self.publisher != self._caller() else ""

    def on_ack(self, ack: m.Ack) -> list[Effect]:
        """A member has applied the commit."""
        expected = self.unacknowledged.get(ack.member)
        if expected is None or not reveals(ack.token, expected):
            return []
        del self.unacknowledged[ack.member]
        return self._finish_if_done()

    def on_confirm(self, confirm: m.Confirm) -> list[Effect]:
        """Who began it knows the outcome: the key was its own, and nobody else frees it."""
        if self.outcome is None or not self.outcome.final or confirm.publisher != self.publisher:
            return []
        self.confirmed = True
        return self._finish_if_done()

    def settled(self) -> bool:
        """Whether only the caller's confirmation is missing."""
        return self.outcome is not None and not self.unacknowledged and not self.lingering and not self.confirmed

    def took_effect(self) -> bool:
        """Whether anyone has kept something of it: the distributed members, or the locals at the call."""
        if self.outcome is None:
            return False
        return self.outcome.status is Status.COMMITTED or (self.called and has_locals(self.terms))

    def retire(self) -> list[Effect]:
        """Forget a settled transaction although its caller never confirmed."""
        self.confirmed = self.retired = True
        return self._finish_if_done()

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

    def _plain(self, events: list[m.Numbered]) -> list[Effect]:
        return [PublishPlain(self.tx, event) for event in events if event.item.type == self.terms.type]

    def _timer(self, name: str, seconds: float) -> SetTimer:
        return SetTimer(("c", self.tx, name), seconds)
