"""All prepared branches of ours in one database, and what may have to be undone: of any site, under any log."""

from __future__ import annotations

from dataclasses import dataclass

import psycopg

from txlayer.errors import ResourceError, ResourceUnavailable
from txlayer.resources.postgres_names import OURS_TO_FINISH, ReadName, quoted, read_name
from txlayer.units import UNDO, UndoRecord

_FOUND = f"""
SELECT gid, extract(epoch FROM clock_timestamp() - prepared)::float8,
    ARRAY(SELECT DISTINCT relation::regclass::text FROM pg_locks JOIN pg_class ON pg_class.oid = relation
          WHERE virtualtransaction = '-1/' || p.transaction AND relkind = 'r' AND relname <> 'marker' ORDER BY 1)
FROM pg_prepared_xacts p
WHERE {OURS_TO_FINISH} AND starts_with(gid, 'txlayer1:')
ORDER BY prepared
"""


_KEPT = """
SELECT key, undo FROM txlayer.marker m
WHERE done AND undo <> '' AND NOT EXISTS (SELECT FROM txlayer.marker WHERE key = m.key || %s AND done)
ORDER BY made, key
"""


@dataclass(frozen=True, slots=True)
class PreparedBranch:
    """A branch with its name taken apart, its age in seconds, and the tables that it has locked."""

    gid: str
    name: ReadName
    age: float
    locks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Undoable:
    """Work that a compensatable member has committed, and what it takes to undo it."""

    key: str
    name: ReadName
    undo: UndoRecord


class PreparedBranches:
    """One connection to the database."""

    def __init__(self, dsn: str) -> None:
        try:
            self._db = psycopg.connect(dsn, autocommit=True)
        except psycopg.Error as exc:
            raise ResourceUnavailable(f"the database cannot be reached: {exc}") from exc

    def find(self, site: str | None = None) -> list[PreparedBranch]:
        """Those of one site, or of all; oldest first."""
        found = []
        for gid, age, locks in self._db.execute(_FOUND):
            name = read_name(gid)
            if name is not None and site in (None, name.site):
                found.append(PreparedBranch(gid, name, age, tuple(locks)))
        return found

    def undoable(self, site: str | None = None) -> list[Undoable]:
        """What was committed and may have to be undone, of one site or of all; oldest first."""
        try:
            (there,) = self._db.execute("SELECT to_regclass('txlayer.marker')").fetchone() or (None,)
            rows = self._db.execute(_KEPT, (quoted(UNDO),)).fetchall() if there is not None else []
        except psycopg.Error as exc:
            raise ResourceError(f"the markers of sites cannot be read: {exc}") from exc
        found = [(key, read_name(key), undo) for key, undo in rows]
        return [
            Undoable(key, name, UndoRecord.decode(undo))
            for key, name, undo in found
            if name is not None and site in (None, name.site)
        ]

    def forget(self, kept: Undoable) -> None:
        """It needs no undoing, or was undone."""
        try:
            self._db.execute("DELETE FROM txlayer.marker WHERE key = %s", (kept.key,))
        except psycopg.Error as exc:
            raise ResourceError(str(exc)) from exc

    def finish(self, branch: PreparedBranch, commit: bool) -> bool:
        """Commit it or roll it back; False if somebody else has finished it meanwhile."""
        quoted = branch.gid.replace("'", "''")
        try:
            self._db.execute(f"{'COMMIT' if commit else 'ROLLBACK'} PREPARED '{quoted}'".encode())
        except psycopg.errors.UndefinedObject:
            return False
        except psycopg.Error as exc:
            raise ResourceError(str(exc)) from exc
        return True

    def close(self) -> None:
        self._db.close()
