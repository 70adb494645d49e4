"""One suite for every resource: two phases, one phase, markers, and what a crash leaves."""

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from txlayer.errors import ResourceError
from txlayer.messages import TxId
from txlayer.resources.group import ResourceGroup
from txlayer.resources.memory import MemoryResource
from txlayer.resources.port import Resource
from txlayer.resources.postgres import PostgresResource
from txlayer.resources.sqlite import SqliteResource
from txlayer.testing.server import Server

TX = TxId("site/with:slashes", "log", 7, "abcd")
OTHER = TxId("c", "log", 8, "abcd")


class Rig(ABC):
    """A resource that can be crashed, with one way to write and one to read."""

    resource: Resource

    def write(self, tx: TxId, key: str, value: str = "x") -> None:
        self.put(self.work(tx), key, value)

    def work(self, tx: TxId) -> Any:
        return self.resource.work(tx)

    @abstractmethod
    def put(self, unit: Any, key: str, value: str = "x") -> None: ...

    @abstractmethod
    def add(self, tx: TxId, key: str) -> None:
        """The same as work that is handed over, not done."""

    @abstractmethod
    def read(self) -> dict[str, object]: ...

    @abstractmethod
    def crash(self) -> None: ...

    def close(self) -> None:
        self.resource.close()


class MemoryRig(Rig):
    def __init__(self) -> None:
        self.resource: MemoryResource = MemoryResource()

    def put(self, unit: Any, key: str, value: str = "x") -> None:
        unit.put(key, value)

    def add(self, tx: TxId, key: str) -> None:
        self.resource.add(tx, {key: "x"})

    def read(self) -> dict[str, object]:
        return dict(self.resource.values)

    def crash(self) -> None:
        self.resource.crash()


class SqliteRig(Rig):
    def __init__(self, path: Path) -> None:
        self._path = path
        self.resource: SqliteResource = SqliteResource(path)
        self.resource.open("here", "log-1")
        self.resource._db.execute("CREATE TABLE IF NOT EXISTS data (key TEXT PRIMARY KEY, value TEXT)")

    def put(self, unit: Any, key: str, value: str = "x") -> None:
        unit.execute("INSERT OR REPLACE INTO data VALUES (?, ?)", (key, value))

    def add(self, tx: TxId, key: str) -> None:
        self.resource.add(tx, [("INSERT INTO data VALUES (?, 'x')", (key,))])

    def read(self) -> dict[str, object]:
        return dict(self.resource._db.execute("SELECT key, value FROM data").fetchall())

    def crash(self) -> None:
        self.resource.close()
        self.resource = SqliteResource(self._path)
        self.resource.open("here", "log-1")


