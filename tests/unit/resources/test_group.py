"""Several resources as one, where a crash or a lost answer leaves them in between."""

from __future__ import annotations

from typing import Any

import pytest

from txlayer.effects import (
    ApplyWhole,
    CommitUnit,
    Compensate,
    CompensationDone,
    InspectUnit,
    UnitCommitted,
    UnitInspected,
    WholeApplied,
)
from txlayer.errors import ResourceError, ResourceUnavailable, UsageError
from txlayer.messages import Item, Numbered, TxId
from txlayer.resources.group import ResourceGroup
from txlayer.resources.memory import MemoryResource
from txlayer.resources.port import Resource
from txlayer.runtime.unit_work import UnitWork
from txlayer.units import UndoRecord, undo_of

TX = TxId("c", "log", 1, "abcd")
EVENTS = tuple(Numbered(number, Item("t", b""), "p") for number in (2, 1))


class Flaky(MemoryResource):
    """Does what it is asked, and sometimes the answer gets lost, before or after."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.lost: list[str] = []

    def commit(self, tx: TxId, undo: bytes = b"") -> None:
        if "commit before" in self.lost:
            self.lost.remove("commit before")
            self.units.pop(tx, None)
            raise ResourceUnavailable("lost")
        super().commit(tx, undo)
        if "commit after" in self.lost:
            self.lost.remove("commit after")
            raise ResourceUnavailable("lost")

    def settle(self, tx: TxId) -> str:
        if "settle" in self.lost:
            self.lost.remove("settle")
            raise ResourceUnavailable("away")
        return super().settle(tx)


class Handlers:
    """Write to both."""

    def __init__(self, *resources: MemoryResource) -> None:
        self.resources = resources
        self.undone: list[int] = []

    def handle(self, tx: TxId, event: Numbered, work: Any) -> None:
        for resource in self.resources:
            resource.work(tx).put(f"{event.number}", "done")

    def compensate(self, tx: TxId, event: Numbered, work: Any) -> None:
        self.undone.append(event.number)
        for resource in self.resources:
            resource.work(undo_of(tx)).put(f"{event.number}", "undone")


@pytest.fixture
def pair() -> tuple[Flaky, Flaky]:
    return Flaky("a"), Flaky("b")


def restarted(*pair: MemoryResource) -> ResourceGroup:
    for resource in pair:
        resource.crash()
    return ResourceGroup(pair)


def write(*pair: MemoryResource) -> None:
    for resource in pair:
        resource.work(TX).put("x", 1)


def test_two_resources_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="another name="):
        ResourceGroup([MemoryResource(), MemoryResource()])


def test_only_those_that_were_touched_take_part(pair: tuple[Flaky, Flaky]) -> None:
    a, b = pair
    group = ResourceGroup(pair)
    write(b)
    group.prepare(TX)
    assert (list(a.prepared), list(b.prepared)) == ([], [TX])
    assert restarted(*pair).settle(TX) == "prepared"


def test_a_prepare_that_fails_leaves_alone_what_a_later_life_has_prepared(pair: tuple[Flaky, Flaky]) -> None:
    one, two = pair
    two.work(TX).put("k", "the later life's")
    two.prepare(TX)
    one.work(TX).put("k", "the former one's")
    one.void[TX] = None
    with pytest.raises(ResourceError):
        ResourceGroup([one, two]).prepare(TX)
    assert TX in two.prepared


def test_some_prepared_are_not_all(pair: tuple[Flaky, Flaky]) -> None:
    """A crash between the first prepare and the second."""
    a, b = pair
    write(*pair)
    a.prepare(TX, of=2)
    group = restarted(*pair)
    assert group.settle(TX) == "none"
    assert not a.prepared
    with pytest.raises(ResourceError):
        b.prepare(TX, of=2)


@pytest.mark.parametrize("decided", [True, False])
def test_local_commit_is_finished_or_undone_by_the_first_marker(pair: tuple[Flaky, Flaky], decided: bool) -> None:
    """A crash before, or after, the first has committed; the others are prepared."""
    a, b = pair
    write(*pair)
    b.prepare(TX, of=2)
    if decided:
        a.commit(TX)
    group = restarted(*pair)
    assert group.settle(TX) == ("committed" if decided else "none")
    assert not b.prepared
    assert (a.values, b.values) == (({"x": 1}, {"x": 1}) if decided else ({}, {}))


def test_leftover_of_a_decided_local_commit_is_not_rolled_back(pair: tuple[Flaky, Flaky]) -> None:
    a, b = pair
    write(*pair)
    b.prepare(TX, of=2)
    a.commit(TX)
    restarted(*pair).roll_back(TX)
    assert b.values == {"x": 1}


@pytest.mark.parametrize(("lost", "committed"), [("commit before", False), ("commit after", True)])
def test_lost_answer_to_a_commit_is_found_out_before_anything_is_said(
    pair: tuple[Flaky, Flaky], lost: str, committed: bool
) -> None:
    write(*pair)
    pair[0].lost = [lost, "settle"]
    unanswered: dict[TxId, None] = {}
    taking_part: dict[TxId, Any] = {}
    handlers = Handlers(*pair)

    def perform() -> Any:
        group = ResourceGroup(pair, taking_part=taking_part)
        return UnitWork(group, handlers, unanswered).perform(CommitUnit(TX))

    with pytest.raises(ResourceUnavailable):
        perform()
    done = perform()
    assert isinstance(done, UnitCommitted)
    assert done.ok is committed
    assert [resource.values for resource in pair] == [{"x": 1} if committed else {}] * 2
    assert not pair[1].prepared


def test_compensation_of_several_resources_is_one_unit_done_once_in_reverse_order(pair: tuple[Flaky, Flaky]) -> None:
    handlers = Handlers(*pair)
    work = UnitWork(ResourceGroup(pair), handlers)
    write(*pair)
    assert work.perform(CommitUnit(TX, UndoRecord("log", b"me", EVENTS))) == UnitCommitted(TX, True)
    pair[0].lost = ["commit after"]
    with pytest.raises(ResourceUnavailable):
        work.perform(Compensate(TX, EVENTS))
    again = UnitWork(restarted(*pair), handlers)
    assert again.perform(Compensate(TX, EVENTS)) == CompensationDone(TX, True)
    assert handlers.undone == [2, 1], "the first attempt had committed, the second found that"
    assert [resource.values.get("1") for resource in pair] == ["undone", "undone"]


@pytest.mark.parametrize("lost", ["commit before", "commit after"])
@pytest.mark.parametrize("crash", [True, False])
def test_a_whole_transaction_is_applied_to_all_resources_or_none_when_an_answer_is_lost(
    pair: tuple[Flaky, Flaky], lost: str, crash: bool
) -> None:
    """A follower, or a durable local member, that has several databases."""
    pair[0].lost = [lost]
    unanswered: dict[TxId, None] = {}
    taking_part: dict[TxId, Any] = {}

    def perform(attempt: int) -> Any:
        group = ResourceGroup(pair, taking_part=taking_part)
        return UnitWork(group, Handlers(*pair), unanswered).perform(ApplyWhole(TX, EVENTS, attempt))

    with pytest.raises(ResourceUnavailable):
        perform(1)
    assert pair[1].prepared, "as long as the first may have committed"
    if crash:
        restarted(*pair)
        taking_part.clear()
    assert perform(1 if crash else 2) == WholeApplied(TX, True)
    assert [resource.values for resource in pair] == [{"1": "done", "2": "done"}] * 2
    assert not pair[1].prepared


def test_a_late_commit_of_a_former_try_finds_the_way_closed_until_the_others_are_prepared(
    pair: tuple[Flaky, Flaky],
) -> None:
    a, b = pair
    a.lost = ["commit before"]
    group = ResourceGroup(pair)
    with pytest.raises(ResourceUnavailable):
        UnitWork(group, Handlers(*pair)).perform(ApplyWhole(TX, EVENTS))
    handlers = Handlers(*pair)

    def meanwhile(tx: TxId, event: Numbered, work: Any) -> None:
        with pytest.raises(ResourceError, match="given up"):
            a.commit(TX)
        handlers.handle(tx, event, work)

    class Late:
        handle = staticmethod(meanwhile)
        compensate = handlers.compensate

    assert UnitWork(ResourceGroup(pair), Late()).perform(ApplyWhole(TX, EVENTS[:1], 2)) == WholeApplied(TX, True)
    assert a.values == b.values == {"2": "done"}


def test_compensation_before_its_action_keeps_the_action_out(pair: tuple[Flaky, Flaky]) -> None:
    work = UnitWork(ResourceGroup(pair), Handlers(*pair))
    assert work.perform(Compensate(TX, EVENTS)) == CompensationDone(TX, True)
    write(*pair)
    done = work.perform(CommitUnit(TX))
    assert isinstance(done, UnitCommitted)
    assert not done.ok
    assert work.perform(InspectUnit(TX)) == UnitInspected(TX, "none")


def test_undo_record_is_stored_with_the_work(pair: tuple[Flaky, Flaky]) -> None:
    group = ResourceGroup(pair)
    write(*pair)
    UnitWork(group, Handlers(*pair)).perform(CommitUnit(TX, UndoRecord("log", b"me", EVENTS)))
    assert group.undo_record(TX)


def test_work_that_was_lost_before_the_prepare_is_no_empty_unit(pair: tuple[Flaky, Flaky]) -> None:
    """Whatever ended the unit: what a handler did there must not be voted for as if it had done nothing."""
    handed: dict[TxId, list[Resource]] = {TX: [pair[0]]}
    group = ResourceGroup(pair, handed=handed)
    pair[0].work(TX).put("k", 1)
    pair[0].roll_back(TX)
    for act in (group.prepare, group.commit):
        with pytest.raises(ResourceError, match=f"in {pair[0].name} was lost"):
            act(TX)
    group.roll_back(TX)
    group.commit(TX)  # after that it is known to have no work
    assert group.state(TX) == "committed"
