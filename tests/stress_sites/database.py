"""The databases of a site: every event of a committed transaction is a row, with the time of the commit."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

from txlayer.messages import TxId
from txlayer.resources.sqlite import SqliteResource
from txlayer.simulation.history import Applied

_TABLE = "CREATE TABLE IF NOT EXISTS work (tx TEXT, undo INTEGER, value TEXT, at REAL)"
_INSERT = "INSERT INTO work VALUES (?, ?, ?, commit_time())"


class Database(SqliteResource):
    """A resource whose statements are run again at the commit, so that `commit_time()` is the time of that."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._db.create_function("commit_time", 0, time.monotonic)
        self._db.execute(_TABLE)

    def unfinished(self) -> list[str]:
        """What is open or prepared."""
        with self.lock:
            rows = self._db.execute("SELECT tx FROM txlayer_prepared").fetchall()
            opened = [f"has open {self._open[0]}"] if self._open is not None else []
        return [f"has prepared {row[0]}" for row in rows] + opened


def insert(unit: Any, tx: TxId, value: str, undo: bool) -> None:
    """The work of one event, or what undoes it."""
    unit.execute(_INSERT, (str(tx), int(undo), value))


def read_applied(site: str, path: Path) -> list[Applied]:
    """What a database has committed."""
    if not path.exists():
        return []
    with sqlite3.connect(path) as db:
        rows = db.execute("SELECT tx, undo, value, at FROM work ORDER BY rowid").fetchall()
    db.close()
    found: dict[str, Applied] = {}
    for text, undo, value, at in rows:
        coordinator, incarnation, number, nonce = text.rsplit("/", 3)
        tx = TxId(coordinator, incarnation, int(number), nonce)
        known = found.setdefault(text, Applied(site, tx, at, ()))
        if undo:
            known.undone = (*(known.undone or ()), value)
        else:
            known.values = (*known.values, value)
    return list(found.values())
