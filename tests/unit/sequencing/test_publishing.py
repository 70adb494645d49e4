"""What an application's receipt says of an event that has not got its place in time."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from tests.conftest import eventually
from txlayer import connect
from txlayer.errors import PublishFailed, PublishInDoubt
from txlayer.ordering import effects as fx
from txlayer.ordering.messages import Hail, Stamped
from txlayer.ordering.publisher import Publisher, PublisherConfig
from txlayer.ordering.timestamp import Stamp
from txlayer.sequencing.loop import Loop
from txlayer.sequencing.publishing import Publishing


class ByHand:
    """A loop that ticks when the test says so."""

    def __init__(self) -> None:
        self.tick: Callable[[], None] = lambda: None

    def post(self, act: Callable[[], None]) -> None:
        act()

    def every_tick(self, ticker: Callable[[], None]) -> Callable[[], None]:
        self.tick = ticker
        return lambda: None


def publishing(loop: ByHand) -> Publishing:
    """With no patience at all, for whoever ticks."""
    role = Publisher("p", PublisherConfig(repeat=0.01, guard=3600.0))
    made = Publishing(role, connect("memory://publishing"), lambda letters: None, cast(Loop, loop), 0.0, 1 << 20)
    made.take([fx.Claimed(0, "a", 1, "log-a", ("*",))])
    return made


def test_an_event_without_a_place_has_failed_and_one_on_the_bus_is_in_doubt() -> None:
    loop = ByHand()
    made = publishing(loop)
    on_the_bus = made.publish("x", b"1", None, None, "")
    made.take([Stamped("x", 1, 1, 1, Stamp(0, 1, 1))])
    nowhere = made.publish("y", b"2", None, None, "")

    def told() -> bool:
        loop.tick()
        return on_the_bus.done and nowhere.done

    eventually(told)
    assert isinstance(on_the_bus.error, PublishInDoubt)
    assert isinstance(nowhere.error, PublishFailed)


def test_a_message_that_is_not_for_publishers_does_no_harm() -> None:
    made = publishing(ByHand())
    made.take([Hail(0, 1)])
    receipt = made.publish("x", b"1", None, None, "")
    assert not receipt.done
