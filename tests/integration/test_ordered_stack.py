"""The whole stack: hosts, publishers and subscribers as processes on a real broker, with kill -9 among them.

The histories are checked by the checkers of the simulation. On Kafka it runs with TXLAYER_WHOLE alone: beside other
tests it starves them and itself.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.integration.ordered_load import PATIENCE, Load, start_host
from txlayer.simulation.ordering import checkers
from txlayer.simulation.ordering.history import History
from txlayer.testing.server import Server

PUBLISHERS, SUBSCRIBERS, PAUSE = 5, 8, 0.02
EVENTS = 400
"""Of each publisher."""
CHAIN = "stack"
pytestmark = pytest.mark.timeout(1800)  # everything waits with a deadline of its own


_ON_KAFKA = pytest.mark.skipif("TXLAYER_WHOLE" not in os.environ, reason="starves others: TXLAYER_WHOLE=1 runs it")


@pytest.fixture(params=["mqtt", pytest.param("kafka", marks=_ON_KAFKA)])
def broker(request: pytest.FixtureRequest) -> Server:
    settings = {"persistence": True} if request.param == "mqtt" else {}
    server: Server = request.getfixturevalue(f"private_{request.param}_broker")(**settings)
    return server


@pytest.fixture
def load(broker: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Load]:
    load = Load(tmp_path, broker.url, "" if "plain" in request.node.name else CHAIN)
    yield load
    load.kill()


class Hosts:
    """Three hosts by command."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, *more: str) -> None:
        self._processes[name] = start_host(self._folder, self._url, CHAIN, name, *more)

    def kill(self, name: str) -> None:
        with self._processes.pop(name) as process:
            process.kill()

    def close(self) -> None:
        for name in list(self._processes):
            self.kill(name)


@pytest.fixture
def hosts(broker: Server, tmp_path: Path) -> Iterator[Hosts]:
    hosts = Hosts(tmp_path, broker.url)
    yield hosts
    hosts.close()


@pytest.fixture
def events(broker: Server) -> int:
    return EVENTS


def begin(load: Load, events: int) -> None:
    for number in range(SUBSCRIBERS):
        load.start("subscriber", f"s{number}")
    eventually(lambda: all(load.ready(f"s{number}") for number in range(SUBSCRIBERS)), "subscribers", PATIENCE)
    for number in range(PUBLISHERS):
        load.start("publisher", f"p{number}", events, PAUSE)


def accepted(load: Load) -> None:
    """Of every publisher every event. They stay until the end: who has not got an event asks them for it."""
    names = [f"p{number}" for number in range(PUBLISHERS)]
    eventually(lambda: load.ended("p") or all(load.ready(name) for name in names), "every event is accepted", PATIENCE)
    assert not load.ended("p"), "a publisher has failed"


def checked(history: History) -> list[str]:
    checkers.order(history)
    checkers.fifo(history, numbers_known=False)
    checkers.duplicates(history)
    checkers.nothing_missing(history)
    return history.violations


class Settled:
    """Whether every subscriber has every event. Diaries that stand still are not read again."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._size = -1

    def __call__(self) -> bool:
        before, self._size = self._size, self._load.size()
        return self._size != before and not checked(self._load.history())


def test_one_order_while_hosts_and_broker_are_killed(broker: Server, load: Load, hosts: Hosts, events: int) -> None:
    for name in "abc":
        hosts.start(name)
    begin(load, events)
    whole = PUBLISHERS * events
    for killed, share in (("b", 0.2), ("broker", 0.4), ("a", 0.6), ("c", 0.8)):
        eventually(lambda share=share: load.offered() > share * whole, f"{share} of the events", PATIENCE)
        if killed == "broker":
            broker.kill()
            broker.restart()
        else:
            hosts.kill(killed)
            hosts.start(killed)
    accepted(load)
    eventually(Settled(load), "every subscriber has every event", PATIENCE)
    assert load.end("p") == [0] * PUBLISHERS
    assert load.end("s") == [0] * SUBSCRIBERS
    history = load.history()
    assert checked(history) == []
    assert all(offered.accepted for offered in history.offered.values())
    assert len(history.offered) == whole
    assert sum(len(one.delivered) for one in history.subscribers.values()) > whole


def test_plain_bus_inverts_the_same_load(load: Load, events: int) -> None:
    begin(load, events)
    accepted(load)
    load.end("p")
    load.end("s")
    history = load.history()
    checkers.order(history)
    assert history.violations, "the check of the order can fail"
