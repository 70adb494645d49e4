"""What is done for one transaction is done one after the other, a publisher's own work among it."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from txlayer.effects import (
    FinishUnit,
    ForgetMarker,
    HandlerDone,
    PrepareUnit,
    RunHandler,
    UnitFinished,
    UnitPrepared,
)
from txlayer.errors import ResourceError, ResourceUnavailable
from txlayer.messages import Item, Numbered, TxId
from txlayer.resources.memory import MemoryResource
from txlayer.runtime import workshop as module
from txlayer.runtime.branches import Attempt
from txlayer.runtime.pool import Job
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


class Worker:
    """A pool whose jobs are done when the test says so."""

    crowded = False

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def submit(self, job: Job) -> bool:
        self.jobs.append(job)
        return True

    def work(self) -> None:
        for job in self.jobs:
            job.result = job.run()
            job.done(job)
        self.jobs.clear()


class Rig:
    """A workshop for one member with a resource."""

    def __init__(self, quiet: bool = True) -> None:
        self.resource = MemoryResource()
        self.handlers, self.finishers, self.voters = Worker(), Worker(), Worker()
        self.brought: list[Any] = []
        self.left: list[Any] = []
        self.planned: list[Any] = []
        member = SimpleNamespace(
            quiet=quiet, resources=(self.resource,), subscribers=(), taking_part={}, handed={}, unanswered={},
            handle=lambda tx, event, work: None,
        )  # fmt: skip
        members: Any = SimpleNamespace(known={TX: member}, of=lambda tx, terms=None: member, unserved=lambda *_: "")
        handlers: Any = self.handlers
        finishers: Any = self.finishers
        voters: Any = self.voters
        self.shop = Workshop(
            members, handlers, voters, finishers, 1.0, self.brought.append, self.brought.append, self.left.append,
            lambda _, act: self.planned.append(act),
        )  # fmt: skip


@pytest.mark.parametrize("quiet", [True, False])
def test_that_a_unit_is_finished_takes_no_turn_unless_the_application_hears_of_it(quiet: bool) -> None:
    rig = Rig(quiet)
    rig.shop.take(FinishUnit(TX, False))
    assert rig.shop.finishing == 1, "the loop sees to it that it looks for it"
    rig.finishers.work()
    (done,) = rig.left if quiet else rig.brought
    assert done.job.result == UnitFinished(TX)
    assert not (rig.brought if quiet else rig.left)
    rig.shop.on_done(done) if quiet else None
    assert rig.shop.finishing == (0 if quiet else 1)


def test_markers_are_forgotten_together_and_what_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    monkeypatch.setattr(module, "_FORGOTTEN_AT_ONCE", 3)
    rig.shop.take(ForgetMarker(TX))
    rig.shop.take(ForgetMarker(TX))
    assert not rig.finishers.jobs
    rig.shop.take(ForgetMarker(TX))
    assert len(rig.finishers.jobs) == 1
    forgotten: list[TxId] = []

    def fail_first(tx: TxId) -> None:
        forgotten.append(tx)
        if len(forgotten) == 1:
            raise ResourceError("away")

    monkeypatch.setattr(MemoryResource, "forget", lambda self, tx: fail_first(tx))
    rig.finishers.work()
    (again,) = rig.brought
    again()
    rig.planned[-1]()
    rig.finishers.work()
    assert forgotten.count(TX) == 4, "three, and one again"


@pytest.mark.parametrize("quiet", [True, False])
def test_the_last_handler_prepares_as_well_unless_the_application_has_the_last_word(quiet: bool) -> None:
    rig = Rig(quiet=quiet)
    last = RunHandler(TX, Numbered(1, Item("t", b""), "p"), prepares=True)
    rig.shop.take(last)
    (job,) = rig.handlers.jobs
    assert job.run() == (UnitPrepared(TX, True) if quiet else HandlerDone(TX, 1, True))
    assert not rig.voters.jobs


def test_a_prepare_that_cannot_be_done_after_the_last_handler_is_asked_for_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def away(self: MemoryResource, tx: TxId, of: int = 1) -> None:
        raise ResourceUnavailable("away")

    monkeypatch.setattr(MemoryResource, "prepare", away)
    rig = Rig()
    rig.shop.take(RunHandler(TX, Numbered(1, Item("t", b""), "p"), prepares=True))
    assert rig.handlers.jobs[0].run() == HandlerDone(TX, 1, True)


def test_a_handler_is_given_up_or_prepares_never_both() -> None:
    late, preparing = Attempt(), Attempt()
    assert late.give_up()
    assert not late.prepare()
    assert preparing.prepare()
    assert not preparing.give_up()
    preparing.check()


def test_what_prepares_is_not_given_up_with_its_handler() -> None:
    rig = Rig()
    rig.shop.within = 0.0
    rig.shop.take(RunHandler(TX, Numbered(1, Item("t", b""), "p"), prepares=True))
    (job,) = rig.handlers.jobs
    job.started = 0.0
    assert job.run() == UnitPrepared(TX, True)
    rig.planned[-1]()
    assert len(rig.planned) == 2, "looked at again later"
    assert not rig.brought
    assert rig.resource.prepared


def test_nothing_is_prepared_while_too_much_is_being_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_FINISHING", 2)
    rig = Rig()
    txs = [TxId("c", "log", number, "abcd") for number in range(4)]
    for tx in txs[:2]:
        rig.shop.take(FinishUnit(tx, False))
    rig.shop.take(PrepareUnit(txs[2]))
    rig.shop.take(RunHandler(txs[3], Numbered(1, Item("t", b""), "p"), prepares=True))
    assert not rig.voters.jobs
    assert not rig.handlers.jobs
    rig.finishers.work()
    assert not rig.left, "somebody waits for them"
    rig.shop.on_done(rig.brought[0])
    assert len(rig.voters.jobs) == len(rig.handlers.jobs) == 1