class PostgresRig(Rig):
    """A new site for every test, so that tests can share a database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._site = f"here-{uuid4().hex[:8]}"
        self._table = f"data_{self._site[5:]}"
        self._db = psycopg.connect(url, autocommit=True)
        self._db.execute(f"CREATE TABLE {self._table} (key text PRIMARY KEY, value text)")
        self._open()

    def _open(self) -> None:
        self.resource: PostgresResource = PostgresResource(self._url)
        self.resource.open(self._site, "log-1")

    def put(self, unit: Any, key: str, value: str = "x") -> None:
        unit.execute(f"INSERT INTO {self._table} VALUES (%s, %s)", (key, value))

    def add(self, tx: TxId, key: str) -> None:
        self.resource.add(tx, self.resource.batch(f"INSERT INTO {self._table} VALUES (%s, 'x')", (key,)))

    def read(self) -> dict[str, object]:
        return dict(self._db.execute(f"SELECT key, value FROM {self._table}").fetchall())

    def crash(self) -> None:
        """What is left of a killed process: nothing but what the server has."""
        for unit in self.resource._units.values():
            assert unit.lease is not None
            unit.lease.cut()
        self._open_again()

    def _open_again(self) -> None:
        self.resource.close()
        self._open()

    def close(self) -> None:
        super().close()
        self._db.close()


class GroupRig(Rig):
    """Two resources that act as one; everything is written to both."""

    def __init__(self, first: Rig, second: Rig) -> None:
        self._rigs = (first, second)
        first.resource.name, second.resource.name = "a", "b"
        self._join()

    def _join(self) -> None:
        for name, rig in zip("ab", self._rigs, strict=True):
            rig.resource.name = name
        self.resource: ResourceGroup = ResourceGroup([rig.resource for rig in self._rigs])

    def work(self, tx: TxId) -> Any:
        return [rig.work(tx) for rig in self._rigs]

    def put(self, unit: Any, key: str, value: str = "x") -> None:
        for rig, one in zip(self._rigs, unit, strict=True):
            rig.put(one, key, value)

    def add(self, tx: TxId, key: str) -> None:
        for rig in self._rigs:
            rig.add(tx, key)

    def read(self) -> dict[str, object]:
        first, second = (rig.read() for rig in self._rigs)
        assert first == second
        return first

    def crash(self) -> None:
        for rig in self._rigs:
            rig.crash()
        self._join()

    def close(self) -> None:
        for rig in self._rigs:
            rig.close()


@pytest.fixture(params=["memory", "sqlite", "postgres", "group", "databases"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    made: Rig
    match request.param:
        case "memory":
            made = MemoryRig()
        case "sqlite":
            made = SqliteRig(tmp_path / "data.db")
        case "postgres":
            server: Server = request.getfixturevalue("postgres_server")
            made = PostgresRig(server.url)
        case "databases":
            made = GroupRig(*(PostgresRig(request.getfixturevalue("postgres_server").url) for _ in range(2)))
        case _:
            made = GroupRig(MemoryRig(), SqliteRig(tmp_path / "data.db"))
    yield made
    made.close()


def test_prepared_work_is_invisible_survives_a_crash_and_commits_once(rig: Rig) -> None:
    rig.write(TX, "a")
    rig.resource.prepare(TX)
    assert rig.read() == {}
    rig.crash()
    assert rig.resource.state(TX) == "prepared"
    rig.resource.commit_prepared(TX)
    rig.resource.commit_prepared(TX)
    assert rig.read() == {"a": "x"}
    assert rig.resource.state(TX) == "committed"


def test_prepared_work_can_be_rolled_back_any_number_of_times(rig: Rig) -> None:
    rig.write(TX, "a")
    rig.resource.prepare(TX)
    rig.crash()
    rig.resource.roll_back(TX)
    rig.resource.roll_back(TX)
    assert rig.resource.state(TX) == "none"
    assert rig.read() == {}


def test_open_work_is_lost_in_a_crash(rig: Rig) -> None:
    rig.write(TX, "a")
    rig.crash()
    assert rig.resource.state(TX) == "none"
    assert rig.read() == {}


def test_commit_in_one_phase_leaves_a_marker_and_is_not_done_twice(rig: Rig) -> None:
    rig.write(TX, "a")
    rig.resource.commit(TX)
    rig.crash()
    assert rig.resource.state(TX) == "committed"
    assert rig.resource.markers() == (TX,)
    rig.resource.commit(TX)
    assert rig.read() == {"a": "x"}


def test_unit_that_was_committed_before_cannot_be_prepared(rig: Rig) -> None:
    rig.write(TX, "a")
    rig.resource.commit(TX)
    with pytest.raises(ResourceError):
        rig.resource.prepare(TX)


def test_failed_handler_leaves_no_trace_in_the_unit(rig: Rig) -> None:
    rig.resource.savepoint(TX)
    rig.write(TX, "kept")
    rig.resource.savepoint(TX)
    rig.write(TX, "undone")
    rig.resource.undo_to_savepoint(TX)
    rig.resource.commit(TX)
    assert rig.read() == {"kept": "x"}


def test_work_that_was_handed_over_survives_a_later_handler_that_fails(rig: Rig) -> None:
    rig.resource.savepoint(TX)
    rig.add(TX, "handed over")
    rig.resource.savepoint(TX)
    rig.write(TX, "undone")
    rig.resource.undo_to_savepoint(TX)
    rig.resource.savepoint(TX)
    rig.write(TX, "kept")
    rig.add(TX, "handed over too")
    rig.resource.savepoint(TX)
    rig.write(TX, "undone")
    rig.add(TX, "undone too")
    rig.resource.undo_to_savepoint(TX)
    rig.resource.commit(TX)
    assert rig.read() == {"handed over": "x", "kept": "x", "handed over too": "x"}


def test_marker_can_be_forgotten(rig: Rig) -> None:
    rig.resource.commit(TX)
    rig.resource.forget(TX)
    rig.resource.forget(TX)
    assert rig.resource.markers() == ()
    assert rig.resource.state(TX) == "none"


def test_commit_of_nothing_that_was_prepared_says_so(rig: Rig) -> None:
    with pytest.raises(ResourceError, match="neither prepared nor committed"):
        rig.resource.commit_prepared(TX)


def test_work_that_is_handed_over_is_part_of_the_unit(rig: Rig) -> None:
    rig.write(TX, "a")
    rig.add(TX, "b")
    rig.resource.prepare(TX)
    assert rig.read() == {}
    rig.resource.commit_prepared(TX)
    assert rig.read() == {"a": "x", "b": "x"}


def test_unit_of_work_that_was_only_handed_over_commits(rig: Rig) -> None:
    rig.add(TX, "a")
    assert rig.resource.has_work(TX)
    rig.resource.commit(TX)
    assert not rig.resource.has_work(TX)
    assert rig.read() == {"a": "x"}


def test_failed_first_handler_leaves_no_trace(rig: Rig) -> None:
    rig.resource.savepoint(TX)
    rig.write(TX, "undone")
    rig.add(TX, "undone too")
    rig.resource.undo_to_savepoint(TX)
    rig.resource.savepoint(TX)
    rig.write(TX, "kept")
    rig.resource.prepare(TX)
    rig.resource.commit_prepared(TX)
    assert rig.read() == {"kept": "x"}


def test_settled_as_none_means_for_ever(rig: Rig) -> None:
    """The barrier: an action after its compensation, or behind recovery's back, fails."""
    rig.write(TX, "a")
    assert rig.resource.settle(TX) == "none"
    with pytest.raises(ResourceError):
        rig.resource.prepare(TX)
    with pytest.raises(ResourceError):
        rig.resource.commit(TX)
    assert rig.resource.settle(TX) == "none"
    assert rig.read() == {}


