"""A psycopg pool of our own, with the connection that was used last kept at hand.

A pool hands out the connection that has rested longest: each time another process of the server, with cold caches. As
long as one is enough, it is the same one that works on here.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from psycopg import Connection
from psycopg.pq import TransactionStatus
from psycopg_pool import ConnectionPool, PoolClosed

from txlayer.errors import ResourceError
from txlayer.resources.postgres_exchange import alive

_KEPT_SECONDS = 60.0
"""Then it goes through the pool once, which replaces what has become old."""


class OwnPool:
    """From `open` to `close`, and again. `take` raises what a pool raises; what it returns looks alive."""

    def __init__(self, conninfo: Any, options: Any, size: int, patience: float) -> None:
        self.conninfo = conninfo
        self.options = options
        self.size = size
        self._patience = patience
        self._lock = threading.Lock()
        self._pool: ConnectionPool[Any]
        self._at_hand: Connection[Any] | None = None
        self._kept_until = 0.0
        self._asking = 0
        """Who waits for the pool: what is given back is theirs."""
        self.closed = True

    def open(self) -> None:
        self._pool = ConnectionPool(  # anew: one that was closed stays so
            self.conninfo, kwargs=self.options, min_size=1, max_size=self.size, timeout=self._patience,
            reconnect_timeout=1.0, configure=_autocommit, check=_check, open=True,
        )  # fmt: skip
        self.closed = False

    def take(self) -> Connection[Any]:
        """The one at hand, or one of the pool's."""
        while True:
            with self._lock:
                conn, self._at_hand = self._at_hand, None
                self._asking += conn is None
            if conn is None:
                return self._ask()
            if alive(conn.pgconn):
                return conn
            conn.close()
            self._pool.putconn(conn)  # which replaces it

    def _ask(self) -> Connection[Any]:
        try:
            if self.closed:
                raise PoolClosed("it is not open")
            conn: Connection[Any] = self._pool.getconn()
            return conn
        finally:
            with self._lock:
                self._asking -= 1

    def give(self, conn: Connection[Any]) -> None:
        """Give back one that is clean, or closed."""
        idle, now = conn.pgconn.transaction_status == TransactionStatus.IDLE, time.monotonic()
        with self._lock:
            may_stay = idle and not self._asking and not self.closed and now < self._kept_until
            if may_stay and self._at_hand is None:
                self._at_hand = conn
                return
            if now >= self._kept_until:
                self._kept_until = now + _KEPT_SECONDS
        self._pool.putconn(conn)

    def close(self) -> None:
        with self._lock:
            if self.closed:
                return
            conn, self._at_hand = self._at_hand, None
            self.closed = True
        if conn is not None:
            self._pool.putconn(conn)
        self._pool.close()


def _autocommit(conn: Connection[Any]) -> None:
    conn.autocommit = True


def _check(conn: Connection[Any]) -> None:
    """Look at the connection without asking the server."""
    if not alive(conn.pgconn):
        conn.close()
        raise ResourceError("the server has closed the connection")
