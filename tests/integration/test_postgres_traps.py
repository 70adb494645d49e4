"""What PostgreSQL does to whoever trusts its two-phase commit: each trap, on a real server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import psycopg_pool.base
import pytest

from tests.conftest import DEADLINE, eventually
from tests.integration.postgres_rig import Bench, bench, new_tx
from tests.proxy import Proxy
from txlayer.errors import ResourceError, ResourceUnavailable, UsageError
from txlayer.messages import TxId
from txlayer.resources.postgres import PostgresResource
from txlayer.resources.postgres_prepared import PreparedBranches
from txlayer.testing.postgres import Postgres
from txlayer.testing.server import Server

NEVER = 1 << 40


@pytest.fixture
def rig(postgres_server: Server) -> Iterator[Bench]:
    with bench(postgres_server.url, connections=1) as made:
        yield made


def backend(rig: Bench, tx: TxId) -> int:
    return int(rig.resource.work(tx).info.backend_pid)


# The transaction and its connection


def test_connection_is_back_in_its_pool_and_clean_right_after_prepare(rig: Bench) -> None:
    first, second = new_tx(), new_tx()
    pid = backend(rig, first)
    rig.insert(first, 1)
    rig.resource.prepare(first)
    assert backend(rig, second) == pid, "the pool has one connection, and it is free"
    rig.insert(second, 2)
    rig.resource.commit(second)
    assert rig.rows() == [2]
    rig.resource.commit_prepared(first)
    assert rig.rows() == [1, 2]


def test_prepare_in_a_failed_transaction_is_a_no_although_the_server_answers_without_an_error(rig: Bench) -> None:
    tx, later = new_tx(), new_tx()
    pid = backend(rig, tx)
    with pytest.raises(psycopg.errors.UndefinedTable):
        rig.resource.work(tx).execute("INSERT INTO nowhere VALUES (1)")
    with pytest.raises(ResourceError, match="a statement failed"):
        rig.resource.prepare(tx)
    assert rig.prepared() == []
    assert backend(rig, later) == pid, "and the connection is not poisoned"


def test_batch_that_fails_is_a_no_with_the_servers_reason(rig: Bench) -> None:
    tx = new_tx()
    rig.resource.add(tx, rig.resource.batch(rig.sql, (1,)).then("SELECT 1 / 0"))
    with pytest.raises(ResourceError, match="division by zero"):
        rig.resource.prepare(tx)
    assert rig.prepared() == []
    assert rig.rows() == []


def test_batch_that_ends_the_transaction_is_noticed_by_its_tags(rig: Bench) -> None:
    tx = new_tx()
    rig.resource.add(tx, rig.resource.batch("ROLLBACK"))
    with pytest.raises(ResourceError, match="must not end"):
        rig.resource.prepare(tx)
    assert rig.prepared() == []


def test_batch_with_wrong_parameters_is_a_no(rig: Bench) -> None:
    tx = new_tx()
    rig.resource.add(tx, rig.resource.batch(rig.sql, ()))
    with pytest.raises(ResourceError, match="placeholder"):
        rig.resource.prepare(tx)
    rig.insert(new_tx())


@pytest.mark.parametrize("ending", ["commit", "rollback", "close"])
def test_handler_cannot_end_the_transaction_or_the_connection(rig: Bench, ending: str) -> None:
    tx = new_tx()
    rig.insert(tx)
    with pytest.raises(UsageError):
        getattr(rig.resource.work(tx), ending)()
    rig.resource.prepare(tx)
    rig.resource.commit_prepared(tx)
    assert rig.rows() == [1]


def test_transaction_that_a_handler_ended_by_sql_is_a_no(rig: Bench) -> None:
    tx = new_tx()
    rig.resource.work(tx).execute("ROLLBACK")
    with pytest.raises(ResourceError, match="ended the transaction itself"):
        rig.resource.prepare(tx)


def test_savepoints_of_the_handler_work_inside_the_unit(rig: Bench) -> None:
    tx = new_tx()
    conn = rig.resource.work(tx)
    rig.insert(tx, 1)
    with pytest.raises(psycopg.errors.UniqueViolation), conn.transaction():
        rig.insert(tx, 1)
    rig.insert(tx, 2)
    rig.resource.prepare(tx)
    rig.resource.commit_prepared(tx)
    assert rig.rows() == [1, 2]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [("CREATE TEMP TABLE t (a int)", "temporary objects"), ("NOTIFY news", "LISTEN, UNLISTEN, or NOTIFY")],
)
def test_what_cannot_be_prepared_is_a_no_with_the_reason(rig: Bench, statement: str, reason: str) -> None:
    tx, later = new_tx(), new_tx()
    rig.resource.work(tx).execute(statement)
    with pytest.raises(ResourceError, match=reason):
        rig.resource.prepare(tx)
    rig.insert(later)
    rig.resource.prepare(later)


def test_handler_past_its_deadline_loses_its_connection_and_its_vote(rig: Bench) -> None:
    tx = new_tx()
    conn = rig.resource.work(tx)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(conn.execute, "SELECT pg_sleep(60)")
        sleeping = "SELECT 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND state = 'active'"
        eventually(lambda: rig.db.execute(sleeping).fetchone())
        rig.resource.abandon(tx)
        with pytest.raises(psycopg.OperationalError):
            slow.result(DEADLINE)
    with pytest.raises(ResourceError, match="took too long"):
        rig.resource.prepare(tx)
    rig.insert(new_tx())


def test_name_that_is_too_long_is_refused_with_the_limit(rig: Bench) -> None:
    tx = TxId("c" * 150, "log", 1, "abcd")
    rig.insert(tx)
    with pytest.raises(ResourceError, match="PostgreSQL takes 199"):
        rig.resource.prepare(tx)


# Settings of the server


def test_server_without_prepared_transactions_is_refused_at_start_with_the_setting(
    private_postgres_server: Callable[..., Postgres],
) -> None:
    server = private_postgres_server(max_prepared_transactions=0)
    resource = PostgresResource(server.url)
    with pytest.raises(ResourceError, match="max_prepared_transactions = 100"):
        resource.open("here", "log")
    assert resource._lane._pool.closed
    resource.close()


def test_used_up_slots_are_a_no_with_that_reason(private_postgres_server: Callable[..., Postgres]) -> None:
    with bench(private_postgres_server(max_prepared_transactions=1).url) as rig:
        first, second = new_tx(), new_tx()
        rig.insert(first, 1)
        rig.resource.prepare(first)
        rig.insert(second, 2)
        with pytest.raises(ResourceError, match="raise max_prepared_transactions"):
            rig.resource.prepare(second)
        rig.resource.commit_prepared(first)
        assert rig.rows() == [1]


# Other people's branches


def test_branches_of_others_are_neither_listed_nor_touched(postgres_server: Server) -> None:
    name = f"app_{uuid4().hex[:8]}"
    with bench(postgres_server.url) as rig:
        rig.db.execute(f"CREATE ROLE {name} LOGIN")
        rig.db.execute(f"CREATE DATABASE {name}")
        rig.db.execute(f"GRANT ALL ON SCHEMA txlayer TO {name}")
        rig.db.execute(f"GRANT ALL ON txlayer.marker TO {name}")
        tx, mine = new_tx(), new_tx()
        foreign = f"another application {name}"
        rig.db.execute(f"BEGIN; SELECT 1; PREPARE TRANSACTION '{foreign}'")
        rig.resource.prepare(tx)
        address = urlsplit(postgres_server.url)
        elsewhere = psycopg.connect(address._replace(path=f"/{name}").geturl(), autocommit=True)
        elsewhere.execute(f"BEGIN; SELECT 1; PREPARE TRANSACTION '{rig.prepared()[0]}:other'")
        theirs = rig.open(address._replace(netloc=f"{name}@{address.netloc.partition('@')[2]}").geturl(),
                          name=rig.resource.name)  # fmt: skip
        theirs.prepare(mine)
        try:
            assert {branch.tx for branch in theirs.branches()} == {mine}, "not those of another user"
            assert {branch.tx for branch in rig.resource.branches()} == {tx, mine}, "a superuser finishes everyone's"
        finally:
            elsewhere.execute(f"ROLLBACK PREPARED '{rig.prepared()[0]}:other'")
            elsewhere.close()
            theirs.roll_back(mine)
            theirs.close()
            rig.db.execute(f"ROLLBACK PREPARED '{foreign}'")
            rig.db.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_branches_that_another_role_prepared_are_not_listed_for_its_members_who_could_not_finish_them(
    postgres_server: Server,
) -> None:
    owner, member = f"owner_{uuid4().hex[:8]}", f"member_{uuid4().hex[:8]}"
    address = urlsplit(postgres_server.url)

    def url(role: str) -> str:
        return address._replace(netloc=f"{role}@{address.netloc.partition('@')[2]}").geturl()

    with bench(postgres_server.url) as rig:
        for role, groups in ((owner, ""), (member, f" IN ROLE {owner}")):
            rig.db.execute(f"CREATE ROLE {role} LOGIN{groups}")
            rig.db.execute(f"GRANT ALL ON SCHEMA txlayer TO {role}")
            rig.db.execute(f"GRANT ALL ON txlayer.marker TO {role}")
        theirs, others = rig.open(url(owner), name="x"), rig.open(url(member), name="x")
        tx = new_tx()
        theirs.prepare(tx)
        assert [branch.tx for branch in theirs.branches()] == [tx]
        assert others.branches() == ()
        for dsn, found in ((url(owner), 1), (url(member), 0), (postgres_server.url, 1)):
            database = PreparedBranches(dsn)
            assert len(database.find(rig.site)) == found
            database.close()
        theirs.roll_back(tx)
        theirs.close()
        others.close()


def test_two_sites_and_two_resources_in_one_database_do_not_see_each_other(postgres_server: Server) -> None:
    with bench(postgres_server.url, name="a") as one, bench(postgres_server.url, name="a") as two:
        tx = new_tx()
        other = one.open(postgres_server.url, name="b")
        one.resource.prepare(tx)
        assert two.resource.state(tx) == other.state(tx) == "none"
        assert two.resource.branches() == other.branches() == ()
        other.close()


def test_branch_says_under_which_log_it_was_prepared(rig: Bench) -> None:
    tx = new_tx()
    rig.resource.prepare(tx, of=3)
    new = rig.open(rig.url, incarnation="log-2")
    (branch,) = new.branches()
    assert (branch.tx, branch.incarnation, branch.of) == (tx, "log-1", 3)
    assert branch.age >= 0
    new.close()


# What nobody answered


def test_commit_of_an_unknown_branch_says_so_and_a_repeated_one_is_recognised(rig: Bench) -> None:
    tx = new_tx()
    with pytest.raises(ResourceError, match="neither prepared nor committed"):
        rig.resource.commit_prepared(tx)
    rig.insert(tx)
    rig.resource.prepare(tx)
    rig.resource.commit_prepared(tx)
    rig.resource.commit_prepared(tx)


@pytest.mark.parametrize(
    ("ending", "found"),
    [("PREPARE TRANSACTION '{gid}'", "prepared"), ("COMMIT", "committed"), ("ROLLBACK", "none")],
)
def test_recovery_waits_for_a_former_backend_that_still_finishes(rig: Bench, ending: str, found: str) -> None:
    tx = new_tx()
    marker, gid = rig.resource._names.marker(tx), rig.resource._names.gid(tx, 1)
    with psycopg.connect(rig.url, autocommit=True) as old, ThreadPoolExecutor(1) as pool:
        old.execute(f"BEGIN; INSERT INTO txlayer.marker VALUES ('{marker}', true)")
        assert rig.resource.state(tx) == "none", "an absent marker, and no branch: this proves nothing"
        settled = pool.submit(rig.resource.settle, tx)
        eventually(lambda: rig.db.execute(
            "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s", (f"%{marker}%",)
        ).fetchone())  # fmt: skip
        old.execute(ending.format(gid=gid))
        assert settled.result(DEADLINE) == found


def test_former_backend_that_comes_too_late_fails(rig: Bench) -> None:
    tx = new_tx()
    rig.insert(tx)
    new = rig.open(rig.url)
    assert new.settle(tx) == "none"
    with pytest.raises(ResourceError, match="given up before"):
        rig.resource.prepare(tx)
    assert rig.rows() == []
    new.close()


def test_server_restarts_between_prepare_and_commit(private_postgres_server: Callable[..., Postgres]) -> None:
    server = private_postgres_server()
    with bench(server.url) as rig:
        tx, other = new_tx(), new_tx()
        rig.insert(tx)
        rig.resource.prepare(tx)
        rig.insert(other, 2)
        server.stop("immediate")
        with pytest.raises(ResourceError):
            rig.resource.prepare(other)
        with pytest.raises(ResourceUnavailable):
            rig.resource.commit_prepared(tx)
        server.start()
        eventually(lambda: finished(rig.resource, tx))
        rig.db.close()
        rig.db = psycopg.connect(server.url, autocommit=True)
        assert rig.rows() == [1]
        rig.insert(new_tx(), 3)


def finished(resource: PostgresResource, tx: TxId) -> bool:
    try:
        resource.commit_prepared(tx)
    except ResourceUnavailable:
        return False
    return True


def through(proxy: Proxy, url: str) -> str:
    address = urlsplit(url)
    return address._replace(netloc=f"{address.username}@127.0.0.1:{proxy.port}").geturl()


@pytest.fixture
def eager_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools that met a dead connection try the next one at once; they would pause for a second, at every cut."""
    pauses = getattr(psycopg_pool.base, "AttemptWithBackoff", None)  # older ones do not pause here
    if pauses is not None:
        monkeypatch.setattr(pauses, "INITIAL_DELAY", 0.01)


