"""One suite for every register of decisions: the first writer wins, for whoever asks."""

from collections.abc import Iterator

import pytest

from txlayer.logs.postgres_register import PostgresRegister
from txlayer.logs.register import MemoryRegister, Register
from txlayer.messages import TxId


@pytest.fixture(params=["memory", "postgres"])
def registers(request: pytest.FixtureRequest) -> Iterator[tuple[Register, Register]]:
    """Two sites at one register."""
    if request.param == "memory":
        shared = MemoryRegister()
        yield shared, shared
        return
    dsn = request.getfixturevalue("postgres_dsn")
    first, second = PostgresRegister(dsn), PostgresRegister(dsn)
    yield first, second
    first.close()
    second.close()


def test_first_writer_wins_and_everyone_reads_the_same(registers: tuple[Register, Register]) -> None:
    first, second = registers
    tx = TxId("first-wins", "log", 1, "ab")
    assert first.settle(tx, b"commit") == b"commit"
    assert second.settle(tx, b"abort") == b"commit"
    assert first.settle(tx, b"another") == b"commit"
    assert second.settle(TxId("first-wins", "log", 1, "cd"), b"abort") == b"abort", "another transaction"


def test_values_below_the_mark_are_forgotten_and_no_others(registers: tuple[Register, Register]) -> None:
    first, second = registers
    ids = [TxId("marks", "log", number, "ab") for number in range(1, 6)]
    other = TxId("marks", "another log", 1, "ab")
    for tx in (*ids, other):
        first.settle(tx, b"commit")
    second.forget("marks", "log", 3, 5)
    stands = [tx.number for tx in ids if first.settle(tx, b"abort") == b"commit"]
    assert stands == [3, 4]
    assert first.settle(other, b"abort") == b"commit"


def test_a_key_is_left_for_one_finisher_of_one_log(registers: tuple[Register, Register]) -> None:
    first, second = registers
    first.leave_key("keys", "log", "helper", b"secret")
    first.leave_key("keys", "log", "helper", b"the same site, started again")
    assert second.key("keys", "log", "helper") == b"the same site, started again"
    assert second.key("keys", "another log", "helper") == b""
    assert second.key("keys", "log", "stranger") == b""
