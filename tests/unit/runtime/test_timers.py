"""Timers of a site."""

from __future__ import annotations

import time
from math import inf

import pytest

from txlayer.runtime.timers import Timers


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_timers_fire_once_in_the_order_in_which_they_are_due(clock: list[float]) -> None:
    timers = Timers()
    for name, seconds in (("late", 3.0), ("early", 1.0)):
        timers.set(("x", 0, name), seconds)
    assert timers.next_due() == 101.0
    assert timers.due() == []
    clock[0] += 5.0
    assert timers.due() == [("x", 0, "early"), ("x", 0, "late")]
    assert timers.due() == []
    assert timers.next_due() == inf


def test_a_timer_replaces_the_one_of_the_same_key_and_can_be_cancelled(clock: list[float]) -> None:
    timers = Timers()
    timers.set(("x", 0, "a"), 1.0)
    timers.set(("x", 0, "a"), 4.0)
    timers.set(("x", 0, "b"), 1.0)
    timers.cancel(("x", 0, "b"))
    assert timers.next_due() == 104.0
    clock[0] += 2.0
    assert timers.due() == []
    clock[0] += 2.0
    assert timers.due() == [("x", 0, "a")]


def test_cancelled_timers_do_not_pile_up(clock: list[float]) -> None:
    timers = Timers()
    for number in range(100_000):
        timers.set(("x", number, "deadline"), 60.0)
        timers.cancel(("x", number, "deadline"))
    assert len(timers.heap) < 5000