def test_a_unit_that_was_settled_as_none_can_be_reopened_and_what_was_committed_stays(rig: Rig) -> None:
    assert rig.resource.settle(TX) == "none"
    rig.write(TX, "a")
    rig.resource.reopen(TX)
    rig.resource.commit(TX)
    assert rig.read() == {"a": "x"}
    rig.crash()
    rig.resource.reopen(TX)
    assert rig.resource.state(TX) == "committed"


def test_settling_finds_what_is_prepared_or_committed(rig: Rig) -> None:
    rig.write(TX, "a")
    rig.resource.prepare(TX)
    rig.crash()
    assert rig.resource.settle(TX) == "prepared"
    rig.resource.commit_prepared(TX)
    rig.crash()
    assert rig.resource.settle(TX) == "committed"


def test_prepared_units_are_listed_until_they_are_finished(rig: Rig) -> None:
    rig.write(TX, "a")
    rig.resource.prepare(TX)
    rig.crash()
    assert {branch.tx for branch in rig.resource.branches()} == {TX}
    rig.resource.roll_back(TX)
    assert rig.resource.branches() == ()


def test_undo_record_is_committed_with_the_work(rig: Rig) -> None:
    rig.write(TX, "a")
    rig.resource.commit(TX, b"how to undo it")
    rig.crash()
    assert rig.resource.undo_record(TX) == b"how to undo it"
    rig.resource.forget(TX)
    assert rig.resource.undo_record(TX) == b""


def test_abandoned_unit_cannot_be_prepared(rig: Rig) -> None:
    rig.write(TX, "a")
    rig.resource.abandon(TX)
    with pytest.raises(ResourceError):
        rig.resource.prepare(TX)
    assert rig.resource.branches() == ()
    assert rig.read() == {}


@pytest.mark.parametrize("end", ["roll_back", "settle", "prepare", "commit"])
def test_what_was_lent_is_of_no_use_when_the_unit_has_ended(rig: Rig, end: str) -> None:
    unit = rig.work(TX)
    rig.resource.lend(TX)
    rig.put(unit, "a")
    getattr(rig.resource, end)(TX)
    for _ in range(2):
        with pytest.raises((ResourceError, psycopg.Error)):
            rig.put(unit, "late")
    if end == "prepare":
        rig.resource.commit_prepared(TX)
    assert rig.read() == ({"a": "x"} if end in ("prepare", "commit") else {})
    rig.write(OTHER, "b")
    rig.resource.commit(OTHER)
    assert rig.read().keys() >= {"b"}


