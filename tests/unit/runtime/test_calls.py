"""Calls under one key: whoever shares a call shares its end, and whoever comes after it begins anew."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import DEADLINE
from txlayer.effects import BeginCall, ConfirmCall, JoinCall, Resolve, Surface
from txlayer.errors import UsageError
from txlayer.messages import Outcome, Status, Terms, TxId
from txlayer.runtime.calls import Calls
from txlayer.runtime.surfacing import Surfacing
from txlayer.transacting import Plan, Transacting

PLAN = Plan(Terms("orders", one_shot=True), "h", key="k:1")
TX = TxId("h", "log", 1, "abcd")
ABORTED = Outcome(None, "k:1", Status.ABORTED)


class Desk:
    """What calls ask of an engine; keeps what is posted."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.surfacing = SimpleNamespace(on_votes_missing={})
        self.settings = SimpleNamespace(name="p")
        self.posted: list[Any] = []

    def check(self) -> None: ...

    def post(self, event: Any) -> None:
        self.posted.append(event)

    def begin(self) -> Any:
        return Transacting.begin(self, PLAN)  # type: ignore[arg-type]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_who_is_told_of_the_end_of_another_call_under_its_key_begins_nothing(desk: Desk) -> None:
    first, _ = desk.begin()
    desk.calls.on_resolve(Resolve("k:1", ABORTED))
    _, answer = desk.begin()
    assert answer.result(0) is ABORTED
    first.take_note(ABORTED)
    assert desk.posted == [BeginCall("k:1", PLAN.terms, "h", (), None), ConfirmCall("k:1")]


def test_who_lets_go_of_a_call_late_leaves_the_next_one_under_its_key_alone(desk: Desk) -> None:
    (first, _), (second, _) = desk.begin(), desk.begin()
    desk.calls.on_resolve(Resolve("k:1", ABORTED))
    first.take_note(ABORTED)
    _, answer = desk.begin()
    second.take_note(ABORTED)
    desk.calls.on_resolve(Resolve("k:1", Outcome(None, "k:1", Status.COMMITTED)))
    assert answer.result(0).status is Status.COMMITTED
    assert [type(event) for event in desk.posted] == [BeginCall, BeginCall, ConfirmCall, BeginCall]


def test_one_shot_does_not_share_the_call_of_a_transaction_in_steps(desk: Desk) -> None:
    """It would be answered that the other one is open."""
    Transacting.begin(desk, replace(PLAN, terms=Terms("orders")))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is open in this site"):
        desk.begin()


class Noticed:
    """A lock that says when another thread wants it."""

    def __init__(self) -> None:
        self.wanted = threading.Event()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if self._lock.locked():
            self.wanted.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_call_that_shares_another_is_heard_of_before_that_is_gone(desk: Desk) -> None:
    """Heard of after it, it would begin a transaction of which nobody is told."""
    first, _ = desk.begin()
    naming = Noticed()
    let_go = threading.Thread(target=first.take_note, args=(ABORTED,))

    def post_late(event: Any) -> None:
        if isinstance(event, BeginCall):
            desk.calls.on_resolve(Resolve("k:1", ABORTED))
            let_go.start()
            assert naming.wanted.wait(DEADLINE)
        desk.posted.append(event)

    desk.calls.naming, desk.post = naming, post_late  # type: ignore[assignment, method-assign]
    _, answer = desk.begin()
    let_go.join(DEADLINE)
    assert answer.result(0) is ABORTED
    assert [type(event) for event in desk.posted] == [BeginCall, BeginCall, ConfirmCall]


def test_of_two_threads_that_join_a_transaction_at_the_same_time_one_does(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would number their events from the same one on, and those of the second would be taken for the first's."""
    naming, add, refused = Noticed(), desk.calls.add, list[UsageError]()

    def join() -> None:
        try:
            Transacting.join(desk, TX, "orders")  # type: ignore[arg-type]
        except UsageError as exc:
            refused.append(exc)

    second = threading.Thread(target=join)

    def add_late(calls: Calls, name: str, tx: TxId | None = None) -> Any:
        monkeypatch.undo()
        second.start()
        assert naming.wanted.wait(DEADLINE)
        return add(name, tx)

    desk.calls.naming = naming  # type: ignore[assignment]
    monkeypatch.setattr(Calls, "add", add_late)
    join()
    second.join(DEADLINE)
    assert [type(event) for event in desk.posted] == [JoinCall]
    assert len(refused) == 1


def test_an_abort_that_surfaces_late_leaves_the_next_call_under_its_key_alone(desk: Desk) -> None:
    """The role of the first one is gone and that of the second not there yet: no reason to stop the site."""
    call, _ = desk.begin()
    surfacing = Surfacing("p", desk.calls)
    surfacing.start(SimpleNamespace(publishers={}), None, desk.post)  # type: ignore[arg-type]
    surfacing.take(Surface("distributed part aborted", TX, "k:1"))
    assert call.call.aborting is None


def test_what_was_promised_is_kept_or_fails_once(desk: Desk) -> None:
    kept, failed, given_up = (desk.calls.promise() for _ in range(3))
    desk.calls.keep(kept)
    given_up.cancel()
    desk.calls.fail(UsageError("closed"))
    for promised in (kept, failed, given_up):
        desk.calls.keep(promised)
    assert kept.result(0) is None
    assert isinstance(failed.exception(0), UsageError)
    assert isinstance(desk.calls.promise().exception(0), UsageError)
