"""Buses, names and clients for the tests of the MQTT bus."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import eventually
from tests.integration.mqtt.rig import Opener, Plain, ScriptedBroker

_numbers = itertools.count(1)


@pytest.fixture
def opened() -> Iterator[Opener]:
    opener = Opener()
    yield opener
    for bus in opener.open:
        bus.close(timeout=0.5)  # the broker may be gone


@pytest.fixture
def name() -> str:
    return f"m{os.getpid()}-{next(_numbers)}"


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """Whatever a test does, after it no thread of its buses runs."""
    before = set(threading.enumerate())
    yield

    def left() -> list[str]:
        names = [thread.name for thread in threading.enumerate() if thread not in before]
        return [name for name in names if name.startswith("txlayer-") and name != "txlayer-receipts"]

    eventually(lambda: not left(), "threads end")


@pytest.fixture
def plain() -> Iterator[Callable[..., Plain]]:
    clients: list[Plain] = []

    def make(*args: Any, **options: Any) -> Plain:
        clients.append(Plain(*args, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def scripted() -> Iterator[ScriptedBroker]:
    broker = ScriptedBroker()
    yield broker
    broker.close()
