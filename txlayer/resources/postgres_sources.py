"""Where the connections that handlers write through come from: a pool, ours or the user's, or an SQLAlchemy engine.

Whatever the handler holds, there is a libpq connection below it, on which the resource begins and prepares.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from psycopg import AsyncClientCursor, AsyncConnection, ClientCursor, Connection, Error
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq.abc import PGconn
from psycopg_pool import AsyncConnectionPool, ConnectionPool, PoolClosed, PoolTimeout

from txlayer.errors import ResourceError, UsageError
from txlayer.resources.postgres_exchange import alive
from txlayer.resources.postgres_pool import OwnPool

_ENDING = ("commit", "rollback", "close")
KEPT_ALIVE = {"connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 3, "keepalives_count": 3,
              "tcp_user_timeout": 10_000}  # fmt: skip
"""A server that is gone without a word is noticed after some seconds."""


@dataclass(slots=True, eq=False)
class Lease:
    """A connection for one unit: what the handler gets, and what is below it."""

    handle: Any
    driver: Connection[Any] | AsyncConnection[Any]
    loop: asyncio.AbstractEventLoop | None = None
    """Where an async connection is used."""
    lent: bool = False
    """A publisher has it in hand, and may use it at any moment."""
    pgconn: PGconn = field(init=False)
    _is_cut: bool = False

    def __post_init__(self) -> None:
        self.pgconn = self.driver.pgconn
        for name in _ENDING:
            setattr(self.driver, name, _refuse)

    def released(self) -> None:
        """The unit is over: the connection is like any other again."""
        for name in _ENDING:
            delattr(self.driver, name)

    def bound(self, sql: str, parameters: Any) -> bytes:
        """A statement with its parameters in it, as a message of several statements needs it."""
        cursor = (
            AsyncClientCursor(self.driver) if isinstance(self.driver, AsyncConnection) else ClientCursor(self.driver)
        )
        try:
            return cursor.mogrify(sql, parameters).encode()
        except Error as exc:
            raise ResourceError(str(exc)) from exc

    @contextlib.contextmanager
    def alone(self, seconds: float) -> Iterator[None]:
        """Nobody else is inside the connection meanwhile: who uses it holds the driver's lock."""
        held = self._held_there(self.loop, seconds) if self.loop is not None else self._held(seconds)
        with held:
            yield

    @contextlib.contextmanager
    def _held(self, seconds: float) -> Iterator[None]:
        lock: Any = self.driver.lock
        if not lock.acquire(timeout=seconds):
            raise _occupied(seconds)
        try:
            yield
        finally:
            lock.release()

    @contextlib.contextmanager
    def _held_there(self, loop: asyncio.AbstractEventLoop, seconds: float) -> Iterator[None]:
        had: Future[None] = Future()
        done = asyncio.Event()
        asyncio.run_coroutine_threadsafe(self._hold(had, done), loop)
        try:
            had.result(seconds)
        except TimeoutError:
            if had.cancel():
                raise _occupied(seconds) from None
        try:
            yield
        finally:
            loop.call_soon_threadsafe(done.set)

    async def _hold(self, had: Future[None], done: asyncio.Event) -> None:
        lock: Any = self.driver.lock
        async with lock:
            if had.set_running_or_notify_cancel():
                had.set_result(None)
                await done.wait()

    def close(self, seconds: float) -> bool:
        """Take it away from whoever uses it; False if they do not let go. They must not have it closed inside."""
        self.cut()
        try:
            with self.alone(seconds):
                self.pgconn.finish()
        except ResourceError:
            return False
        return True

    def cut(self) -> None:
        """From any thread: whoever uses the connection gets an error. One that is closed already needs nothing."""
        if self._is_cut:  # libpq may close the socket now: its number would be another one's
            return
        self._is_cut = True
        with contextlib.suppress(OSError, Error), socket.socket(fileno=os.dup(self.pgconn.socket)) as doubled:
            doubled.shutdown(socket.SHUT_RDWR)


def leased(driver: Any) -> bool:
    """Whether a connection is out for a unit."""
    return _ENDING[0] in vars(driver)


def _occupied(seconds: float) -> ResourceError:
    return ResourceError(f"a statement on the connection has not ended within {seconds} s")


def _refuse(*_: object, **__: object) -> Any:
    raise UsageError("the transaction layer ends this transaction; return, or raise to abort it")


class Source(Protocol):
    """Gives connections and takes them back. `take` raises `ResourceError`."""

    @property
    def conninfo(self) -> Any: ...
    @property
    def options(self) -> Any: ...
    @property
    def database(self) -> str: ...
    @property
    def early(self) -> bool: ...
    def open(self) -> None: ...
    def take(self) -> Lease: ...
    def give(self, lease: Lease) -> None: ...
    def close(self) -> None: ...


