"""Which commits a coordinator has forgotten, so that it calls none of them aborted, whoever asks and however late.

Numbers of forgotten commits, as ranges: what lies between them aborted. Only so many ranges are kept; up to where the
oldest one that was given up ends, nobody knows any more which transaction committed. Of keys only the latest are kept,
and only in memory: of one that is not among them nobody knows whether it committed, unless none was ever given up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer.messages import NAMELESS
from txlayer.ranges import Ranges
from txlayer.records import Retired

KEPT = 64
KEYS = 4096


@dataclass(slots=True)
class Forgotten:
    """Commits without a record. `keyed`: some had a key to ask by; `keys_lost`: not all of these are in `keys`."""

    upto: int = 0
    keyed: bool = False
    commits: Ranges = field(default_factory=Ranges)
    keys: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """The number, and whether it committed: if not, local members have kept it at their publisher's call."""
    keys_lost: bool = False

    @classmethod
    def of(cls, record: Retired) -> Forgotten:
        """As the log remembers it."""
        self = cls(record.upto, record.keyed, keys_lost=record.keyed)
        for first, last in record.commits:
            self.commits.add(first, last)
        return self

    def __contains__(self, number: int) -> bool:
        """Whether this transaction may have committed."""
        return number <= self.upto or number in self.commits

    def committed(self, key: str) -> bool:
        """Whether a transaction under this key is known to have committed: then it makes no other one."""
        return self.keys.get(key, (0, False))[1]

    def add(self, number: int, key: str, committed: bool = True) -> Retired:
        """A commit is forgotten: what the log has to remember before it is."""
        self.commits.add(number, number)
        if not key.startswith(NAMELESS):
            self._keep(key, number, committed)
        if len(self.commits.lasts) > KEPT:
            self.upto = self.commits.lasts[0]
            self.commits.forget_below(self.upto + 1)
        return Retired(self.upto, self.keyed, self.commits.pairs())

    def _keep(self, key: str, number: int, committed: bool) -> None:
        self.keyed = True
        self.keys.pop(key, None)
        self.keys[key] = (number, committed)
        if len(self.keys) > KEYS:
            del self.keys[next(iter(self.keys))]
            self.keys_lost = True
