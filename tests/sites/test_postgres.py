"""Members and their databases on real buses: one outcome in all of them."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from tests.conftest import DEADLINE, eventually
from tests.sites.conftest import QUICK, Sites
from txlayer import AsyncSite, Site, TxId, named
from txlayer.errors import TransactionAborted, UsageError
from txlayer.messages import Terms
from txlayer.resources.memory import MemoryResource
from txlayer.resources.postgres import PostgresResource
from txlayer.retry import retrying
from txlayer.testing.server import Server


class Bank:
    """A member with accounts in a database of its own."""

    def __init__(self, url: str, **options: Any) -> None:
        self.table = f"account_{uuid4().hex[:8]}"
        self.db = psycopg.connect(url, autocommit=True)
        self.db.execute(f"CREATE TABLE {self.table} (id int PRIMARY KEY, balance int CHECK (balance >= 0))")
        self.db.execute(f"INSERT INTO {self.table} VALUES (1, 100), (2, 100)")
        self.ledger = PostgresResource(url, name=self.table, **options)
        self.add = f"UPDATE {self.table} SET balance = balance + %s WHERE id = %s"

    def on_transfer(self, tx: Any, event: Any) -> None:
        tx[self.ledger].execute(self.add, (event.data["amount"], event.data.get("account", 1)))

    def on_transfer_at_once(self, tx: Any, event: Any) -> Any:
        return self.ledger.batch(self.add, (event.data["amount"], event.data.get("account", 1)))

    def balance(self, account: int = 1) -> int:
        row = self.db.execute(f"SELECT balance FROM {self.table} WHERE id = %s", (account,)).fetchone()
        assert row is not None
        return int(row[0])

    def prepared(self) -> int:
        row = self.db.execute("SELECT count(*) FROM pg_prepared_xacts WHERE gid LIKE %s", (f"%{self.table}%",))
        return int(row.fetchone()[0])  # type: ignore[index]


@pytest.fixture
def banks(postgres_server: Server) -> Any:
    made = [Bank(postgres_server.url) for _ in range(3)]
    yield made
    for bank in made:
        bank.db.close()


def opened(sites: Sites, banks: list[Bank], handler: str = "on_transfer", **options: Any) -> tuple[Site, str]:
    type = sites.name("transfers")
    members = [
        sites.member(f"m{n}", type, getattr(bank, handler), resources=[bank.ledger], **options)
        for n, bank in enumerate(banks)
    ]
    publisher = sites.start("p")
    sites.know(publisher, type, *members)
    return publisher, type


@pytest.mark.parametrize("handler", ["on_transfer", "on_transfer_at_once"])
def test_databases_commit_together(sites: Sites, banks: list[Bank], handler: str) -> None:
    publisher, type = opened(sites, banks, handler)
    outcome = publisher.send(type, [{"amount": 5}])
    assert outcome.members == 3
    for bank in banks:
        eventually(lambda bank=bank: bank.balance() == 105)
        eventually(lambda bank=bank: bank.prepared() == 0)


@pytest.mark.parametrize("handler", ["on_transfer", "on_transfer_at_once"])
def test_one_database_that_refuses_rolls_all_back(sites: Sites, banks: list[Bank], handler: str) -> None:
    publisher, type = opened(sites, banks, handler)
    banks[1].db.execute(f"UPDATE {banks[1].table} SET balance = 3")
    with pytest.raises(TransactionAborted, match="balance_check"), publisher.transaction(type) as tx:
        tx.publish({"amount": -5})
    for bank in banks:
        eventually(lambda bank=bank: bank.prepared() == 0)
    assert [bank.balance() for bank in banks] == [100, 3, 100]


def test_one_member_with_one_resource_skips_the_prepare_visibly(memory_sites: Sites, banks: list[Bank]) -> None:
    trace: list[str] = []
    bank, sites = banks[0], memory_sites
    type = sites.name("transfers")
    member = sites.member(
        "m", type, bank.on_transfer, resources=[bank.ledger],
        probe=lambda kind, what: trace.append(type_name(what)) if kind == "work" else None,
    )  # fmt: skip
    publisher = sites.start("p")
    sites.know(publisher, type, member)
    with publisher.transaction(type) as tx:
        tx.publish({"amount": 5})
    assert bank.balance() == 105
    assert "CommitUnit" in trace
    assert "PrepareUnit" not in trace


def type_name(what: object) -> str:
    return type(what).__name__


def test_a_batch_is_one_message_to_the_server_from_begin_to_prepare(
    memory_sites: Sites, banks: list[Bank], postgres_server: Server, tmp_path: Path
) -> None:
    bank, sites = banks[0], memory_sites
    type = sites.name("transfers")
    with (tmp_path / "trace").open("w") as trace, ConnectionPool(
        postgres_server.url, min_size=1, max_size=1, configure=lambda conn: conn.pgconn.trace(trace.fileno())
    ) as pool:  # fmt: skip
        bank.ledger = PostgresResource(pool, name=bank.table)
        member = sites.member("m", type, bank.on_transfer_at_once, resources=[bank.ledger])
        publisher = sites.start("p")
        sites.know(publisher, type, member)
        assert publisher.send(type, [{"amount": 5}, {"amount": 6}]).members == 1
        eventually(lambda: bank.balance() == 111)
        member.close()
    lines = [line.split("\t") for line in (tmp_path / "trace").read_text().splitlines()]
    (sent,) = [said[-1] for _, side, *said in lines if side == "F" and said[-1] != "Terminate"]
    assert [word in sent for word in ("BEGIN", "+ 5", "+ 6", "txlayer.marker", "PREPARE TRANSACTION")] == [True] * 5


def test_one_member_with_several_resources(memory_sites: Sites, banks: list[Bank]) -> None:
    """Only those that were touched take part; the site answers once for all of them."""
    first, second, third = banks
    sites = memory_sites
    type = sites.name("transfers")

    def handle(tx: Any, event: Any) -> None:
        first.on_transfer(tx, event)
        if event.data["both"]:
            tx[second.ledger].execute(second.add, (-event.data["amount"], 1))

    member = sites.member("m", type, handle, resources=[first.ledger, second.ledger, third.ledger])
    other = sites.member("n", type, lambda tx, event: tx[memory].put("x", 1), resources=[memory := MemoryResource()])
    publisher = sites.start("p")
    sites.know(publisher, type, member, other)
    publisher.send(type, [{"amount": 7, "both": True}])
    publisher.send(type, [{"amount": 1, "both": False}])
    eventually(lambda: [bank.balance() for bank in banks] == [108, 93, 100])
    with pytest.raises(TransactionAborted, match="balance_check"):
        publisher.send(type, [{"amount": 1000, "both": True}])
    assert [bank.balance() for bank in banks] == [108, 93, 100]
    eventually(lambda: sum(bank.prepared() for bank in banks) == 0)


def test_redelivered_transactions_and_restarts_change_nothing_twice(memory_sites: Sites, banks: list[Bank]) -> None:
    sites, bank = memory_sites, banks[0]
    type = sites.name("transfers")
    publisher = sites.start("p", log=sites.file("p"))
    for expected in (101, 102, 103):
        member = sites.member("m", type, bank.on_transfer, resources=[bank.ledger], log=sites.file("m"))
        sites.know(publisher, type, member)
        publisher.send(type, [{"amount": 1}])
        eventually(lambda expected=expected: bank.balance() == expected)
        member.close()
    assert bank.balance() == 103


def test_markers_do_not_pile_up(memory_sites: Sites, banks: list[Bank]) -> None:
    sites, bank = memory_sites, banks[0]
    type = sites.name("transfers")
    member = sites.member("m", type, bank.on_transfer_at_once, resources=[bank.ledger])
    publisher = sites.start("p")
    sites.know(publisher, type, member)
    for _ in range(200):
        publisher.send(type, [{"amount": 1}])
    count = f"SELECT count(*) FROM txlayer.marker WHERE key LIKE '%{bank.table}%'"
    eventually(lambda: bank.db.execute(count).fetchone()[0] < 150)  # type: ignore[index]
    member.close()
    eventually(lambda: bank.balance() == 300)


def test_branch_that_no_log_knows_is_found_and_rolled_back(memory_sites: Sites, banks: list[Bank]) -> None:
    """What a connection of a dead process prepared after its site had said no."""
    sites, bank = memory_sites, banks[0]
    type = sites.name("transfers")
    log = sites.file("m")
    sites.member("m", type, bank.on_transfer, resources=[bank.ledger], log=log).close()
    late = PostgresResource(bank.ledger._source.conninfo, name=bank.table)
    late.open(sites.name("m"), incarnation(log))
    tx = TxId("nobody", "log", 1, "abcd")
    late.work(tx).execute(bank.add, (5, 1))
    late.prepare(tx)
    foreign = f"someone else {uuid4().hex}"
    bank.db.execute(f"BEGIN; SELECT 1; PREPARE TRANSACTION '{foreign}'")
    sites.member("m", type, bank.on_transfer, resources=[bank.ledger], log=log)
    eventually(lambda: bank.prepared() == 0)
    assert bank.balance() == 100
    bank.db.execute(f"ROLLBACK PREPARED '{foreign}'")
    late.close()


def incarnation(log: str) -> str:
    from txlayer.logs.record_log import _unseal_header
    from txlayer.runtime.log_url import open_disk

    disk = open_disk(log, "")
    try:
        header = disk.load().header
        assert header is not None
        return _unseal_header(header).incarnation
    finally:
        disk.close()


def test_deadlock_across_databases_ends_in_an_abort_with_the_reason_and_a_retry_works(
    memory_sites: Sites, postgres_servers: Callable[[int], list[Server]]
) -> None:
    """Two transactions lock the same rows of two databases in opposite order."""
    sites = memory_sites
    banks = [Bank(server.url, lock_timeout=0.3) for server in postgres_servers(2)]
    types = [sites.name("to"), sites.name("fro")]
    members = []
    for n, bank in enumerate(banks):
        site = sites.make(f"m{n}")
        for type in types:
            site.subscribe(type, bank.on_transfer, resources=[bank.ledger])
        members.append(site.start())
    publishers = [sites.start("p"), sites.start("q")]
    for publisher in publishers:
        for type in types:
            sites.know(publisher, type, *members)
    reasons: list[str] = []
    together = threading.Barrier(2, timeout=DEADLINE)
    first = [True, True]

    def transfer(n: int) -> None:
        here, there = (1, 2) if n == 0 else (2, 1)
        with publishers[n].transaction(types[n]) as tx:
            tx.publish({"amount": 1, "account": here})
            eventually(lambda: held(banks, here))
            if first[n]:
                first[n] = False
                together.wait()
            tx.publish({"amount": 1, "account": there})

    def attempt(n: int) -> None:
        for trial in retrying(attempts=20):
            with trial:
                try:
                    transfer(n)
                except TransactionAborted as exc:
                    reasons.append(str(exc))
                    raise

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(attempt, n) for n in range(2)]:
            done.result(DEADLINE)
    assert any("lock timeout" in reason for reason in reasons), reasons
    for bank in banks:
        eventually(lambda bank=bank: (bank.balance(1), bank.balance(2)) == (102, 102))
        bank.db.close()


def test_one_shot_transactions_that_deadlock_abort_with_the_reason_and_a_retry_brings_both_through(
    memory_sites: Sites, postgres_servers: Callable[[int], list[Server]]
) -> None:
    """Each is prepared in one database and waits in the other for the row that the other one holds there."""
    sites = memory_sites
    banks = [Bank(server.url, lock_timeout=0.3) for server in postgres_servers(2)]
    types = [sites.name("to"), sites.name("fro")]
    late = [True, True]
    members = []

    def handler(bank: Bank, waits: int | None) -> Any:
        def handle(tx: Any, event: Any) -> Any:
            if waits is not None and late[waits]:
                late[waits] = False
                eventually(lambda: bank.prepared() == 1, "the other one is prepared here")
            return bank.on_transfer_at_once(tx, event)

        return handle

    for n, bank in enumerate(banks):
        site = sites.make(f"m{n}")
        for other, type in enumerate(types):
            site.subscribe(type, handler(bank, n if other != n else None), resources=[bank.ledger])
        members.append(site.start())
    publishers = [sites.start("p"), sites.start("q")]
    for publisher in publishers:
        for type in types:
            sites.know(publisher, type, *members)
    reasons: list[str] = []

    def attempt(n: int) -> None:
        for trial in retrying(attempts=20):
            with trial:
                try:
                    publishers[n].send(types[n], [{"amount": 1}], require=named(*(site.name for site in members)))
                except TransactionAborted as exc:
                    reasons.append(str(exc))
                    raise

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(attempt, n) for n in range(2)]:
            done.result(2 * DEADLINE)
    assert any("lock timeout" in reason for reason in reasons), reasons
    for bank in banks:
        eventually(lambda bank=bank: bank.balance() == 102)
        bank.db.close()


def test_a_lock_is_given_up_in_time_for_the_vote() -> None:
    default = inspect.signature(PostgresResource).parameters["lock_timeout"].default
    terms = Terms("any")
    assert default <= min(terms.census_within, terms.vote_within) / 2


def held(banks: list[Bank], account: int) -> bool:
    """Whether somebody holds the row in both databases."""
    for bank in banks:
        free = bank.db.execute(
            f"SELECT 1 FROM {bank.table} WHERE id = %s FOR UPDATE SKIP LOCKED", (account,)
        ).fetchone()
        if free:
            return False
    return True


def test_publisher_works_on_its_own_database_in_the_same_transaction(sites: Sites, banks: list[Bank]) -> None:
    own, other, _ = banks
    type = sites.name("transfers")
    member = sites.member("m", type, other.on_transfer, resources=[other.ledger])
    publisher = sites.make("p")
    publisher.enlist(type, [own.ledger])
    publisher.start()
    sites.know(publisher, type, member, publisher)
    with publisher.transaction(type) as tx:
        assert tx.members == 2
        tx[own.ledger].execute(own.add, (-5, 1))
        tx.publish({"amount": 5})
    eventually(lambda: (own.balance(), other.balance()) == (95, 105))

    def give(amount: int, then: Callable[[], None] = lambda: None) -> None:
        with publisher.transaction(type) as tx:
            tx[own.ledger].execute(own.add, (-amount, 1))
            tx.publish({"amount": amount})
            then()

    with pytest.raises(TransactionAborted, match="balance_check"):
        give(-500)
    with pytest.raises(ZeroDivisionError):
        give(5, lambda: [].append(1 / 0))
    with publisher.transaction(type) as tx:
        with pytest.raises(UsageError, match=r"site\.enlist"):
            tx[other.ledger]
        tx.publish({"amount": 1})
    eventually(lambda: (own.balance(), other.balance()) == (95, 106))
    eventually(lambda: own.prepared() + other.prepared() == 0)
    eventually(lambda: own.ledger._units == {})


def test_coroutine_handlers_await_on_async_connections(
    memory_sites: Sites, banks: list[Bank], postgres_server: Server
) -> None:
    sites, bank = memory_sites, banks[0]
    type = sites.name("transfers")

    async def run() -> None:
        async with AsyncConnectionPool(postgres_server.url, min_size=1, max_size=2, open=False) as pool:
            ledger = PostgresResource(pool, name="async")
            member = AsyncSite(sites.name("m"), bus=sites.world.url, log="memory://", patience=QUICK)

            @member.subscriber(type, resources=[ledger])
            async def on_transfer(tx: Any, event: Any) -> None:
                await tx[ledger].execute(bank.add, (event.data["amount"], 1))

            async with member, AsyncSite(sites.name("p"), bus=sites.world.url, log="memory://") as publisher:
                while publisher.subscribed(type) != [member.name]:
                    await asyncio.sleep(0.01)
                await publisher.send(type, [{"amount": 5}])
                with pytest.raises(TransactionAborted, match="balance_check"):
                    await publisher.send(type, [{"amount": -500}])
                while bank.balance() != 105:
                    await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), DEADLINE))


def test_publisher_awaits_on_an_async_connection_of_its_own(
    memory_sites: Sites, banks: list[Bank], postgres_server: Server
) -> None:
    sites, own, other = memory_sites, banks[0], banks[1]
    type = sites.name("transfers")
    member = sites.member("m", type, other.on_transfer, resources=[other.ledger])

    async def run() -> None:
        async with AsyncConnectionPool(postgres_server.url, min_size=1, max_size=2, open=False) as pool:
            ledger = PostgresResource(pool, name=own.table)
            publisher = AsyncSite(sites.name("p"), bus=sites.url, log="memory://", patience=QUICK)
            publisher.enlist(type, [ledger])

            async def give(amount: int) -> None:
                async with publisher.transaction(type, census_within=DEADLINE, vote_within=DEADLINE) as tx:
                    conn = await tx.work(ledger)
                    await conn.execute(own.add, (-amount, 1))
                    await tx.publish({"amount": amount})  # last: the other may refuse it at once

            async with publisher:
                while publisher.subscribed(type) != sorted([member.name, publisher.name]):
                    await asyncio.sleep(0.01)
                await give(5)
                with pytest.raises(TransactionAborted, match="balance_check"):
                    await give(-500)
                while (own.balance(), other.balance()) != (95, 105) or own.prepared() + other.prepared():
                    await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 2 * DEADLINE))
