"""A PostgreSQL resource for a test: a site of its own and a table of its own in a database that tests share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg

from txlayer.messages import TxId
from txlayer.resources.postgres import PostgresResource

_numbers = itertools.count(1)


def new_tx() -> TxId:
    return TxId("coordinator", "log", next(_numbers), "abcd")


class Bench:
    """The resource, and a second connection that sees what it did."""

    def __init__(self, url: str, through: Any = None, **options: Any) -> None:
        self.url = url
        self.site = f"here-{uuid4().hex[:8]}"
        self.table = f"entry_{self.site[5:]}"
        self.options = options
        self.db = psycopg.connect(url, autocommit=True)
        self.db.execute(f"CREATE TABLE {self.table} (id int PRIMARY KEY, value text)")
        self.resource = self.open(through or url)

    def open(self, database: Any, incarnation: str = "log-1", **options: Any) -> PostgresResource:
        resource = PostgresResource(database, **{**self.options, **options})
        resource.open(self.site, incarnation)
        return resource

    def insert(self, tx: TxId, id: int = 1) -> None:
        self.resource.work(tx).execute(self.sql, (id,))

    @property
    def sql(self) -> str:
        return f"INSERT INTO {self.table} VALUES (%s, 'x')"

    def rows(self) -> list[int]:
        return [row[0] for row in self.db.execute(f"SELECT id FROM {self.table} ORDER BY id")]

    def prepared(self) -> list[str]:
        rows = self.db.execute("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE %s", (f"%{self.site}%",))
        return [row[0] for row in rows]

    def markers(self) -> int:
        row = self.db.execute("SELECT count(*) FROM txlayer.marker WHERE key LIKE %s", (f"%{self.site}%",)).fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        for gid in self.prepared():
            self.db.execute(f"ROLLBACK PREPARED '{gid}'")
        self.db.close()
        self.resource.close()


@contextmanager
def bench(url: str, through: Any = None, **options: Any) -> Iterator[Bench]:
    made = Bench(url, through, **options)
    try:
        yield made
    finally:
        made.close()
