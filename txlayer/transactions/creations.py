"""Which creations a coordinator has taken, so that a late copy of one starts nothing.

A creation is good for one life of the coordinator. Within it, every publisher numbers its creations and says below
which number all of its own are confirmed; so what is remembered is bounded by what publishers have open.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer.messages import Create


@dataclass(slots=True)
class PublisherLife:
    """One publisher, in its latest life."""

    life: int
    below: int = 0
    taken: dict[int, None] = field(default_factory=dict)


@dataclass(slots=True)
class Creations:
    """Creations of this life of the coordinator."""

    publishers: dict[str, PublisherLife] = field(default_factory=dict)

    def ended(self, create: Create) -> bool:
        """Whether this creation was taken before; asked when its transaction is not there any more."""
        known = self.publishers.get(create.publisher)
        return known is not None and create.life == known.life and create.serial in known.taken

    def take(self, create: Create) -> bool:
        """Whether this creation is new; it is remembered."""
        known = self.publishers.get(create.publisher)
        if known is None or create.life > known.life:
            known = self.publishers[create.publisher] = PublisherLife(create.life)
        if create.life < known.life or create.serial < known.below or create.serial in known.taken:
            return False
        known.taken[create.serial] = None
        if create.below > known.below:
            known.below = create.below
            known.taken = {serial: None for serial in known.taken if serial >= known.below}
        return True
