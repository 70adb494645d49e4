"""The shared register of decisions: one value for each transaction, the first that is written.

Sites that share one can finish each other's transactions. Beside the values it holds keys that a coordinator leaves
for its finishers, so whoever can read the register can finish: it belongs behind the access rights of its database.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from txlayer.messages import TxId


class Register(Protocol):
    """Durable when a call returns. Methods raise `LogError`."""

    def settle(self, tx: TxId, body: bytes) -> bytes:
        """Write, unless a value stands there; what stands there then."""
        ...

    def leave_key(self, coordinator: str, incarnation: str, finisher: str, key: bytes) -> None:
        """Leave a key for a finisher; called at the start of a coordinator, before any census names the finisher."""
        ...

    def key(self, coordinator: str, incarnation: str, finisher: str) -> bytes:
        """The key that was left, or nothing."""
        ...

    def forget(self, coordinator: str, incarnation: str, below: int, number: int) -> None:
        """Remove this coordinator's values of all numbers below `below`, and of `number`."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class MemoryRegister:
    """The verified fake, shared by the sites of one process."""

    values: dict[TxId, bytes] = field(default_factory=dict)
    keys: dict[tuple[str, str, str], bytes] = field(default_factory=dict)

    def settle(self, tx: TxId, body: bytes) -> bytes:
        return self.values.setdefault(tx, body)

    def leave_key(self, coordinator: str, incarnation: str, finisher: str, key: bytes) -> None:
        self.keys[coordinator, incarnation, finisher] = key

    def key(self, coordinator: str, incarnation: str, finisher: str) -> bytes:
        return self.keys.get((coordinator, incarnation, finisher), b"")

    def forget(self, coordinator: str, incarnation: str, below: int, number: int) -> None:
        own = [tx for tx in self.values if (tx.coordinator, tx.incarnation) == (coordinator, incarnation)]
        for tx in own:
            if tx.number < below or tx.number == number:
                del self.values[tx]

    def close(self) -> None:
        """Nothing to let go of."""
