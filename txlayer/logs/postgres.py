"""A log in PostgreSQL: one schema, a row per record, one site per name.

A batch is one database transaction; `synchronous_commit` is forced on for it. The name of a site is held by an
advisory lock of the session for as long as the log is open, so a second process with the same name is refused and a
dead one lets go by itself. If the connection breaks, what was committed is unknown: the log fails and must be opened
again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, LiteralString

from txlayer.errors import LogError, LogFailed, MissingExtra
from txlayer.logs.port import Batch, Stored

if TYPE_CHECKING:
    import psycopg

_TABLES = """
CREATE SCHEMA IF NOT EXISTS txlayer;
CREATE TABLE IF NOT EXISTS txlayer.header (site text PRIMARY KEY, body bytea NOT NULL);
CREATE TABLE IF NOT EXISTS txlayer.record (
    site text NOT NULL, number bigint NOT NULL, body bytea NOT NULL, PRIMARY KEY (site, number));
"""
_SETUP_LOCK = 7_403_211_954
_PATIENCE_MS = 2000


class PostgresDisk:
    """The log of one site in a database that several sites may share."""

    def __init__(self, dsn: str, site: str) -> None:
        self._site = site
        self._psycopg = driver()
        try:
            self._db: psycopg.Connection[Any] = self._psycopg.connect(dsn, autocommit=True)
            create_tables(self._db, _TABLES)
        except self._psycopg.Error as exc:
            raise LogError(f"PostgreSQL log of {site}: {exc}") from exc
        self._hold()
        self._open = False

    def _hold(self) -> None:
        """Keep others out. The server may take a moment to notice that an earlier process is gone."""
        try:
            self._db.execute(f"SET lock_timeout = {_PATIENCE_MS}")
            self._db.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", (f"txlayer {self._site}",))
            self._db.execute("RESET lock_timeout")
        except self._psycopg.Error as exc:
            self._db.close()
            if isinstance(exc, self._psycopg.errors.LockNotAvailable):
                raise LogError(f"another process has the log of {self._site!r} open") from exc
            raise LogError(f"PostgreSQL log of {self._site}: {exc}") from exc

    def load(self) -> Stored:
        try:
            header = self._db.execute("SELECT body FROM txlayer.header WHERE site = %s", (self._site,)).fetchone()
            query = "SELECT number, body FROM txlayer.record WHERE site = %s ORDER BY number"
            rows = self._db.execute(query, (self._site,)).fetchall()
        except self._psycopg.Error as exc:
            raise LogError(f"PostgreSQL log of {self._site}: {exc}") from exc
        return Stored(header[0] if header else None, tuple(rows))

    def write(self, batch: Batch) -> None:
        try:
            if not self._open:
                self._db.execute("BEGIN")
                self._db.execute("SET LOCAL synchronous_commit = on")
                self._open = True
            self._insert(batch)
        except self._psycopg.Error as exc:
            raise LogFailed(f"PostgreSQL log of {self._site}: {exc}") from exc

    def sync(self) -> None:
        if not self._open:
            return
        try:
            self._db.execute("COMMIT")
        except self._psycopg.Error as exc:
            raise LogFailed(f"PostgreSQL log of {self._site}: {exc}") from exc
        self._open = False

    def low(self) -> bool:
        return False  # the room of a database server is its operator's to watch

    def close(self) -> None:
        self._db.close()

    def _insert(self, batch: Batch) -> None:
        with self._db.cursor() as cursor:
            if batch.rows:
                rows = [(self._site, number, body) for number, body in batch.rows]
                cursor.executemany("INSERT INTO txlayer.record VALUES (%s, %s, %s)", rows)
            if batch.removed:
                query = "DELETE FROM txlayer.record WHERE site = %s AND number = ANY(%s)"
                cursor.execute(query, (self._site, list(batch.removed)))
            upsert = "INSERT INTO txlayer.header VALUES (%s, %s) ON CONFLICT (site) DO UPDATE SET body = excluded.body"
            cursor.execute(upsert, (self._site, batch.header))


def create_tables(db: psycopg.Connection[Any], tables: LiteralString) -> None:
    """Two sites that start at once must not both create them."""
    db.execute("SELECT pg_advisory_lock(%s)", (_SETUP_LOCK,))
    try:
        db.execute(tables)
    finally:
        db.execute("SELECT pg_advisory_unlock(%s)", (_SETUP_LOCK,))


def driver() -> Any:
    """psycopg, or an error that says how to get it."""
    try:
        import psycopg
    except ImportError as exc:
        raise MissingExtra("postgres", "psycopg") from exc
    return psycopg
