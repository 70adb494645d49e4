"""Ends a process exactly at a point of its runtime, by SIGKILL.

A point is named by what the runtime's probe says: `perform Send:Vote` is before a vote leaves, `performed Send:Vote`
after it, `synced Decided:COMMITTED` after the sync that made a commit durable, `write Drop:Decided` before the write
that forgets a decision. `sent PREPARE TRANSACTION` and the like are inside the resource, after a message to the
database has left and before its answer is read. `any` is every one of them. What concerns transactions of earlier
cases does not count, though a site that came back may hear of them for the first time.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from typing import Any

from txlayer.effects import Broadcast, Received, Send
from txlayer.logs.record_log import RecordLog, _decode_row
from txlayer.messages import TxId
from txlayer.records import AnyRecord, Decided, decode_record
from txlayer.resources import postgres_exchange
from txlayer.resources.postgres_names import read_name

After = dict[str, int]
"""Of each coordinator, the first number that a later transaction can have."""
_ENDINGS = (b"COMMIT PREPARED", b"ROLLBACK PREPARED", b"PREPARE TRANSACTION", b"; COMMIT")
_NAME = re.compile(b"txlayer1:[^']+")


class Hook:
    """The probe of one process; armed from outside."""

    def __init__(self) -> None:
        self._point = ""
        self._left = 0
        self._pause = ""
        self._released = threading.Event()
        self._after: After = {}
        self._lock = threading.Lock()
        self._writing: list[tuple[str, TxId | None]] = []
        self._live: dict[str, tuple[str, TxId | None]] = {}

    def arm(self, point: str, nth: int, after: After) -> None:
        """Die when the point comes by for the n-th time."""
        with self._lock:
            self._point, self._left, self._after = point, nth, after

    def pause(self, point: str, after: After) -> None:
        """Stand still when the point comes by, once, until `release`."""
        with self._lock:
            self._released.clear()
            self._pause, self._after = point, after

    def release(self) -> None:
        """Go on, or do not pause at all."""
        self._pause = ""
        self._released.set()

    def probe(self, kind: str, subject: Any) -> None:
        """Given to the site as its probe."""
        if isinstance(subject, RecordLog):
            if kind == "write":
                self._writing = self._on_write(subject)
            for name, tx in self._writing:
                self._reach(f"{kind} {name}", tx)
            return
        name = type(subject).__name__
        if isinstance(subject, Send | Broadcast | Received):
            subject = subject.message
            name += f":{type(subject).__name__}"
            if getattr(subject, "tx", subject) is None:
                return  # an answer to an earlier case's question, which its asker had repeated
        self._reach(f"{kind} {name}", getattr(subject, "tx", None))

    def _on_write(self, log: RecordLog) -> list[tuple[str, TxId | None]]:
        """What a write is about to store and to remove, which may be in one batch: a removal shares the next sync."""
        stored = _stored(log)
        self._live.update(stored)
        dropped = [key for key in self._live if key not in log.index]
        gone = [self._live.pop(key) for key in dropped]
        return [*stored.values(), *((f"Drop:{name.partition(':')[0]}", tx) for name, tx in gone)]

    def watch_database(self) -> None:
        """See messages to the database on their way."""
        real_send, real_results = postgres_exchange.send, postgres_exchange._results
        message = threading.local()

        def send(conn: Any, content: bytes, deadline: float) -> None:
            message.content = content
            real_send(conn, content, deadline)

        def results(conn: Any, deadline: float) -> Any:
            self._on_sent(message.content)
            return real_results(conn, deadline)

        postgres_exchange.send = send
        postgres_exchange._results = results

    def _on_sent(self, message: bytes) -> None:
        ending = next((word for word in _ENDINGS if word in message), None)
        if ending is not None:
            found = _NAME.search(message)
            name = read_name(found[0].decode()) if found is not None else None
            self._reach(f"sent {ending.decode().lstrip('; ')}", name.tx if name is not None else None)

    def _reach(self, point: str, tx: TxId | None) -> None:
        if tx is not None and tx.number < self._after.get(tx.coordinator, 0):
            return
        if point == self._pause:
            self._pause = ""
            self._released.wait()
        with self._lock:
            if self._point not in (point, "any"):
                return
            self._left -= 1
            if self._left > 0:
                return
        os.kill(os.getpid(), signal.SIGKILL)


def _stored(log: RecordLog) -> dict[str, tuple[str, TxId | None]]:
    """The records of a write, by key."""
    rows = [_decode_row(data[4:]) for data in log._rows.values()]
    return {row.key: _named(decode_record(row.record)) for row in rows}


def _named(record: AnyRecord) -> tuple[str, TxId | None]:
    name = f"Decided:{record.status.name}" if isinstance(record, Decided) else type(record).__name__
    return name, getattr(record, "tx", None)
