"""A host at work, between an exchange and a disk that the test holds in its hands."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from tests.conftest import DEADLINE, eventually
from txlayer.connect import connect
from txlayer.logs.memory import MemoryDisk
from txlayer.ordering.messages import Create, Stamped
from txlayer.sequencing import sequencer
from txlayer.sequencing.exchange import Letter, Receive
from txlayer.sequencing.sequencer import Sequencer


class Hands:
    """An exchange: `receive` is the host's ear; `numbers` are those that it has given."""

    def __init__(self) -> None:
        self.receive: Receive | None = None
        self.numbers: list[int] = []

    def listen(self, name: str, receive: Receive) -> None:
        self.receive = receive

    def silence(self, name: str, receive: Receive) -> None:
        assert self.receive == receive

    def send(self, letters: Sequence[Letter]) -> None:
        for _, message in letters:
            if isinstance(message, Stamped):
                self.numbers.append(message.stamp.number)

    def close(self) -> None: ...


class SlowDisk(MemoryDisk):
    """Stands still in a sync while `go` is not set."""

    go = threading.Event()
    stands = threading.Event()

    def sync(self) -> None:
        if not self.go.is_set():
            self.stands.set()
            assert self.go.wait(DEADLINE)
        MemoryDisk.sync(self)


def test_what_comes_while_the_disk_stands_still_is_bounded_and_the_limit_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sequencer, "_MOST_WAITING", 5)
    hands, disk = Hands(), SlowDisk()
    disk.go.set()
    with connect("memory://slow-disk") as bus:
        host = Sequencer(bus, hands, disk, name="a", rank=0, patterns=["*"])
        disk.go.clear()
        assert hands.receive is not None
        hands.receive([Create("p", "t", 1, 1, 1, 1)])
        assert disk.stands.wait(DEADLINE)
        for publisher in range(8):
            hands.receive([Create(f"p{publisher}", "t", 1, 1, 1, 1)])
        disk.go.set()
        eventually(lambda: len(hands.numbers) == 6 and "3 letters dropped, more than 5 waited" in caplog.text)
        host.close()
    assert hands.numbers == [1, 2, 3, 4, 5, 6]
