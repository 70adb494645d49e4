"""A supplier that ships at once and takes the goods back when the order is cancelled, beside one that waits.

The supplier is compensatable: it commits before the others have agreed, and undoes event by event, last first.
Run it with a bus of your own: python examples/compensate.py mqtt://localhost:1883
"""

from __future__ import annotations

import sys
import threading
import time

from txlayer import Event, MemberTransaction, Participant, Site
from txlayer.errors import TransactionAborted


def say(text: str) -> None:
    print(text + "\n", end="", flush=True)  # in one piece, whichever thread it is


def main(bus: str) -> None:
    supplier = Site("supplier", bus=bus, log="memory://")
    bank = Site("bank", bus=bus, log="memory://")
    shop = Site("shop", bus=bus, log="memory://")
    shipped, undone = threading.Event(), threading.Event()

    @supplier.subscriber("orders")
    class Ship(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None:
            say(f"supplier: packs {event.data}")

        def on_commit(self, tx: MemberTransaction) -> None:
            say("supplier: has shipped, without waiting for the bank")
            shipped.set()

        def on_compensate(self, tx: MemberTransaction, event: Event) -> None:
            say(f"supplier: takes {event.data} back")
            if event.number == 1:
                undone.set()

    @bank.subscriber("orders")
    class Pay(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None:
            pass

        def on_prepare(self, tx: MemberTransaction) -> None:
            shipped.wait(5)
            raise ValueError("the account is empty")

    with supplier, bank, shop:
        while shop.subscribed("orders") != ["bank", "supplier"]:
            time.sleep(0.01)
        try:
            with shop.transaction("orders") as tx:
                tx.publish("a table")
                tx.publish("four chairs")
        except TransactionAborted as exc:
            say(f"shop: {exc}")
        undone.wait(10)


if __name__ == "__main__":
    main(*(sys.argv[1:2] or ["memory://orders"]))
