"""A SQLite database as a resource.

SQLite has one writer and no prepared transactions. So a unit records its statements while it runs them inside an open
transaction; `prepare` takes that transaction back and puts the statements into a table of their own, durably and
together with every unit that is prepared already, in order. Until the unit is finished the database belongs to it:
another unit that wants to write is refused, which is a vote of no, not a wait. `commit_prepared` runs the statements
and writes the marker in one transaction. What SQLite cannot promise is that nobody else writes to the file between
prepare and commit; `txlayer` must be its only writer.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from txlayer.errors import ResourceError
from txlayer.messages import TxId

_TABLES = (
    "CREATE TABLE IF NOT EXISTS txlayer_marker (tx TEXT PRIMARY KEY)",
    "CREATE TABLE IF NOT EXISTS txlayer_prepared (tx TEXT PRIMARY KEY, statements BLOB NOT NULL)",
)
Statement = tuple[str, tuple[Any, ...]]


class SqliteUnit:
    """What a handler writes through."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self.statements: list[Statement] = []
        self.marks = 0

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Run one statement inside the unit."""
        try:
            rows = self._db.execute(sql, tuple(parameters)).fetchall()
        except sqlite3.Error as exc:
            raise ResourceError(str(exc)) from exc
        if not sql.lstrip().upper().startswith("SELECT"):
            self.statements.append((sql, tuple(parameters)))
        return rows


class SqliteResource:
    """One database file, written by this site alone, one unit at a time."""

    def __init__(self, path: str | Path) -> None:
        self._db = sqlite3.connect(str(path), isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        for table in _TABLES:
            self._db.execute(table)
        self._open: tuple[TxId, SqliteUnit] | None = None
        self._saved: int = 0

    def work(self, tx: TxId) -> SqliteUnit:
        if self._open is not None and self._open[0] == tx:
            return self._open[1]
        if self._open is not None:
            raise ResourceError(f"the database is in use by {self._open[0]}")
        holder = self._db.execute("SELECT tx FROM txlayer_prepared WHERE tx <> ?", (_text(tx),)).fetchone()
        if holder is not None or self.state(tx) != "none":
            raise ResourceError(f"the database is in use by {holder[0] if holder else tx}")
        self._db.execute("BEGIN IMMEDIATE")
        self._open = (tx, SqliteUnit(self._db))
        return self._open[1]

    def savepoint(self, tx: TxId) -> None:
        try:
            unit = self.work(tx)
        except ResourceError:
            return
        self._db.execute("SAVEPOINT handler")
        self._saved = len(unit.statements)

    def undo_to_savepoint(self, tx: TxId) -> None:
        if self._open is None or self._open[0] != tx:
            return
        self._db.execute("ROLLBACK TO handler")
        del self._open[1].statements[self._saved :]

    def prepare(self, tx: TxId) -> None:
        if self.state(tx) == "committed":
            self.roll_back(tx)
            raise ResourceError(f"{tx} was committed before")
        statements = self._take(tx)
        self._run([("INSERT INTO txlayer_prepared VALUES (?, ?)", (_text(tx), msgspec.msgpack.encode(statements)))])

    def commit_prepared(self, tx: TxId) -> None:
        row = self._db.execute("SELECT statements FROM txlayer_prepared WHERE tx = ?", (_text(tx),)).fetchone()
        if row is None:
            if self.state(tx) != "committed":
                raise ResourceError(f"{tx} is neither prepared nor committed")
            return
        statements = msgspec.msgpack.decode(row[0])
        self._run([*statements, ("DELETE FROM txlayer_prepared WHERE tx = ?", (_text(tx),)), _marker(tx)])

    def commit(self, tx: TxId) -> None:
        statements = self._take(tx)
        if self.state(tx) != "committed":
            self._run([*statements, _marker(tx)])

    def roll_back(self, tx: TxId) -> None:
        if self._open is not None and self._open[0] == tx:
            self._db.execute("ROLLBACK")
            self._open = None
        if self._open is None:
            self._run([("DELETE FROM txlayer_prepared WHERE tx = ?", (_text(tx),))])

    def state(self, tx: TxId) -> str:
        if self._db.execute("SELECT 1 FROM txlayer_marker WHERE tx = ?", (_text(tx),)).fetchone():
            return "committed"
        prepared = self._db.execute("SELECT 1 FROM txlayer_prepared WHERE tx = ?", (_text(tx),)).fetchone()
        return "prepared" if prepared else "none"

    def markers(self) -> tuple[TxId, ...]:
        return tuple(_tx(row[0]) for row in self._db.execute("SELECT tx FROM txlayer_marker ORDER BY rowid"))

    def forget(self, tx: TxId) -> None:
        self._db.execute("DELETE FROM txlayer_marker WHERE tx = ?", (_text(tx),))

    def close(self) -> None:
        self._db.close()

    def _take(self, tx: TxId) -> list[Statement]:
        """End the open transaction of the unit and keep what it would have done."""
        if self._open is None or self._open[0] != tx:
            return []
        unit = self._open[1]
        self._db.execute("ROLLBACK")
        self._open = None
        return unit.statements

    def _run(self, statements: Sequence[Any]) -> None:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for sql, parameters in statements:
                self._db.execute(sql, tuple(parameters))
            self._db.execute("COMMIT")
        except sqlite3.Error as exc:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise ResourceError(str(exc)) from exc


def _marker(tx: TxId) -> Statement:
    return ("INSERT INTO txlayer_marker VALUES (?)", (_text(tx),))


def _text(tx: TxId) -> str:
    return str(tx)


def _tx(text: str) -> TxId:
    coordinator, incarnation, number, nonce = text.rsplit("/", 3)
    return TxId(coordinator, incarnation, int(number), nonce)