@contextmanager
def cuttable(url: str, **options: Any) -> Iterator[tuple[Proxy, Bench]]:
    with Proxy(urlsplit(url).port or 0) as proxy, bench(url, through(proxy, url), **options) as rig:
        yield proxy, rig


@pytest.mark.usefixtures("eager_pools")
@pytest.mark.parametrize("batched", [False, True])
def test_connection_lost_anywhere_during_prepare(postgres_server: Server, batched: bool) -> None:
    """The vote is what the server holds, wherever the line was cut."""
    votes = set()
    with cuttable(postgres_server.url) as (proxy, rig):
        for cut in range(1, 460, 23):
            tx = new_tx()
            if batched:
                rig.resource.add(tx, rig.resource.batch(rig.sql, (cut,)))
            else:
                rig.insert(tx, cut)
            proxy.cut_after(cut)
            try:
                rig.resource.prepare(tx)
                votes.add("yes")
                assert rig.resource.state(tx) == "prepared"
            except ResourceError:
                votes.add("no")
                assert rig.resource.settle(tx) == "none"
            proxy.cut_after(NEVER)
            rig.resource.roll_back(tx)
            assert rig.prepared() == []
    assert votes == {"yes", "no"}


@pytest.mark.usefixtures("eager_pools")
def test_connection_lost_anywhere_during_commit_of_a_branch(postgres_server: Server) -> None:
    with cuttable(postgres_server.url) as (proxy, rig):
        for cut in range(1, 200, 17):
            tx = new_tx()
            rig.insert(tx, cut)
            rig.resource.prepare(tx)
            proxy.cut_after(cut)
            rig.resource.commit_prepared(tx)
            proxy.cut_after(NEVER)
            assert rig.rows()[-1] == cut


