"""Whatever connections an application has, its handlers write through them: pools, async connections, SQLAlchemy."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import pytest
from psycopg import Error
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from tests.integration.postgres_rig import bench, new_tx
from txlayer.errors import ResourceError, UsageError
from txlayer.resources.postgres import PostgresResource
from txlayer.testing.server import Server


def test_users_own_pool_is_used_and_left_as_it_was(postgres_server: Server) -> None:
    with ConnectionPool(postgres_server.url, min_size=1, max_size=1, open=True) as pool:
        with bench(postgres_server.url, pool) as rig:
            tx, given_up = new_tx(), new_tx()
            rig.insert(tx, 1)
            rig.resource.prepare(tx)
            rig.insert(given_up, 2)
            rig.resource.roll_back(given_up)
            with pool.connection() as conn:
                conn.execute(rig.sql, (3,))
                conn.commit()
            rig.resource.commit_prepared(tx)
            assert rig.rows() == [1, 3]
        assert not pool.closed


def test_users_pool_with_dead_connections_gives_a_live_one(postgres_server: Server) -> None:
    with (
        ConnectionPool(postgres_server.url, min_size=1, max_size=1, open=True) as pool,
        bench(postgres_server.url, pool) as rig,
    ):
        with pool.connection() as conn:
            pid = conn.info.backend_pid
        rig.db.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
        tx = new_tx()
        rig.insert(tx, 1)
        rig.resource.prepare(tx)


def test_exhausted_pool_is_a_no_that_names_the_setting(postgres_server: Server) -> None:
    with bench(postgres_server.url, connections=1, patience=0.3) as rig:
        rig.insert(new_tx(), 1)
        with pytest.raises(ResourceError, match="max_size"):
            rig.insert(new_tx(), 2)


def test_async_connections_take_part(postgres_server: Server) -> None:
    async def run() -> None:
        async with AsyncConnectionPool(postgres_server.url, min_size=1, max_size=1, open=False) as pool:
            rig = await asyncio.to_thread(lambda: bench(postgres_server.url))
            with rig as made:
                resource = PostgresResource(pool)
                await asyncio.to_thread(resource.open, made.site, "log-1")
                tx, failed = new_tx(), new_tx()
                conn = await asyncio.to_thread(resource.work, tx)
                await conn.execute(made.sql, (1,))
                with pytest.raises(UsageError):
                    await conn.commit()
                await asyncio.to_thread(resource.prepare, tx)
                conn = await asyncio.to_thread(resource.work, failed)
                await conn.execute(made.sql, (2,))
                await asyncio.to_thread(resource.roll_back, failed)
                await asyncio.to_thread(resource.add, tx := new_tx(), resource.batch(made.sql, (3,)))
                await asyncio.to_thread(resource.prepare, tx)
                assert made.rows() == []
                for branch in await asyncio.to_thread(resource.branches):
                    await asyncio.to_thread(resource.commit_prepared, branch.tx)
                assert made.rows() == [1, 3]
                async with pool.connection() as own:
                    await own.execute("SELECT 1")
                await asyncio.to_thread(resource.close)

    asyncio.run(run())


def test_async_pool_outside_a_loop_is_refused_with_the_reason(postgres_server: Server) -> None:
    async def make() -> AsyncConnectionPool:
        return AsyncConnectionPool(postgres_server.url, open=False)

    with pytest.raises(UsageError, match="inside the loop"):
        PostgresResource(asyncio.run(make()))


def engine_url(url: str) -> str:
    return urlsplit(url)._replace(scheme="postgresql+psycopg").geturl()


def test_sqlalchemy_connection_and_session_take_part(postgres_server: Server) -> None:
    engine = create_engine(engine_url(postgres_server.url), pool_size=1, max_overflow=0)
    with bench(postgres_server.url, engine) as rig:
        insert = text(f"INSERT INTO {rig.table} VALUES (:id, 'x')")
        tx, failed = new_tx(), new_tx()
        rig.resource.work(tx).execute(insert, {"id": 1})
        with Session(rig.resource.work(tx), join_transaction_mode="create_savepoint") as session:
            session.execute(insert, {"id": 2})
            session.commit()
        rig.resource.prepare(tx)
        assert rig.rows() == []
        rig.resource.work(failed).execute(insert, {"id": 3})
        rig.resource.roll_back(failed)
        with engine.begin() as own:
            own.execute(insert, {"id": 4})
        rig.resource.commit_prepared(tx)
        assert rig.rows() == [1, 2, 4]
    engine.dispose()


def test_sqlalchemy_connection_cannot_be_committed_by_the_handler(postgres_server: Server) -> None:
    engine = create_engine(engine_url(postgres_server.url))
    with bench(postgres_server.url, engine) as rig:
        tx = new_tx()
        conn = rig.resource.work(tx)
        conn.execute(text(f"INSERT INTO {rig.table} VALUES (1, 'x')"))
        with pytest.raises(UsageError):
            conn.commit()
        assert rig.rows() == []
        rig.resource.roll_back(tx)
    engine.dispose()


def test_sqlalchemy_does_not_go_on_outside_of_the_unit_when_the_connection_is_lost(postgres_server: Server) -> None:
    """It would connect anew, and commit every statement at once."""
    engine = create_engine(engine_url(postgres_server.url))
    with bench(postgres_server.url, engine) as rig:
        tx, insert = new_tx(), text(f"INSERT INTO {rig.table} VALUES (1, 'x')")
        conn = rig.resource.work(tx)
        pid = conn.scalar(text("SELECT pg_backend_pid()"))
        rig.db.execute("SELECT pg_terminate_backend(%s, 10000)", (pid,))
        with pytest.raises(OperationalError):
            conn.execute(insert)
        conn.rollback()
        with pytest.raises(ResourceError, match="broke inside the unit"):
            conn.execute(insert)
        with pytest.raises(ResourceError):
            rig.resource.prepare(tx)
        assert rig.rows() == []
    engine.dispose()


def test_async_connection_is_taken_away_from_who_awaits_on_it(postgres_server: Server) -> None:
    async def run() -> None:
        async with AsyncConnectionPool(postgres_server.url, min_size=1, max_size=1, open=False) as pool:
            rig = await asyncio.to_thread(lambda: bench(postgres_server.url))
            with rig as made:
                resource = PostgresResource(pool)
                await asyncio.to_thread(resource.open, made.site, "log-1")
                for _ in range(5):
                    tx = new_tx()
                    conn = await asyncio.to_thread(resource.work, tx)
                    resource.lend(tx)
                    waiting = asyncio.ensure_future(conn.execute("SELECT pg_sleep(60)"))
                    await asyncio.gather(asyncio.sleep(0), asyncio.to_thread(resource.roll_back, tx))
                    with pytest.raises(Error):
                        await waiting
                    with pytest.raises(Error):
                        await conn.execute(made.sql, (1,))
                assert made.rows() == []
                await asyncio.to_thread(resource.close)

    asyncio.run(run())


def test_anything_else_is_refused_with_what_is_possible() -> None:
    with pytest.raises(UsageError, match="a URL, a psycopg pool or an SQLAlchemy engine"):
        PostgresResource(3)
    with pytest.raises(UsageError, match="over psycopg"):
        PostgresResource(create_engine("sqlite://"))
