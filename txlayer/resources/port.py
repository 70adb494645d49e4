"""What a member prepares and commits.

All work of one transaction at one resource of a member is a unit. The runtime calls these methods one after the other
for a given transaction, from one thread at a time; only `abandon` may come from another thread meanwhile. A unit
leaves a marker, in the same transaction as the work, when it is committed; so a commit that is asked for again is
recognised, and recovery knows what happened. A marker of the other kind, *void*, says that the unit was given up: it
takes the place that the commit's marker would need, so whatever of the unit is still on its way fails. Markers are
forgotten when the coordinator's low-water mark has passed.

Two errors, two meanings. `ResourceError` is definite: it was not done and nothing of it is left.
`ResourceUnavailable` says that nothing is known: the same call is made again until it is, or, for `commit`, `settle`.
`prepare` never raises the second: a member may always refuse, and what might be left is found by `branches` and
rolled back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from txlayer.messages import TxId

Member = Callable[[TxId], bytes]
"""How the site is called on the list of members of a transaction."""


def nobody(tx: TxId) -> bytes:
    """A site that is on no list."""
    return b""


@dataclass(frozen=True, slots=True)
class Branch:
    """A prepared unit as recovery finds it: under which log it was prepared, one of how many, since when."""

    tx: TxId
    incarnation: str = ""
    of: int = 1
    age: float = 0.0
    name: str = ""


class Resource(Protocol):
    """One recoverable resource of a site."""

    name: str
    """Tells the resources of a site apart; part of what is stored, so it stays the same through restarts."""
    early: bool
    """Whether `work` is called before the handler, because a handler that asks for it could not wait."""

    def open(self, site: str, incarnation: str, member: Member = nobody) -> None:
        """Called before anything else, with the site's name and the identity of its log; again after `close`.

        `member` is for a resource that others finish if the log is lost: a decision names its members so.
        """
        ...

    def work(self, tx: TxId) -> Any:
        """What handlers write through, inside the unit of `tx`, which is opened if need be. May fail."""
        ...

    def lend(self, tx: TxId) -> None:
        """What `work` gave is in the hands of a publisher, who works on a thread of its own until it has `returned` it.

        Others may end the unit before that. It is then taken away: whatever the publisher still tries fails, and is not
        done. Nor can a handler's work be told from the publisher's: after `undo_to_savepoint` nothing can come of it.
        """
        ...

    def returned(self, tx: TxId) -> None:
        """From any thread, and without waiting: the publisher is through with it."""
        ...

    def add(self, tx: TxId, batch: Any) -> None:
        """Work that a handler returned instead of doing it: it becomes part of the unit, at `prepare` at the latest."""
        ...

    def has_work(self, tx: TxId) -> bool:
        """Whether the unit of `tx` is open here."""
        ...

    def savepoint(self, tx: TxId) -> None:
        """Remember this point of the unit."""
        ...

    def undo_to_savepoint(self, tx: TxId) -> None:
        """Take back what was done since: a handler failed."""
        ...

    def prepare(self, tx: TxId, of: int = 1) -> None:
        """Make the unit survive a crash, undecided. If it fails, the unit is rolled back.

        `of`: how many resources of the member prepare `tx`. It is stored with the unit, so that recovery can
        tell all of them from some of them.
        """
        ...

    def commit_prepared(self, tx: TxId) -> None:
        """Commit a prepared unit with its marker. Must not fail for good; repeated, it does nothing."""
        ...

    def commit(self, tx: TxId, undo: bytes = b"") -> None:
        """Commit an open unit with its marker, and what undoing it will need, in one phase.

        With the marker of a commit there already, roll back instead. After `ResourceUnavailable` it may have happened
        or not: `settle` tells.
        """
        ...

    def roll_back(self, tx: TxId) -> None:
        """Undo an open or prepared unit. Without one, or repeated, it does nothing."""
        ...

    def abandon(self, tx: TxId) -> None:
        """From any thread: a handler is past its deadline. What it holds is taken away, so that its work fails."""
        ...

    def state(self, tx: TxId) -> str:
        """`none`, `prepared` or `committed`, as it looks now."""
        ...

    def settle(self, tx: TxId) -> str:
        """The same, for good: after `none` nothing of `tx` can be prepared or committed here any more."""
        ...

    def reopen(self, tx: TxId) -> None:
        """Take back that the unit was given up: it is done after all, from the start. A commit's marker stays.

        For work that must be done in the end, though a try at it was settled as `none`; called just before `commit`.
        """
        ...

    def branches(self) -> tuple[Branch, ...]:
        """Every prepared unit of this site in this resource, whatever log it was prepared under."""
        ...

    def undo_record(self, tx: TxId) -> bytes:
        """What `commit` stored for undoing; empty if there is nothing.

        A site undoes by its log, which has the same events: this is what is left of them where the log is lost. Such a
        marker is not forgotten, but listed, until an operator says that it was dealt with.
        """
        ...

    def markers(self) -> tuple[TxId, ...]:
        """Every marker that has not been forgotten."""
        ...

    def forget(self, tx: TxId) -> None:
        """The marker is not needed any more. It may go later, with others, and after a crash is asked for again."""
        ...

    def close(self) -> None:
        """Open units are rolled back, prepared ones stay."""
        ...
