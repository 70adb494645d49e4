"""The shared register in PostgreSQL, on a connection of its own: a value is durable before anyone hears of it.

It does not share the connection of the log, whose batches stay open between write and sync.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, LiteralString

from txlayer.errors import LogError, LogFailed
from txlayer.logs.postgres import create_tables, driver
from txlayer.messages import TxId

if TYPE_CHECKING:
    import psycopg

_TABLES: LiteralString = """
CREATE SCHEMA IF NOT EXISTS txlayer;
CREATE TABLE IF NOT EXISTS txlayer.settlement (
    coordinator text NOT NULL, incarnation text NOT NULL, number bigint NOT NULL, nonce text NOT NULL,
    body bytea NOT NULL, PRIMARY KEY (coordinator, incarnation, number, nonce));
CREATE TABLE IF NOT EXISTS txlayer.finisher_key (
    coordinator text NOT NULL, incarnation text NOT NULL, finisher text NOT NULL, key bytea NOT NULL,
    PRIMARY KEY (coordinator, incarnation, finisher));
"""
_SETTLE = """
INSERT INTO txlayer.settlement AS stands VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (coordinator, incarnation, number, nonce) DO UPDATE SET body = stands.body RETURNING body
"""
_LEAVE = """
INSERT INTO txlayer.finisher_key VALUES (%s, %s, %s, %s)
ON CONFLICT (coordinator, incarnation, finisher) DO UPDATE SET key = excluded.key
"""
_KEY = "SELECT key FROM txlayer.finisher_key WHERE coordinator = %s AND incarnation = %s AND finisher = %s"
_FORGET = """
DELETE FROM txlayer.settlement WHERE coordinator = %s AND incarnation = %s AND (number < %s OR number = %s)
"""


class PostgresRegister:
    """The register of all sites that use one database."""

    def __init__(self, dsn: str) -> None:
        self._psycopg = driver()
        try:
            self._db: psycopg.Connection[Any] = self._psycopg.connect(dsn, autocommit=True)
            self._db.execute("SET synchronous_commit = on")
            create_tables(self._db, _TABLES)
        except self._psycopg.Error as exc:
            raise LogError(f"register of decisions: {exc}") from exc

    def settle(self, tx: TxId, body: bytes) -> bytes:
        row = self._run(_SETTLE, (tx.coordinator, tx.incarnation, tx.number, tx.nonce, body))
        assert row is not None, "one of the two stands there"
        return bytes(row[0])

    def leave_key(self, coordinator: str, incarnation: str, finisher: str, key: bytes) -> None:
        self._run(_LEAVE, (coordinator, incarnation, finisher, key))

    def key(self, coordinator: str, incarnation: str, finisher: str) -> bytes:
        row = self._run(_KEY, (coordinator, incarnation, finisher))
        return bytes(row[0]) if row is not None else b""

    def forget(self, coordinator: str, incarnation: str, below: int, number: int) -> None:
        self._run(_FORGET, (coordinator, incarnation, below, number))

    def close(self) -> None:
        self._db.close()

    def _run(self, query: LiteralString, parameters: Sequence[object]) -> tuple[Any, ...] | None:
        try:
            done = self._db.execute(query, parameters)
            return done.fetchone() if done.description is not None else None
        except self._psycopg.Error as exc:
            raise LogFailed(f"register of decisions: {exc}") from exc
