"""One suite for every resource: two phases, one phase, markers, and what a crash leaves."""

from collections.abc import Callable
from pathlib import Path

import pytest

from txlayer.errors import ResourceError
from txlayer.messages import TxId
from txlayer.resources.memory import MemoryResource
from txlayer.resources.sqlite import SqliteResource

TX = TxId("site/with/slashes", "log", 7, "abcd")
OTHER = TxId("c", "log", 8, "abcd")


class Rig:
    """A resource that can be crashed, with one way to write and one to read."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.resource: MemoryResource | SqliteResource = MemoryResource()
        if path is not None:
            self.resource = SqliteResource(path)
            self.resource._db.execute("CREATE TABLE IF NOT EXISTS data (key TEXT PRIMARY KEY, value TEXT)")

    def write(self, tx: TxId, key: str, value: str = "x") -> None:
        work = self.resource.work(tx)
        if self._path is None:
            work.put(key, value)
        else:
            work.execute("INSERT OR REPLACE INTO data VALUES (?, ?)", (key, value))

    def read(self) -> dict[str, object]:
        if isinstance(self.resource, MemoryResource):
            return dict(self.resource.values)
        return dict(self.resource._db.execute("SELECT key, value FROM data").fetchall())

    def crash(self) -> None:
        if isinstance(self.resource, MemoryResource):
            self.resource.crash()
        else:
            self.resource.close()
            assert self._path is not None
            self.resource = SqliteResource(self._path)


@pytest.fixture(params=["memory", "sqlite"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Rig]:
    made = Rig(None if request.param == "memory" else tmp_path / "data.db")
    yield made
    made.resource.close()


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


def test_marker_can_be_forgotten(rig: Rig) -> None:
    rig.resource.commit(TX)
    rig.resource.forget(TX)
    rig.resource.forget(TX)
    assert rig.resource.markers() == ()
    assert rig.resource.state(TX) == "none"


def test_commit_of_nothing_that_was_prepared_says_so(rig: Rig) -> None:
    with pytest.raises(ResourceError, match="neither prepared nor committed"):
        rig.resource.commit_prepared(TX)


def test_prepared_unit_keeps_others_out_of_a_sqlite_database(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data.db")
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
    rig = Rig(tmp_path / "data.db")
    rig.resource.savepoint(TX)
    with pytest.raises(ResourceError):
        rig.resource.work(TX).execute("INSERT INTO nowhere VALUES (1)")
    rig.resource.undo_to_savepoint(TX)
    rig.write(TX, "a")
    rig.resource.prepare(TX)
    rig.resource.commit_prepared(TX)
    assert rig.read() == {"a": "x"}
    rig.resource.close()
