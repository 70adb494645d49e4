"""A durable subscription whose cursor is not durable yet."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.conftest import DEADLINE
from tests.unit.ordering.build import event
from tests.unit.sequencing.test_keeper import Inline, SmallBus, keeping, subscribed
from txlayer.delivery import Delivery
from txlayer.ordering import effects as fx
from txlayer.ordering.messages import Missing
from txlayer.receipt import Receipt
from txlayer.sequencing import stamps, subscription
from txlayer.sequencing.subscription import OrderedSubscription


class LateBus(SmallBus):
    """A value is kept when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.receipt = Receipt()

    def announce(self, key: str, value: bytes) -> Receipt:
        return self.receipt


class Handed:
    """In place of a lane: what the application would get."""

    full = False

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def keep_only(self, wanted: Any) -> None: ...

    def put(self, deliveries: list[Delivery]) -> None:
        self.numbers.extend(delivery.place or 0 for delivery in deliveries)


class Nobody:
    def send(self, letters: Any) -> None: ...


def test_what_waits_for_the_cursor_is_bounded_and_the_bus_below_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "_MOST_HELD", 3)
    role, bus, lane = subscribed(), LateBus(), Handed()
    one = OrderedSubscription(role, Nobody(), Inline(), lane, keeping(role, bus), 1.0)  # type: ignore[arg-type]
    one._topics, one._begun, one._waits = frozenset(["a.0"]), True, False
    one._perform([fx.Checkpoint()])

    def arrive(number: int) -> None:
        one._arrived(Delivery("a.0", b"", None, stamps.headers(event(0, number))))

    for number in (1, 2, 3):
        arrive(number)
    one._perform([fx.Send("a", Missing("s", 0, 1, 1))])
    assert len(one._held) == 3, "it is asked for again"
    fourth = threading.Thread(target=arrive, args=(4,), daemon=True)
    fourth.start()
    fourth.join(0.2)
    assert fourth.is_alive()
    bus.receipt.complete(None)
    fourth.join(DEADLINE)
    assert lane.numbers == [1, 2, 3, 4]
