"""What a log needs from a disk, and no more.

A disk holds one header and numbered rows. Changes come in batches, and a batch is there whole or not at all after a
crash. `write` may leave it in a cache; `sync` returns when everything written so far survives the loss of power. If
either fails, what is on the disk is unknown: the log never tries again on the same opening. A disk that is `low` keeps
what room is left for what was begun: the site takes on nothing new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Batch:
    """One atomic change: rows to add, rows to remove, the header from then on."""

    rows: tuple[tuple[int, bytes], ...]
    removed: tuple[int, ...]
    header: bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """All that a disk holds. No header: the disk is new."""

    header: bytes | None
    rows: tuple[tuple[int, bytes], ...]


class Disk(Protocol):
    """Where one log lives. Its methods are called by one thread at a time and raise `LogError`."""

    def load(self) -> Stored: ...

    def write(self, batch: Batch) -> None: ...

    def sync(self) -> None: ...

    def low(self) -> bool: ...

    def close(self) -> None: ...
