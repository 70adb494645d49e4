"""Sites on the ordered bus, unchanged: transactions commit, and plain events come in one order everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DEADLINE, eventually
from tests.contract.conftest import MemoryWorld, OrderedWorld
from tests.sites.conftest import Notes, Sites
from txlayer import Event, Participant, Site, Status


class OrderedSites(Sites):
    """Each site on an ordered bus of its own."""

    def make(self, short: str, **options: Any) -> Site:
        site = Site(self.name(short), bus=self.world.connect(), log="memory://", **options)
        self._all.append(site)
        return site


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    world = OrderedWorld(MemoryWorld())
    sites = OrderedSites(world, tmp_path)
    yield sites
    sites.close()
    world.close()


def test_a_transaction_commits_on_the_ordered_bus(sites: Sites, notes: Notes) -> None:
    meetings = sites.name("meetings")
    members = [sites.member(name, meetings, notes.handler(name)) for name in ("a", "b")]
    publisher = sites.start("p")
    sites.know(publisher, meetings, *members)
    outcome = publisher.send(meetings, [{"time": "15:00"}, {"time": "16:00"}])
    assert (outcome.status, outcome.members) == (Status.COMMITTED, 2)
    for name in ("a", "b"):
        assert notes.of(name) == [{"time": "15:00"}, {"time": "16:00"}]


def test_plain_events_come_in_one_order_at_every_site(sites: Sites) -> None:
    prices = sites.name("prices")
    seen: dict[str, list[Any]] = {"a": [], "b": []}

    def reader(name: str) -> type[Participant]:
        class Reader(Participant):
            def on_plain(self, event: Event) -> None:
                seen[name].append(event.data)

        return Reader

    for name in seen:
        sites.member(name, prices, reader(name))
    publishers = [sites.start("p"), sites.start("q")]
    receipts = [publisher.publish(prices, [n, m]) for m in range(20) for n, publisher in enumerate(publishers)]
    for receipt in receipts:
        receipt.wait(DEADLINE)
    eventually(lambda: len(seen["a"]) == len(seen["b"]) == 40)
    assert seen["a"] == seen["b"]
