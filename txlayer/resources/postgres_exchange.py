"""One message to a PostgreSQL server and all answers to it, with a deadline.

It works on what is below psycopg's connections of every kind (blocking, async, inside SQLAlchemy), so a unit of work
is begun and prepared in one way whatever the handler holds. A message may have several statements; the server stops
at the first that fails.
"""

from __future__ import annotations

import select
import time

from txlayer.errors import MissingExtra, ResourceError, ResourceUnavailable

try:
    from psycopg import pq
    from psycopg.errors import Error, error_from_result
    from psycopg.pq.abc import PGconn, PGresult
except ImportError as exc:
    raise MissingExtra("postgres", "psycopg") from exc

_COPY = (pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH)


class Rejected(ResourceError):
    """The server answered with an error."""

    def __init__(self, error: Error) -> None:
        super().__init__(str(error).splitlines()[0])
        self.sqlstate = error.sqlstate or ""
        self.constraint = f"{error.diag.schema_name}.{error.diag.table_name}.{error.diag.constraint_name}"


class ConnectionLost(ResourceUnavailable):
    """The connection broke, or the server did not answer in time; the connection is closed."""


def exchange(conn: PGconn, message: bytes, within: float) -> list[PGresult]:
    """Send a message and collect its answers. `Rejected` if one of them is an error."""
    deadline = time.monotonic() + within
    try:
        send(conn, message, deadline)
        results = _results(conn, deadline)
    except Error as exc:
        conn.finish()
        raise ConnectionLost(f"the connection to PostgreSQL is lost: {str(exc).strip()}") from exc
    for result in results:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            error = error_from_result(result)
            # A server that ends the connection says so after what it has done, which may be all of the message.
            if conn.status != pq.ConnStatus.OK or error.diag.severity_nonlocalized in ("FATAL", "PANIC"):
                conn.finish()
                raise ConnectionLost(f"the connection to PostgreSQL is lost: {error}") from error
            raise Rejected(error) from error
    return results


def send(conn: PGconn, message: bytes, deadline: float) -> None:
    """Until all of it has left."""
    conn.send_query(message)
    while conn.flush():
        _wait(conn, select.POLLIN | select.POLLOUT, deadline)
        conn.consume_input()


def tags(results: list[PGresult]) -> list[str]:
    """The command tags, which tell what the server has done: `PREPARE TRANSACTION` may be answered by `ROLLBACK`."""
    return [(result.command_status or b"").decode().rstrip("0123456789 ") for result in results]


def alive(conn: PGconn) -> bool:
    """Whether the connection looks usable, without asking the server."""
    if conn.status != pq.ConnStatus.OK:
        return False
    if not _poll(conn, select.POLLIN, 0.0):
        return True
    try:
        conn.consume_input()
    except Error:
        return False
    return conn.status == pq.ConnStatus.OK


def _results(conn: PGconn, deadline: float) -> list[PGresult]:
    results: list[PGresult] = []
    while True:
        while conn.is_busy():
            _wait(conn, select.POLLIN, deadline)
            conn.consume_input()
        result = conn.get_result()
        if result is None:
            return results
        results.append(result)
        if result.status in _COPY:
            conn.finish()
            raise ResourceError("COPY cannot be part of a batch")


def _wait(conn: PGconn, what: int, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0 or not _poll(conn, what, left):
        conn.finish()
        raise ConnectionLost("PostgreSQL has not answered in time; the connection is closed")


def _poll(conn: PGconn, what: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(conn.socket, what)
    return bool(poll.poll(seconds * 1000.0))
