"""A SQLite database as a resource.

SQLite has one writer and no prepared transactions. So a unit records its statements while it runs them inside an open
transaction; `prepare` takes that transaction back and puts the statements into a table of their own, durably and
together with every unit that is prepared already, in order. Until the unit is finished the database belongs to it:
another unit that wants to write is refused, which is a vote of no, not a wait. `commit_prepared` runs the statements
and writes the marker in one transaction. What SQLite cannot promise is that nobody else writes to the file between
prepare and commit; `txlayer` must be its only writer.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from txlayer.errors import ResourceError, ResourceUnavailable
from txlayer.messages import TxId
from txlayer.resources.port import Branch, Member, nobody

_TABLES = (
    "CREATE TABLE IF NOT EXISTS txlayer_marker (tx TEXT PRIMARY KEY, done INTEGER NOT NULL, undo BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS txlayer_prepared (tx TEXT PRIMARY KEY, statements BLOB NOT NULL, "
    "of_all INTEGER NOT NULL, incarnation TEXT NOT NULL, made REAL NOT NULL)",
)
# The first word of a statement that would end the transaction of the unit, or a part of it; comments may come before,
# and the mark of a byte order, which SQLite takes for a space.
_TRANSACTION_CONTROL = re.compile(
    r"(?:[\s\ufeff;]|--[^\n]*(?:\n|$)|/\*.*?\*/)*(BEGIN|COMMIT|END|ROLLBACK|SAVEPOINT|RELEASE)\b",
    re.IGNORECASE | re.DOTALL,
)
Statement = tuple[str, tuple[Any, ...]]
P = ParamSpec("P")
T = TypeVar("T")


def _alone(method: Callable[Concatenate[SqliteResource, P], T]) -> Callable[Concatenate[SqliteResource, P], T]:
    """Transactions come from several threads, the connection is one."""

    @wraps(method)
    def locked(self: SqliteResource, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.lock:
            return method(self, *args, **kwargs)

    return locked


class SqliteUnit:
    """What a handler writes through."""

    def __init__(self, db: sqlite3.Connection, lock: threading.RLock) -> None:
        self._db = db
        self._lock = lock
        self.statements: list[Statement] = []
        self.saved: int | None = None
        self.open = True
        self.lent = False

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """Run one statement inside the unit."""
        control = _TRANSACTION_CONTROL.match(sql)
        if control is not None:
            raise ResourceError(f"{control[1].upper()} in a handler: the transaction ends its unit, not a statement")
        with self._lock:  # a unit that ends meanwhile would leave the statement to nobody, or to the next one
            if not self.open:
                raise ResourceError("this unit of work has ended")
            statement = (sql, tuple(parameters))
            try:
                rows = self._db.execute(*statement).fetchall()
            except sqlite3.Error as exc:
                # INSERT OR ROLLBACK, or a full disk: what came next would be committed at once, outside of the unit.
                self.open = self._db.in_transaction
                raise ResourceError(str(exc)) from exc
            if not self._db.in_transaction:  # by a spelling that is not known here; what it kept cannot be taken back
                self.open = False
                raise ResourceError(f"{sql!r} ended the transaction of its unit: what the handler did is refused")
            if not sql.lstrip().upper().startswith("SELECT"):
                self.statements.append(statement)
            return rows


def _connected(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    for table in _TABLES:
        db.execute(table)
    return db


class SqliteResource:
    """One database file, written by this site alone, one unit at a time."""

    early = False

    def __init__(self, path: str | Path, name: str = "") -> None:
        self.name = name or Path(path).stem
        self.lock = threading.RLock()
        self._path = str(path)
        self._db = _connected(self._path)
        self._closed = False
        self._open: tuple[TxId, SqliteUnit] | None = None
        self._forgotten: list[TxId] = []
        self._incarnation = ""
        self._reopened: set[TxId] = set()

    @_alone
    def open(self, site: str, incarnation: str, member: Member = nobody) -> None:
        self._incarnation = incarnation
        if self._closed:
            self._db, self._open, self._closed = _connected(self._path), None, False

    @_alone
    def work(self, tx: TxId) -> SqliteUnit:
        if self._open is not None and self._open[0] == tx:
            return self._open[1]
        if self._open is not None:
            raise ResourceError(f"the database is in use by {self._open[0]}")
        holder = self._db.execute("SELECT tx FROM txlayer_prepared WHERE tx <> ?", (_text(tx),)).fetchone()
        if holder is not None or self.state(tx) != "none":
            raise ResourceError(f"the database is in use by {holder[0] if holder else tx}")
        self._db.execute("BEGIN IMMEDIATE")
        self._open = (tx, SqliteUnit(self._db, self.lock))
        return self._open[1]

    def lend(self, tx: TxId) -> None:
        self._mark(tx, True)

    def returned(self, tx: TxId) -> None:
        self._mark(tx, False)

    def _mark(self, tx: TxId, lent: bool) -> None:
        held = self._open
        if held is not None and held[0] == tx:
            held[1].lent = lent

    def add(self, tx: TxId, batch: Sequence[Statement]) -> None:
        unit = self.work(tx)
        for sql, parameters in batch:
            unit.execute(sql, parameters)

    @_alone
    def has_work(self, tx: TxId) -> bool:
        return self._open is not None and self._open[0] == tx

    @_alone
    def savepoint(self, tx: TxId) -> None:
        if self._open is not None and self._open[0] == tx and self._open[1].open:
            self._db.execute("SAVEPOINT handler")
            self._open[1].saved = len(self._open[1].statements)

    @_alone
    def undo_to_savepoint(self, tx: TxId) -> None:
        if self._open is None or self._open[0] != tx:
            return
        unit = self._open[1]
        if unit.lent:
            unit.open = False
            return
        if unit.saved is None:
            self._end(tx)
            return
        del unit.statements[unit.saved :]
        if unit.open:  # otherwise the point is gone with the transaction, and the unit has failed as a whole
            self._db.execute("ROLLBACK TO handler")

    @_alone
    def prepare(self, tx: TxId, of: int = 1) -> None:
        statements = self._take(tx)
        if self._marker(tx) is not None and not self._reopens(tx):
            raise ResourceError(f"{tx} was committed or given up before")
        row = (_text(tx), msgspec.msgpack.encode(statements), of, self._incarnation, time.time())
        self._run([_unmarked(tx), ("INSERT INTO txlayer_prepared VALUES (?, ?, ?, ?, ?)", row)])

    @_alone
    def commit_prepared(self, tx: TxId) -> None:
        row = self._db.execute("SELECT statements FROM txlayer_prepared WHERE tx = ?", (_text(tx),)).fetchone()
        if row is None:
            if self.state(tx) != "committed":
                raise ResourceError(f"{tx} is neither prepared nor committed")
            return
        statements = msgspec.msgpack.decode(row[0])
        self._run([*statements, _removed(tx), _marked(tx, True)])

    @_alone
    def commit(self, tx: TxId, undo: bytes = b"") -> None:
        statements = self._take(tx)
        marker = self._marker(tx)
        if marker is None or self._reopens(tx):
            self._run([*statements, _unmarked(tx), _marked(tx, True, undo)])
        elif not marker[0]:
            raise ResourceError(f"{tx} was given up before")

    @_alone
    def roll_back(self, tx: TxId) -> None:
        self._end(tx)
        if self._open is None:
            self._run([_removed(tx)])

    def abandon(self, tx: TxId) -> None:
        held = self._open
        if held is not None and held[0] == tx:
            held[1].open = False
            self._db.interrupt()

    @_alone
    def state(self, tx: TxId) -> str:
        marker = self._marker(tx)
        if marker is not None and marker[0]:
            return "committed"
        prepared = self._db.execute("SELECT 1 FROM txlayer_prepared WHERE tx = ?", (_text(tx),)).fetchone()
        return "prepared" if prepared else "none"

    @_alone
    def settle(self, tx: TxId) -> str:
        self._end(tx)
        state = self.state(tx)
        if state == "none" and self._marker(tx) is None:
            if self._open is not None:
                raise ResourceUnavailable(f"the database is in use by {self._open[0]}")
            self._run([_marked(tx, False)])
        return state

    @_alone
    def reopen(self, tx: TxId) -> None:
        self._reopened.add(tx)  # inside an open unit the marker cannot be deleted: what ends the unit does it

    @_alone
    def branches(self) -> tuple[Branch, ...]:
        rows = self._db.execute("SELECT tx, incarnation, of_all, made FROM txlayer_prepared ORDER BY rowid")
        return tuple(Branch(_tx(tx), log, of, time.time() - made, self.name) for tx, log, of, made in rows)

    @_alone
    def undo_record(self, tx: TxId) -> bytes:
        marker = self._marker(tx)
        return bytes(marker[1]) if marker is not None else b""

    @_alone
    def markers(self) -> tuple[TxId, ...]:
        self._sweep()
        return tuple(_tx(row[0]) for row in self._db.execute("SELECT tx FROM txlayer_marker ORDER BY rowid"))

    @_alone
    def forget(self, tx: TxId) -> None:
        self._forgotten.append(tx)
        self._sweep()

    @_alone
    def close(self) -> None:
        self._closed = True
        self._db.close()

    def _reopens(self, tx: TxId) -> bool:
        """Whether it was given up, which is taken back now, once."""
        marker, reopened = self._marker(tx), tx in self._reopened
        self._reopened.discard(tx)
        return reopened and marker is not None and not marker[0]

    def _sweep(self) -> None:
        """Inside an open unit it would be undone with the unit."""
        if self._open is None and self._forgotten:
            gone, self._forgotten = self._forgotten, []
            self._db.executemany("DELETE FROM txlayer_marker WHERE tx = ?", [(_text(tx),) for tx in gone])

    def _marker(self, tx: TxId) -> tuple[bool, bytes] | None:
        found: tuple[bool, bytes] | None = self._db.execute(
            "SELECT done, undo FROM txlayer_marker WHERE tx = ?", (_text(tx),)
        ).fetchone()
        return found

    def _take(self, tx: TxId) -> list[Statement]:
        """End the unit and keep what it would have done."""
        if self._open is None or self._open[0] != tx:
            return []
        unit = self._open[1]
        if not self._end(tx):
            raise ResourceError(f"{tx} was abandoned, or an error ended its work")
        return unit.statements

    def _end(self, tx: TxId) -> bool:
        """End the unit, if there is one, and its open transaction; whether it had been good until now."""
        if self._open is None or self._open[0] != tx:
            return False
        unit = self._open[1]
        if self._db.in_transaction:  # an error may have ended it; what counts is what the unit has written down
            self._db.execute("ROLLBACK")
        self._open = None
        good, unit.open = unit.open, False
        return good

    def _run(self, statements: Sequence[Any]) -> None:
        if self._open is not None:  # on the one connection it would end that unit's transaction
            raise ResourceUnavailable(f"the database is in use by {self._open[0]}")
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for sql, parameters in statements:
                self._db.execute(sql, tuple(parameters))
            self._db.execute("COMMIT")
        except sqlite3.Error as exc:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise ResourceError(str(exc)) from exc


def _marked(tx: TxId, done: bool, undo: bytes = b"") -> Statement:
    return ("INSERT INTO txlayer_marker VALUES (?, ?, ?)", (_text(tx), done, undo))


def _unmarked(tx: TxId) -> Statement:
    return ("DELETE FROM txlayer_marker WHERE tx = ?", (_text(tx),))


def _removed(tx: TxId) -> Statement:
    return ("DELETE FROM txlayer_prepared WHERE tx = ?", (_text(tx),))


def _text(tx: TxId) -> str:
    return str(tx)


def _tx(text: str) -> TxId:
    coordinator, incarnation, number, nonce = text.rsplit("/", 3)
    return TxId(coordinator, incarnation, int(number), nonce)
