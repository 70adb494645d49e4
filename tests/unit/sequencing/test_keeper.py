"""What a durable subscription keeps, and how much of it one save looks at."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.ordering.build import event, subscriber
from txlayer.delivery import Delivery
from txlayer.errors import PayloadTooLarge
from txlayer.ordering import effects as fx
from txlayer.ordering.messages import Event
from txlayer.ordering.seen import Seen
from txlayer.ordering.subscriber import Subscriber
from txlayer.ports import Identity
from txlayer.receipt import Receipt
from txlayer.sequencing import keeper as keepers
from txlayer.sequencing.cursor_values import CursorValues
from txlayer.sequencing.keeper import Keeper
from txlayer.sequencing.lowest import Lowest


class SmallBus:
    """Keeps latest values up to a size, and says so at once."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.limit = limit
        self.value = b""

    def announce(self, key: str, value: bytes) -> Receipt:
        if len(value) > self.limit:
            raise PayloadTooLarge(f"{len(value)} bytes: at most {self.limit}")
        self.value = value
        receipt = Receipt()
        receipt.complete(None)
        return receipt

    def saved(self) -> Any:
        return msgspec.msgpack.decode(self.value, type=keepers._Kept)


class Inline:
    """A loop that does at once what is posted."""

    def post(self, act: Callable[[], object]) -> None:
        act()


class Unlisted(dict[Any, Any]):
    """May be asked, not read from end to end."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("everything was looked at")

    items = values = keys = __iter__  # type: ignore[assignment]


def keeping(role: Subscriber, bus: SmallBus) -> Keeper:
    keeper = Keeper(CursorValues(bus, "d", Identity("me")), Inline())  # type: ignore[arg-type]
    keeper._role = role
    return keeper


def subscribed(topics: int = 1) -> Subscriber:
    role = subscriber()
    for rank in range(topics):
        role.topics[f"a.{rank}"] = role.ranks[f"a.{rank}"] = rank
        role.buffer.add(f"a.{rank}", rank, 0)
    return role


def arrive(keeper: Keeper, role: Subscriber, one: Event, acknowledged: list[int]) -> list[Delivery]:
    """As the subscription does it; what was handed to the application."""
    delivery = Delivery("a.0", b"", None, {})
    delivery.held_by(_Broker(acknowledged), one.stamp.number)
    keeper.arrived(one, delivery)
    effects = role.step(one, 0.0)
    return [keeper.handed(effect, delivery) for effect in effects if isinstance(effect, fx.Deliver)]


class _Broker:
    def __init__(self, acknowledged: list[int]) -> None:
        self._acknowledged = acknowledged

    def settle(self, delivery: Delivery) -> None:
        self._acknowledged.append(delivery.token)


def test_a_cursor_that_the_bus_finds_too_large_is_cut_to_what_fits() -> None:
    role, bus, done = subscribed(), SmallBus(600), []
    keeper = keeping(role, bus)
    for number in range(1, 101):
        role.step(event(0, number, publisher=f"publisher-{number}/p"), 0.0)
    keeper.save_now(lambda: done.append(1))
    assert done == [1]
    seen = bus.saved().cursor.seen
    assert 1 <= len(seen) < 100
    assert seen[-1][0] == "publisher-100/p", "who was heard last is remembered"
    assert keeper.trouble is None


def test_a_cursor_that_does_not_fit_at_all_is_said() -> None:
    role, bus, done = subscribed(100), SmallBus(50), []
    keeper = keeping(role, bus)
    keeper.save_now(lambda: done.append(1))
    assert (done, "too large for this bus" in str(keeper.trouble)) == ([], True)
    bus.limit = 1 << 20
    keeper.save_now(lambda: None)
    assert (done, keeper.trouble) == ([1], None)


def test_what_did_not_fit_beside_the_cursor_is_not_acknowledged() -> None:
    role, bus, acknowledged = subscribed(), SmallBus(150), []
    keeper = keeping(role, bus)
    for number in range(2, 12):
        arrive(keeper, role, event(0, number), acknowledged)
    keeper._save()
    assert sorted(acknowledged) == sorted(one.stamp.number for one in bus.saved().spooled)
    assert 0 < len(acknowledged) < 10


def test_a_save_looks_neither_at_all_that_waits_nor_at_all_that_is_not_acknowledged() -> None:
    role, bus, acknowledged = subscribed(), SmallBus(), []
    keeper = keeping(role, bus)
    for number in range(2, 2000):
        arrive(keeper, role, event(0, number), acknowledged)
    lane = role.buffer.lanes[0]
    lane.items, keeper._unacknowledged = Unlisted(lane.items), Unlisted(keeper._unacknowledged)
    keeper._save()
    assert len(bus.saved().spooled) == keepers._MOST_SPOOLED
    assert acknowledged == list(range(2, 2 + keepers._MOST_SPOOLED)), "those that came first"


def test_what_the_application_has_not_acknowledged_is_neither_passed_nor_seen() -> None:
    role, bus, acknowledged = subscribed(), SmallBus(), []
    keeper = keeping(role, bus)
    handed = [arrive(keeper, role, event(0, number), acknowledged)[0] for number in range(1, 6)]
    for delivery in (handed[0], handed[1], handed[3]):
        keeper.settle(delivery)
    keeper._save()
    cursor = bus.saved().cursor
    assert cursor.topics == (("a.0", 0, 2),)
    again = Seen()
    again.load(cursor.seen)
    assert [serial for serial in range(1, 6) if again.knows("p", 0, serial)] == [1, 2]
    assert acknowledged == [1, 2]
    keeper.settle(handed[2])
    keeper.settle(handed[4])
    keeper._save()
    assert bus.saved().cursor.topics == (("a.0", 0, 5),)
    assert acknowledged == [1, 2, 3, 4, 5]


def test_nothing_of_a_log_that_is_gone_holds_the_cursor_back() -> None:
    role, bus, acknowledged = subscribed(), SmallBus(), []
    keeper = keeping(role, bus)
    role.logs.current[0] = "log-a"
    keeper.follow(role.directory.claims[0])
    (handed,) = arrive(keeper, role, event(0, 1), acknowledged)
    arrive(keeper, role, event(0, 9), acknowledged)
    claim = fx.Claimed(0, "a", 2, "another", ("a.*",), first=2)
    role.step(claim, 0.0)
    keeper.follow(claim)
    assert acknowledged == [1, 9]
    keeper.settle(handed)
    assert len(keeper._out) == 0
    assert not keeper._spooled


@given(st.lists(st.integers(0, 20), min_size=1), st.randoms(use_true_random=False))
def test_the_lowest_of_what_is_there(values: list[int], rng: Any) -> None:
    lowest, here = Lowest(), deque[int]()
    for value in values:
        lowest.add(value)
        here.append(value)
        while here and rng.random() < 0.4:
            lowest.remove(here.popleft())
        assert lowest.value == (min(here) if here else None)


def test_publishers_that_were_silent_for_longest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.ordering.seen._TRACKS", 2)
    seen = Seen()
    for publisher, serial in (("old", 1), ("idle", 1), ("old", 2), ("new", 1)):
        seen.add(publisher, 0, serial)
    assert [seen.knows(*one) for one in (("old", 0, 2), ("idle", 0, 1), ("new", 0, 1))] == [True, False, True]
    assert [track[0] for track in seen.dump(1)] == ["new"]