def source_of(database: Any, size: int, patience: float) -> Source:
    """The source for what the user named."""
    if isinstance(database, str):
        options = {"fallback_application_name": "txlayer", **KEPT_ALIVE}
        return OwnPoolSource(OwnPool(database, options, size, patience), patience)
    if isinstance(database, ConnectionPool):
        return PoolSource(database, patience)
    if isinstance(database, AsyncConnectionPool):
        return AsyncPoolSource(database, patience)
    if type(database).__module__.startswith("sqlalchemy"):
        from txlayer.resources.sqlalchemy import EngineSource

        return EngineSource(database)
    raise UsageError(
        f"a PostgreSQL resource is a URL, a psycopg pool or an SQLAlchemy engine, not {type(database).__name__}"
    )


def _database(conninfo: object) -> str:
    return str(conninfo_to_dict(conninfo if isinstance(conninfo, str) else "").get("dbname") or "postgres")


def _none_free(error: Exception, patience: float, size: int) -> ResourceError:
    if isinstance(error, PoolClosed):
        return ResourceError(f"the pool is closed: {error}")
    return ResourceError(
        f"no connection within {patience} s: the database is away, or all {size} connections of the pool are in use "
        "(raise its max_size)"
    )


@dataclass(slots=True)
class PoolSource:
    """A psycopg pool of the user's."""

    pool: ConnectionPool[Any]
    patience: float
    early: bool = False

    @property
    def conninfo(self) -> Any:
        return self.pool.conninfo

    @property
    def options(self) -> Any:
        return self.pool.kwargs

    @property
    def database(self) -> str:
        return _database(self.pool.conninfo)

    def open(self) -> None:
        pass

    def take(self) -> Lease:
        for _ in range(self.pool.max_size + 1):
            conn = self._take()
            if alive(conn.pgconn):
                return Lease(conn, conn)
            conn.close()
            self.pool.putconn(conn)
        raise ResourceError("the database has closed all connections of the pool")

    def _take(self) -> Connection[Any]:
        try:
            conn: Connection[Any] = self.pool.getconn(self.patience)
        except (PoolTimeout, PoolClosed) as exc:
            raise _none_free(exc, self.patience, self.pool.max_size) from exc
        return conn

    def give(self, lease: Lease) -> None:
        lease.released()
        self.pool.putconn(lease.handle)

    def close(self) -> None:
        pass


@dataclass(slots=True)
class OwnPoolSource:
    """A pool that lives from `open` to `close`."""

    pool: OwnPool
    patience: float
    early: bool = False

    @property
    def conninfo(self) -> Any:
        return self.pool.conninfo

    @property
    def options(self) -> Any:
        return self.pool.options

    @property
    def database(self) -> str:
        return _database(self.pool.conninfo)

    def open(self) -> None:
        self.pool.open()

    def take(self) -> Lease:
        try:
            conn = self.pool.take()
        except (PoolTimeout, PoolClosed) as exc:
            raise _none_free(exc, self.patience, self.pool.size) from exc
        return Lease(conn, conn)

    def give(self, lease: Lease) -> None:
        lease.released()
        self.pool.give(lease.handle)

    def close(self) -> None:
        self.pool.close()


class AsyncPoolSource:
    """The user's pool of async connections, which lives on the loop where it was opened.

    Handlers await on the connection; the layer begins and prepares on it while no handler runs.
    """

    early = True

    def __init__(self, pool: AsyncConnectionPool[Any], patience: float) -> None:
        self.pool = pool
        self.patience = patience
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError as exc:
            raise UsageError("make the resource of an async pool inside the loop that runs the pool") from exc

    @property
    def conninfo(self) -> Any:
        return self.pool.conninfo

    @property
    def options(self) -> Any:
        return self.pool.kwargs

    @property
    def database(self) -> str:
        return _database(self.pool.conninfo)

    def open(self) -> None:
        pass

    def take(self) -> Lease:
        try:
            conn = asyncio.run_coroutine_threadsafe(self.pool.getconn(self.patience), self._loop).result()
        except PoolTimeout as exc:
            raise ResourceError(f"no connection of the async pool within {self.patience} s") from exc
        except PoolClosed as exc:
            raise ResourceError(f"the pool is closed: {exc}") from exc
        return Lease(conn, conn, self._loop)

    def give(self, lease: Lease) -> None:
        lease.released()
        asyncio.run_coroutine_threadsafe(self.pool.putconn(lease.handle), self._loop).result()

    def close(self) -> None:
        pass
