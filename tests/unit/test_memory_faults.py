"""The memory broker misbehaves as told, and the same way again for the same seed."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import DEADLINE, eventually
from txlayer import Ack, Delivery, Identity, Roster, Standing, connect, presence
from txlayer.adapters.memory import MemoryBus, MemoryWatch
from txlayer.adapters.memory_broker import Faults
from txlayer.errors import Backpressure, Closed, UsageError

_numbers = itertools.count(1)


class Run:
    """A publisher and a subscriber on a broker of their own."""

    def __init__(self, faults: Faults | None = None, ack: Ack = Ack.MANUAL) -> None:
        url = f"memory://faults-{next(_numbers)}"
        self.publisher, self.subscriber = (self._bus(url, name) for name in ("left", "right"))
        self.broker = self.publisher.native
        self.got: list[int] = []
        self.subscription = self.subscriber.subscribe("t", self._handle, ack=ack)
        if faults is not None:
            self.broker.misbehave(faults)

    @staticmethod
    def _bus(url: str, name: str) -> MemoryBus:
        bus = connect(url, name=name)
        assert isinstance(bus, MemoryBus)
        return bus

    def _handle(self, delivery: Delivery) -> None:
        self.got.append(int(delivery.payload or b"0"))

    def publish(self, count: int) -> None:
        for number in range(count):
            self.publisher.publish("t", b"%d" % number)

    def settle(self) -> list[int]:
        """Heal, and wait for an end marker: everything before it has been handled."""
        self.broker.misbehave(Faults())
        self.publisher.publish("t", b"-1")
        eventually(lambda: -1 in self.got)
        return [number for number in self.got if number >= 0]

    def close(self) -> None:
        self.publisher.close()
        self.subscriber.close()


@pytest.fixture
def run() -> Iterator[type[Run]]:
    made: list[Run] = []

    class Remembered(Run):
        def __init__(self, faults: Faults | None = None, ack: Ack = Ack.MANUAL) -> None:
            super().__init__(faults, ack)
            made.append(self)

    yield Remembered
    for one in made:
        one.close()


def outcome(run: type[Run], faults: Faults, count: int = 300) -> list[int]:
    one = run(faults)
    one.publish(count)
    return one.settle()


@pytest.mark.parametrize("fault", ["drop", "duplicate", "reorder"])
def test_a_seed_repeats_and_another_differs(run: type[Run], fault: str) -> None:
    def once(seed: int) -> list[int]:
        return outcome(run, Faults(seed=seed, **{fault: 0.2}))

    assert once(1) == once(1) != once(2)


def test_drop_loses_about_its_share_and_nothing_else(run: type[Run]) -> None:
    got = outcome(run, Faults(seed=3, drop=0.3), 1000)
    assert got == sorted(set(got))
    assert 600 < len(got) < 800


def test_what_is_dropped_is_reported_missing(run: type[Run]) -> None:
    one = run(Faults(seed=3, drop=0.3), Ack.AUTO)
    one.publish(200)
    got = one.settle()
    stats = one.subscription.stats
    first = got[0]  # what is lost before the first event of a stream is nobody's gap
    assert len(got) + stats.missing == 200 - first


def test_duplicates_come_twice_and_an_auto_handler_sees_one(run: type[Run]) -> None:
    got = outcome(run, Faults(seed=4, duplicate=0.2))
    assert sorted(set(got)) == list(range(300))
    assert 330 < len(got) < 400
    once = run(Faults(seed=4, duplicate=0.2), Ack.AUTO)
    once.publish(300)
    assert once.settle() == list(range(300))
    assert once.subscription.stats.duplicates == len(got) - 300


def test_reorder_loses_and_doubles_nothing(run: type[Run]) -> None:
    got = outcome(run, Faults(seed=5, reorder=0.2))
    assert got != sorted(got)
    assert sorted(got) == list(range(300))


def test_the_last_event_is_not_held_back_for_ever(run: type[Run]) -> None:
    one = run(Faults(seed=0, reorder=1.0))
    one.publish(3)
    eventually(lambda: sorted(one.got) == [0, 1, 2])


def test_delay_keeps_the_order_and_takes_its_time(run: type[Run]) -> None:
    one = run(Faults(delay=0.2))
    began = time.monotonic()
    one.publish(50)
    eventually(lambda: len(one.got) == 50)
    assert time.monotonic() - began >= 0.2
    assert one.got == list(range(50))


def test_a_partition_is_one_way_and_heals_in_order(run: type[Run]) -> None:
    one = run()
    one.broker.partition(["left"], ["right"])
    back: list[bytes] = []
    arrived = threading.Event()
    one.publisher.subscribe("back", lambda delivery: (back.append(delivery.payload), arrived.set()))
    one.publish(20)
    one.subscriber.publish("back", b"x")
    eventually(arrived.is_set)
    assert one.got == []
    one.subscriber.publish("t", b"100")
    eventually(lambda: one.got == [100])
    one.broker.heal()
    eventually(lambda: one.got == [100, *range(20)])


def test_a_partition_is_not_passed_by_connecting_again(run: type[Run]) -> None:
    one = run()
    one.broker.partition(["left"], ["right"])
    one.publish(3)
    one.broker.stop()
    one.broker.start()
    one.subscriber.publish("t", b"7")
    eventually(lambda: one.got == [7])
    one.broker.heal()
    eventually(lambda: one.got == [7, 0, 1, 2])


def test_behind_a_partition_a_living_site_looks_dead_and_comes_back(
    run: type[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "SILENCE", 1.0)
    monkeypatch.setattr(presence, "BEAT", 0.1)
    one = run()
    one.publisher.enter("site", Identity("log"))

    def standing() -> Standing:
        return next(view.standing for view in roster.sites() if view.name == "site")

    with Roster(one.subscriber) as roster:
        eventually(lambda: standing() is Standing.ALIVE)
        one.broker.partition(["left"], ["right"])
        eventually(lambda: standing() is Standing.DEAD)
        one.broker.heal()
        eventually(lambda: standing() is Standing.ALIVE)


def test_empty_events_fill_the_buffer_too(run: type[Run]) -> None:
    one = run()
    one.broker.stop()

    small = connect(f"memory://{one.broker.name}", buffer_bytes=10_000)

    def flood() -> None:
        for _ in range(100_000):
            small.publish("t", b"")

    with pytest.raises(Backpressure, match="buffer_bytes"):
        flood()
    one.broker.start()
    with pytest.raises(UsageError, match="encode it"):
        small.publish("t", "text")  # type: ignore[arg-type]
    buffer = bytearray(b"5")
    one.broker.partition([], [])
    small.publish("t", buffer)  # type: ignore[arg-type]
    buffer[0] = 0
    eventually(lambda: 5 in one.got)
    small.close()


def test_a_bus_that_crashed_says_nothing_over_its_will() -> None:
    for _ in range(50):
        url = f"memory://crash-{next(_numbers)}"
        bus, other = Run._bus(url, "crashing"), Run._bus(url, "other")
        holder = bus.enter("site", Identity("log"))._holder
        watches: list[Any] = [thing for thing in bus._things if isinstance(thing, MemoryWatch)]
        speaking = threading.Event()

        def speak(holder: presence.Holder = holder, speaking: threading.Event = speaking) -> None:
            with contextlib.suppress(Closed):
                while True:
                    holder._say()
                    speaking.set()

        speaker = threading.Thread(target=speak)
        speaker.start()
        assert speaking.wait(DEADLINE)
        bus.crash()
        speaker.join(DEADLINE)
        eventually(lambda: not any(watch._thread.is_alive() for watch in watches))  # noqa: B023
        word = presence.decode(other.watch("sites").snapshot()["sites/site"])
        assert word is not None
        assert not word.alive
        other.close()
