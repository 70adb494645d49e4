"""A publisher holds what it works through while others may end its transaction: whatever it then tries is not done."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from psycopg.errors import CheckViolation
from psycopg.pq import TransactionStatus
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import create_engine, text

from tests.conftest import DEADLINE, eventually
from tests.sites.conftest import QUICK, Sites
from tests.sites.test_postgres import Bank
from txlayer import Access, AsyncSite, Site
from txlayer.errors import TransactionAborted
from txlayer.messages import Status
from txlayer.resources.postgres import PostgresResource
from txlayer.resources.postgres_exchange import exchange
from txlayer.resources.sqlite import SqliteResource
from txlayer.testing.server import Server

ON_ASYNC = {"census_within": DEADLINE, "vote_within": DEADLINE}


class Store:
    """A publisher's resource: what it is given of it, one statement on that, and what is applied in the end."""

    def __init__(self, resource: Any, add: Callable[[Any, int], Any], total: Callable[[], int]) -> None:
        self.resource = resource
        self.add = add
        self.total = total


@pytest.fixture
def bank(postgres_server: Server) -> Iterator[Bank]:
    made = Bank(postgres_server.url)
    yield made
    made.db.close()


def plain(bank: Bank, resource: Any) -> Store:
    return Store(resource, lambda conn, amount: conn.execute(bank.add, (amount, 1)), bank.balance)


@pytest.fixture(params=["url", "pool", "sqlalchemy", "sqlite"])
def store(request: pytest.FixtureRequest, bank: Bank, postgres_server: Server, tmp_path: Path) -> Iterator[Store]:
    match request.param:
        case "url":
            yield plain(bank, bank.ledger)
        case "pool":
            with ConnectionPool(postgres_server.url, min_size=1, max_size=1, open=True) as pool:
                yield plain(bank, PostgresResource(pool, name=bank.table))
        case "sqlalchemy":
            engine = create_engine(urlsplit(postgres_server.url)._replace(scheme="postgresql+psycopg").geturl())
            sql = text(f"UPDATE {bank.table} SET balance = balance + :amount WHERE id = 1")
            resource = PostgresResource(engine, name=bank.table)
            yield Store(resource, lambda conn, amount: conn.execute(sql, {"amount": amount}), bank.balance)
            engine.dispose()
        case _:
            yield in_a_file(tmp_path / "account.db")


def in_a_file(path: Path) -> Store:
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("CREATE TABLE account (balance INTEGER)")
    db.execute("INSERT INTO account VALUES (100)")
    return Store(
        SqliteResource(path),
        lambda unit, amount: unit.execute("UPDATE account SET balance = balance + ?", (amount,)),
        lambda: int(db.execute("SELECT balance FROM account").fetchone()[0]),
    )


def enlisted(sites: Sites, resource: Any, handler: Any, host: Site | None = None, **options: Any) -> tuple[Site, str]:
    """A publisher that works on a resource of its own, and a member that may refuse; whoever coordinates knows both."""
    type = sites.name("transfers")
    member = sites.member("m", type, handler)
    publisher = sites.make("p", **options)
    publisher.enlist(type, [resource])
    publisher.start()
    sites.know(host or publisher, type, member, publisher)
    return publisher, type


def refuse(tx: Any, event: Any) -> None:
    raise ValueError("not with me")


@asynccontextmanager
async def awaiting(sites: Sites, bank: Bank, server: Server) -> AsyncIterator[tuple[AsyncSite, str, PostgresResource]]:
    """A publisher that awaits on a connection of its own, and a member that refuses."""
    type = sites.name("transfers")
    member = sites.member("m", type, refuse)
    async with AsyncConnectionPool(server.url, min_size=1, max_size=1, open=False) as pool:
        ledger = PostgresResource(pool, name=bank.table)
        publisher = AsyncSite(sites.name("p"), bus=sites.url, log="memory://", patience=QUICK)
        publisher.enlist(type, [ledger])
        async with publisher:
            while publisher.subscribed(type) != sorted([member.name, publisher.name]):
                await asyncio.sleep(0.01)
            yield publisher, type, ledger


def given_back(resource: Any) -> Callable[[], bool]:
    """Whether the one connection that a PostgreSQL resource has out is back in its pool, or the unit of a file over."""
    if isinstance(resource, SqliteResource):
        return lambda: resource._open is None
    (unit,) = resource._units.values()
    driver = unit.lease.driver
    return lambda: not resource._units and driver.info.transaction_status != TransactionStatus.INTRANS


@pytest.mark.parametrize("where", ["self", "hosted"])
def test_what_a_publisher_holds_is_of_no_use_after_the_abort(memory_sites: Sites, store: Store, where: str) -> None:
    host = memory_sites.start("host", hosts=True) if where == "hosted" else None
    publisher, type = enlisted(memory_sites, store.resource, refuse, host)
    late: list[Exception] = []

    def give() -> None:
        with publisher.transaction(type, coordinator=where) as tx:
            unit = tx[store.resource]
            store.add(unit, 1)
            over = given_back(store.resource)
            tx.publish("anything")
            eventually(over, "the unit is rolled back")
            for _ in range(3):
                try:
                    store.add(unit, 7)
                except Exception as exc:
                    late.append(exc)
            raise late[0]

    with pytest.raises(TransactionAborted, match="not with me"):
        give()
    assert len(late) == 3
    assert store.total() == 100
    with publisher.transaction(type, coordinator=where) as tx:
        store.add(tx[store.resource], 1)
    eventually(lambda: store.total() == 101, "the next one works")


