"""What a handler does to a SQLite database stays inside its unit, whatever the handler does."""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from txlayer.effects import HandlerDone, RunHandler
from txlayer.errors import ResourceError
from txlayer.messages import Item, Numbered, TxId
from txlayer.resources.sqlite import SqliteResource, SqliteUnit
from txlayer.runtime.unit_work import UnitWork

TX = TxId("c", "log", 1, "ab")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    database = sqlite3.connect(tmp_path / "data.db")
    database.execute("CREATE TABLE item (number INTEGER PRIMARY KEY, value TEXT)")
    database.execute("INSERT INTO item VALUES (1, 'old')")
    database.commit()
    database.close()
    return tmp_path / "data.db"


@pytest.fixture
def resource(path: Path) -> Iterator[SqliteResource]:
    resource = SqliteResource(path)
    resource.open("a", "log")
    yield resource
    resource.close()


def stored(path: Path) -> list[int]:
    other = sqlite3.connect(path)
    numbers = [row[0] for row in other.execute("SELECT number FROM item ORDER BY number")]
    other.close()
    return numbers


def put(unit: SqliteUnit, number: int, how: str = "INSERT") -> None:
    unit.execute(f"{how} INTO item VALUES (?, 'new')", (number,))


def test_after_an_error_that_ends_the_transaction_nothing_is_written_outside_of_the_unit(
    path: Path, resource: SqliteResource
) -> None:
    unit = resource.work(TX)
    put(unit, 2)
    with pytest.raises(ResourceError, match="UNIQUE"):
        put(unit, 1, "INSERT OR ROLLBACK")
    with pytest.raises(ResourceError, match="has ended"):
        put(unit, 3)
    assert stored(path) == [1]
    with pytest.raises(ResourceError, match="ended its work"):
        resource.prepare(TX)
    assert resource.state(TX) == "none"


def test_a_unit_that_an_error_ended_rolls_back_without_complaint(path: Path, resource: SqliteResource) -> None:
    unit = resource.work(TX)
    with pytest.raises(ResourceError):
        put(unit, 1, "INSERT OR ROLLBACK")
    resource.roll_back(TX)
    put(resource.work(TX), 2)
    resource.commit(TX)
    assert stored(path) == [1, 2]


@pytest.mark.parametrize(
    "sql",
    [
        "COMMIT", "end", " -- a comment\n rollback", "/* a */ ; SAVEPOINT x", "RELEASE handler", "BEGIN",
        "\ufeffCOMMIT", ";\ufeff/* a */\ufeffEND",
    ],
)  # fmt: skip
def test_a_handler_cannot_end_the_transaction_of_its_unit(path: Path, resource: SqliteResource, sql: str) -> None:
    unit = resource.work(TX)
    put(unit, 2)
    with pytest.raises(ResourceError, match="in a handler"):
        unit.execute(sql)
    resource.roll_back(TX)
    assert stored(path) == [1]


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK"])
def test_a_unit_whose_transaction_was_ended_by_a_statement_is_refused(
    path: Path, resource: SqliteResource, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    monkeypatch.setattr("txlayer.resources.sqlite._TRANSACTION_CONTROL", re.compile("a spelling nobody thought of"))
    unit = resource.work(TX)
    put(unit, 2)
    with pytest.raises(ResourceError, match=f"'{sql}' ended the transaction of its unit"):
        unit.execute(sql)
    with pytest.raises(ResourceError, match="has ended"):
        put(unit, 3)
    with pytest.raises(ResourceError, match="ended its work"):
        resource.prepare(TX)
    assert resource.state(TX) == "none"
    assert 3 not in stored(path)


class Fails:
    """Writes each event down; the second event, each time that it comes, with an error that ends the transaction."""

    def handle(self, tx: TxId, event: Numbered, work: Any) -> None:
        put(work, 10 + event.number)
        if event.number == 2:
            put(work, 1, "INSERT OR ROLLBACK")

    def compensate(self, tx: TxId, event: Numbered, work: Any) -> None:
        raise AssertionError("nothing to undo")


def test_a_handler_that_is_tried_again_after_such_an_error_fails_and_keeps_nothing(
    path: Path, resource: SqliteResource
) -> None:
    work = UnitWork(resource, Fails())
    results = [work.perform(RunHandler(TX, Numbered(number, Item("t", b""), "p"))) for number in (1, 2, 2)]
    assert [isinstance(result, HandlerDone) and result.ok for result in results] == [True, False, False]
    with pytest.raises(ResourceError, match="ended its work"):
        resource.prepare(TX)
    assert stored(path) == [1]


def test_a_first_handler_that_is_tried_again_starts_with_a_unit_of_its_own(
    path: Path, resource: SqliteResource
) -> None:
    class FailsOnce(Fails):
        failed = False

        def handle(self, tx: TxId, event: Numbered, work: Any) -> None:
            put(work, 2)
            if not self.failed:
                self.failed = True
                put(work, 1, "INSERT OR ROLLBACK")

    work = UnitWork(resource, FailsOnce())
    for ok in (False, True):
        result = work.perform(RunHandler(TX, Numbered(1, Item("t", b""), "p")))
        assert isinstance(result, HandlerDone)
        assert result.ok is ok
    resource.prepare(TX)
    resource.commit_prepared(TX)
    assert stored(path) == [1, 2]
