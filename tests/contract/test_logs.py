"""One suite for every log: what is durable, what is refused, what is migrated."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from txlayer.errors import LogCorrupt, LogError, LogFailed, LogForeign, LogRolledBack, LogTooNew
from txlayer.logs.memory import MemoryDisk
from txlayer.logs.port import Batch, Disk
from txlayer.logs.postgres import PostgresDisk
from txlayer.logs.record_log import VERSION, Head, Header, Identity, RecordLog, open_log, seal_header
from txlayer.logs.sqlite import RESERVE_BYTES, SqliteDisk
from txlayer.messages import TxId
from txlayer.records import NumbersReserved, VotedNo

IDENTITY = Identity("first-log", b"secret of this log, made with it")
Opener = Callable[[], Disk]


class KeptDisk(MemoryDisk):
    """Stays the same disk when it is opened again."""

    def close(self) -> None:
        self.crash()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Opener:
    if request.param == "memory":
        disk = KeptDisk()
        return lambda: disk
    if request.param == "sqlite":
        return lambda: SqliteDisk(tmp_path / "site.log")
    dsn = request.getfixturevalue("postgres_dsn")
    name = request.node.name
    return lambda: PostgresDisk(dsn, name)


def open_site(disk: Disk, remembered: Head | None = None, site: str = "a") -> RecordLog:
    return open_log(disk, site, IDENTITY, remembered)


def flush(log: RecordLog) -> None:
    log.write()
    log.sync()


def test_synced_records_survive_and_unsynced_ones_do_not(opener: Opener) -> None:
    log = open_site(opener())
    log.append("n", NumbersReserved(5))
    flush(log)
    log.append("n", NumbersReserved(6))
    log.append("m", VotedNo(TxId("c", "i", 1, "x"), "orders"))
    log.close()
    again = open_site(opener())
    assert list(again.records.values()) == [NumbersReserved(5)]
    again.close()


def test_a_log_that_is_touched_is_written_though_nothing_has_changed(opener: Opener) -> None:
    log = open_site(opener())
    before = log.head()
    log.touch()
    flush(log)
    assert log.durable == log.position
    assert log.head().number > before.number
    log.close()
    again = open_site(opener())
    assert again.size() == 0
    again.close()


def test_written_but_not_synced_is_lost_as_a_whole(opener: Opener) -> None:
    log = open_site(opener())
    log.append("n", NumbersReserved(5))
    log.write()
    log.close()
    again = open_site(opener())
    assert again.records == {}
    again.close()


def test_last_record_of_a_key_is_the_one_that_counts_and_dropped_ones_are_gone(opener: Opener) -> None:
    log = open_site(opener())
    for upto in range(10):
        log.append("n", NumbersReserved(upto))
    log.append("gone", NumbersReserved(1))
    flush(log)
    log.drop("gone")
    log.append("n", NumbersReserved(99))
    flush(log)
    log.close()
    again = open_site(opener())
    assert again.records == {"n": NumbersReserved(99)}
    assert again.size() == 1
    again.close()


def test_records_come_back_in_the_order_in_which_they_were_written(opener: Opener) -> None:
    log = open_site(opener())
    for number in (3, 1, 2):
        log.append(f"k{number}", NumbersReserved(number))
    flush(log)
    log.close()
    again = open_site(opener())
    assert [record.upto for record in again.records.values()] == [3, 1, 2]
    again.close()


def test_incarnation_and_secret_stay_and_every_opening_is_a_new_life(opener: Opener) -> None:
    log = open_site(opener())
    assert (log.header.incarnation, log.header.life) == ("first-log", 1)
    log.close()
    again = open_log(opener(), "a", Identity("second", b"other"))
    assert (again.header.incarnation, again.header.secret, again.header.life) == ("first-log", IDENTITY.secret, 2)
    again.close()


def test_log_of_another_site_is_refused(opener: Opener) -> None:
    open_site(opener()).close()
    disk = opener()
    with pytest.raises(LogForeign, match="log of 'a', not of 'b'"):
        open_site(disk, site="b")
    disk.close()


def test_log_that_is_older_than_the_bus_remembers_is_refused(opener: Opener) -> None:
    log = open_site(opener())
    log.append("n", NumbersReserved(5))
    flush(log)
    head = log.head()
    log.close()
    disk = opener()
    with pytest.raises(LogRolledBack, match="remembers entry"):
        open_site(disk, Head(head.incarnation, head.number + 1))
    disk.close()
    again = open_site(opener(), head)
    again.close()


def test_another_log_than_the_bus_remembers_is_refused_also_when_it_is_new(opener: Opener) -> None:
    disk = opener()
    with pytest.raises(LogForeign, match="this one is new"):
        open_site(disk, Head("older-log", 7))
    disk.close()
    open_site(opener()).close()
    disk = opener()
    with pytest.raises(LogForeign, match="the bus remembers log other"):
        open_site(disk, Head("other", 0))
    disk.close()


def test_log_of_a_later_release_is_refused(opener: Opener) -> None:
    disk = opener()
    disk.write(Batch((), (), seal_header(Header(VERSION + 1, "a", "i", b"s", 1, 0))))
    disk.sync()
    disk.close()
    disk = opener()
    with pytest.raises(LogTooNew, match=f"format {VERSION + 1}"):
        open_site(disk)
    disk.close()


def test_log_of_the_first_format_is_migrated(opener: Opener) -> None:
    log = open_site(opener())
    log.append("n", NumbersReserved(7))
    flush(log)
    first = msgspec.msgpack.encode([1, *msgspec.structs.astuple(log.header)[1:6]])
    log.close()
    disk = opener()
    disk.write(Batch((), (), _sealed(first)))
    disk.sync()
    disk.close()
    migrated = open_site(opener())
    assert migrated.records == {"n": NumbersReserved(7)}
    assert (migrated.header.version, migrated.header.count) == (VERSION, 1)
    migrated.close()
    open_site(opener()).close()


def _sealed(body: bytes) -> bytes:
    import zlib

    return zlib.crc32(body).to_bytes(4, "big") + body


def damaged(opener: Opener, change: Callable[[Header, list[tuple[int, bytes]]], Batch]) -> None:
    log = open_site(opener())
    log.append("n", NumbersReserved(7))
    log.append("o", NumbersReserved(8))
    flush(log)
    header = log.header
    log.close()
    disk = opener()
    stored = disk.load()
    disk.write(change(header, list(stored.rows)))
    disk.sync()
    disk.close()
    disk = opener()
    with pytest.raises(LogCorrupt):
        open_site(disk)
    disk.close()


def test_missing_record_is_noticed(opener: Opener) -> None:
    damaged(opener, lambda header, rows: Batch((), (rows[0][0],), seal_header(header)))


def test_changed_record_is_noticed(opener: Opener) -> None:
    def flip(header: Header, rows: list[tuple[int, bytes]]) -> Batch:
        number, body = rows[1]
        return Batch(((header.head + 1, body),), (number,), seal_header(msgspec.structs.replace(header, head=99)))

    damaged(opener, flip)


def test_damaged_header_is_noticed(opener: Opener) -> None:
    damaged(opener, lambda header, rows: Batch((), (), b"\0\0\0\0" + seal_header(header)[4:]))


def test_group_commit_makes_many_appends_durable_in_one_sync() -> None:
    disk = KeptDisk()
    log = open_site(disk)
    before = disk.syncs
    for number in range(64):
        log.append(f"k{number}", NumbersReserved(number))
    flush(log)
    assert disk.syncs == before + 1


def test_after_a_failed_sync_the_log_never_tries_again() -> None:
    disk = KeptDisk()
    log = open_site(disk)
    log.append("n", NumbersReserved(1))
    disk.broken = True
    with pytest.raises(LogFailed):
        flush(log)
    disk.broken = False
    log.append("o", NumbersReserved(2))
    with pytest.raises(LogFailed, match="failed before"):
        flush(log)


def test_sqlite_is_in_wal_mode_with_full_synchronisation(tmp_path: Path) -> None:
    disk = SqliteDisk(tmp_path / "site.log")
    assert disk._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert disk._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    disk.close()


def test_sqlite_file_that_is_open_elsewhere_is_refused(tmp_path: Path) -> None:
    log = open_site(SqliteDisk(tmp_path / "site.log"))
    with pytest.raises(LogError, match="another process"):
        open_site(SqliteDisk(tmp_path / "site.log"))
    log.close()


def test_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "site.log"
    path.write_bytes(b"this is a text, and a rather long one at that" * 100)
    with pytest.raises(LogError):
        SqliteDisk(path)
    assert sqlite3.sqlite_version


def test_postgres_log_has_one_holder(postgres_dsn: str) -> None:
    first = PostgresDisk(postgres_dsn, "holder")
    with pytest.raises(LogError, match="another process"):
        PostgresDisk(postgres_dsn, "holder")
    first.close()
    PostgresDisk(postgres_dsn, "holder").close()


def test_sqlite_keeps_room_for_decisions_and_says_when_the_disk_is_almost_full(tmp_path: Path) -> None:
    free = 100 * RESERVE_BYTES
    disk = SqliteDisk(tmp_path / "site.log", lambda: free)
    reserve = tmp_path / "site.log.reserve"
    assert reserve.stat().st_size == RESERVE_BYTES
    log = open_site(disk)
    assert not log.low()
    free = RESERVE_BYTES - 1
    assert log.low()
    assert not reserve.exists(), "its room is there for decisions now"
    log.append("n", NumbersReserved(5))
    flush(log)
    free = 2 * RESERVE_BYTES
    assert log.low(), "what was given up must come back first"
    free = 4 * RESERVE_BYTES
    assert not log.low()
    assert reserve.stat().st_size == RESERVE_BYTES
    log.close()


def test_sqlite_keeps_room_where_the_system_cannot_set_it_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    disk = SqliteDisk(tmp_path / "site.log", lambda: 100 * RESERVE_BYTES)
    assert not disk.low()
    assert (tmp_path / "site.log.reserve").stat().st_size == RESERVE_BYTES
    disk.close()


def test_copy_from_before_a_removal_or_a_restart_is_older_too(opener: Opener) -> None:
    log = open_site(opener())
    log.append("n", NumbersReserved(5))
    flush(log)
    before = log.head()
    log.drop("n")
    flush(log)
    after = log.head()
    log.close()
    again = open_site(opener(), after)
    assert before.number < after.number < again.head().number
    again.close()
