"""What every role knows of the site it sits in."""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer.messages import TxId
from txlayer.tokens import Keyring
from txlayer.transactions.event_coordinator import Limits

_MOST_LETTERS = 500


def brief(reason: str) -> str:
    """A reason as it travels: the text of an exception may be longer than any message."""
    return reason if len(reason) <= _MOST_LETTERS else f"{reason[: _MOST_LETTERS - 3]}..."


@dataclass(frozen=True, slots=True)
class Patience:
    """How long roles wait before they say something again, in seconds. Repetitions back off up to `longest`."""

    retry: float = 0.5
    in_doubt: float = 2.0
    gap: float = 0.3
    linger: float = 5.0
    mark: float = 2.0
    longest: float = 30.0

    def backoff(self, first: float, attempt: int) -> float:
        """The pause before repetition `attempt` (from 0)."""
        pause = first
        for _ in range(min(attempt, 20)):  # no power function: the same on every machine, to the last bit
            pause *= 1.6
        return min(pause, self.longest)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a site. Over one of them is an error that says which."""

    open_transactions: int = 100_000
    unconfirmed: int = 1000
    chain_entries: int = 10_000
    members: int = 1000
    reader_window: int = 16
    publishers: int = 100_000
    censuses: int = 10_000
    peers: int = 100_000
    readers: int = 10_000


@dataclass(frozen=True, slots=True)
class Seat:
    """A site: its name, the identity of its log, the count of its starts, its secret.

    `finishers` may finish its transactions when it is gone; only with a log beside a shared register.
    """

    site: str
    incarnation: str
    life: int
    keyring: Keyring
    patience: Patience = field(default_factory=Patience)
    bounds: Bounds = field(default_factory=Bounds)
    limits: Limits = field(default_factory=Limits)
    finishers: tuple[str, ...] = ()

    def owns(self, tx: TxId) -> bool:
        """Whether the log of this site is the one that decides `tx`."""
        return tx.coordinator == self.site and tx.incarnation == self.incarnation

    def tx(self, number: int) -> TxId:
        """The id of this site's transaction `number`."""
        return TxId(self.site, self.incarnation, number, self.keyring.nonce(self.incarnation, number))
