"""The default disk: one SQLite file, write-ahead journal, synchronous FULL.

A batch is one SQLite transaction. In WAL mode only FULL makes a commit survive a loss of power; it is set at every
opening and read back. The transaction stays open between `write` and `sync`, so that a crash in between loses the
batch as a whole. A second process that opens the same file is refused.

A file of its own beside the log holds some room in reserve. When the disk is almost full it is given up, for the
decisions of what was begun, and the disk is `low` until there is room again.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

from txlayer.errors import LogCorrupt, LogError, LogFailed
from txlayer.logs.port import Batch, Stored

_TABLES = (
    "CREATE TABLE IF NOT EXISTS header (id INTEGER PRIMARY KEY CHECK (id = 0), body BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS record (number INTEGER PRIMARY KEY, body BLOB NOT NULL)",
)
RESERVE_BYTES = 4 * 1024 * 1024


class SqliteDisk:
    """A log in one file. `free` says how many bytes the disk has left; the operating system by default."""

    def __init__(self, path: str | Path, free: Callable[[], int] | None = None) -> None:
        self._path = str(path)
        self._open = False
        self._reserve = Path(f"{self._path}.reserve")
        self._free = free or (lambda: shutil.disk_usage(self._reserve.parent).free)
        try:
            self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=1.0)
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            mode = self._db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            self._db.execute("PRAGMA synchronous = FULL")
            for table in _TABLES:
                self._db.execute(table)
        except sqlite3.DatabaseError as exc:
            raise _translated(exc, self._path) from exc
        if mode != "wal":
            raise LogError(f"{self._path}: write-ahead journal is not possible here ({mode})")
        self._low = self._free() < RESERVE_BYTES
        self.low()

    def load(self) -> Stored:
        try:
            header = self._db.execute("SELECT body FROM header").fetchone()
            rows = self._db.execute("SELECT number, body FROM record ORDER BY number").fetchall()
        except sqlite3.DatabaseError as exc:
            raise _translated(exc, self._path) from exc
        return Stored(header[0] if header else None, tuple(rows))

    def write(self, batch: Batch) -> None:
        try:
            if not self._open:
                self._db.execute("BEGIN IMMEDIATE")
                self._open = True
            self._db.executemany("INSERT INTO record VALUES (?, ?)", batch.rows)
            if batch.removed:
                self._db.executemany("DELETE FROM record WHERE number = ?", [(number,) for number in batch.removed])
            self._db.execute("INSERT OR REPLACE INTO header VALUES (0, ?)", (batch.header,))
        except sqlite3.Error as exc:
            raise LogFailed(f"{self._path}: {exc}") from exc

    def sync(self) -> None:
        if not self._open:
            return
        try:
            self._db.execute("COMMIT")
        except sqlite3.Error as exc:
            raise LogFailed(f"{self._path}: {exc}") from exc
        self._open = False

    def low(self) -> bool:
        room = self._free()
        if room < RESERVE_BYTES and not self._low:
            self._low = True
            self._reserve.unlink(missing_ok=True)
        elif room > 3 * RESERVE_BYTES and (self._low or not self._reserve.exists()):
            self._low = not self._set_aside()
        return self._low

    def close(self) -> None:
        self._db.close()

    def _set_aside(self) -> bool:
        """Take the reserve; whether it could be had."""
        try:
            with self._reserve.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
        except OSError:
            self._reserve.unlink(missing_ok=True)
            return False
        return True


def _translated(exc: sqlite3.DatabaseError, path: str) -> LogError:
    if "locked" in str(exc) or "busy" in str(exc):
        return LogError(f"{path}: another process has this log open")
    if isinstance(exc, sqlite3.OperationalError):
        return LogError(f"{path}: {exc}")
    return LogCorrupt(f"{path}: {exc}")
