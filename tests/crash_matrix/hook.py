"""Ends a process exactly at a point of its runtime, by SIGKILL.

A point is named by what the runtime's probe says: `perform Send:Vote` is before a vote leaves, `performed Send:Vote`
after it, `synced Decided` after the sync that made a decision durable. `sent PREPARE` and `sent COMMIT` are inside the
resource, after a message to the database has left and before its answer is read. `any` is every one of them.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from txlayer.effects import Broadcast, Received, Send
from txlayer.logs.record_log import RecordLog, _decode_row
from txlayer.records import decode_record
from txlayer.resources import postgres_exchange


class Hook:
    """The probe of one process; armed from outside."""

    def __init__(self) -> None:
        self._point = ""
        self._left = 0
        self._lock = threading.Lock()
        self._records: list[str] = []
        self._real_results = postgres_exchange._results
        self._real_exchange = postgres_exchange.exchange

    def arm(self, point: str, nth: int) -> None:
        """Die when the point comes by for the n-th time."""
        with self._lock:
            self._point, self._left = point, nth

    def probe(self, kind: str, subject: Any) -> None:
        """Given to the site as its probe."""
        if isinstance(subject, RecordLog):
            if kind == "write":
                self._records = _kinds(subject)
            for record in self._records:
                self._reach(f"{kind} {record}")
            return
        name = type(subject).__name__
        if isinstance(subject, Send | Broadcast | Received):
            name += f":{type(subject.message).__name__}"
        self._reach(f"{kind} {name}")

    def watch_database(self) -> None:
        """See messages to the database on their way."""

        def results(conn: Any, deadline: float) -> Any:
            self._reach(f"sent {self._message}")
            return self._real_results(conn, deadline)

        real_send = postgres_exchange.send

        def send(conn: Any, message: bytes, deadline: float) -> None:
            self._message = _word(message)
            real_send(conn, message, deadline)

        postgres_exchange._results = results  # type: ignore[assignment]
        postgres_exchange.send = send  # type: ignore[assignment]

    _message = ""

    def _reach(self, point: str) -> None:
        with self._lock:
            if self._point not in (point, "any"):
                return
            self._left -= 1
            if self._left > 0:
                return
        os.kill(os.getpid(), signal.SIGKILL)


def _kinds(log: RecordLog) -> list[str]:
    """What a write is about to store; a removal alone is a `Drop`."""
    rows = [_decode_row(data[4:]) for data in log._rows.values()]
    kinds = [type(decode_record(row.record)).__name__ for row in rows]
    return kinds or (["Drop"] if log._removed else ["nothing"])


def _word(message: bytes) -> str:
    """What a message to the database does in the end."""
    for word in (b"COMMIT PREPARED", b"ROLLBACK PREPARED", b"PREPARE TRANSACTION", b"; COMMIT"):
        if word in message:
            return word.decode().lstrip("; ")
    return "other"
