"""The census: who is a member of a transaction (HTS 4.1, TOPS 4.6.1).

Answers are counted by pseudonym, so members may stay anonymous. Those who do not want to be distributed members say
so too, which lets the census close as soon as everyone who is present has answered and the conditions are met,
instead of always waiting for its window. It also closes when no further answer could change the result.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field

import msgspec

from txlayer.effects import Predicate
from txlayer.messages import Join, Terms, TxId
from txlayer.tokens import member_hash
from txlayer.transactions.constraints import admits, all_named, capacity, unmet


@dataclass(slots=True)
class Census:
    """Answers to one census."""

    tx: TxId
    terms: Terms
    present: dict[str, None] | None = None
    """The subscribers of the type that are there and have not answered by name; None if nobody knows who is there."""
    predicate: Predicate | None = None
    joined: dict[bytes, Join] = field(default_factory=dict)
    others: dict[bytes, None] = field(default_factory=dict)
    named: int = 0
    """So many of those who joined gave their names."""
    most: int = 1000
    crowded: bool = False

    def on_join(self, join: Join) -> bytes | None:
        """The member's hash if the answer counts; None if it is turned away or was made for another census."""
        member = member_hash(join.pseudonym)
        if member in self.joined:
            return member
        if not admits(self.terms, join) or not self._has_seat(join):
            self.on_decline(member, join.identity)
            return None
        if join.identity and any(known.identity == join.identity for known in self.joined.values()):
            return None
        if len(self.joined) >= self.most:
            self.crowded = True
            return None
        # One copy of the name for all transactions that it joins.
        self.joined[member] = msgspec.structs.replace(join, tx=self.tx, identity=sys.intern(join.identity))
        if join.identity:
            self._has_answered(join.identity)
            self.named += 1
        return member

    def on_decline(self, answer: bytes, identity: str = "") -> None:
        """Someone is there and will not vote. If there are too many to remember, the window closes the census.

        Who subscribes no more says so by name: counted without one, its answer would stand for that of another site.
        """
        if identity:
            self._has_answered(identity)
        elif self.present is not None and len(self.others) < min(len(self.present) + self.named, self.most):
            self.others[answer] = None

    def _has_answered(self, site: str) -> None:
        """By name, so it stands for no other: it may be one of whose presence nobody has heard yet."""
        if self.present is not None:
            self.present.pop(site, None)

    def complete(self) -> bool:
        """Whether no answer is outstanding that could matter.

        Who is present is known with a delay: while the conditions are not met, those who come late have the window.
        """
        if self._full() or self._all_allowed_answered():
            return True
        return self.present is not None and self._nameless() >= len(self.present) and not self.failure()

    def _nameless(self) -> int:
        return len(self.joined) - self.named + len(self.others)

    def on_left(self, site: str, gone: bool) -> bytes | None:
        """A site ended its life, and is `gone` or in its next one; its member's hash if it had joined by name.

        Whether it answered without a name is not known. If it may have, it is counted on: otherwise its answer would
        stand for that of another site, and the census close too early.
        """
        member = next((known for known, join in self.joined.items() if join.identity == site), None)
        if member is not None:
            del self.joined[member]
            self.named -= 1
            if not gone and self.present is not None:
                self.present[site] = None
        elif gone:
            self.on_unsubscribed(site)
        return member

    def on_unsubscribed(self, site: str) -> None:
        """A site does not answer for this type any more. If it may have answered without a name, it is counted on."""
        if self.present is not None and not self._nameless():
            self.present.pop(site, None)

    def failure(self) -> str:
        """Why the census is not fulfilled; empty if it is."""
        if self.crowded:
            return f"more than {self.most} members: raise bounds.members, or ask for at most so many"
        members = tuple(self.joined.values())
        reason = unmet(self.terms.require, members)
        if not reason and self.terms.settle_for is not None:
            reason = unmet(self.terms.settle_for, members)
        if not reason and self.predicate is not None and not self.predicate(members):
            reason = "the caller's predicate on the answers does not hold"
        return reason

    def _full(self) -> bool:
        most = capacity(self.terms)
        return most is not None and len(self.joined) >= most

    def _has_seat(self, join: Join) -> bool:
        """Seats are kept for the named members that are still missing: they may be the last to answer."""
        most = capacity(self.terms)
        if most is None:
            return True
        present = {known.identity for known in self.joined.values()}
        missing = [name for name in all_named(self.terms) if name not in present]
        return len(self.joined) + len(missing) < most + (join.identity in missing)

    def _all_allowed_answered(self) -> bool:
        only = self.terms.require.only
        return bool(only) and {join.identity for join in self.joined.values()} >= set(only)
