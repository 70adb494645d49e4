"""Three banks, each a site with a database of its own, behind proxies that can cut, delay and freeze."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import psycopg

from tests.proxy import Proxy
from txlayer import Patience, Site, Threads
from txlayer.resources.postgres import PostgresResource
from txlayer.testing.postgres import Postgres

ACCOUNTS = 20
START = 1000
QUICK = Patience(retry=0.3, in_doubt=0.5, gap=0.2, linger=0.5, mark=0.5, longest=2.0)
TRANSFERS = "transfers"


class Bank:
    """A member: it writes down every transfer, and moves its own side of it."""

    def __init__(self, number: int, bus: str, bus_port: int, stack: ExitStack) -> None:
        self.number = number
        self.server = stack.enter_context(Postgres(max_prepared_transactions=64))
        with psycopg.connect(self.server.url) as db:
            db.execute("CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL CHECK (balance >= 0))")
            db.execute("INSERT INTO account SELECT id, %s FROM generate_series(1, %s) id", (START, ACCOUNTS))
            db.execute("CREATE TABLE transfer (key text, delta int NOT NULL)")  # without a key: a double would show
        self.database_line = stack.enter_context(Proxy(urlsplit(self.server.url).port or 0))
        self.bus_line = stack.enter_context(Proxy(bus_port))
        self.ledger = PostgresResource(
            _through(self.server.url, self.database_line), name="ledger", lock_timeout=1.0, patience=2.0
        )
        self.site = Site(
            f"bank-{number}", bus=_through(bus, self.bus_line), log="memory://", patience=QUICK,
            threads=Threads(handlers=8, finishers=4),
        )  # fmt: skip
        self.site.subscribe(TRANSFERS, self._on_transfer, resources=[self.ledger])
        self.site.start()
        stack.callback(self.site.close)

    def _on_transfer(self, tx: Any, event: Any) -> Any:
        """Money leaves by hand, where the balance is looked at first, and arrives in a batch."""
        data = event.data
        source, target, amount = data["from"], data["to"], data["amount"]
        delta = amount * ((target[0] == self.number) - (source[0] == self.number))
        record = ("INSERT INTO transfer VALUES (%s, %s)", (data["key"], delta))
        if source[0] == self.number:
            conn = tx[self.ledger]
            conn.execute("UPDATE account SET balance = balance - %s WHERE id = %s", (amount, source[1]))
            conn.execute(*record)
        batch = self.ledger.batch(*record) if source[0] != self.number else None
        if target[0] == self.number:
            add = ("UPDATE account SET balance = balance + %s WHERE id = %s", (amount, target[1]))
            return batch.then(*add) if batch is not None else self.ledger.batch(*add)
        return batch

    # What an auditor sees, past the proxy

    def audit(self) -> str:
        """In one snapshot: the balances are what the transfers say. Empty if so, or if the database is away."""
        try:
            with psycopg.connect(self.server.url, connect_timeout=2) as db:
                row = db.execute(
                    "SELECT (SELECT sum(balance) FROM account), (SELECT coalesce(sum(delta), 0) FROM transfer)"
                ).fetchone()
        except psycopg.Error:
            return ""
        assert row is not None
        return "" if row[0] == ACCOUNTS * START + row[1] else f"bank {self.number}: {row[0]} with transfers of {row[1]}"

    def transfers(self) -> list[str]:
        """The keys of all transfers, doubles included."""
        with psycopg.connect(self.server.url) as db:
            return [row[0] for row in db.execute("SELECT key FROM transfer")]

    def total(self) -> int:
        with psycopg.connect(self.server.url) as db:
            row = db.execute("SELECT sum(balance) FROM account").fetchone()
            assert row is not None
            return int(row[0])

    def prepared(self) -> int:
        with psycopg.connect(self.server.url) as db:
            row = db.execute("SELECT count(*) FROM pg_prepared_xacts").fetchone()
            assert row is not None
            return int(row[0])


def _through(url: str, proxy: Proxy) -> str:
    address = urlsplit(url)
    user = f"{address.username}@" if address.username else ""
    return address._replace(netloc=f"{user}127.0.0.1:{proxy.port}").geturl()
