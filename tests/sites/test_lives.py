"""Restart, closing, names, keys and unknown outcomes."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DEADLINE, eventually
from tests.contract.conftest import BusWorld
from tests.sites.conftest import Notes, Sites
from txlayer import (
    Access,
    Bounds,
    Event,
    Limit,
    MemberTransaction,
    Participant,
    Scope,
    Secret,
    Signed,
    Site,
    Status,
    only,
)
from txlayer.errors import (
    Closed,
    LogForeign,
    LogRolledBack,
    NameTaken,
    OutcomeUnknown,
    SubscribeFailed,
    TransactionAborted,
    TransactionRefused,
    UsageError,
)
from txlayer.logs.memory import MemoryDisk
from txlayer.logs.register import MemoryRegister
from txlayer.resources.memory import MemoryResource
from txlayer.resources.sqlite import SqliteResource
from txlayer.runtime.wires import Wires


def put(store: MemoryResource) -> Any:
    def handle(tx: MemberTransaction, event: Event) -> None:
        tx[store].put(event.data, "done")

    return handle


def pair(sites: Sites, type: str, notes: Notes, **options: Any) -> Site:
    members = [sites.member(name, type, notes.handler(name), **options) for name in ("a", "b")]
    publisher = sites.start("p", **options)
    sites.know(publisher, type, *members)
    return publisher


# Restart


def test_a_prepared_member_that_comes_back_learns_the_outcome(sites: Sites, notes: Notes) -> None:
    """Its site is closed, without waiting, between its vote and the decision."""
    type = sites.name("orders")
    store = MemoryResource()
    options: dict[str, Any] = {"resources": [store], "log": sites.file("a"), "anonymous": True}
    first = sites.member("a", type, put(store), **options)
    voted = threading.Event()

    def wait(tx: MemberTransaction, event: Event) -> None:
        voted.wait(DEADLINE)

    second = sites.member("b", type, wait)
    publisher = sites.start("p")
    sites.know(publisher, type, first, second)
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(publisher.send(type, ["x"], census_within=20.0)))
    thread.start()
    eventually(lambda: any(view.state == "commitment" for view in first.transactions()))
    first.close(timeout=0.0)
    voted.set()
    thread.join(DEADLINE)
    assert result[0].status is Status.COMMITTED
    assert len(store.prepared) == 1
    sites.member("a", type, put(store), **options)
    eventually(lambda: store.values == {"x": "done"})


def test_unfinished_work_waits_for_its_subscriber(memory_sites: Sites) -> None:
    """A site that is started without the subscriber that prepared something must not take it for finished."""
    sites = memory_sites
    type = sites.name("orders")
    store = MemoryResource()
    first = sites.member("a", type, put(store), resources=[store], log=sites.file("a"), anonymous=True)
    voted = threading.Event()
    second = sites.member("b", type, lambda tx, event: voted.wait(DEADLINE))
    publisher = sites.start("p")
    sites.know(publisher, type, first, second)
    tx = publisher.transaction(type, vote_within=DEADLINE).start()
    tx.publish("x")
    thread = threading.Thread(target=tx.commit)
    thread.start()
    eventually(lambda: any(view.state == "commitment" for view in first.transactions()))
    first.close(timeout=0.0)
    again = sites.start("a", log=sites.file("a"))
    eventually(lambda: again._engine.workshop._unserved)
    voted.set()
    thread.join(DEADLINE)
    assert tx.outcome is not None
    assert tx.outcome.members == 2
    assert len(store.prepared) == 1
    again.subscribe(type, put(store), resources=[store])
    eventually(lambda: store.values == {"x": "done"})


def test_a_finisher_ends_what_a_dead_coordinator_cannot(memory_sites: Sites) -> None:
    sites = memory_sites
    type = sites.name("orders")
    register = MemoryRegister()
    store = MemoryResource()
    member = sites.member("a", type, put(store), resources=[store], anonymous=True)
    voted = threading.Event()
    second = sites.member("b", type, lambda tx, event: voted.wait(DEADLINE))
    finisher = sites.start("f", register=register)
    publisher = sites.start("p", register=register, finishers=[finisher.name])
    sites.know(publisher, type, member, second)
    sites.know(finisher, type, member, second)
    thread = threading.Thread(target=lambda: swallow(lambda: publisher.send(type, ["x"], census_within=DEADLINE)))
    thread.start()
    eventually(lambda: any(view.state == "commitment" for view in member.transactions()))
    publisher.close(timeout=0.0)
    eventually(lambda: not store.prepared, "the member is not left in doubt")
    assert store.values == {}
    voted.set()
    thread.join(DEADLINE)
    with pytest.raises(UsageError, match="share a register"):
        sites.make("x", finishers=["f"])


def swallow(act: Callable[[], object]) -> None:
    with contextlib.suppress(OutcomeUnknown):
        act()


def test_a_coordinator_that_comes_back_goes_on_where_it_was(sites: Sites) -> None:
    type = sites.name("orders")
    store = MemoryResource()
    member = sites.member("a", type, put(store), resources=[store], log=sites.file("a"))
    publisher = sites.start("p", log=sites.file("p"))
    sites.know(publisher, type, member)
    first = publisher.send(type, ["x"])
    publisher.close()
    again = sites.start("p", log=sites.file("p"))
    sites.know(again, type, member)
    second = again.send(type, ["y"])
    assert first.tx is not None
    assert second.tx is not None
    assert first.tx.incarnation == second.tx.incarnation
    assert first.tx.number < second.tx.number
    eventually(lambda: store.values == {"x": "done", "y": "done"})


_MEMBER = """
import sys, time
from txlayer import Patience, Site
from txlayer.resources.sqlite import SqliteResource
name, url, folder, type = sys.argv[1:]
store = SqliteResource(f"{folder}/{name}-store.db")
store._db.execute("CREATE TABLE IF NOT EXISTS entry (value TEXT)")
patience = Patience(retry=0.3, in_doubt=0.5, gap=0.2, linger=2.0, mark=0.5, longest=3.0)
site = Site(name, bus=url, log=f"sqlite:///{folder}/{name}.db", patience=patience)

