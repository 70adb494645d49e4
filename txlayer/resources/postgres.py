"""PostgreSQL as a resource of a member: two-phase commit in the server (HTS 5.4).

A handler works on an ordinary connection inside `BEGIN`. Prepare is one message, the marker and
`PREPARE TRANSACTION`, whose command tags are checked; then the connection is free and clean, and any other one to the
same database can finish the branch. Work that a handler returns as a `Batch` is not sent before that: begin, work,
marker and prepare are then one message and one round trip.

What the server answers is not always what happened: a connection may break between the two. Then markers tell (see
`Lane.settle`).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psycopg import pq
from psycopg.pq.abc import PGresult

from txlayer.errors import ResourceError, ResourceUnavailable
from txlayer.messages import TxId
from txlayer.resources.port import Branch, Member, nobody
from txlayer.resources.postgres_exchange import ConnectionLost, Rejected, exchange, tags
from txlayer.resources.postgres_lane import Lane
from txlayer.resources.postgres_names import OURS_TO_FINISH, Names, read_name
from txlayer.resources.postgres_sources import Lease, source_of

Parameters = Sequence[Any] | Mapping[str, Any] | None
_MARKER = "txlayer.marker.marker_pkey"
_SWEPT_AT_ONCE = 64
_TRIES = 4
_ENDINGS = {"COMMIT", "ROLLBACK", "PREPARE TRANSACTION"}
_NOT_OPEN: dict[int, str] = {
    pq.TransactionStatus.INERROR: "a statement failed and the handler went on: raise, or try it in conn.transaction()",
    pq.TransactionStatus.IDLE: "the handler ended the transaction itself, which is the layer's to end",
    pq.TransactionStatus.ACTIVE: "the handler left a statement running",
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Statements that a handler returns to have them sent with the prepare, parameters bound on the client."""

    resource: PostgresResource
    statements: tuple[tuple[str, Parameters], ...]

    def then(self, sql: str, parameters: Parameters = None) -> Batch:
        """The same with one more statement."""
        return Batch(self.resource, (*self.statements, (sql, parameters)))


@dataclass(slots=True, eq=False)
class _Unit:
    lease: Lease | None = None
    queued: list[tuple[str, Parameters]] = field(default_factory=list)
    saved: tuple[bool, tuple[tuple[str, Parameters], ...]] = (False, ())
    """At the savepoint: whether the connection was open, and what was queued."""
    lost: str = ""
    """Why nothing can come of it any more."""


