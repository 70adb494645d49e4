"""What work on a member's resources needs beside them: a stop for who comes too late, and a stand-in for none."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from txlayer.effects import Compensate, InspectUnit
from txlayer.errors import ResourceError
from txlayer.messages import TxId
from txlayer.resources.port import Branch, Member, nobody
from txlayer.units import UNDO


@dataclass(slots=True)
class Attempt:
    """One try at a piece of work. One that was given up must not touch a resource any more."""

    given_up: bool = False
    preparing: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def check(self) -> None:
        """Stop a thread that comes back too late."""
        if self.given_up:
            raise ResourceError("this attempt was given up: it took too long")

    def prepare(self) -> bool:
        """From now on it is not given up: a resource that prepares keeps to deadlines of its own. False if it was."""
        with self._lock:
            self.preparing = not self.given_up
            return self.preparing

    def give_up(self) -> bool:
        """False if it prepares."""
        with self._lock:
            self.given_up = not self.preparing
            return self.given_up


class NoBranch:
    """A member without resources: its intent in the log, if it has one, stands for the work of its handlers.

    `state` answers what the asker has to assume of handlers that have run.
    """

    name = ""
    early = False

    def __init__(self, assumed: str) -> None:
        self._assumed = assumed

    @classmethod
    def of(cls, task: object) -> NoBranch:
        """As this piece of work has to take it."""
        if isinstance(task, InspectUnit):
            return cls("committed" if task.at_once else "prepared")
        return cls("committed" if isinstance(task, Compensate) else "none")

    def open(self, site: str, incarnation: str, member: Member = nobody) -> None: ...

    def work(self, tx: TxId) -> Any:
        return None

    def lend(self, tx: TxId) -> None: ...

    def returned(self, tx: TxId) -> None: ...

    def add(self, tx: TxId, batch: Any) -> None: ...

    def has_work(self, tx: TxId) -> bool:
        return False

    def savepoint(self, tx: TxId) -> None: ...

    def undo_to_savepoint(self, tx: TxId) -> None: ...

    def prepare(self, tx: TxId, of: int = 1) -> None: ...

    def commit_prepared(self, tx: TxId) -> None: ...

    def commit(self, tx: TxId, undo: bytes = b"") -> None: ...

    def roll_back(self, tx: TxId) -> None: ...

    def abandon(self, tx: TxId) -> None: ...

    def state(self, tx: TxId) -> str:
        return "none" if tx.nonce.endswith(UNDO) else self._assumed

    def settle(self, tx: TxId) -> str:
        return self.state(tx)

    def reopen(self, tx: TxId) -> None: ...

    def branches(self) -> tuple[Branch, ...]:
        return ()

    def undo_record(self, tx: TxId) -> bytes:
        return b""

    def markers(self) -> tuple[TxId, ...]:
        return ()

    def forget(self, tx: TxId) -> None: ...

    def close(self) -> None: ...