@site.subscriber(type, resources=[store])
def enter(tx, event):
    tx[store].execute("INSERT INTO entry VALUES (?)", [event.data])

site.start()
print("ready", flush=True)
for line in sys.stdin:
    rows = [row[0] for row in store._db.execute("SELECT value FROM entry ORDER BY value")]
    states = ",".join(sorted(view.state for view in site.transactions()))
    print("|".join([",".join(rows), states]), flush=True)
"""


class MemberProcess:
    """A member in a process of its own."""

    def __init__(self, sites: Sites, short: str, type: str) -> None:
        self.arguments = [sites.name(short), sites.url, str(sites.folder), type]
        self.name = sites.name(short)
        self._start()

    def _start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _MEMBER, *self.arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def restart(self) -> None:
        """Start it again; it was killed before."""
        with self.process:
            pass
        self._start()

    def look(self) -> tuple[str, str]:
        """Its rows, and the states of its transactions."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("look\n")
        self.process.stdin.flush()
        rows, _, states = self.process.stdout.readline().strip().partition("|")
        return rows, states

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(DEADLINE)

    def __enter__(self) -> MemberProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.process.kill()
        with self.process:
            pass


@pytest.mark.parametrize("world", ["mqtt", "kafka"], indirect=True)
def test_a_process_killed_between_vote_and_decision_finishes_after_its_return(world: BusWorld, sites: Sites) -> None:
    type = sites.name("orders")
    with MemberProcess(sites, "m", type) as member:
        kill_between_vote_and_decision(sites, type, member)


def kill_between_vote_and_decision(sites: Sites, type: str, member: MemberProcess) -> None:
    voted = threading.Event()
    second = sites.member("b", type, lambda tx, event: voted.wait(DEADLINE))
    publisher = sites.start("p")
    eventually(lambda: publisher.subscribed(type) == sorted([member.name, second.name]))
    outcomes: list[Any] = []
    thread = threading.Thread(target=lambda: outcomes.append(commit_at_last(publisher, type, "x")))
    thread.start()
    eventually(lambda: "commitment" in member.look()[1])
    eventually(lambda: waits_for(publisher) == (second.name,), "its vote is not only in the buffer of its client")
    member.kill()
    voted.set()
    thread.join(2 * DEADLINE)
    member.restart()
    assert outcomes == [Status.COMMITTED]
    eventually(lambda: member.look()[0] == "x")