class PostgresResource:
    """A PostgreSQL database: a URL, the user's own psycopg pool (blocking or async), or an SQLAlchemy engine.

    `lock_timeout` is in force inside every unit and must be below the deadline for votes, which is `vote_within` and in
    one shot `census_within`: it ends deadlocks that go through several databases, which no server can see.
    `connections` is the size of our own pool, `finishing` that of the lane which is kept free for finishing.
    `patience` bounds every wait for the server or for a connection.
    """

    def __init__(
        self, database: Any, *, name: str = "", lock_timeout: float = 1.0, isolation: str = "",
        connections: int = 8, finishing: int = 2, patience: float = 5.0,
    ) -> None:  # fmt: skip
        self._source = source_of(database, connections, patience)
        self.name = name or self._source.database
        self.early = self._source.early
        self._finishing = finishing
        self._lane: Lane
        self._names = Names("", self.name, "")
        level = f" ISOLATION LEVEL {isolation}" if isolation else ""
        self._begin = f"BEGIN{level}; SET LOCAL lock_timeout = '{int(lock_timeout * 1000)}ms'".encode()
        self._within = lock_timeout + patience
        self._patience = patience
        self._units: dict[TxId, _Unit] = {}
        self._prepared: dict[TxId, str] = {}
        self._forgotten: list[str] = []
        self._lock = threading.Lock()

    def open(self, site: str, incarnation: str, member: Member = nobody) -> None:
        self._names = Names(site, self.name, incarnation, member)
        self._lane = Lane(self._source, self._finishing, self._patience, self.name)
        try:
            self._lane.open(self._within)
            self._source.open()
        except BaseException:
            self._lane.close()
            raise

    def batch(self, sql: str, parameters: Parameters = None) -> Batch:
        """Work for a handler to return: sent in one message with begin, marker and prepare."""
        return Batch(self, ((sql, parameters),))

    # Work

    def work(self, tx: TxId) -> Any:
        if tx in self._prepared:
            raise ResourceError(f"{tx} is prepared and takes no more work")
        unit = self._units.setdefault(tx, _Unit())
        if unit.lost:
            raise ResourceError(unit.lost)
        if unit.lease is None:
            unit.lease = self._begun()
        if unit.queued:
            queued, unit.queued = unit.queued, []
            self._say(unit.lease, b"; ".join(unit.lease.bound(*statement) for statement in queued))
        return unit.lease.handle

    def lend(self, tx: TxId) -> None:
        self._mark(tx, True)

    def returned(self, tx: TxId) -> None:
        self._mark(tx, False)

    def _mark(self, tx: TxId, lent: bool) -> None:
        unit = self._units.get(tx)
        lease = unit.lease if unit is not None else None
        if lease is not None:
            lease.lent = lent

    def add(self, tx: TxId, batch: Batch) -> None:
        self._units.setdefault(tx, _Unit()).queued.extend(batch.statements)

    def has_work(self, tx: TxId) -> bool:
        return tx in self._units

    def savepoint(self, tx: TxId) -> None:
        unit = self._units.get(tx)
        if unit is None:
            return
        if unit.lease is not None and not unit.lease.lent:
            again = b"RELEASE SAVEPOINT txlayer; " if unit.saved[0] else b""
            self._say(unit.lease, again + b"SAVEPOINT txlayer")
        unit.saved = (unit.lease is not None, tuple(unit.queued))

    def undo_to_savepoint(self, tx: TxId) -> None:
        unit = self._units.get(tx)
        if unit is None:
            return
        had_connection, queued = unit.saved
        unit.queued = list(queued)  # a handler that asked for the connection has had them sent: that is undone too
        if unit.lease is not None and unit.lease.lent:
            self._let_go(unit)
            unit.lost = "a handler failed, and its work cannot be told from what the publisher did in the same unit"
        elif not had_connection or unit.lease is None:
            self._let_go(unit)
        else:
            self._undo(unit, unit.lease)

    def _undo(self, unit: _Unit, lease: Lease) -> None:
        try:
            self._say(lease, b"ROLLBACK TO SAVEPOINT txlayer")
        except ResourceError:
            self._let_go(unit)
            unit.lost = "the connection broke inside the unit"

    def abandon(self, tx: TxId) -> None:
        unit = self._units.get(tx)
        if unit is not None:
            unit.lost = f"{tx} was abandoned: its handler took too long"
            lease = unit.lease  # whoever works in the unit may let go of it meanwhile
            if lease is not None:
                lease.cut()

    # Two phases

    def prepare(self, tx: TxId, of: int = 1) -> None:
        gid = self._names.gid(tx, of)
        marker = f"INSERT INTO txlayer.marker VALUES ('{self._names.marker(tx)}', true)"
        try:
            self._end(tx, f"{marker}; PREPARE TRANSACTION '{gid}'", "PREPARE TRANSACTION")
        except ConnectionLost as exc:
            if not self._was_prepared(tx):
                raise ResourceError(f"the connection broke before the work was prepared: {exc}") from exc
        except Rejected as exc:
            raise ResourceError(self._explained(tx, exc)) from exc
        self._prepared[tx] = gid

    def _was_prepared(self, tx: TxId) -> bool:
        """After a lost connection. If the server is away too the answer is no; what is left then, recovery finds."""
        try:
            return self.settle(tx) == "prepared"
        except ResourceUnavailable as exc:
            raise ResourceError(f"the database went away during prepare: {exc}") from exc

    def commit_prepared(self, tx: TxId) -> None:
        gid = self._gid(tx)
        if gid is None or not self._lane.finish(gid, commit=True):
            done, _ = self._lane.look(self._names.marker(tx))
            if not done:
                raise ResourceError(f"{tx} is neither prepared nor committed in {self.name!r}")
        self._prepared.pop(tx, None)

    def roll_back(self, tx: TxId) -> None:
        unit = self._units.pop(tx, None)
        if unit is not None:
            self._let_go(unit)
            return
        gid = self._gid(tx)
        if gid is not None:
            self._lane.finish(gid, commit=False)
        self._prepared.pop(tx, None)

    # One phase

    def commit(self, tx: TxId, undo: bytes = b"") -> None:
        marker = f"INSERT INTO txlayer.marker VALUES ('{self._names.marker(tx)}', true, '\\x{undo.hex()}')"
        try:
            self._end(tx, f"{marker}; COMMIT", "COMMIT")
        except Rejected as exc:
            if exc.constraint != _MARKER or self.state(tx) != "committed":
                raise ResourceError(self._explained(tx, exc)) from exc

    # What is there

    def state(self, tx: TxId) -> str:
        self._sweep()
        return _state(*self._lane.look(self._names.marker(tx)))

    def settle(self, tx: TxId) -> str:
        self._sweep()
        unit = self._units.pop(tx, None)
        if unit is not None:
            self._let_go(unit)
        done, gid = self._lane.settle(self._names.marker(tx))
        if gid is not None:
            self._prepared[tx] = gid
        return _state(done, gid)

    def reopen(self, tx: TxId) -> None:
        self._lane.run(f"DELETE FROM txlayer.marker WHERE key = '{self._names.marker(tx)}' AND NOT done")

    def branches(self) -> tuple[Branch, ...]:
        rows = self._lane.rows(
            "SELECT gid, extract(epoch FROM clock_timestamp() - prepared) FROM pg_prepared_xacts "
            f"WHERE starts_with(gid, '{self._names.prefix}') AND {OURS_TO_FINISH} ORDER BY prepared"
        )
        found = [(read_name(gid or ""), age) for gid, age in rows]
        return tuple(
            Branch(name.tx, name.incarnation, name.of, float(age or 0), self.name) for name, age in found if name
        )

    def undo_record(self, tx: TxId) -> bytes:
        self._sweep()
        row = self._lane.ask(f"SELECT encode(undo, 'hex') FROM txlayer.marker WHERE key = '{self._names.marker(tx)}'")
        return bytes.fromhex(row[0] or "") if row else b""

    def markers(self) -> tuple[TxId, ...]:
        self._sweep()
        names = [read_name(key) for key in self._lane.markers(self._names.prefix)]
        return tuple(name.tx for name in names if name is not None)

    def forget(self, tx: TxId) -> None:
        with self._lock:
            self._forgotten.append(self._names.marker(tx))
            enough = len(self._forgotten) >= _SWEPT_AT_ONCE
        if enough:
            self._sweep()

    def close(self) -> None:
        for unit in self._units.values():
            self._let_go(unit)
        self._units.clear()
        with contextlib.suppress(ResourceError):  # the next start finds them again
            self._sweep()
        self._source.close()
        self._lane.close()

    def _sweep(self) -> None:
        with self._lock:
            gone, self._forgotten = self._forgotten, []
        try:
            if gone:
                self._lane.sweep(gone)
        except ResourceError:
            with self._lock:
                self._forgotten += gone
            raise

    # Units

    def _end(self, tx: TxId, ending: str, expected: str) -> None:
        """Send what is queued and the ending, as one message; the connection goes back whatever comes of it."""
        unit = self._units.pop(tx, None) or _Unit()
        if unit.lost:
            self._let_go(unit)
            raise ResourceError(unit.lost)
        if unit.lease is None:
            unit.lease = self._source.take()
            parts = [self._begin]
        else:
            self._check_open(unit)
            parts = []
        try:
            parts += [unit.lease.bound(*statement) for statement in unit.queued]
            results = self._say(unit.lease, b"; ".join([*parts, ending.encode()]))
        finally:
            self._let_go(unit)
        *before, last = tags(results)
        if last != expected:
            raise ResourceError(f"the server answered {last} in place of {expected}: it was rolled back")
        if _ENDINGS.intersection(before):
            self.roll_back(tx)
            raise ResourceError("a batch must not end or roll back the transaction, which is the layer's to end")

    def _begun(self) -> Lease:
        """A connection with a transaction open; another one if the server has closed what was in the pool."""
        for _ in range(_TRIES):
            lease = self._source.take()
            try:
                self._say(lease, self._begin)
                return lease
            except ConnectionLost:
                self._source.give(lease)
            except ResourceError:
                self._source.give(lease)
                raise
        raise ResourceError("the server closes its connections")

    def _check_open(self, unit: _Unit) -> None:
        assert unit.lease is not None
        status = unit.lease.pgconn.transaction_status
        if status == pq.TransactionStatus.INTRANS:
            return
        self._let_go(unit)
        raise ResourceError(_NOT_OPEN.get(status, "the connection is lost"))

    def _let_go(self, unit: _Unit) -> None:
        """Give the connection back: clean, or closed if somebody may still use it."""
        lease, unit.lease = unit.lease, None
        if lease is None:
            return
        held = lease.lent or unit.lost or lease.pgconn.transaction_status == pq.TransactionStatus.ACTIVE
        if held and not lease.close(self._patience):
            return  # left to who is inside: cut off, it does nothing more
        self._clean(lease)
        self._source.give(lease)

    def _clean(self, lease: Lease) -> None:
        try:
            if lease.pgconn.transaction_status in (pq.TransactionStatus.INTRANS, pq.TransactionStatus.INERROR):
                exchange(lease.pgconn, b"ROLLBACK", self._patience)
            elif lease.pgconn.transaction_status != pq.TransactionStatus.IDLE:
                lease.pgconn.finish()
        except ResourceError:
            lease.pgconn.finish()

    def _say(self, lease: Lease, message: bytes) -> list[PGresult]:
        with lease.alone(self._within) if lease.lent else contextlib.nullcontext():
            return exchange(lease.pgconn, message, self._within)

    def _gid(self, tx: TxId) -> str | None:
        return self._prepared.get(tx) or self._lane.look(self._names.marker(tx))[1]

    def _explained(self, tx: TxId, exc: Rejected) -> str:
        if exc.constraint == _MARKER:
            return f"{tx} was committed or given up before"
        if exc.sqlstate == "53200" and "prepared transactions" in str(exc):
            return f"{exc}: raise max_prepared_transactions, or finish what `txlayer tx list` shows"
        return str(exc)


def _state(done: bool | None, gid: str | None) -> str:
    if done:
        return "committed"
    return "prepared" if gid is not None else "none"
