"""The buses that the contract suite runs over: memory, Mosquitto and Kafka, unchanged.

A `BusWorld` is a broker with the few things a test does to it. Most tests share one broker per kind; those that kill it
or change its settings take a private one.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import DEADLINE
from txlayer import Bus, Identity, connect, ordered
from txlayer.adapters.memory import MemoryBus
from txlayer.adapters.memory_broker import broker
from txlayer.logs.memory import MemoryDisk
from txlayer.sequencing.bus_exchange import BusExchange
from txlayer.sequencing.sequencer import Sequencer
from txlayer.testing.server import Server

_numbers = itertools.count(1)


class BusWorld(ABC):
    """A broker and the buses that a test opens on it, closed in the end."""

    url: str
    ordered = False
    """Whether events get their place from a sequencer."""
    last_will = True
    """Whether the broker itself says that a process died."""

    def __init__(self) -> None:
        self._open: list[Bus] = []

    def connect(self, **options: Any) -> Bus:
        bus = connect(self.url, **options)
        self._open.append(bus)
        return bus

    @abstractmethod
    def kill(self) -> None:
        """End the broker without warning."""

    @abstractmethod
    def restart(self) -> None:
        """Have it back, at the same address, with what it had made durable."""

    @abstractmethod
    def die_present(self, site: str) -> None:
        """Be present as `site` in another process, and die without a goodbye."""

    def close(self) -> None:
        for bus in self._open:
            bus.close()


class MemoryWorld(BusWorld):
    def __init__(self) -> None:
        super().__init__()
        self.url = f"memory://contract-{next(_numbers)}"
        self._broker = broker(self.url.removeprefix("memory://"))

    def kill(self) -> None:
        self._broker.stop()

    def restart(self) -> None:
        self._broker.start()

    def die_present(self, site: str) -> None:
        bus = self.connect()
        bus.enter(site, Identity("dead-log", 1))
        assert isinstance(bus, MemoryBus)
        bus.crash()


class ServerWorld(BusWorld):
    """A real broker, perhaps on a machine that is busy with other things."""

    def connect(self, **options: Any) -> Bus:
        return super().connect(**{"connect_timeout": DEADLINE, **options})

    def __init__(self, server: Server) -> None:
        super().__init__()
        self._server = server
        self.url = server.url
        self.last_will = not self.url.startswith("kafka")

    def kill(self) -> None:
        self._server.kill()

    def restart(self) -> None:
        self._server.restart()

    def die_present(self, site: str) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", _PRESENT, self.url, site], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"present\n"
            process.kill()


_PRESENT = """
import sys, txlayer
bus = txlayer.connect(sys.argv[1])
bus.enter(sys.argv[2], txlayer.Identity("dead-log", 1))
print("present", flush=True)
sys.stdin.read()
"""


class OrderedWorld(BusWorld):
    """The ordered bus over another one, with a sequencer host beside it."""

    ordered = True

    def __init__(self, below: BusWorld) -> None:
        super().__init__()
        self.url = below.url
        self._below = below
        self.last_will = below.last_will
        self._chain = f"contract-{os.getpid()}-{next(_numbers)}"
        self._host_bus = below.connect()
        self._exchange = BusExchange(self._host_bus, self._chain)
        self._host = Sequencer(
            self._host_bus, self._exchange, MemoryDisk(), name="a", rank=0, patterns=["*"], chain=self._chain
        )

    def connect(self, **options: Any) -> Bus:
        if not isinstance(self._below, MemoryWorld):
            options = {"connect_timeout": DEADLINE, **options}
        bus = ordered(self.url, f"{self.url}/{self._chain}", deadline=2 * DEADLINE, **options)
        self._open.append(bus)
        return bus

    def kill(self) -> None:
        self._below.kill()

    def restart(self) -> None:
        self._below.restart()

    def die_present(self, site: str) -> None:
        self._below.die_present(site)

    def close(self) -> None:
        super().close()
        self._host.close()
        self._exchange.close()
        self._below.close()


KINDS = ["memory", "mqtt", "kafka"]
ORDERED_KINDS = [f"ordered-{kind}" for kind in KINDS]


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest) -> Iterator[BusWorld]:
    """A broker shared by the tests of its kind."""
    yield from open_world(request)


@pytest.fixture(params=KINDS)
def private_world(request: pytest.FixtureRequest) -> Iterator[BusWorld]:
    """A broker that this test may kill."""
    yield from open_private_world(request)


def open_world(request: pytest.FixtureRequest) -> Iterator[BusWorld]:
    """For fixtures of these and of the ordered kinds."""
    kind = request.param.removeprefix("ordered-")
    shared: BusWorld = MemoryWorld() if kind == "memory" else ServerWorld(request.getfixturevalue(f"{kind}_broker"))
    yield from _closed(shared, request.param)


def open_private_world(request: pytest.FixtureRequest) -> Iterator[BusWorld]:
    """For fixtures of these and of the ordered kinds."""
    kind = request.param.removeprefix("ordered-")
    if kind == "memory":
        private: BusWorld = MemoryWorld()
    elif kind == "mqtt":
        private = ServerWorld(request.getfixturevalue("private_mqtt_broker")(persistence=True))
    else:
        private = ServerWorld(request.getfixturevalue("mortal_kafka_broker"))
    yield from _closed(private, request.param)


def _closed(world: BusWorld, kind: str) -> Iterator[BusWorld]:
    if kind.startswith("ordered-"):
        world = OrderedWorld(world)
    yield world
    world.close()


@pytest.fixture
def name() -> str:
    """A name that no other test uses, on a broker that outlives the test."""
    return f"t{os.getpid()}-{next(_numbers)}"


@pytest.fixture(scope="session")
def postgres_dsn(postgres_server: Server) -> str:
    """A PostgreSQL database for the logs."""
    return postgres_server.url
