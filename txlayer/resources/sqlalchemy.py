"""SQLAlchemy connections as members write through them.

`PostgresResource(engine)` takes its connections from the engine, so a handler gets an SQLAlchemy connection. A session
over it, `Session(tx[ledger], join_transaction_mode="create_savepoint")`, works inside the same unit: its commit ends
a savepoint, never the unit.
"""

from __future__ import annotations

from typing import Any

from txlayer.errors import MissingExtra, ResourceError, UsageError
from txlayer.resources.postgres_sources import Lease, leased

try:
    from sqlalchemy import Engine, event
    from sqlalchemy.exc import SQLAlchemyError
except ImportError as exc:
    raise MissingExtra("sqlalchemy", "sqlalchemy") from exc


class EngineSource:
    """An engine over psycopg 3."""

    early = False

    def __init__(self, engine: Any) -> None:
        if not isinstance(engine, Engine) or engine.dialect.driver != "psycopg":
            raise UsageError(
                "an SQLAlchemy resource is an engine over psycopg: create_engine('postgresql+psycopg://…')"
            )
        self._engine = engine
        self.conninfo = ""
        self.database = engine.url.database or "postgres"
        self.options = engine.dialect.create_connect_args(engine.url)[1]

    def open(self) -> None:
        pass

    def take(self) -> Lease:
        try:
            handle = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            driver: Any = handle.connection.driver_connection
        except SQLAlchemyError as exc:
            raise ResourceError(str(exc).splitlines()[0]) from exc
        event.listen(handle, "commit", _refuse)
        event.listen(handle, "before_cursor_execute", _only_inside)
        return Lease(handle, driver)

    def give(self, lease: Lease) -> None:
        lease.released()
        event.remove(lease.handle, "commit", _refuse)
        if lease.driver.closed:
            lease.handle.invalidate()
        lease.handle.close()
        event.remove(lease.handle, "before_cursor_execute", _only_inside)

    def close(self) -> None:
        pass


def _refuse(_connection: Any) -> None:
    raise UsageError("the transaction layer ends this transaction; return, or raise to abort it")


def _only_inside(_connection: Any, cursor: Any, *_: Any) -> None:
    """SQLAlchemy replaces a connection that is lost: what is done on the next one is done outside of the unit."""
    if not leased(cursor.connection):
        raise ResourceError("the connection broke inside the unit, or the unit has ended")
