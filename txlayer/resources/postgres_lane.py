"""The lane for finishing: connections that no handler ever gets, so that handlers which wait for the locks of a
prepared branch cannot keep it from being finished. What is said here can be said again at any time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

from psycopg import Connection
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg_pool import PoolClosed, PoolTimeout

from txlayer.errors import ResourceError, ResourceUnavailable
from txlayer.resources.postgres_exchange import ConnectionLost, Rejected, exchange
from txlayer.resources.postgres_pool import OwnPool
from txlayer.resources.postgres_sources import Source

_TABLE = """
CREATE SCHEMA IF NOT EXISTS txlayer;
CREATE TABLE IF NOT EXISTS txlayer.marker (
    key text PRIMARY KEY, done boolean NOT NULL,
    undo bytea NOT NULL DEFAULT '', made timestamptz NOT NULL DEFAULT now())
"""
_SETUP_LOCK = 7_403_211_955
_LOCKED, _BUSY, _UNDEFINED = "55P03", "55000", "42704"
_PAUSE = 0.05
_TRIES = 3


class Lane:
    """Finishes branches and looks after markers, from any thread."""

    def __init__(self, source: Source, size: int, patience: float, name: str) -> None:
        self._name = name
        self._patience = patience
        self._pool = OwnPool(source.conninfo, source.options, size, patience)

    def open(self, within: float) -> None:
        """Connect, make the table of markers, and see that the server allows prepared transactions."""
        self._pool.open()
        deadline = time.monotonic() + within
        while True:
            try:
                answer = self.ask("SELECT to_regclass('txlayer.marker'), current_setting('max_prepared_transactions')")
                break
            except ResourceUnavailable:
                if time.monotonic() > deadline:
                    raise
        if answer[1] == "0":
            raise ResourceError(
                f"the PostgreSQL server of {self._name!r} allows no prepared transactions: set "
                "max_prepared_transactions = 100 in its postgresql.conf (or ALTER SYSTEM SET) and restart it"
            )
        if answer[0] is None:
            self.run(f"BEGIN; SELECT pg_advisory_xact_lock({_SETUP_LOCK}); {_TABLE}; COMMIT")

    def run(self, sql: str) -> list[PGresult]:
        """Send a message; again if the connection that was at hand turns out to be dead."""
        for _ in range(_TRIES):
            with contextlib.suppress(ConnectionLost):
                return self._run(sql)
        return self._run(sql)

    def ask(self, sql: str) -> list[str | None]:
        """The first row of a query."""
        result = self.run(sql)[-1]
        return [_text(result, 0, column) for column in range(result.nfields)] if result.ntuples else []

    def rows(self, sql: str) -> list[list[str | None]]:
        """All rows of a query."""
        result = self.run(sql)[-1]
        return [[_text(result, row, column) for column in range(result.nfields)] for row in range(result.ntuples)]

    def close(self) -> None:
        self._pool.close()

    # Branches

    def finish(self, gid: str, commit: bool) -> bool:
        """Commit or roll back a prepared transaction; False if there is none of that name."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                self.run(f"{'COMMIT' if commit else 'ROLLBACK'} PREPARED '{gid}'")
                return True
            except Rejected as exc:
                if exc.sqlstate == _UNDEFINED:
                    return False
                # A former backend is still finishing it.
                if exc.sqlstate != _BUSY or time.monotonic() > deadline:
                    raise ResourceUnavailable(f"{gid}: {exc}") from exc
                time.sleep(_PAUSE)

    def look(self, marker: str) -> tuple[bool | None, str | None]:
        """The marker (True: committed, False: given up) and the gid of the branch, as they look now."""
        done, gid = self.ask(
            f"SELECT (SELECT done FROM txlayer.marker WHERE key = '{marker}'), "
            f"(SELECT gid FROM pg_prepared_xacts WHERE starts_with(gid, '{marker}:') "
            "AND database = current_database() LIMIT 1)"
        )
        return None if done is None else done == "t", gid

    def settle(self, marker: str) -> tuple[bool, str | None]:
        """Like `look`, for good: where there is neither marker nor branch, a void marker is put.

        An absent marker proves nothing while a former backend may still write it. To insert one's own waits behind
        such a backend, and is in its way if it has not come that far.
        """
        deadline = time.monotonic() + self._patience
        while True:
            done, gid = self.look(marker)
            if done is not None or gid is not None:
                return bool(done), gid
            try:
                self.run(
                    f"BEGIN; SET LOCAL lock_timeout = '200ms'; SET LOCAL synchronous_commit = on; "
                    f"INSERT INTO txlayer.marker VALUES ('{marker}', false) ON CONFLICT DO NOTHING; COMMIT"
                )
            except Rejected as exc:
                if exc.sqlstate != _LOCKED:
                    raise
                if time.monotonic() > deadline:
                    raise ResourceUnavailable(f"a former connection still works on {marker}") from exc

    # Markers

    def markers(self, prefix: str) -> list[str]:
        """The keys of all markers of a resource."""
        rows = self.rows(f"SELECT key FROM txlayer.marker WHERE starts_with(key, '{prefix}') ORDER BY made, key")
        return [row[0] or "" for row in rows]

    def sweep(self, markers: Iterable[str]) -> None:
        """Delete markers. If that gets lost in a crash it is asked for again, so nobody waits for the disk."""
        keys = ", ".join(f"'{marker}'" for marker in markers)
        self.run(f"BEGIN; SET LOCAL synchronous_commit = off; DELETE FROM txlayer.marker WHERE key IN ({keys}); COMMIT")

    def _run(self, sql: str) -> list[PGresult]:
        try:
            conn = self._pool.take()
        except (PoolTimeout, PoolClosed) as exc:
            raise ResourceUnavailable(f"the database of {self._name!r} cannot be reached: {exc}") from exc
        try:
            return exchange(conn.pgconn, sql.encode(), self._patience)
        finally:
            self._give_back(conn)

    def _give_back(self, conn: Connection[object]) -> None:
        """Clean, or closed: the pool replaces a closed one."""
        if conn.pgconn.transaction_status == TransactionStatus.INERROR:
            with contextlib.suppress(ConnectionLost):  # which has closed it
                exchange(conn.pgconn, b"ROLLBACK", self._patience)
        self._pool.give(conn)


def _text(result: PGresult, row: int, column: int) -> str | None:
    value = result.get_value(row, column)
    return None if value is None else value.decode()
