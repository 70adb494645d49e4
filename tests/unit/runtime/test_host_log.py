from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.ordering.build import create, sent
from txlayer.errors import LogCorrupt, LogForeign
from txlayer.logs.port import Batch, Disk
from txlayer.logs.sqlite import SqliteDisk
from txlayer.ordering import effects as fx
from txlayer.ordering.host import Host
from txlayer.ordering.host_state import HostConfig
from txlayer.ordering.messages import Stamped
from txlayer.ordering.records import EpochRecord, SubscriptionRecord
from txlayer.runtime.host_log import HostLog, open_host_log


def opened(path: Path, host: str = "a", rank: int = 0) -> tuple[Disk, HostLog]:
    disk = SqliteDisk(path / "log.db")
    return disk, open_host_log(disk, host, rank, "first")


def test_the_last_record_of_a_key_survives(tmp_path: Path) -> None:
    disk, log = opened(tmp_path)
    subscription = SubscriptionRecord("s", 1, (0,), True, False)
    log.write([fx.Persist("epoch", EpochRecord(1)), fx.Persist("s", subscription), fx.Persist("epoch", EpochRecord(2))])
    log.write([fx.Erase("s")])
    disk.close()
    disk, again = opened(tmp_path)
    assert again.records == {"epoch": EpochRecord(2)}
    assert again.header.incarnation == "first"
    disk.close()


def test_the_log_of_another_host_is_refused(tmp_path: Path) -> None:
    disk, _ = opened(tmp_path)
    disk.close()
    disk = SqliteDisk(tmp_path / "log.db")
    with pytest.raises(LogForeign, match="log of host a, rank 0: not of b, rank 1"):
        open_host_log(disk, "b", 1, "other")
    disk.close()


def test_a_log_that_lost_a_record_is_refused(tmp_path: Path) -> None:
    disk, log = opened(tmp_path)
    log.write([fx.Persist("epoch", EpochRecord(1))])
    header = disk.load().header
    assert header is not None
    disk.write(Batch((), (1,), header))
    disk.sync()
    with pytest.raises(LogCorrupt, match="has 0 records, its header says 1"):
        open_host_log(disk, "a", 0, "other")
    disk.close()


def test_a_host_that_restarts_from_its_file_gives_no_number_twice(tmp_path: Path) -> None:
    given: list[int] = []
    for _ in range(3):
        disk, log = opened(tmp_path)
        host = Host("a", 0, ("a.*",), log.header.incarnation, HostConfig(block=3))
        effects = host.start(log.records.values(), fx.Neighbours(None, None), 0.0)
        for seq in range(1, 6):
            effects += host.step(create(seq, publisher=f"p{host.state.epoch}"), 0.0)
        log.write([effect for effect in effects if isinstance(effect, fx.Persist | fx.Erase)])
        given += [answer.stamp.number for answer in sent(effects, Stamped)]
        disk.close()
    assert len(given) == 15
    assert len(set(given)) == 15
    assert given == sorted(given)
