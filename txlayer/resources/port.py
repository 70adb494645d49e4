"""What a member prepares and commits.

All work of one transaction at one member is a unit. The runtime calls these methods one after the other for a given
transaction, from one thread at a time. A unit leaves a marker, in the same transaction as the work, when it is
committed; so a commit that is asked for again is recognised, and recovery knows what happened. Markers are forgotten
when the coordinator's low-water mark has passed.
"""

from __future__ import annotations

from typing import Any, Protocol

from txlayer.messages import TxId


class Resource(Protocol):
    """One recoverable resource of a site. Methods raise `ResourceError`."""

    def work(self, tx: TxId) -> Any:
        """What handlers write through, inside the unit of `tx`, which is opened if need be. May fail."""
        ...

    def savepoint(self, tx: TxId) -> None:
        """Remember this point of the unit."""
        ...

    def undo_to_savepoint(self, tx: TxId) -> None:
        """Take back what was done since: a handler failed."""
        ...

    def prepare(self, tx: TxId) -> None:
        """Make the unit survive a crash, undecided. If it fails, the unit is rolled back."""
        ...

    def commit_prepared(self, tx: TxId) -> None:
        """Commit a prepared unit with its marker. Must not fail for good; repeated, it does nothing."""
        ...

    def commit(self, tx: TxId) -> None:
        """Commit an open unit with its marker in one phase. With a marker there already, roll back instead."""
        ...

    def roll_back(self, tx: TxId) -> None:
        """Undo an open or prepared unit. Without one, or repeated, it does nothing."""
        ...

    def state(self, tx: TxId) -> str:
        """`none`, `prepared` or `committed`."""
        ...

    def markers(self) -> tuple[TxId, ...]:
        """Every marker that has not been forgotten."""
        ...

    def forget(self, tx: TxId) -> None:
        """The marker is not needed any more."""
        ...

    def close(self) -> None:
        """Open units are rolled back, prepared ones stay."""
        ...
