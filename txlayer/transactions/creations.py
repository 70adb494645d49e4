"""Which creations a coordinator has taken, so that a late copy of one starts nothing.

A creation is good for one life of the coordinator. Within it, every publisher numbers its creations and says below
which number all of its own are confirmed; so what is remembered is bounded by what publishers have open. Who has
created something is remembered for all of this life, up to a limit: a copy may come however late.

A publisher counts from one in every life of its log, and with every new log. Lives are in order, logs are not: a new
log is believed when presence says that it holds the name. Until then its creations go unanswered, and it repeats them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer.messages import Create


@dataclass(slots=True)
class PublisherLife:
    """One publisher, in the latest life of the log that it has now."""

    incarnation: str
    life: int
    below: int = 0
    taken: dict[int, None] = field(default_factory=dict)


@dataclass(slots=True)
class Creations:
    """Creations of this life of the coordinator."""

    publishers: dict[str, PublisherLife] = field(default_factory=dict)
    most_publishers: int = 100_000
    most_open: int = 100_000

    def over_limit(self, create: Create) -> str:
        """Which limit it would break to remember this creation; empty if none."""
        known = self.publishers.get(create.publisher)
        if known is None and len(self.publishers) >= self.most_publishers:
            return f"more than {self.most_publishers} publishers since this site started: raise bounds.publishers"
        if known is None or (create.incarnation, create.life) != (known.incarnation, known.life):
            return ""
        if len(known.taken) >= self.most_open and known.below <= create.below <= min(known.taken):
            return (
                f"more than {self.most_open} transactions of {create.publisher} since its oldest unconfirmed one: "
                "raise bounds.open_transactions"
            )
        return ""

    def ended(self, create: Create) -> bool:
        """Whether this creation was taken before; asked when its transaction is not there any more."""
        known = self.publishers.get(create.publisher)
        if known is None or (create.incarnation, create.life) != (known.incarnation, known.life):
            return False
        return create.serial in known.taken

    def take(self, create: Create, holder: str) -> bool:
        """Whether this creation is new; it is remembered. `holder` is the log that has the publisher's name now."""
        known = self.publishers.get(create.publisher)
        if known is None or self._begins(create, known, holder):
            known = self.publishers[create.publisher] = PublisherLife(create.incarnation, create.life)
        if (create.incarnation, create.life) != (known.incarnation, known.life):
            return False
        if create.serial < known.below or create.serial in known.taken:
            return False
        known.taken[create.serial] = None
        if create.below > known.below:
            known.below = create.below
            known.taken = {serial: None for serial in known.taken if serial >= known.below}
        return True

    @staticmethod
    def _begins(create: Create, known: PublisherLife, holder: str) -> bool:
        """Whether this is the first that is heard of a new life, or of a new log."""
        if create.incarnation == known.incarnation:
            return create.life > known.life
        return create.incarnation == holder
