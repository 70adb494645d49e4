"""Census and vote at the coordinator: who takes part, and what they say (HTS 4.1, 4.3; TOPS 4.6.1, 4.6.3).

An only member with a single resource is not asked to prepare: that it decides is logged, then it is asked, and from
then on nothing but its answer counts: no deadline, no lost presence, no publisher's abort.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from txlayer import messages as m
from txlayer.effects import (
    Append,
    Broadcast,
    CancelTimer,
    Effect,
    PresenceChanged,
    Send,
    Surface,
)
from txlayer.messages import Status
from txlayer.records import DelegationOpened
from txlayer.tokens import member_hash, reveals
from txlayer.transactions.ballot import Ballot, Ruling
from txlayer.transactions.coordinated import UNDECIDED, Coordinated, Phase


@dataclass(slots=True)
class Voting(Coordinated):
    """Census and votes."""

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
        if self.census.on_join(msgspec.structs.replace(join, hashes=self.hashes)) is not None:
            self.ballot.votes.setdefault(vote.member, value)
            self.ballot.reasons.setdefault(vote.member, vote.reason)
            if not value and self.terms.settle_for is None:
                return self._rule(Ruling(False, reason=vote.reason or "a member voted no", by=join.identity))
        return self._close_census() if self.census.complete() else []

    def _count_one_shot(self, came: Ballot) -> list[Effect]:
        self.phase = Phase.VOTING
        for member, value in came.votes.items():
            veto = self.ballot.on_vote(member, value, came.reasons.get(member, ""))
            if veto is not None:
                return self._rule(veto)
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
        told = dict.fromkeys((self.publisher, self._caller()))
        return [*(Send(site, missing) for site in told), self._timer("votes", self.terms.vote_within)]

    def on_presence_lost(self, lost: PresenceChanged, back: bool) -> list[Effect]:
        """A life of a site has ended, and it may be back in its next: as a member that gave its name it votes no.

        If it was the only one who may end this, the transaction aborts.
        """
        site = lost.site
        if self.phase not in UNDECIDED:
            return []
        began = site == self.publisher and lost.incarnation == self.incarnation and lost.life >= self.life
        if began and site != self.seat.site and not self.terms.committers:
            return self._withdraw("its publisher is gone", site)
        if self.phase is Phase.CENSUS:
            return self._on_left_census(site, back)
        member = self.ballot.member_called(site)
        if member is None:
            return []
        ruling = self.ballot.on_vote(member, False, f"{site} is gone")
        if ruling is None and self.phase is Phase.VOTING:
            ruling = self.ballot.ruling()
        return self._rule(ruling) if ruling is not None else []

    def on_unsubscribed(self, site: str) -> list[Effect]:
        """A site takes part in no more transactions of this type; where it has joined it stays a member."""
        if self.phase is not Phase.CENSUS:
            return []
        self.census.on_unsubscribed(site)
        return self._close_census() if self.census.complete() else []

    def _on_left_census(self, site: str, back: bool) -> list[Effect]:
        member = self.census.on_left(site, gone=not back)
        if member is not None:
            self.ballot.votes.pop(member, None)
        return self._close_census() if self.census.complete() else []

    def _close_census(self) -> list[Effect]:
        reason = self.census.failure()
        if reason:
            return self._fail_census(reason)
        came = self.ballot
        self.ballot = Ballot(self.census.joined, self.terms.settle_for)
        self.census.others, self.census.present = {}, None
        if self.terms.one_shot:
            return self._count_one_shot(came)
        self.phase = Phase.OPEN
        begin = m.Begin(self.tx, tuple(self.ballot.members), self.terms.type)
        created = m.Created(self.key, self.tx, len(self.ballot.members), self.callers[self.publisher])
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

    def on_join(self, join: m.Join) -> list[Effect]:
        """A subscriber wants to be a member. What it repeats proves that it answers this census."""
        if self.phase is not Phase.CENSUS or join.hashes != self.hashes or self.terms.one_shot:
            return []
        self.census.on_join(msgspec.structs.replace(join, hashes=self.hashes))  # one copy for all members
        return self._close_census() if self.census.complete() else []

    def on_decline(self, decline: m.Decline) -> list[Effect]:
        """A subscriber is there and does not want to be a member."""
        if self.phase is not Phase.CENSUS:
            return []
        self.census.on_decline(decline.answer, decline.identity)
        return self._close_census() if self.census.complete() else []

    def _one_phase(self) -> bool:
        if self.hashes.finishers:
            return False  # a finisher could not ask the only member, so it must not be the only one who knows
        members = list(self.ballot.members.values())
        return len(members) == 1 and members[0].one_phase and not self.ballot.votes

    def _delegate(self) -> list[Effect]:
        self.phase = Phase.DELEGATED
        self.attempt = 0
        self.recorded = True
        (member,) = self.ballot.members
        record = DelegationOpened(
            self.tx, self.terms, self.ballot.members[member].pseudonym, len(self.events.events), self.events.digest,
            self.key, self._caller(), self.called, tuple(self.events.events), self._initiator(),
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

    def on_forced(self, commit: bool) -> list[Effect]:
        """An operator decides in place of a delegate that cannot be asked."""
        if self.phase is not Phase.DELEGATED:
            return []
        ((member, join),) = self.ballot.members.items()
        if commit:
            return self._commit((member,))
        return self._delegate_refused(m.Delegated(self.tx, member, b"", "resolved by an operator"), join)

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
