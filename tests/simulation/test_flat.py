"""Nothing grows with history: a hundred thousand transactions leave log and memory as half of them did."""

import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from txlayer.effects import AbortCall, AskCall, BeginCall, CommitCall, Input, PublishCall
from txlayer.logs.memory import MemoryDisk
from txlayer.messages import Conditions, Item, Limit, Numbered, Outcome, Scope, Status, Terms, TxId
from txlayer.runtime.unit_work import HandlerFailed
from txlayer.security import BrokerSeal
from txlayer.simulation.direct import Hub, Ignore
from txlayer.transactions.forgotten import KEYS
from txlayer.transactions.participant import REMEMBERED, Participant
from txlayer.transactions.subscriber_desk import DECLINED

TRANSACTIONS = int(os.environ.get("TXLAYER_FLAT", "100000"))
ONLY_MEMBERS = Terms("orders", limit=Limit.DISTRIBUTED, one_shot=True, require=Conditions(only=("m",)))
WITH_LOCALS = Terms("orders", limit=Limit.NONE, one_shot=True)
ROUND = 50
GOOD, BAD = Item("orders", b"good"), Item("orders", b"bad")


class Choosy(Ignore):
    """Handlers that refuse some events, as only distributed members can."""

    def handle(self, tx: TxId, event: Numbered, work: Any) -> None:
        if event.item == BAD:
            raise HandlerFailed("told to fail")
        super().handle(tx, event, work)


def rows(hub: Hub) -> int:
    return sum(len(site.disk.rows) for site in hub.sites.values())


def roles(hub: Hub) -> int:
    """Entries in the tables of all roles; of those that are kept up to a limit, the ones beyond it."""
    count = 0
    for site in hub.sites.values():
        participant, subscriber = site.participant, site.participant.subscriber
        desk = participant.coordinator
        tables = [
            desk.transactions, desk.keys, desk.settled, desk.public, desk.predicates, desk.present,
            desk.creations.publishers, *(life.taken for life in desk.creations.publishers.values()),
            *(life.in_order for life in desk.creations.publishers.values()),
            *(chain.entries for chain in desk.chains.values()), *(chain.readers for chain in desk.chains.values()),
            *(chain.released for chain in desk.chains.values()),
            participant.publishers, participant.by_tx, participant.by_key, participant.open_serials,
            subscriber.members, *subscriber.members.values(), subscriber.asked, subscriber.early,
            subscriber.marks.known, *(mark.open for mark in subscriber.marks.known.values()), subscriber.readers,
            site.timers, site.resource.marked, site.resource.prepared, site.ahead.pending,
        ]  # fmt: skip
        count += sum(len(table) for table in tables)
        count += max(0, len(subscriber.declined) - DECLINED) + max(0, len(participant.confirmed) - REMEMBERED)
        count += max(0, len(desk.forgotten.keys) - KEYS)
    return count


def size() -> int:
    """Bytes of every object of this process. Unlike tracing it costs nothing in between."""
    gc.collect()
    total, leaves = 0, {}
    for one in gc.get_objects():
        total += sys.getsizeof(one, 0)
        leaves.update({id(leaf): sys.getsizeof(leaf, 0) for leaf in gc.get_referents(one) if not gc.is_tracked(leaf)})
    return total + sum(leaves.values())


def calls_of(first: int, one_shot: Terms) -> Iterator[tuple[list[Input], list[Input]]]:
    """A round: how each call begins, and how it goes on when it is open."""
    two_phase = Terms("orders", limit=one_shot.limit, require=one_shot.require)
    bad = BAD if one_shot is ONLY_MEMBERS else GOOD
    for number in range(first, first + ROUND):
        key = f"k{number}"
        match number % ROUND:
            case 1 | 2:
                yield [BeginCall(key, one_shot, "p", (bad,))], []
            case 3:
                yield [BeginCall(key, two_phase, "p")], [PublishCall(key, GOOD), CommitCall(key)]
            case 4:
                yield [BeginCall(key, two_phase, "p")], [PublishCall(key, bad), CommitCall(key)]
            case 5:
                yield [BeginCall(key, two_phase, "p")], [PublishCall(key, GOOD), AbortCall(key, "changed my mind")]
            case 6:
                yield [BeginCall(key, two_phase, "p", (), lambda members: False)], []
            case 7:
                yield [AskCall(key, "p", None, f"nothing {number}")], []
            case _:
                yield [BeginCall(key, one_shot, "p", (GOOD,))], []


def run(hub: Hub, first: int, count: int, one_shot: Terms) -> Counter[Status]:
    ended: Counter[Status] = Counter()

    def on_outcome(_call: str, outcome: Outcome) -> None:
        ended[outcome.status] += 1

    hub.on_outcome = on_outcome
    for number in range(first, first + count, ROUND):
        calls = list(calls_of(number, one_shot))
        for step in (0, 1):
            hub.queue.extend(("p", event, b"") for call in calls for event in call[step])
            hub.run()
        hub.advance(0.2)
    for _ in range(20):  # a census that nobody fulfils takes its window
        hub.advance(0.2)
    return ended


def hub_of(**scopes: dict[str, Any]) -> Hub:
    hub = Hub(handlers=Choosy())
    hub.add("p", MemoryDisk(), BrokerSeal(), Scope.NONE)
    for name, options in scopes.items():
        hub.add(name, MemoryDisk(), BrokerSeal(), **options)
    return hub


def grown(hub: Hub, half: int, one_shot: Terms) -> tuple[int, int, int]:
    """Rows, entries in tables and bytes that the second half of the history has left."""
    ended = run(hub, 0, half, one_shot)
    before = rows(hub), roles(hub), size()
    again = run(hub, half, half, one_shot)
    assert again[Status.COMMITTED] == ended[Status.COMMITTED]
    assert sum(again.values()) == sum(ended.values()) == half
    assert ended[Status.COMMITTED] > 0.8 * half
    assert all(ended[status] for status in (Status.ABORTED, Status.REFUSED))
    return rows(hub) - before[0], roles(hub) - before[1], size() - before[2]


@pytest.mark.timeout(1800)
def test_log_and_memory_stay_flat_over_a_hundred_thousand_transactions() -> None:
    hub = hub_of(m={"scope": Scope.DISTRIBUTED, "identity": True})
    more_rows, more_entries, more_bytes = grown(hub, TRANSACTIONS // 2, ONLY_MEMBERS)
    assert more_rows <= 10
    assert more_entries <= 10
    assert more_bytes < 200_000


def test_locals_followers_and_compensation_leave_nothing_behind_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.transactions.forgotten.KEYS", 1000)  # so many stay, and the first half has more
    hub = hub_of(
        m={"scope": Scope.DISTRIBUTED, "compensatable": True},
        l={"scope": Scope.LOCAL},
        d={"scope": Scope.LOCAL, "durable": True},
        f={"scope": Scope.FOLLOWER},
    )
    more_rows, more_entries, _ = grown(hub, 2500, WITH_LOCALS)
    assert more_rows <= 10
    assert more_entries <= 10


def test_a_little_that_each_transaction_leaves_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[bytes] = []
    begin = Participant._on_begin

    def leave(self: Participant, call: BeginCall) -> Any:
        left.append(bytes(64))
        return begin(self, call)

    monkeypatch.setattr(Participant, "_on_begin", leave)
    _, _, more_bytes = grown(hub_of(m={"scope": Scope.DISTRIBUTED, "identity": True}), 5000, ONLY_MEMBERS)
    assert more_bytes > 5000 * 64
