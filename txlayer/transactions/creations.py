"""Which creations a coordinator has taken, so that a late copy of one starts nothing.

A creation is good for one life of the coordinator. Within it, every publisher numbers its creations and says below
which number all of its own are confirmed; so what is remembered is bounded by what publishers have open. Who has
created something is remembered for all of this life, up to a limit: a copy may come however late.

A publisher counts from one in every life of its log, and with every new log. Lives are in order and only the latest
counts; logs are not, so each has an entry of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer.messages import Create, Inquire


@dataclass(slots=True)
class PublisherLife:
    """One publisher with one log, in its latest life."""

    life: int
    below: int = 0
    taken: dict[int, None] = field(default_factory=dict)

    def advance(self, below: int) -> None:
        """All of its creations below this number are confirmed, or given up."""
        if below > self.below:
            self.below = below
            self.taken = {serial: None for serial in self.taken if serial >= below}


@dataclass(slots=True)
class Creations:
    """Creations of this life of the coordinator."""

    publishers: dict[tuple[str, str], PublisherLife] = field(default_factory=dict)
    most_publishers: int = 100_000
    most_open: int = 100_000

    def over_limit(self, create: Create) -> str:
        """Which limit it would break to remember this creation; empty if none."""
        known = self.publishers.get((create.publisher, create.incarnation))
        if known is None and len(self.publishers) >= self.most_publishers:
            return f"more than {self.most_publishers} logs of publishers in this life: raise bounds.publishers"
        if known is None or known.life != create.life:
            return ""
        if len(known.taken) >= self.most_open and known.below <= create.below <= min(known.taken):
            return (
                f"more than {self.most_open} transactions of {create.publisher} since its oldest unconfirmed one: "
                "raise bounds.open_transactions"
            )
        return ""

    def ended(self, create: Create) -> bool:
        """Whether this creation was taken before; asked when its transaction is not there any more."""
        known = self.publishers.get((create.publisher, create.incarnation))
        return known is not None and create.life == known.life and create.serial in known.taken

    def take(self, create: Create) -> bool:
        """Whether this creation is new; it is remembered."""
        publisher = (create.publisher, create.incarnation)
        known = self.publishers.get(publisher)
        if known is None or create.life > known.life:
            known = self.publishers[publisher] = PublisherLife(create.life)
        if create.life < known.life or create.serial < known.below or create.serial in known.taken:
            return False
        known.taken[create.serial] = None
        known.advance(create.below)
        return True

    def on_question(self, inquire: Inquire) -> None:
        """The caller hears that nothing is known under its key: what its site has given up on does not start later."""
        incarnation, life, _ = inquire.asked
        publisher = (inquire.publisher, incarnation)
        known = self.publishers.get(publisher)
        if known is None and len(self.publishers) >= self.most_publishers:
            return  # its creations are refused
        if known is None or life > known.life:
            known = self.publishers[publisher] = PublisherLife(life)
        if life == known.life:
            known.advance(inquire.below)
