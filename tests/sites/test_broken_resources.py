"""Resources that wait for locks, break or fail, and what must go on in spite of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import DEADLINE, eventually
from tests.sites.conftest import Sites
from txlayer import Threads, named
from txlayer.errors import ResourceError, ResourceUnavailable, TransactionAborted
from txlayer.messages import TxId
from txlayer.resources.memory import MemoryResource
from txlayer.runtime import workshop


class HotRow(MemoryResource):
    """What is prepared holds a lock that the next one waits for, as the statements of a batch do."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived = threading.Semaphore(0)
        self.row = threading.Lock()
        self.holder: TxId | None = None

    def prepare(self, tx: TxId, of: int = 1) -> None:
        self.arrived.release()
        if not self.row.acquire(timeout=DEADLINE):
            raise ResourceError("canceling statement due to lock timeout")
        self.holder = tx
        super().prepare(tx, of)

    def commit_prepared(self, tx: TxId) -> None:
        super().commit_prepared(tx)
        if self.holder == tx:
            self.holder = None
            self.row.release()


def test_units_that_wait_for_a_lock_do_not_keep_its_holder_from_finishing(memory_sites: Sites) -> None:
    sites, type, row, count = memory_sites, memory_sites.name("t"), HotRow(), 3
    go_on = threading.Event()
    threads = Threads(voters=count, finishers=1)
    hot = sites.member("a", type, lambda tx, event: tx[row].put(str(event.data), 1), resources=[row], threads=threads)
    other = sites.member("b", type, lambda tx, event: go_on.wait(DEADLINE))
    publisher = sites.start("p")
    sites.know(publisher, type, hot, other)
    with ThreadPoolExecutor(count) as pool:
        sent = [pool.submit(publisher.send, type, [n], require=named(hot.name, other.name)) for n in range(count)]
        for _ in range(count):
            assert row.arrived.acquire(timeout=DEADLINE)
        go_on.set()  # one is prepared, the others wait for it
        for one in sent:
            one.result(DEADLINE)
    eventually(lambda: len(row.values) == count)


class AwayAfterVote(MemoryResource):
    """A database that goes away once the work is committed, and comes back after many attempts."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts = 0

    def settle(self, tx: TxId) -> Any:
        self.attempts += 1
        if self.attempts <= 8:
            raise ResourceUnavailable("connection refused")
        return super().settle(tx)


def test_compensation_waits_for_a_database_that_is_away_and_is_not_parked(
    memory_sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workshop, "_LONGEST_PAUSE", 0.05)
    sites, type, away = memory_sites, memory_sites.name("t"), AwayAfterVote()
    undone: list[str] = []

    def refuse(tx: Any, event: Any) -> None:
        eventually(lambda: away.values, "the other one has committed")
        raise ValueError("no")

    def work(tx: Any, event: Any) -> None:
        tx[away].put("k", 1)

    one = sites.member("a", type, work, resources=[away], compensate=lambda tx, event: undone.append(event.data))
    two = sites.member("b", type, refuse)
    publisher = sites.start("p")
    sites.know(publisher, type, one, two)
    with pytest.raises(TransactionAborted, match="no"):
        publisher.send(type, ["x"], require=named(one.name, two.name), census_within=DEADLINE)
    eventually(lambda: undone == ["x"])
    assert away.attempts > 8
    eventually(lambda: not one.transactions())


class Broken(MemoryResource):
    """Fails where a resource must not."""

    def abandon(self, tx: TxId) -> None:
        raise RuntimeError("the connection pointer is NULL")

    def branches(self) -> Any:
        raise RuntimeError("is closed")


def test_a_resource_that_cannot_be_taken_from_a_handler_does_not_stop_the_site(memory_sites: Sites) -> None:
    sites, type, broken, go_on = memory_sites, memory_sites.name("t"), Broken(), threading.Event()

    def hang(tx: Any, event: Any) -> None:
        tx[broken].put("k", 1)
        go_on.wait(DEADLINE)

    member = sites.member("a", type, hang, resources=[broken], handler_within=0.1)
    publisher = sites.start("p")
    sites.know(publisher, type, member)
    with pytest.raises(TransactionAborted, match="did not return"):
        publisher.send(type, [1])
    go_on.set()
    assert publisher.send(type, [2]).members == 1


def test_a_look_for_branches_that_fails_costs_no_thread(memory_sites: Sites, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.runtime.recovery.EVERY_SECONDS", 0.005)
    sites, type, looks = memory_sites, memory_sites.name("t"), list[int]()

    class Counted(Broken):
        def branches(self) -> Any:
            looks.append(1)
            return super().branches()

    broken = Counted()
    threads = Threads(finishers=1, spare=0)
    member = sites.member(
        "a", type, lambda tx, event: tx[broken].put("k", event.data), resources=[broken], threads=threads
    )
    eventually(lambda: len(looks) > 5)
    other = sites.member("b", type, lambda tx, event: None)
    publisher = sites.start("p")
    sites.know(publisher, type, member, other)
    publisher.send(type, [1])
    eventually(lambda: broken.values == {"k": 1})


class Kept(MemoryResource):
    """Counts how often it is open."""

    def __init__(self, name: str, works: bool = True) -> None:
        super().__init__(name)
        self.works = works
        self.opened = 0

    def open(self, *_: Any) -> None:
        if not self.works:
            raise ResourceError("allows no prepared transactions")
        self.opened += 1

    def close(self) -> None:
        self.opened -= 1


def test_a_site_that_cannot_open_all_its_resources_leaves_none_of_them_open(memory_sites: Sites) -> None:
    sites, first, second = memory_sites, Kept("first"), Kept("second", works=False)
    site = sites.make("a")
    site.subscribe(sites.name("t"), lambda tx, event: None, resources=[first, second])
    with pytest.raises(ResourceError, match="no prepared"):
        site.start()
    assert (first.opened, second.opened) == (0, 0)
    second.works = True
    site.start()
    assert (first.opened, second.opened) == (1, 1)
    site.close()
    assert (first.opened, second.opened) == (0, 0)
