"""Who does which unit of work: by the census, by the terms of an entry, or after a restart by what the log says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from txlayer.messages import Terms, TxId
from txlayer.participant import Subscriber
from txlayer.runtime.membership import Application, Membership, Part
from txlayer.units import chain_of, transaction_of

ANSWERS = 4096
"""So many answers of `on_join` are remembered until the transaction comes by a chain; then it is asked again."""


@dataclass(frozen=True, slots=True)
class Left:
    """What the log says of a transaction that an earlier life took part in. An older log knows less of it."""

    type: str
    terms: Terms | None
    parts: tuple[str, ...] = ()

    def attributes(self) -> dict[str, str]:
        """Those of the transaction, as far as they are known."""
        return dict(self.terms.attributes) if self.terms is not None else {}


@dataclass(slots=True)
class Memberships:
    """All transactions that this site takes part in, by unit of work."""

    application: Application
    known: dict[TxId, Membership] = field(default_factory=dict)
    left: dict[TxId, Left] = field(default_factory=dict)
    """Transactions that were in the log at the start."""
    answered: dict[TxId, Membership] = field(default_factory=dict)
    """What `on_join` said, for when the transaction comes by a chain."""
    closing: bool = False
    """Takes part in no further transaction."""

    def invite(self, tx: TxId, terms: Terms) -> Membership:
        """A census: who would take part?"""
        attributes = dict(terms.attributes)
        matching = [] if self.closing else self.application.matching(terms.type, attributes)
        leaving = not matching and (self.closing or not self.application.subscribes(terms.type))
        member = Membership(tx, terms.type, attributes, terms, self.application, matching, leaving=leaving)
        if not leaving:
            self.known[tx] = member
        if member.asks():
            self.answered[tx] = member
            if len(self.answered) > ANSWERS:
                del self.answered[next(iter(self.answered))]
        return member

    def of(self, unit: TxId, terms: Terms | None = None) -> Membership:
        """Who does this unit; after a restart by what the log says, for an entry of a chain by its terms."""
        member = self.known.get(unit)
        if member is None and terms is None and chain_of(unit) is not None:
            return self._restored(unit)  # not kept: who applies the entry is found by its terms
        if member is None:
            member = self.known[unit] = self._reader(unit, terms) if terms is not None else self._restored(unit)
        return member

    def _reader(self, unit: TxId, terms: Terms) -> Membership:
        """Those who read the chain and whose filter lets the transaction through; perhaps nobody."""
        kind = chain_of(unit)
        assert kind is not None, "an entry says which chain it is of"
        tx, attributes = transaction_of(unit), dict(terms.attributes)
        matching = [s for s in self.application.matching(terms.type, attributes) if s.may_read(kind)]
        parts = [Part(s, unasked=s.asks) for s in matching]
        answered = self.answered.get(tx)
        if answered is not None and answered.chosen:
            chose = {id(part.subscriber): part for part in answered.readers.get(kind, ())}
            parts = [chose.get(id(part.subscriber), part) for part in parts]
            parts = [part for part in parts if not part.unasked]
        subscribers = [part.subscriber for part in parts]
        return Membership(tx, terms.type, attributes, terms, self.application, subscribers, parts, chain=kind)

    def _restored(self, unit: TxId) -> Membership:
        """Participants anew: what they kept in memory is gone."""
        left = self.left.get(unit)
        if left is None or not left.type:  # resources must still be finished
            everyone = list(self.application.subscribers)
            return Membership(transaction_of(unit), "", {}, None, self.application, everyone)
        subscribers = self._may_have_joined(left)
        taking = [s for s in subscribers if s.name in left.parts] or subscribers
        parts = [Part(s) for s in taking]
        return Membership(unit, left.type, left.attributes(), left.terms, self.application, subscribers, parts)

    def _may_have_joined(self, left: Left) -> list[Subscriber]:
        known = left.terms is not None
        of_type = self.application.of_type(left.type)
        return [s for s in of_type if s.may_join() and (not known or s.filter.matches(left.attributes()))]

    def unserved(self, unit: TxId, terms: Terms | None = None) -> str:
        """The type of work that an earlier life left and that nobody here takes up; empty if it can be done."""
        kind, left = chain_of(unit), self.left.get(unit)
        if unit in self.known:
            return ""
        if kind is not None and terms is not None:
            return "" if any(s.may_read(kind) for s in self.application.of_type(terms.type)) else terms.type
        return "" if left is None or self._may_have_joined(left) else left.type

    def renew(self, unit: TxId) -> None:
        """A handler hangs: the next attempt has participants of its own, and knows nothing of what the last one did."""
        member = self.known[unit]
        parts = [Part(part.subscriber, part.unasked) for part in member.participants]
        self.known[unit] = replace(member, participants=parts, taking_part={}, handed={}, unanswered={}, lost=False)

    def keep(self, wanted: Callable[[TxId], bool]) -> None:
        """Forget the memberships of transactions that are over."""
        for unit in [unit for unit in self.known if not wanted(unit)]:
            del self.known[unit]
            self.left.pop(unit, None)