def waits_for(coordinator: Site) -> tuple[str, ...]:
    """Whose votes are missing."""
    return next((view.blocked_by for view in coordinator.transactions() if view.state == "voting"), ())


def commit_at_last(publisher: Site, type: str, value: str) -> Status:
    with publisher.transaction(type, vote_within=DEADLINE, complete_within=DEADLINE) as tx:
        tx.publish(value)
    assert tx.outcome is not None
    assert tx.outcome.members == 2
    return tx.outcome.status


# Names


def test_a_publisher_that_comes_back_with_an_empty_log_is_served_by_the_same_host(memory_sites: Sites) -> None:
    type = memory_sites.name("orders")
    host = memory_sites.start("h", hosts=True)
    member = memory_sites.member("a", type, lambda tx, event: None)
    for _ in range(2):
        publisher = memory_sites.start("p")
        memory_sites.know(publisher, type, member)
        for number in range(2):
            with publisher.transaction(type, coordinator=host.name) as tx:
                tx.publish(number)
            assert tx.outcome.status is Status.COMMITTED
        publisher.close()


def test_a_live_name_with_another_log_is_refused(sites: Sites) -> None:
    sites.start("a")
    with pytest.raises(NameTaken, match="held by a living process"):
        sites.start("a")


def test_a_name_whose_log_was_replaced_is_refused(sites: Sites) -> None:
    sites.start("a", log=sites.file("one")).close()
    with pytest.raises(LogForeign, match="find it, or retire the name"):
        sites.start("a", log=sites.file("two"))
    sites.start("a", log=sites.file("one"))


def test_a_log_restored_from_a_copy_is_refused(memory_sites: Sites, notes: Notes) -> None:
    sites = memory_sites
    type = sites.name("orders")
    site = sites.member("a", type, notes.handler("a"), log=sites.file("a"))
    site.close()
    copy = (sites.folder / "a.db").read_bytes()
    site = sites.member("a", type, notes.handler("a"), log=sites.file("a"))
    site.send(type, ["x"])
    site.close()
    (sites.folder / "a.db").write_bytes(copy)
    with pytest.raises(LogRolledBack, match="a copy"):
        sites.start("a", log=sites.file("a"))


def test_a_later_life_of_the_same_log_takes_over_and_fences_the_older(sites: Sites, notes: Notes) -> None:
    type = sites.name("orders")
    disk = MemoryDisk()
    older = sites.start("p", log=disk)
    member = sites.member("a", type, notes.handler("a"))
    newer = sites.start("p", log=disk)
    sites.know(newer, type, member)

    def fenced() -> bool:
        try:
            older.send(type, ["zombie"], within=0.5)
        except (Closed, NameTaken) as exc:
            return "taken the name over" in str(exc)
        except (OutcomeUnknown, TransactionAborted):
            return False
        return False

    def commits() -> bool:
        try:
            return newer.send(type, ["newer"]).status is Status.COMMITTED
        except TransactionAborted:  # the older life has used the number of this one, and a member has seen that
            return False

    eventually(fenced)
    eventually(commits)


def test_a_second_process_with_the_same_log_is_refused(memory_sites: Sites) -> None:
    sites = memory_sites
    sites.start("a", log=sites.file("a"))
    with pytest.raises(Exception, match="another process has this log open"):
        sites.start("a", log=sites.file("a"))


# Closing


def test_close_lets_running_transactions_finish(sites: Sites, notes: Notes) -> None:
    type = sites.name("orders")
    going = threading.Event()
    leave = threading.Event()

    def slow(tx: MemberTransaction, event: Event) -> None:
        going.set()
        leave.wait(DEADLINE)

    member = sites.member("a", type, slow)
    publisher = sites.start("p")
    sites.know(publisher, type, member)
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(publisher.send(type, ["x"], census_within=20.0)))
    thread.start()
    assert going.wait(DEADLINE)
    closing = threading.Thread(target=publisher.close, args=[DEADLINE])
    closing.start()
    eventually(lambda: publisher._engine.draining)
    with pytest.raises(Closed):
        publisher.transaction(type)
    leave.set()
    thread.join(DEADLINE)
    closing.join(DEADLINE)
    assert result[0].status is Status.COMMITTED
    with pytest.raises(Closed):
        publisher.send(type, ["y"])


