"""Which commits a coordinator has forgotten, so that it calls none of them aborted, whoever asks and however late.

Numbers of forgotten commits, as ranges: what lies between them aborted. Only so many ranges are kept; up to where the
oldest one that was given up ends, nobody knows any more which transaction committed. Of keys only the latest are kept,
each with a record of its own: of one that is not among them nobody knows whether it committed, once one was given up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer.effects import Append, Drop, Effect
from txlayer.messages import NAMELESS
from txlayer.ranges import Ranges
from txlayer.records import ForgottenKey, Retired

KEPT = 64
KEYS = 4096


@dataclass(slots=True)
class Forgotten:
    """Commits without a record of their own. `keys_lost`: some had a key to ask by that is not in `keys`."""

    upto: int = 0
    commits: Ranges = field(default_factory=Ranges)
    keys: dict[str, tuple[int, bool]] = field(default_factory=dict)
    """The number, and whether it committed: if not, local members have kept it at their publisher's call."""
    keys_lost: bool = False

    def recover(self, record: Retired | ForgottenKey) -> None:
        """As the log remembers it."""
        if isinstance(record, ForgottenKey):
            self.keys[record.key] = (record.number, record.committed)
            return
        self.upto, self.keys_lost = record.upto, record.keys_lost
        for first, last in record.commits:
            self.commits.add(first, last)

    def resume(self) -> None:
        """The log keeps no order: the oldest is given up first."""
        self.keys = dict(sorted(self.keys.items(), key=lambda known: known[1]))

    def __contains__(self, number: int) -> bool:
        """Whether this transaction may have committed."""
        return number <= self.upto or number in self.commits

    def committed(self, key: str) -> bool:
        """Whether a transaction under this key is known to have committed: then it makes no other one."""
        return self.keys.get(key, (0, False))[1]

    def add(self, number: int, key: str, committed: bool = True, unconfirmed: bool = False) -> list[Effect]:
        """A commit is forgotten: what the log has to remember before it is.

        By a key that was made up for one call only that call asks, and not after it has confirmed.
        """
        self.commits.add(number, number)
        if len(self.commits.lasts) > KEPT:
            self.upto = self.commits.lasts[0]
            self.commits.forget_below(self.upto + 1)
        keys = self._keep(key, number, committed) if unconfirmed or not key.startswith(NAMELESS) else []
        return [*keys, Append("x", Retired(self.upto, self.keys_lost, self.commits.pairs()))]

    def _keep(self, key: str, number: int, committed: bool) -> list[Effect]:
        self.keys.pop(key, None)
        self.keys[key] = (number, committed)
        effects: list[Effect] = [Append(f"f/{key}", ForgottenKey(key, number, committed))]
        if len(self.keys) > KEYS:
            oldest = next(iter(self.keys))
            del self.keys[oldest]
            self.keys_lost = True
            effects.append(Drop(f"f/{oldest}"))
        return effects
