"""Nothing grows with history: a hundred thousand transactions leave log and memory as a thousand did."""

import os
import tracemalloc

from txlayer.effects import BeginCall
from txlayer.logs.memory import MemoryDisk
from txlayer.messages import Conditions, Item, Limit, Outcome, Scope, Status, Terms
from txlayer.security import BrokerSeal
from txlayer.simulation.direct import Hub

TRANSACTIONS = int(os.environ.get("TXLAYER_FLAT", "100000"))
TERMS = Terms("orders", limit=Limit.DISTRIBUTED, one_shot=True, require=Conditions(only=("m",)))
WITH_LOCALS = Terms("orders", limit=Limit.NONE, one_shot=True)


def rows(hub: Hub) -> int:
    return sum(len(site.disk.rows) for site in hub.sites.values())


def roles(hub: Hub) -> int:
    count = 0
    for site in hub.sites.values():
        participant = site.participant
        count += len(participant.coordinator.transactions) + len(participant.publishers) + len(site.timers)
        count += len(participant.coordinator.keys) + len(participant.by_tx) + len(participant.open_serials)
        count += sum(len(members) for members in participant.subscriber.members.values())
        count += sum(len(chain.entries) for chain in participant.coordinator.chains.values())
        count += len(site.resource.marked) + len(site.resource.prepared) + len(site.ahead.pending)
        count += sum(len(life.taken) for life in participant.coordinator.creations.publishers.values())
    return count


def run(hub: Hub, first: int, count: int, terms: Terms) -> int:
    committed = 0

    def on_outcome(_call: str, outcome: Outcome) -> None:
        nonlocal committed
        committed += outcome.status is Status.COMMITTED

    hub.on_outcome = on_outcome
    for number in range(first, first + count, 50):
        for call in range(number, number + 50):
            hub.queue.append(("p", BeginCall(f"k{call}", terms, "p", (Item("orders", b"x"),)), b""))
        hub.run()
        hub.advance(0.2)
    return committed


def test_log_and_memory_stay_flat_over_a_hundred_thousand_transactions() -> None:
    hub = Hub()
    hub.add("p", MemoryDisk(), BrokerSeal(), Scope.NONE)
    hub.add("m", MemoryDisk(), BrokerSeal(), Scope.DISTRIBUTED, identity=True)
    assert run(hub, 0, 5000, TERMS) == 5000
    before_rows, before_roles = rows(hub), roles(hub)
    tracemalloc.start()
    assert run(hub, 5000, 1000, TERMS) == 1000
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert run(hub, 6000, TRANSACTIONS - 7000, TERMS) == TRANSACTIONS - 7000
    tracemalloc.start()
    assert run(hub, TRANSACTIONS, 1000, TERMS) == 1000
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows(hub) <= before_rows + 100
    assert roles(hub) <= before_roles + 200
    assert after < before + 200_000


def test_locals_followers_and_compensation_leave_nothing_behind_either() -> None:
    hub = Hub()
    hub.add("p", MemoryDisk(), BrokerSeal(), Scope.NONE)
    hub.add("m", MemoryDisk(), BrokerSeal(), Scope.DISTRIBUTED, compensatable=True)
    hub.add("l", MemoryDisk(), BrokerSeal(), Scope.LOCAL)
    hub.add("d", MemoryDisk(), BrokerSeal(), Scope.LOCAL, durable=True)
    hub.add("f", MemoryDisk(), BrokerSeal(), Scope.FOLLOWER)
    assert run(hub, 0, 1000, WITH_LOCALS) == 1000
    before_rows, before_roles = rows(hub), roles(hub)
    assert run(hub, 1000, 4000, WITH_LOCALS) == 4000
    assert rows(hub) <= before_rows + 50
    assert roles(hub) <= before_roles + 100
