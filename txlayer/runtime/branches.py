"""What stands for the resources of a member that has none: its intent in the log, and nothing else."""

from __future__ import annotations

from typing import Any

from txlayer.errors import ResourceError
from txlayer.messages import TxId
from txlayer.resources.port import Branch

UNDO = "~undo"


class GivenUp:
    """Takes the place of a member's resources when its handler is given up: its thread may come back."""

    def __getattr__(self, name: str) -> Any:
        raise ResourceError("this attempt took too long and was given up")


class NoBranch:
    """A member without resources. `state` answers what the asker has to assume of handlers that have run."""

    name = ""
    early = False

    def __init__(self, assumed: str) -> None:
        self._assumed = assumed

    def open(self, site: str, incarnation: str) -> None: ...

    def work(self, tx: TxId) -> Any:
        return None

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

    def branches(self) -> tuple[Branch, ...]:
        return ()

    def undo_record(self, tx: TxId) -> bytes:
        return b""

    def markers(self) -> tuple[TxId, ...]:
        return ()

    def forget(self, tx: TxId) -> None: ...

    def close(self) -> None: ...