def test_what_a_publisher_awaits_on_is_of_no_use_after_the_abort(
    memory_sites: Sites, bank: Bank, postgres_server: Server
) -> None:
    async def run() -> None:
        async with awaiting(memory_sites, bank, postgres_server) as (publisher, type, ledger):

            async def give() -> None:
                async with publisher.transaction(type, **ON_ASYNC) as tx:
                    conn = await tx.work(ledger)
                    await conn.execute(bank.add, (1, 1))
                    over = given_back(ledger)
                    await tx.publish("anything")
                    while not over():
                        await asyncio.sleep(0.01)
                    await conn.execute(bank.add, (7, 1))

            with pytest.raises(TransactionAborted, match="not with me"):
                await give()
            assert bank.balance() == 100
            async with publisher.transaction(type, **ON_ASYNC) as tx:
                await (await tx.work(ledger)).execute(bank.add, (1, 1))
            while bank.balance() != 101:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 2 * DEADLINE))


def test_a_statement_that_runs_when_the_abort_comes_fails(memory_sites: Sites, bank: Bank) -> None:
    publisher, type = enlisted(memory_sites, bank.ledger, refuse)

    def give() -> None:
        with publisher.transaction(type) as tx:
            conn = tx[bank.ledger]
            tx.publish("anything")
            conn.execute("SELECT pg_sleep(%s)", (2 * DEADLINE,))

    with pytest.raises(TransactionAborted, match="not with me"):
        give()


def test_a_statement_that_is_awaited_when_the_abort_comes_fails(
    memory_sites: Sites, bank: Bank, postgres_server: Server
) -> None:
    async def run() -> None:
        async with awaiting(memory_sites, bank, postgres_server) as (publisher, type, ledger):

            async def give() -> None:
                async with publisher.transaction(type, **ON_ASYNC) as tx:
                    conn = await tx.work(ledger)
                    await tx.publish("anything")
                    await conn.execute("SELECT pg_sleep(%s)", (2 * DEADLINE,))

            with pytest.raises(TransactionAborted, match="not with me"):
                await give()

    asyncio.run(asyncio.wait_for(run(), 2 * DEADLINE))


def test_a_statement_that_is_awaited_while_the_unit_is_rolled_back_does_not_hang(
    memory_sites: Sites, bank: Bank, postgres_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who finds the connection idle must not roll back on it after its publisher has begun a statement."""
    begun = threading.Event()

    def late(pgconn: Any, message: bytes, within: float) -> Any:
        if message == b"ROLLBACK":
            begun.set()
            eventually(lambda: pgconn.transaction_status == TransactionStatus.ACTIVE)
        return exchange(pgconn, message, within)

    monkeypatch.setattr("txlayer.resources.postgres.exchange", late)

    async def run() -> None:
        async with awaiting(memory_sites, bank, postgres_server) as (publisher, type, ledger):

            async def give() -> None:
                async with publisher.transaction(type, **ON_ASYNC) as tx:
                    conn = await tx.work(ledger)
                    await tx.publish("anything")
                    while not begun.is_set() and not conn.closed:
                        await asyncio.sleep(0.01)
                    await conn.execute("SELECT pg_sleep(1)")

            with pytest.raises(TransactionAborted, match="not with me"):
                await give()

    asyncio.run(asyncio.wait_for(run(), 2 * DEADLINE))


def test_what_a_publisher_does_after_another_one_has_committed_is_not_done(memory_sites: Sites, store: Store) -> None:
    sites = memory_sites
    host = sites.start("host", hosts=True)
    publisher, type = enlisted(sites, store.resource, lambda tx, event: None, host)
    other = sites.start("q")
    terms = {"access": Access.MULTI, "coordinator": host.name, "committers": [other.name]}
    tx = publisher.transaction(type, **terms).start()
    unit = tx[store.resource]
    store.add(unit, 1)
    assert other.join_transaction(type).start().commit().status is Status.COMMITTED
    eventually(lambda: store.total() == 101, "what it had done is committed")
    with pytest.raises(Exception, match=r"closed|ended|lost|terminated"):
        store.add(unit, 7)
    assert tx.commit().status is Status.COMMITTED
    assert store.total() == 101


def test_a_publisher_that_has_put_its_connection_down_leaves_it_alive(
    memory_sites: Sites, bank: Bank, postgres_server: Server
) -> None:
    used: set[int] = set()
    with ConnectionPool(postgres_server.url, min_size=1, max_size=1, open=True) as pool:
        ledger = PostgresResource(pool, name=bank.table)
        publisher, type = enlisted(memory_sites, ledger, lambda tx, event: None)

        def give(amount: int) -> None:
            with publisher.transaction(type) as tx:
                conn = tx[ledger]
                used.add(conn.info.backend_pid)
                conn.execute(bank.add, (amount, 1))

        give(1)
        with pytest.raises(CheckViolation):
            give(-500)
        give(1)
        eventually(lambda: bank.balance() == 102)
        publisher.close()
    assert len(used) == 1
