"""Our own pool works on with the connection that was used last, and nobody waits for one that is only kept."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg_pool import PoolClosed, PoolTimeout

from tests.conftest import eventually
from txlayer.resources import postgres_pool
from txlayer.resources.postgres_pool import OwnPool
from txlayer.testing.server import Server


@pytest.fixture
def pool(postgres_server: Server) -> Iterator[OwnPool]:
    pool = OwnPool(postgres_server.url, {}, 2, 30.0)
    pool.open()
    yield pool
    pool.close()


def both(pool: OwnPool) -> tuple[int, int]:
    """Let it have two connections, at rest."""
    first, second = pool.take(), pool.take()
    pool.give(first)
    pool.give(second)
    return first.info.backend_pid, second.info.backend_pid


def used(pool: OwnPool) -> int:
    conn = pool.take()
    pid = conn.info.backend_pid
    pool.give(conn)
    return pid


def test_the_connection_that_was_used_last_is_used_again(pool: OwnPool) -> None:
    both(pool)
    used(pool)
    assert len({used(pool) for _ in range(6)}) == 1


def test_it_goes_through_the_pool_now_and_then(pool: OwnPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_pool, "_KEPT_SECONDS", 0.0)
    pids = both(pool)
    assert {used(pool) for _ in range(4)} == set(pids)


def test_who_waits_for_a_connection_gets_the_one_that_is_given_back(pool: OwnPool) -> None:
    both(pool)
    first, second = pool.take(), pool.take()
    with ThreadPoolExecutor(1) as threads:
        third = threads.submit(pool.take)
        eventually(lambda: pool._pool.get_stats()["requests_waiting"] == 1)
        pool.give(first)
        assert third.result(30) is first
    pool.give(first)
    pool.give(second)


def test_a_dead_one_at_hand_is_replaced(pool: OwnPool) -> None:
    used(pool)
    conn = pool.take()
    pool.give(conn)
    assert pool._at_hand is conn
    conn.pgconn.finish()
    again = pool.take()
    assert again is not conn
    assert again.execute("SELECT 1").fetchone() == (1,)
    pool.give(again)


def test_nothing_stays_open_when_it_is_closed(pool: OwnPool) -> None:
    used(pool)
    kept, out = pool.take(), pool.take()
    pool.give(kept)
    pool.close()
    pool.give(out)
    assert kept.closed
    assert out.closed
    with pytest.raises(PoolClosed):
        pool.take()


def test_a_pool_that_is_used_up_says_so(postgres_server: Server) -> None:
    pool = OwnPool(postgres_server.url, {}, 1, 0.3)
    pool.open()
    conn = pool.take()
    with pytest.raises(PoolTimeout):
        pool.take()
    pool.give(conn)
    pool.close()
