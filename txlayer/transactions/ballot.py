"""The ballot: votes, constraints, and the decision that follows from them (HTS 4.3, TOPS 4.6.3).

Without `settle_for` every member must vote yes. With it, members may say no, vanish or stay silent past the deadline
as long as those who are left satisfy it: the decision then names exactly the members that voted yes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer.messages import Conditions, Join
from txlayer.transactions.constraints import unmet


@dataclass(frozen=True, slots=True)
class Ruling:
    """A decision: commit with a final list, or abort with who vetoed and why."""

    commit: bool
    final: tuple[bytes, ...] = ()
    reason: str = ""
    by: str = ""


@dataclass(slots=True)
class Ballot:
    """Votes of the members of one transaction. Each has one, the first counts."""

    members: dict[bytes, Join]
    settle_for: Conditions | None
    votes: dict[bytes, bool] = field(default_factory=dict)
    reasons: dict[bytes, str] = field(default_factory=dict)
    """Of votes that came with the answers to the census, until they are counted."""

    def on_vote(self, member: bytes, yes: bool, reason: str) -> Ruling | None:
        """Count a vote; a ruling if it aborts the transaction."""
        if member not in self.members or member in self.votes:
            return None
        self.votes[member] = yes
        return None if yes else self._without(member, reason)

    def on_missing(self) -> Ruling | None:
        """The deadline has passed: without `settle_for` nothing can be ruled, the publisher is asked."""
        if self.settle_for is None:
            return None
        yes = self._yes()
        reason = unmet(self.settle_for, [self.members[member] for member in yes])
        return Ruling(False, reason=f"votes missing, {reason}") if reason else Ruling(True, yes)

    def ruling(self) -> Ruling | None:
        """A commit once every member that is left has voted and the constraints hold."""
        if len(self.votes) < len(self.members):
            return None
        yes = self._yes()
        if self.settle_for is not None:
            reason = unmet(self.settle_for, [self.members[member] for member in yes])
            if reason:
                return Ruling(False, reason=reason)
        elif len(yes) < len(self.members):
            return Ruling(False, reason="a member voted no")
        return Ruling(True, yes)

    def missing(self) -> list[bytes]:
        """Members that have not voted."""
        return [member for member in self.members if member not in self.votes]

    def member_called(self, identity: str) -> bytes | None:
        """The member that gave this identity."""
        return next((member for member, join in self.members.items() if join.identity == identity), None)

    def _without(self, member: bytes, reason: str) -> Ruling | None:
        by = self.members[member].identity or member.hex()
        if self.settle_for is None:
            return Ruling(False, reason=reason or "a member voted no", by=by)
        left = [join for other, join in self.members.items() if self.votes.get(other, True)]
        unsettled = unmet(self.settle_for, left)
        return Ruling(False, reason=f"{reason or 'a member voted no'}; {unsettled}", by=by) if unsettled else None

    def _yes(self) -> tuple[bytes, ...]:
        return tuple(member for member in self.members if self.votes.get(member, False))
