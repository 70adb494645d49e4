"""What all tests share."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, settings

from txlayer.testing.kafka import Kafka
from txlayer.testing.plugin import obtain_or_skip

# On a busy machine any example may be slow.
settings.register_profile("patient", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

whole = pytest.mark.skipif("TXLAYER_WHOLE" not in os.environ, reason="long: TXLAYER_WHOLE=1 runs it")
"""For what takes minutes of both cores: not on every run."""
DEADLINE = 30.0
"""Seconds that any condition may take on a busy machine before a test gives up."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The seeds first and the unit tests next: each worker begins with its share of this list, in this order.

    The first worker spends minutes on the seeds, which leave the processors to all others. What waits behind them is
    handed to whoever has run out of work, so it had better be short.
    """
    items.sort(key=lambda item: ("::test_no_seed_breaks" not in item.nodeid, "tests/unit/" not in item.nodeid))


def eventually(condition: Callable[[], object], what: str = "", deadline: float = DEADLINE) -> None:
    """Wait until `condition()` is true."""
    end = time.monotonic() + deadline
    pause = threading.Event()
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline} s: {what or condition}")
        pause.wait(0.005)


@pytest.fixture(scope="session")
def kafka_to_kill() -> Iterator[Kafka]:
    """Started once: a Kafka takes seconds of a processor until it is there."""
    with obtain_or_skip(Kafka) as broker:
        yield broker


@pytest.fixture
def mortal_kafka_broker(kafka_to_kill: Kafka) -> Kafka:
    """A Kafka that a test may kill, for tests whose names of topics and sites are their own."""
    kafka_to_kill.start()  # the last test may have left it dead
    return kafka_to_kill
