"""The broker dies and comes back in the middle of everything."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

from tests.conftest import DEADLINE, eventually
from tests.contract.conftest import BusWorld
from tests.sites.conftest import Sites
from txlayer import Event, MemberTransaction, Site, Status, at_least
from txlayer.errors import OutcomeUnknown, TransactionError
from txlayer.resources.memory import MemoryResource

ROUNDS = 12
ALL = at_least(3)


def test_a_broker_that_is_killed_and_restarted_divides_nobody(private_world: BusWorld, tmp_path: Path) -> None:
    sites = Sites(private_world, tmp_path)
    try:
        divide_nobody(sites)
    finally:
        sites.close()


def divide_nobody(sites: Sites) -> None:
    type = sites.name("orders")
    stores = {short: MemoryResource() for short in "abc"}

    def put(store: MemoryResource) -> Any:
        def handle(tx: MemberTransaction, event: Event) -> None:
            tx[store].put(str(event.data), "done")

        return handle

    members = [
        sites.member(short, type, put(store), resources=[store], log=sites.file(short))
        for short, store in stores.items()
    ]
    publisher = sites.start("p", log=sites.file("p"))
    sites.know(publisher, type, *members)
    outcomes: dict[str, Status] = {}
    half = threading.Event()

    def run(first: int) -> None:
        for number in range(first, first + ROUNDS):
            outcomes[str(number)] = attempt(publisher, type, number)
            if number == first + ROUNDS // 3:
                half.set()

    threads = [threading.Thread(target=run, args=(100 * k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    assert half.wait(2 * DEADLINE)
    sites.world.kill()
    sites.world.restart()
    for thread in threads:
        thread.join(4 * DEADLINE)
        assert not thread.is_alive()
    committed = {key for key, status in outcomes.items() if status is Status.COMMITTED}
    for store in stores.values():
        eventually(lambda store=store: not store.prepared and not store.units, "nobody is left in doubt", 2 * DEADLINE)
        eventually(lambda store=store: committed <= store.values.keys(), "what committed is there", 2 * DEADLINE)
        aborted = {key for key, status in outcomes.items() if status is Status.ABORTED}
        assert not aborted & store.values.keys()
    assert stores["a"].values.keys() == stores["b"].values.keys() == stores["c"].values.keys()
    assert len(committed) >= ROUNDS, Counter(outcomes.values())


def attempt(publisher: Site, type: str, number: int) -> Status:
    """One transaction; if its outcome is unknown, ask until it is known."""
    try:
        with publisher.transaction(type, require=ALL, census_within=5.0, within=5.0) as tx:
            tx.publish(number)
        return Status.COMMITTED
    except OutcomeUnknown as exc:
        unknown = exc.tx
    except TransactionError:
        return Status.ABORTED
    assert unknown is not None
    for _ in range(20):
        try:
            return publisher.outcome(unknown, within=5.0).status
        except OutcomeUnknown:
            continue
    raise AssertionError(f"{unknown} was never told")
