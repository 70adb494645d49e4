"""A disk in memory: the verified fake, with the crash semantics of a real one."""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer.errors import LogFailed
from txlayer.logs.port import Batch, Stored


@dataclass(slots=True)
class MemoryDisk:
    """Holds what was synced; a crash loses what was only written, or keeps it, as power failures do."""

    header: bytes | None = None
    rows: dict[int, bytes] = field(default_factory=dict)
    cache: list[Batch] = field(default_factory=list)
    broken: bool = False
    full: bool = False
    syncs: int = 0

    def load(self) -> Stored:
        return Stored(self.header, tuple(sorted(self.rows.items())))

    def write(self, batch: Batch) -> None:
        if self.broken:
            raise LogFailed("the disk is broken")
        self.cache.append(batch)

    def sync(self) -> None:
        if self.broken:
            raise LogFailed("the disk is broken")
        self.syncs += 1
        for batch in self.cache:
            self._keep(batch)
        self.cache.clear()

    def low(self) -> bool:
        return self.full

    def close(self) -> None:
        """Nothing to let go of."""

    def crash(self, kept: int = 0) -> None:
        """Lose the cache but for the first `kept` batches."""
        for batch in self.cache[:kept]:
            self._keep(batch)
        self.cache.clear()

    def _keep(self, batch: Batch) -> None:
        self.rows.update(batch.rows)
        for number in batch.removed:
            self.rows.pop(number, None)
        self.header = batch.header
