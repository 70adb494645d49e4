"""Sites on all three buses."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DEADLINE, eventually
from tests.contract.conftest import BusWorld, MemoryWorld, ServerWorld
from txlayer import Patience, Site
from txlayer.site_base import SiteBase
from txlayer.transacting import Plan

_numbers = itertools.count(1)

QUICK = Patience(retry=0.3, in_doubt=0.5, gap=0.2, linger=2.0, mark=0.5, longest=3.0)


PATIENT = {"census_within": DEADLINE, "vote_within": DEADLINE, "within": 2 * DEADLINE}
"""A census closes when everyone has answered: on a busy machine that may take long, otherwise this costs nothing."""


class PatientSite(Site):
    """A site whose transactions wait for slow members, unless a test asks for something else."""

    def _plan(self, type: Any, attributes: Any, **terms: Any) -> Plan:
        return super()._plan(type, attributes, **{**PATIENT, **terms})


class Sites:
    """The sites of one test, under names that no other test uses; closed in the end."""

    def __init__(self, bus: BusWorld, folder: Path) -> None:
        self.world = bus
        self.prefix = f"s{os.getpid()}-{next(_numbers)}-"
        self.folder = folder
        self._all: list[Site] = []

    @property
    def url(self) -> str:
        """The bus; a busy machine is given time."""
        patient = "" if self.world.url.startswith("memory:") else f"?connect_timeout={DEADLINE}"
        return self.world.url + patient

    def name(self, short: str) -> str:
        """The full name of a site, or an event type of this test's own."""
        return self.prefix + short

    def make(self, short: str, **options: Any) -> Site:
        """A site that is not started yet."""
        options.setdefault("log", "memory://")
        options.setdefault("patience", QUICK)
        site = PatientSite(self.name(short), bus=self.url, **options)
        self._all.append(site)
        return site

    def start(self, short: str, **options: Any) -> Site:
        """A running site."""
        return self.make(short, **options).start()

    def file(self, short: str) -> str:
        """The URL of a log that survives its site."""
        return f"sqlite:///{self.folder / short}.db"

    def member(self, short: str, type: str, handler: Any, **options: Any) -> Site:
        """A running site with one subscriber."""
        settings = {key: options.pop(key) for key in list(options) if key not in SUBSCRIBER_OPTIONS}
        site = self.make(short, **settings)
        site.subscribe(type, handler, **options)
        return site.start()

    def know(self, site: SiteBase, type: str, *members: SiteBase) -> None:
        """Wait until `site` knows that these subscribe to the type."""
        names = sorted(member.name for member in members)
        eventually(lambda: site.subscribed(type) == names, f"{site.name} knows {names}")

    def close(self) -> None:
        for site in self._all:
            site.close(timeout=2.0)


SUBSCRIBER_OPTIONS = {
    "where", "scope", "resources", "attempts", "anonymous", "durable", "compensate",
}  # fmt: skip


BUSES = ["memory", "mqtt", "kafka"]


@pytest.fixture(params=BUSES)
def world(request: pytest.FixtureRequest) -> Iterator[BusWorld]:
    """A broker shared by the tests of its kind."""
    memory = request.param == "memory"
    world = MemoryWorld() if memory else ServerWorld(request.getfixturevalue(f"{request.param}_broker"))
    yield world
    world.close()


@pytest.fixture(params=BUSES)
def private_world(request: pytest.FixtureRequest) -> Iterator[BusWorld]:
    """A broker that this test may kill."""
    if request.param == "memory":
        world: BusWorld = MemoryWorld()
    elif request.param == "mqtt":
        world = ServerWorld(request.getfixturevalue("private_mqtt_broker")(persistence=True))
    else:
        world = ServerWorld(request.getfixturevalue("mortal_kafka_broker"))
    yield world
    world.close()


@pytest.fixture
def sites(world: BusWorld, tmp_path: Path) -> Iterator[Sites]:
    sites = Sites(world, tmp_path)
    yield sites
    sites.close()


@pytest.fixture
def memory_sites(tmp_path: Path) -> Iterator[Sites]:
    """On the memory bus alone: for what does not depend on the bus."""
    sites = Sites(MemoryWorld(), tmp_path)
    yield sites
    sites.close()


Recorder = Callable[[Any, Any], None]


class Notes:
    """Handlers that write down what they are given."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, Any]] = []

    def handler(self, who: str) -> Recorder:
        def handle(tx: Any, event: Any) -> None:
            self.seen.append((who, event.type, event.data))

        return handle

    def of(self, who: str) -> list[Any]:
        """What one of them got, in order."""
        return [data for name, _, data in self.seen if name == who]


@pytest.fixture
def notes() -> Notes:
    return Notes()