@pytest.mark.usefixtures("eager_pools")
def test_connection_lost_anywhere_during_commit_in_one_phase(postgres_server: Server) -> None:
    found = set()
    with cuttable(postgres_server.url) as (proxy, rig):
        for cut in range(1, 300, 23):
            tx = new_tx()
            rig.insert(tx, cut)
            proxy.cut_after(cut)
            try:
                rig.resource.commit(tx)
                state = "committed"
            except ResourceUnavailable:
                state = rig.resource.settle(tx)
            proxy.cut_after(NEVER)
            found.add(state)
            assert (cut in rig.rows()) == (state == "committed")
    assert found == {"none", "committed"}


def test_connection_that_the_server_ends_leaves_a_commit_unknown_until_it_is_settled(rig: Bench) -> None:
    tx = new_tx()
    rig.insert(tx)
    rig.db.execute("SELECT pg_terminate_backend(%s, 10000)", (backend(rig, tx),))
    with pytest.raises(ResourceUnavailable):
        rig.resource.commit(tx)
    assert rig.resource.settle(tx) == "none"
    assert rig.rows() == []


def test_stuck_connection_is_closed_and_the_vote_is_no(postgres_server: Server) -> None:
    with cuttable(postgres_server.url, patience=1.0, lock_timeout=0.5) as (proxy, rig):
        tx = new_tx()
        rig.insert(tx)
        proxy.freeze()
        with pytest.raises(ResourceError):
            rig.resource.prepare(tx)
        proxy.thaw()
        eventually(lambda: settled(rig.resource, tx))
        rig.resource.roll_back(tx)
        assert rig.prepared() == []
        later = new_tx()
        rig.insert(later, 2)
        rig.resource.prepare(later)
        rig.resource.commit_prepared(later)
        assert rig.rows() == [2]


