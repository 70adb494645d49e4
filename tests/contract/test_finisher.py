"""A finisher over a real PostgreSQL register: members of a dead coordinator are released, and nobody guesses."""

from collections.abc import Callable, Iterator

import pytest

from txlayer import messages as m
from txlayer.effects import AskCall, BeginCall
from txlayer.logs.memory import MemoryDisk
from txlayer.logs.postgres import PostgresDisk
from txlayer.logs.postgres_register import PostgresRegister
from txlayer.logs.register import Register
from txlayer.messages import Conditions, Item, Limit, Outcome, Scope, Status, Terms
from txlayer.records import Settlement, encode_settlement
from txlayer.security import BrokerSeal
from txlayer.simulation.direct import DirectSite, Hub

TERMS = Terms("orders", limit=Limit.DISTRIBUTED, one_shot=True, require=Conditions(only=("m0", "m1")))


class Fails(Exception):
    """The coordinator dies here."""


class FailingRegister:
    """A register at which the coordinator dies, before or after it has written."""

    def __init__(self, register: Register, after: bool) -> None:
        self._register = register
        self.after = after
        self.armed = True

    def __getattr__(self, name: str) -> Callable[..., object]:
        return getattr(self._register, name)

    def settle(self, tx: m.TxId, body: bytes) -> bytes:
        if self.armed:
            self.armed = False
            if self.after:
                self._register.settle(tx, body)
            raise Fails
        return self._register.settle(tx, body)


@pytest.fixture
def register(postgres_dsn: str) -> Iterator[PostgresRegister]:
    made = PostgresRegister(postgres_dsn)
    yield made
    made.close()


def coordinator(hub: Hub, dsn: str, name: str) -> DirectSite:
    return hub.add(name, PostgresDisk(dsn, name), BrokerSeal(), Scope.NONE, finishers=("helper",))


def member(hub: Hub, name: str) -> DirectSite:
    return hub.add(name, MemoryDisk(), BrokerSeal(), Scope.DISTRIBUTED, identity=True)


@pytest.mark.parametrize(("after", "status"), [(False, Status.ABORTED), (True, Status.COMMITTED)])
def test_members_of_a_dead_coordinator_do_what_stands_in_the_register(
    postgres_dsn: str, register: PostgresRegister, after: bool, status: Status
) -> None:
    name = f"dead-{status.value}"
    hub = Hub(register=FailingRegister(register, after))
    coordinator(hub, postgres_dsn, name)
    hub.add("helper", MemoryDisk(), BrokerSeal(), Scope.NONE)
    members = [member(hub, each) for each in ("m0", "m1")]
    hub.queue.append((name, BeginCall("k", TERMS, name, (Item("orders", b"x"),)), b""))
    with pytest.raises(Fails):
        hub.run()
    hub.kill(name)
    hub.run()
    assert all(one.resource.prepared for one in members), "in doubt, and nobody has guessed"
    for _ in range(20):
        hub.advance(1.0)
    assert not any(one.resource.prepared for one in members), "released while the coordinator is dead"
    assert [bool(one.resource.marked) for one in members] == [after, after]

    coordinator(hub, postgres_dsn, name)
    for _ in range(40):
        hub.advance(2.0)
    hub.run()
    assert [bool(one.resource.values) for one in members] == [after, after]
    outcomes: list[Outcome] = []
    hub.on_outcome = lambda _call, outcome: outcomes.append(outcome)
    hub.queue.append((name, AskCall("k", name, key="k"), b""))
    hub.run()
    assert [outcome.status for outcome in outcomes] == [status]
    hub.kill(name)


def test_a_coordinator_that_was_only_slow_obeys_what_stands_there(
    postgres_dsn: str, register: PostgresRegister
) -> None:
    hub = Hub(register=register)
    slow = coordinator(hub, postgres_dsn, "slow")
    members = [member(hub, each) for each in ("m0", "m1")]
    aborted = Settlement(False, (), "finished by helper")
    register.settle(slow.participant.seat.tx(1), encode_settlement(aborted))
    outcomes: list[Outcome] = []
    hub.on_outcome = lambda _call, outcome: outcomes.append(outcome)
    hub.queue.append(("slow", BeginCall("k", TERMS, "slow", (Item("orders", b"x"),)), b""))
    hub.run()
    assert [(outcome.status, outcome.reason) for outcome in outcomes] == [(Status.ABORTED, "finished by helper")]
    assert not any(one.resource.prepared or one.resource.marked for one in members)
    hub.kill("slow")
