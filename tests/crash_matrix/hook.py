"""Ends a process exactly at a point of its runtime, by SIGKILL.

A point is named by what the runtime's probe says: `perform Send:Vote` is before a vote leaves, `performed Send:Vote`
after it, `synced Decided:COMMITTED` after the sync that made a commit durable, `write Drop:Decided` before the write
that forgets a decision. `sent PREPARE TRANSACTION` and the like are inside the resource, after a message to the
database has left and before its answer is read. `any` is every one of them. Only what concerns transactions that began
after the hook was armed counts.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

from txlayer.effects import Broadcast, Received, Send
from txlayer.logs.record_log import RecordLog, _decode_row
from txlayer.messages import TxId
from txlayer.records import AnyRecord, Decided, decode_record
from txlayer.resources import postgres_exchange

_ENDINGS = (b"COMMIT PREPARED", b"ROLLBACK PREPARED", b"PREPARE TRANSACTION", b"; COMMIT")


class Hook:
    """The probe of one process; armed from outside."""

    def __init__(self) -> None:
        self._point = ""
        self._left = 0
        self._pause = ("", 0.0)
        self._lock = threading.Lock()
        self._seen: dict[TxId, None] = {}
        self._former: dict[TxId, None] = {}
        self._writing: list[tuple[str, TxId | None]] = []
        self._live: dict[str, tuple[str, TxId | None]] = {}
        self._sending = b""

    def arm(self, point: str, nth: int) -> None:
        """Die when the point comes by for the n-th time."""
        with self._lock:
            self._point, self._left, self._former = point, nth, dict(self._seen)

    def pause(self, point: str, seconds: float) -> None:
        """Stand still when the point comes by, once."""
        self._pause = (point, seconds)

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
            about = next((tx for tx in dict(self._seen) if f":{tx.incarnation}:{tx.number}:".encode() in message), None)
            self._reach(f"sent {ending.decode().lstrip('; ')}", about)

    def _reach(self, point: str, tx: TxId | None) -> None:
        if point == self._pause[0]:
            seconds, self._pause = self._pause[1], ("", 0.0)
            time.sleep(seconds)
        with self._lock:
            if tx is not None:
                self._seen.setdefault(tx)
            if self._point not in (point, "any") or tx in self._former:
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