def test_work_of_a_publisher_that_is_undone_with_a_handler_spoils_the_unit(rig: Rig) -> None:
    rig.resource.savepoint(TX)
    unit = rig.work(TX)
    rig.resource.lend(TX)
    rig.resource.savepoint(TX)
    rig.put(unit, "of the publisher")
    rig.resource.undo_to_savepoint(TX)
    with contextlib.suppress(ResourceError):
        rig.write(TX, "of the handler's next try")
    with pytest.raises(ResourceError):
        rig.resource.prepare(TX)
    assert rig.read() == {}


def test_what_the_publisher_has_returned_is_like_any_other_unit(rig: Rig) -> None:
    unit = rig.work(TX)
    rig.resource.lend(TX)
    rig.put(unit, "a")
    rig.resource.returned(TX)
    rig.resource.savepoint(TX)
    rig.write(TX, "undone")
    rig.resource.undo_to_savepoint(TX)
    rig.resource.prepare(TX)
    rig.resource.commit_prepared(TX)
    assert rig.read() == {"a": "x"}


def test_prepared_unit_keeps_others_out_of_a_sqlite_database(tmp_path: Path) -> None:
    rig = SqliteRig(tmp_path / "data.db")
    rig.write(TX, "a")
    rig.resource.prepare(TX)
    with pytest.raises(ResourceError, match="in use by"):
        rig.write(OTHER, "b")
    rig.resource.commit_prepared(TX)
    rig.write(OTHER, "b")
    rig.resource.commit(OTHER)
    assert rig.read() == {"a": "x", "b": "x"}
    rig.resource.close()


def test_failing_statement_is_a_resource_error_and_the_unit_can_go_on(tmp_path: Path) -> None:
    rig = SqliteRig(tmp_path / "data.db")
    rig.resource.savepoint(TX)
    with pytest.raises(ResourceError):
        rig.resource.work(TX).execute("INSERT INTO nowhere VALUES (1)")
    rig.resource.undo_to_savepoint(TX)
    rig.write(TX, "a")
    rig.resource.prepare(TX)
    rig.resource.commit_prepared(TX)
    assert rig.read() == {"a": "x"}
    rig.resource.close()


def test_a_unit_without_work_does_not_end_the_work_of_another(rig: Rig) -> None:
    rig.write(TX, "a")
    with contextlib.suppress(ResourceError):  # where there is one writer it has to wait
        rig.resource.commit(OTHER)
    rig.resource.commit(TX)
    assert rig.read() == {"a": "x"}
    rig.resource.commit(OTHER)
    assert rig.resource.state(OTHER) == "committed"


def test_a_statement_of_a_sqlite_unit_is_not_run_outside_of_it(tmp_path: Path) -> None:
    """A unit that is rolled back while one of its statements is about to run: nobody would roll that one back."""
    resource = SqliteResource(tmp_path / "x.db")
    resource._db.execute("CREATE TABLE item (value TEXT)")
    unit = resource.work(TX)
    rolled_back = threading.Event()

    def roll_back() -> None:
        resource.roll_back(TX)
        rolled_back.set()

    thread = threading.Thread(target=roll_back)

    class Meanwhile(list[str]):
        def __iter__(self) -> Iterator[str]:
            thread.start()
            rolled_back.wait(0.2)
            return super().__iter__()

    unit.execute("INSERT INTO item VALUES (?)", Meanwhile(["x"]))
    thread.join()
    assert resource._db.execute("SELECT * FROM item").fetchall() == []


def test_an_error_that_ends_the_transaction_of_sqlite_loses_no_statement(tmp_path: Path) -> None:
    rig = SqliteRig(tmp_path / "r.db")
    rig.write(TX, "a")
    rig.resource._db.execute("ROLLBACK")
    rig.resource.commit(TX)
    assert rig.read() == {"a": "x"}
    rig.close()
