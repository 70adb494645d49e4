"""What is done for one transaction is done one after the other, a publisher's own work among it."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from txlayer.messages import TxId
from txlayer.runtime.workshop import Lend, Workshop

TX = TxId("c", "log", 1, "abcd")


def workshop() -> Workshop:
    member = SimpleNamespace(quiet=True, resources=())
    members: Any = SimpleNamespace(known={}, of=lambda tx, terms=None: member)
    none: Any = None
    return Workshop(members, none, none, none, 1.0, none, none, none, none)


def test_a_publisher_waits_for_its_turn_and_one_that_has_given_up_keeps_nobody_waiting() -> None:
    shop = workshop()
    first, second, third = (Lend(TX, Future()) for _ in range(3))
    for lend in (first, second, third):
        shop.take(lend)
    assert [lend.turn.done() for lend in (first, second, third)] == [True, False, False]
    assert second.turn.cancel()
    shop.on_lent(first)
    assert third.turn.done()
    shop.on_lent(third)
    assert shop.idle()
