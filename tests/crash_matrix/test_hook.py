"""A process ends at a point of the case's own transaction, and at no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.crash_matrix import hook as hooks
from tests.crash_matrix.hook import Hook
from txlayer.effects import Received
from txlayer.logs.memory import MemoryDisk
from txlayer.logs.record_log import Identity, open_log
from txlayer.messages import Ack, Outcome, Status, TxId
from txlayer.records import Decided, NumbersReserved

EARLIER, OWN = TxId("p", "log", 1, "a"), TxId("p", "log", 2, "b")
AFTER = {"p": 2}


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Whether the process would be gone by now."""
    kills: list[int] = []
    monkeypatch.setattr(hooks.os, "kill", lambda pid, signal: kills.append(pid))
    return lambda: bool(kills)


def test_what_is_heard_of_earlier_transactions_does_not_count(ended: Callable[[], bool]) -> None:
    hook = Hook()
    hook.arm("step Received:Ack", 1, AFTER)
    hook.probe("step", Received(Ack(EARLIER, b"member", b"token")))
    assert not ended()
    hook.probe("step", Received(Ack(OWN, b"member", b"token")))
    assert ended()


def test_an_answer_that_names_no_transaction_does_not_count(ended: Callable[[], bool]) -> None:
    hook = Hook()
    hook.arm("step Received:Outcome", 1, AFTER)
    hook.probe("step", Received(Outcome(None, "an earlier key", Status.ABORTED)))
    assert not ended()
    hook.probe("step", Received(Outcome(OWN, "key", Status.COMMITTED)))
    assert ended()


def test_forgetting_is_seen_in_a_write_that_stores_something_too(ended: Callable[[], bool]) -> None:
    log, hook = open_log(MemoryDisk(), "p", Identity("log", b"secret")), Hook()
    hook.arm("write Drop:Decided", 1, AFTER)
    log.append("d", Decided(OWN, "type", Status.ABORTED, (), (), "key", "p"))
    hook.probe("write", log)
    log.write()
    log.append("d", Decided(OWN, "type", Status.COMMITTED, (), (), "key", "p"))
    hook.probe("write", log)
    log.write()
    assert not ended(), "it was replaced"
    log.drop("d")
    log.append("n", NumbersReserved(1000))
    hook.probe("write", log)
    assert ended()