def test_who_drains_stands_for_nobody_else_in_a_census(sites: Sites, notes: Notes) -> None:
    """Its presence lists the type no more: were its answer counted, a census would close before the last one's."""
    type, other = sites.name("orders"), sites.name("others")
    choose, leave = threading.Event(), threading.Event()

    class Slow(Participant):
        def on_join(self, tx: MemberTransaction) -> Scope:
            choose.wait(DEADLINE)
            return Scope.DISTRIBUTED

        def on_event(self, tx: MemberTransaction, event: Event) -> None:
            pass

    leaving = sites.make("a")
    leaving.subscribe(type, notes.handler("a"))
    leaving.subscribe(other, lambda tx, event: leave.wait(DEADLINE))
    leaving.start()
    quick, slow = sites.member("b", type, notes.handler("b")), sites.member("c", type, Slow)
    publisher = sites.start("p")
    sites.know(publisher, other, leaving)
    held = threading.Thread(target=lambda: publisher.send(other, ["x"]))
    held.start()
    eventually(leaving.transactions)
    closing = threading.Thread(target=lambda: leaving.close(DEADLINE))
    closing.start()
    sites.know(publisher, type, quick, slow)
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(publisher.send(type, ["y"])))
    thread.start()
    eventually(lambda: leaving._engine.participant.subscriber.declined, "it has answered")
    eventually(lambda: notes.of("b") == ["y"])
    choose.set()
    thread.join(DEADLINE)
    leave.set()
    held.join(DEADLINE)
    closing.join(DEADLINE)
    assert result[0].members == 2
    assert notes.of("a") == []


def test_nobody_begins_a_transaction_at_a_host_that_drains(sites: Sites) -> None:
    type = sites.name("orders")
    leave = threading.Event()
    member = sites.member("a", type, lambda tx, event: leave.wait(DEADLINE))
    host, publisher = sites.start("h", hosts=True), sites.start("p")
    sites.know(publisher, type, member)
    eventually(lambda: publisher._engine.neighbours.hosts() == [host.name])
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(publisher.send(type, ["x"], coordinator="hosted")))
    thread.start()
    eventually(member.transactions)
    closing = threading.Thread(target=lambda: host.close(DEADLINE))
    closing.start()
    eventually(lambda: publisher._engine.neighbours.hosts() == [], "it does not offer any more")
    with pytest.raises(TransactionRefused, match="is closing"):
        publisher.send(type, ["y"], coordinator=host.name)
    leave.set()
    thread.join(DEADLINE)
    closing.join(DEADLINE)
    assert result[0].status is Status.COMMITTED


def test_close_is_bounded_and_says_unknown_to_those_who_wait(memory_sites: Sites) -> None:
    sites = memory_sites
    type = sites.name("orders")
    leave = threading.Event()
    member = sites.member("a", type, lambda tx, event: leave.wait(DEADLINE))
    publisher = sites.start("p")
    sites.know(publisher, type, member)
    errors: list[Exception] = []

    def run() -> None:
        try:
            publisher.send(type, ["x"], census_within=60.0)
        except OutcomeUnknown as exc:
            errors.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: publisher.transactions())
    publisher.close(timeout=0.2)
    thread.join(DEADLINE)
    leave.set()
    assert len(errors) == 1


def test_listeners_that_hang_share_the_deadline_of_close(sites: Sites) -> None:
    type = sites.name("news")
    over = threading.Event()
    begun: list[int] = []

    def hang(event: Event) -> None:
        begun.append(1)
        over.wait(4 * DEADLINE)

    site = sites.make("a")
    for _ in range(8):
        site.listener(type)(hang)
    site.start()
    site.publish(type, "x").wait(DEADLINE)
    eventually(lambda: len(begun) == 8)
    started = time.monotonic()
    site.close(timeout=0.5)
    took = time.monotonic() - started
    over.set()
    assert took < DEADLINE, "each of them would have had five seconds"


