"""Connections of the PostgreSQL resource that break at the worst moment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from psycopg import pq

from txlayer.errors import ResourceError, ResourceUnavailable
from txlayer.resources import postgres_lane
from txlayer.resources.postgres_exchange import ConnectionLost
from txlayer.resources.postgres_lane import Lane
from txlayer.resources.postgres_sources import Lease, source_of

NOWHERE = "postgresql://127.0.0.1:1/nowhere"


@pytest.mark.parametrize("finished", [True, False])
def test_cutting_a_connection_that_is_gone_does_nothing(finished: bool) -> None:
    """It comes from the runtime thread, while whoever works on the connection may close it."""
    driver: Any = SimpleNamespace(pgconn=pq.PGconn.connect(b"host=127.0.0.1 port=1 connect_timeout=1"))
    if finished:
        driver.pgconn.finish()
    Lease(driver, driver).cut()


def test_a_lane_gets_its_connection_back_when_the_server_breaks_it_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lent = list[Any]()

    class Pool:
        def take(self) -> Any:
            lent.append(SimpleNamespace(pgconn=SimpleNamespace(transaction_status=pq.TransactionStatus.INERROR)))
            return lent[-1]

        def give(self, conn: Any) -> None:
            lent.remove(conn)

    def exchange(conn: Any, message: bytes, within: float) -> Any:
        raise ConnectionLost("gone") if message == b"ROLLBACK" else ResourceError("lock timeout")

    monkeypatch.setattr(postgres_lane, "exchange", exchange)
    lane = Lane(source_of(NOWHERE, 1, 1.0), 1, 1.0, "x")
    lane._pool = Pool()  # type: ignore[assignment]
    with pytest.raises(ResourceError, match="lock timeout"):
        lane.run("x")
    assert lent == []


def test_a_lane_that_is_closed_is_unavailable_and_nothing_worse() -> None:
    """A site that is closed while recovery looks."""
    lane = Lane(source_of(NOWHERE, 1, 1.0), 1, 1.0, "x")
    lane.close()
    with pytest.raises(ResourceUnavailable):
        lane.run("SELECT 1")
