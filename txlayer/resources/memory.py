"""A key-value store in memory with two-phase commit: the verified fake, and what the simulated world writes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from txlayer.errors import ResourceError
from txlayer.messages import TxId


@dataclass(slots=True)
class Unit:
    """Writes of one transaction, in order."""

    writes: list[tuple[str, object]] = field(default_factory=list)
    savepoint: int = 0

    def put(self, key: str, value: object) -> None:
        """Write inside the unit."""
        self.writes.append((key, value))


@dataclass(slots=True)
class MemoryResource:
    """Committed values, prepared units and markers survive `crash`; open units do not."""

    values: dict[str, object] = field(default_factory=dict)
    units: dict[TxId, Unit] = field(default_factory=dict)
    prepared: dict[TxId, Unit] = field(default_factory=dict)
    marked: dict[TxId, None] = field(default_factory=dict)
    on_commit: Callable[[TxId, list[tuple[str, object]]], None] | None = None

    def work(self, tx: TxId) -> Unit:
        if tx in self.prepared:
            raise ResourceError(f"{tx} is prepared and takes no more work")
        return self.units.setdefault(tx, Unit())

    def savepoint(self, tx: TxId) -> None:
        unit = self.work(tx)
        unit.savepoint = len(unit.writes)

    def undo_to_savepoint(self, tx: TxId) -> None:
        unit = self.work(tx)
        del unit.writes[unit.savepoint :]

    def prepare(self, tx: TxId) -> None:
        if tx in self.marked:
            self.units.pop(tx, None)
            raise ResourceError(f"{tx} was committed before")
        self.prepared[tx] = self.units.pop(tx, Unit())

    def commit_prepared(self, tx: TxId) -> None:
        unit = self.prepared.pop(tx, None)
        if unit is not None:
            self._commit(tx, unit)
        elif tx not in self.marked:
            raise ResourceError(f"{tx} is neither prepared nor committed")

    def commit(self, tx: TxId) -> None:
        unit = self.units.pop(tx, Unit())
        if tx not in self.marked:
            self._commit(tx, unit)

    def roll_back(self, tx: TxId) -> None:
        self.units.pop(tx, None)
        self.prepared.pop(tx, None)

    def state(self, tx: TxId) -> str:
        if tx in self.marked:
            return "committed"
        return "prepared" if tx in self.prepared else "none"

    def markers(self) -> tuple[TxId, ...]:
        return tuple(self.marked)

    def forget(self, tx: TxId) -> None:
        self.marked.pop(tx, None)

    def close(self) -> None:
        self.units.clear()

    def crash(self) -> None:
        """Lose what is neither prepared nor committed."""
        self.units.clear()

    def _commit(self, tx: TxId, unit: Unit) -> None:
        self.marked[tx] = None
        self.values.update(unit.writes)
        if self.on_commit is not None:
            self.on_commit(tx, unit.writes)