def test_a_site_whose_name_was_taken_starts_later_with_its_resources(memory_sites: Sites, tmp_path: Path) -> None:
    type = memory_sites.name("orders")
    other = memory_sites.start("a")
    store = SqliteResource(tmp_path / "store.db")
    site = memory_sites.make("a")

    def put(tx: MemberTransaction, event: Event) -> None:
        tx[store].execute("CREATE TABLE done (what TEXT)")

    site.subscribe(type, put, resources=[store])
    with pytest.raises(NameTaken):
        site.start()
    other.close()
    site.start()
    memory_sites.know(site, type, site)
    assert site.send(type, ["x"]).members == 1


def test_a_site_that_could_not_listen_starts_later_with_its_resources(
    memory_sites: Sites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    type = memory_sites.name("orders")
    store = SqliteResource(tmp_path / "store.db")
    site = memory_sites.make("a")
    site.subscribe(type, lambda tx, event: tx[store].execute("CREATE TABLE done (what TEXT)"), resources=[store])

    def refused(*_: Any) -> None:
        raise SubscribeFailed("not now")

    with monkeypatch.context() as patch:
        patch.setattr(Wires, "listen", refused)
        with pytest.raises(SubscribeFailed):
            site.start()
    site.start()
    memory_sites.know(site, type, site)
    assert site.send(type, ["x"]).members == 1


# Keys and outcomes


def test_a_key_never_makes_two_transactions(sites: Sites, notes: Notes) -> None:
    type = sites.name("orders")
    publisher = pair(sites, type, notes)
    first = publisher.send(type, ["x"], key="order 7")
    again = publisher.send(type, ["x"], key="order 7")
    assert first.tx == again.tx
    assert notes.of("a") == notes.of("b") == ["x"]
    assert publisher.outcome(key="order 7").status is Status.COMMITTED
    assert publisher.outcome(first.tx).status is Status.COMMITTED
    assert publisher.send(type, ["y"], key="order 8").tx != first.tx


def test_a_key_is_known_to_the_coordinator_that_had_it(memory_sites: Sites, notes: Notes) -> None:
    type = memory_sites.name("orders")
    publisher = pair(memory_sites, type, notes)
    assert publisher.outcome(key="order 7").status is Status.ABORTED
    host = memory_sites.start("host", hosts=True)
    eventually(lambda: host.subscribed(type) == publisher.subscribed(type))
    eventually(lambda: publisher._engine.neighbours.hosts() == [host.name])
    publisher.send(type, ["x"], key="order 7", coordinator=host.name)
    unknown = publisher.outcome(key="order 7")
    assert unknown.status is Status.UNKNOWN
    assert host.name in unknown.reason
    assert not unknown.final
    assert publisher.outcome(key="order 7", coordinator=host.name).status is Status.COMMITTED
    assert publisher.outcome(key="order 7", coordinator="self").status is Status.ABORTED
    with pytest.raises(UsageError, match="name it"):
        publisher.outcome(key="order 7", coordinator="hosted")


def test_a_key_whose_outcome_is_forgotten_makes_no_second_transaction(memory_sites: Sites, notes: Notes) -> None:
    type = memory_sites.name("orders")
    member = memory_sites.member("a", type, notes.handler("a"))
    publisher = memory_sites.start("p", bounds=Bounds(unconfirmed=2))
    memory_sites.know(publisher, type, member)
    first = publisher.send(type, [0], key="order 0")
    for number in range(1, 6):
        publisher.send(type, [number], key=f"order {number}")

    def finished() -> bool:
        return publisher.outcome(key="order 0").status is Status.FINISHED

    eventually(finished, "its outcome is forgotten once all members have acknowledged")
    with pytest.raises(OutcomeUnknown, match="finished") as caught:
        publisher.send(type, [0], key="order 0")
    assert caught.value.tx == first.tx
    assert notes.of("a") == [*range(6)]


def test_a_key_whose_transaction_aborted_may_be_used_again(memory_sites: Sites, notes: Notes) -> None:
    type = memory_sites.name("orders")
    willing: list[bool] = []

    def handle(tx: MemberTransaction, event: Event) -> None:
        if not willing:
            raise ValueError("not yet")

    member = memory_sites.member("a", type, handle)
    publisher = memory_sites.start("p")
    memory_sites.know(publisher, type, member)
    with pytest.raises(TransactionAborted, match="not yet"):
        publisher.send(type, ["x"], key="order 7")
    willing.append(True)
    assert publisher.send(type, ["x"], key="order 7").members == 1


def test_callers_with_one_key_at_the_same_time_are_all_told_what_became_of_it(memory_sites: Sites) -> None:
    """The first try of each key fails: whoever comes just then is told of that, or tries again."""
    type = memory_sites.name("orders")
    tried: set[str] = set()

    def handle(tx: MemberTransaction, event: Event) -> None:
        if event.data not in tried:
            tried.add(event.data)
            raise ValueError("not yet")

    member = memory_sites.member("a", type, handle)
    publisher = memory_sites.start("p")
    memory_sites.know(publisher, type, member)

    def send_twice(key: str) -> list[Status]:
        told = []
        for _ in range(2):
            try:
                told.append(publisher.send(type, [key], key=key).status)
            except TransactionAborted:
                told.append(Status.ABORTED)
        return told

    with ThreadPoolExecutor(4) as threads:
        for number in range(20):
            told = [one for several in threads.map(send_twice, [f"order {number}"] * 4) for one in several]
            outcome = publisher.outcome(key=f"order {number}")
            assert set(told) <= {Status.ABORTED, outcome.status}
            assert (Status.COMMITTED in told) == (outcome.status is Status.COMMITTED)


def test_a_key_goes_to_a_coordinator_by_name(memory_sites: Sites) -> None:
    type = memory_sites.name("orders")
    publisher = memory_sites.start("p")
    for terms in ({"coordinator": "hosted"}, {"access": Access.MULTI}):
        with pytest.raises(UsageError, match="name it, coordinator="):
            publisher.transaction(type, key="order 7", **terms)
    with pytest.raises(UsageError, match="name it, coordinator="):
        publisher.send(type, ["x"], key="order 7", coordinator="hosted")


def test_a_key_is_remembered_after_a_restart(sites: Sites, notes: Notes) -> None:
    type = sites.name("orders")
    member = sites.member("a", type, notes.handler("a"))
    publisher = sites.start("p", log=sites.file("p"))
    sites.know(publisher, type, member)
    first = publisher.send(type, ["x"], key="order 7")
    publisher.close()
    again = sites.start("p", log=sites.file("p"))
    sites.know(again, type, member)
    assert again.send(type, ["x"], key="order 7").tx == first.tx
    assert notes.of("a") == ["x"]


def test_after_an_unknown_outcome_the_site_tells_it_later(sites: Sites) -> None:
    type = sites.name("orders")
    leave = threading.Event()
    member = sites.member("a", type, lambda tx, event: leave.wait(DEADLINE))
    publisher = sites.start("p")
    sites.know(publisher, type, member)
    tx = publisher.transaction(type, vote_within=DEADLINE, complete_within=DEADLINE).start()
    tx.publish("x")
    with pytest.raises(OutcomeUnknown) as caught:
        tx.commit(within=0.2)
    assert caught.value.tx == tx.id
    leave.set()

    def known() -> bool:
        try:
            return publisher.outcome(tx.id, within=1.0).status is Status.COMMITTED
        except OutcomeUnknown:
            return False

    eventually(known)


def test_what_was_told_is_still_known_afterwards(memory_sites: Sites, notes: Notes) -> None:
    type = memory_sites.name("orders")
    publisher = pair(memory_sites, type, notes)
    told = publisher.send(type, ["x"])
    eventually(lambda: not publisher._engine.participant.coordinator.transactions)
    assert told.tx is not None
    assert publisher.outcome(told.tx) == told
    assert publisher.outcome(str(told.tx)) == told
    with pytest.raises(UsageError, match="no transaction id"):
        publisher.outcome("nonsense")
    with pytest.raises(UsageError, match="by the transaction's id or by its key"):
        publisher.outcome()


def test_missing_votes_abort_or_are_waited_for(sites: Sites) -> None:
    type = sites.name("orders")
    leave = threading.Event()
    member = sites.member("a", type, lambda tx, event: leave.wait(DEADLINE))
    other = sites.member("b", type, lambda tx, event: None)
    publisher = sites.start("p")
    sites.know(publisher, type, member, other)
    tx = publisher.transaction(type, vote_within=0.2).start()
    tx.publish("x")
    with pytest.raises(TransactionAborted, match="votes are missing"):
        tx.commit()
    tx = publisher.transaction(type, vote_within=0.2, on_votes_missing=lambda tx: None).start()
    tx.publish("x")
    with pytest.raises(TransactionAborted, match="votes are missing"):
        tx.commit()
    asked: list[Any] = []

    def wait_longer(tx: Any) -> float:
        asked.append(tx)
        assert publisher.transactions(), "the site can be asked meanwhile"
        leave.set()
        return DEADLINE

    with publisher.transaction(type, vote_within=0.2, on_votes_missing=wait_longer) as tx:
        leave.clear()
        tx.publish("y")
    assert tx.outcome is not None
    assert tx.outcome.members == 2
    assert asked[0] == tx.id


# Security


def test_sites_without_the_secret_are_kept_out(sites: Sites, notes: Notes) -> None:
    type = sites.name("orders")
    publisher = pair(sites, type, notes, security=Secret("enrolled together"))
    assert publisher.send(type, ["x"]).members == 2
    stranger = sites.start("stranger", security=Secret("enrolled elsewhere"))
    eventually(lambda: len(stranger.subscribed(type)) == 2)
    outcome = stranger.send(type, ["forged"], census_within=0.5)
    assert outcome.members == 0
    assert notes.of("a") == ["x"]


def test_a_secret_can_be_rotated(memory_sites: Sites, notes: Notes) -> None:
    sites = memory_sites
    type = sites.name("orders")
    old, both, new = Secret("the old one"), Secret("the new one", "the old one"), Secret("the old one", "the new one")
    members = [
        sites.member("a", type, notes.handler("a"), security=both),
        sites.member("b", type, notes.handler("b"), security=new),
    ]
    publisher = sites.start("p", security=new)
    sites.know(publisher, type, *members)
    assert publisher.send(type, ["x"]).members == 2
    with pytest.raises(UsageError, match="at least 8 bytes"):
        Secret("short")
    assert repr(old) == "Secret(...)"


def test_signed_sites_speak_for_themselves_only(sites: Sites, notes: Notes) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    type = sites.name("orders")
    names = [sites.name(short) for short in ("a", "b", "p")]
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    allowed = {name: key.public_key().public_bytes_raw() for name, key in keys.items()}

    def level(short: str) -> Signed:
        return Signed(keys[sites.name(short)].private_bytes_raw(), allowed)

    members = [sites.member(short, type, notes.handler(short), security=level(short)) for short in ("a", "b")]
    publisher = sites.start("p", security=level("p"))
    sites.know(publisher, type, *members)
    closed = only(*(member.name for member in members))
    assert publisher.send(type, ["x"], require=closed, limit=Limit.DISTRIBUTED).members == 2
    assert notes.of("a") == notes.of("b") == ["x"]
    with pytest.raises(UsageError, match="allowed sites must hold"):
        sites.make("c", security=level("a"))


def test_a_stranger_never_hears_that_a_forgotten_commit_aborted(memory_sites: Sites, notes: Notes) -> None:
    """Nor does the caller itself, in a later life, when it has confirmed and does not remember."""
    sites, type = memory_sites, memory_sites.name("orders")
    refusing = {"now": False}

    def handle(tx: Any, event: Any) -> None:
        if refusing["now"]:
            raise ValueError("full")

    member = sites.member("a", type, handle)
    publisher = sites.start("p", log=sites.file("p"))
    stranger = sites.start("stranger")
    sites.know(publisher, type, member)
    committed = publisher.send(type, ["x"], limit=Limit.LOCAL).tx
    refusing["now"] = True
    with pytest.raises(TransactionAborted) as caught, publisher.transaction(type, limit=Limit.DISTRIBUTED) as tx:
        tx.publish("y")
    aborted = caught.value.tx
    eventually(lambda: not publisher._engine.participant.coordinator.transactions)
    assert stranger.outcome(committed).status is Status.FINISHED
    assert stranger.outcome(aborted).status is Status.ABORTED
    publisher.close()
    with sites.make("p", log=sites.file("p")) as again:
        assert again.outcome(committed).status is Status.FINISHED
        assert stranger.outcome(committed).status is Status.FINISHED
        assert stranger.outcome(aborted).status is Status.ABORTED
