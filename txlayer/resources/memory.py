"""A key-value store in memory with two-phase commit: the verified fake, and what the simulated world writes to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from txlayer.errors import ResourceError
from txlayer.messages import TxId
from txlayer.resources.port import Branch, Member, nobody


@dataclass(slots=True)
class Unit:
    """Writes of one transaction, in order."""

    writes: list[tuple[str, object]] = field(default_factory=list)
    savepoint: int = 0
    of: int = 1
    log: str = ""
    abandoned: bool = False
    lent: bool = False
    ended: bool = False

    def put(self, key: str, value: object) -> None:
        """Write inside the unit."""
        if self.ended:
            raise ResourceError("this unit of work has ended")
        self.writes.append((key, value))


@dataclass(slots=True, eq=False)
class MemoryResource:
    """Committed values, prepared units and markers survive `crash`; open units do not."""

    name: str = "memory"
    values: dict[str, object] = field(default_factory=dict)
    units: dict[TxId, Unit] = field(default_factory=dict)
    prepared: dict[TxId, Unit] = field(default_factory=dict)
    marked: dict[TxId, None] = field(default_factory=dict)
    void: dict[TxId, None] = field(default_factory=dict)
    undo: dict[TxId, bytes] = field(default_factory=dict)
    early: bool = False
    log: str = ""
    on_commit: Callable[[TxId, list[tuple[str, object]]], None] | None = None

    def open(self, site: str, incarnation: str, member: Member = nobody) -> None:
        self.log = incarnation

    def work(self, tx: TxId) -> Unit:
        if tx in self.prepared:
            raise ResourceError(f"{tx} is prepared and takes no more work")
        return self.units.setdefault(tx, Unit())

    def lend(self, tx: TxId) -> None:
        if tx in self.units:
            self.units[tx].lent = True

    def returned(self, tx: TxId) -> None:
        unit = self.units.get(tx)
        if unit is not None:
            unit.lent = False

    def add(self, tx: TxId, batch: dict[str, object]) -> None:
        self.work(tx).writes.extend(batch.items())

    def has_work(self, tx: TxId) -> bool:
        return tx in self.units

    def savepoint(self, tx: TxId) -> None:
        unit = self.units.get(tx)
        if unit is not None:
            unit.savepoint = len(unit.writes)

    def undo_to_savepoint(self, tx: TxId) -> None:
        unit = self.units.get(tx)
        if unit is not None:
            del unit.writes[unit.savepoint :]
            unit.abandoned = unit.abandoned or unit.lent

    def prepare(self, tx: TxId, of: int = 1) -> None:
        unit = self._take(tx)
        if tx in self.marked or tx in self.void:
            raise ResourceError(f"{tx} was committed or given up before")
        unit.of, unit.log = of, self.log
        self.prepared[tx] = unit

    def commit_prepared(self, tx: TxId) -> None:
        unit = self.prepared.pop(tx, None)
        if unit is not None:
            self._commit(tx, unit)
        elif tx not in self.marked:
            raise ResourceError(f"{tx} is neither prepared nor committed")

    def commit(self, tx: TxId, undo: bytes = b"") -> None:
        unit = self._take(tx)
        if tx in self.void:
            raise ResourceError(f"{tx} was given up before")
        if tx not in self.marked:
            if undo:
                self.undo[tx] = undo
            self._commit(tx, unit)

    def roll_back(self, tx: TxId) -> None:
        self.units.pop(tx, Unit()).ended = True
        self.prepared.pop(tx, None)

    def abandon(self, tx: TxId) -> None:
        if tx in self.units:
            self.units[tx].abandoned = True

    def state(self, tx: TxId) -> str:
        if tx in self.marked:
            return "committed"
        return "prepared" if tx in self.prepared else "none"

    def settle(self, tx: TxId) -> str:
        state = self.state(tx)
        if state == "none":
            self.units.pop(tx, Unit()).ended = True
            self.void[tx] = None
        return state

    def reopen(self, tx: TxId) -> None:
        self.void.pop(tx, None)

    def branches(self) -> tuple[Branch, ...]:
        return tuple(Branch(tx, unit.log, unit.of) for tx, unit in self.prepared.items())

    def undo_record(self, tx: TxId) -> bytes:
        return self.undo.get(tx, b"")

    def markers(self) -> tuple[TxId, ...]:
        return (*self.marked, *self.void)

    def forget(self, tx: TxId) -> None:
        self.marked.pop(tx, None)
        self.void.pop(tx, None)
        self.undo.pop(tx, None)

    def close(self) -> None:
        self.units.clear()

    def crash(self) -> None:
        """Lose what is neither prepared nor committed."""
        self.units.clear()

    def _take(self, tx: TxId) -> Unit:
        unit = self.units.pop(tx, Unit())
        unit.ended = True
        if unit.abandoned:
            raise ResourceError(f"{tx} was abandoned")
        return unit

    def _commit(self, tx: TxId, unit: Unit) -> None:
        self.marked[tx] = None
        self.values.update(unit.writes)
        if self.on_commit is not None:
            self.on_commit(tx, unit.writes)