def settled(resource: PostgresResource, tx: TxId) -> bool:
    try:
        resource.settle(tx)
    except ResourceUnavailable:
        return False
    return True


# Locks


def test_branch_can_be_finished_while_all_connections_wait_for_its_locks(postgres_server: Server) -> None:
    with bench(postgres_server.url, connections=2, lock_timeout=DEADLINE) as rig:
        rig.db.execute(rig.sql, (1,))
        holder, waiting = new_tx(), [new_tx(), new_tx()]
        update = f"UPDATE {rig.table} SET value = value || 'y' WHERE id = 1"
        rig.resource.work(holder).execute(update)
        rig.resource.prepare(holder)
        with ThreadPoolExecutor(2) as pool:
            started = threading.Barrier(3)

            def wait(tx: TxId) -> None:
                conn = rig.resource.work(tx)
                started.wait(DEADLINE)
                conn.execute(update)
                rig.resource.commit(tx)

            running = [pool.submit(wait, tx) for tx in waiting]
            started.wait(DEADLINE)
            rig.resource.commit_prepared(holder)
            for each in running:
                each.result(DEADLINE)
        row = rig.db.execute(f"SELECT value FROM {rig.table}").fetchone()
        assert row == ("xyyy",)


def test_deadlock_across_databases_ends_by_the_lock_timeout(postgres_servers: Callable[[int], list[Server]]) -> None:
    """No server sees it: each of the two transactions waits at another one."""
    here, there = postgres_servers(2)
    with bench(here.url, lock_timeout=0.5) as a, bench(there.url, lock_timeout=0.5) as b:
        for rig in (a, b):
            rig.db.execute(rig.sql, (1,))
        one, two = new_tx(), new_tx()
        a.resource.work(one).execute(f"UPDATE {a.table} SET value = 'one'")
        b.resource.work(two).execute(f"UPDATE {b.table} SET value = 'two'")
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(lambda: b.resource.work(one).execute(f"UPDATE {b.table} SET value = 'one'"))
            second = pool.submit(lambda: a.resource.work(two).execute(f"UPDATE {a.table} SET value = 'two'"))
            failed = [isinstance(each.exception(DEADLINE), psycopg.errors.LockNotAvailable) for each in (first, second)]
        assert any(failed)
        for tx in (one, two):
            a.resource.roll_back(tx)
            b.resource.roll_back(tx)


# Markers


def test_table_of_markers_stays_small(rig: Bench) -> None:
    for number in range(200):
        tx = new_tx()
        rig.resource.add(tx, rig.resource.batch(rig.sql, (number,)))
        rig.resource.commit(tx)
        rig.resource.forget(tx)
        assert rig.markers() <= 64
    rig.resource.close()
    assert rig.markers() == 0
    rig.resource = rig.open(rig.url)
    assert rig.resource.markers() == ()
