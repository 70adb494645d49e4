"""Which commits a coordinator has forgotten, so that it calls none of them aborted, whoever asks and however late.

Numbers of forgotten commits, as ranges: what lies between them aborted. Only so many ranges are kept; up to where the
oldest one that was given up ends, nobody knows any more which transaction committed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer.ranges import Ranges
from txlayer.records import Retired

KEPT = 64


@dataclass(slots=True)
class Forgotten:
    """Commits without a record. `keyed`: some were forgotten although their callers had not confirmed."""

    upto: int = 0
    keyed: bool = False
    commits: Ranges = field(default_factory=Ranges)

    @classmethod
    def of(cls, record: Retired) -> Forgotten:
        """As the log remembers it."""
        self = cls(record.upto, record.keyed)
        for first, last in record.commits:
            self.commits.add(first, last)
        return self

    def __contains__(self, number: int) -> bool:
        """Whether this transaction may have committed."""
        return number <= self.upto or number in self.commits

    def add(self, number: int) -> Retired:
        """A commit is forgotten: what the log has to remember before it is."""
        self.commits.add(number, number)
        if len(self.commits.lasts) > KEPT:
            self.upto = self.commits.lasts[0]
            self.commits.forget_below(self.upto + 1)
        return Retired(self.upto, self.keyed, self.commits.pairs())
