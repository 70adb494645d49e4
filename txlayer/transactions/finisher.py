"""A site that finishes what a dead coordinator cannot (the shared register of decisions, first writer wins).

The coordinator names its finishers in the census, and leaves each a key in the register. A member that hears nothing
asks them too. A finisher never judges votes: it writes *abort* into the register and says what then stands there, its
own abort or the commit that the coordinator had written before it died. A coordinator with finishers writes its
commits there first and does as the register says, so it does not matter whether it is really dead.
"""

from __future__ import annotations

from dataclasses import dataclass

from txlayer import messages as m
from txlayer.effects import Broadcast, Effect, Settle, Settled, Surface
from txlayer.records import Settlement
from txlayer.tokens import Keyring
from txlayer.transactions.seat import Seat


@dataclass(slots=True)
class Finisher:
    """The finishing part of a site. It remembers nothing: whoever is still in doubt asks again."""

    seat: Seat

    def on_in_doubt(self, question: m.InDoubt) -> list[Effect]:
        """A member asks, and its coordinator is gone."""
        abort = Settlement(False, (), f"its coordinator is gone, finished by {self.seat.site}")
        return [Settle(question.tx, question.type, abort)]

    def on_settled(self, settled: Settled) -> list[Effect]:
        """Say what stands in the register, under the token that the coordinator left for this site."""
        if not settled.key:
            return [Surface("not a finisher", settled.tx, f"{settled.tx.coordinator} left no key for {self.seat.site}")]
        stands = settled.settlement
        token = Keyring(settled.key).token(settled.tx, "commit" if stands.commit else "abort")
        finish = m.Finish(settled.tx, self.seat.site, token, stands.final, stands.reason)
        return [Broadcast(settled.type, finish)]
