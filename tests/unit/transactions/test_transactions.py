"""Whole transactions between sites that are wired back to back: what each promise looks like from outside."""

import pytest
from msgspec.structs import replace

from txlayer import messages as m
from txlayer.effects import (
    AbortCall,
    AskCall,
    AwaitLog,
    BeginCall,
    BranchesFound,
    Broadcast,
    CommitCall,
    CommitUnit,
    Compensate,
    ConfirmCall,
    FinishUnit,
    FollowCall,
    HandlerDone,
    InspectUnit,
    JoinCall,
    LeaveCall,
    MemberAborts,
    PublishCall,
    Received,
    RunHandler,
    ScopeChosen,
    UnitInspected,
    WaitLonger,
)
from txlayer.messages import (
    NAMELESS,
    Access,
    ChainKind,
    Conditions,
    Item,
    Limit,
    Scope,
    Status,
    Terms,
    TxId,
    TxType,
)
from txlayer.records import MemberDecided
from txlayer.resources.memory import MemoryResource
from txlayer.runtime.unit_work import WORK
from txlayer.tokens import digest_of
from txlayer.transactions.executor import Executor
from txlayer.transactions.local_executor import LocalExecutor
from txlayer.transactions.seat import Bounds
from txlayer.transactions.subscriber_desk import DECLINED

from .bench import Bench, Site, member

ORDERS = Terms("orders")
HASHES = m.Hashes(b"", b"", b"", b"")


def publish(bench: Bench, site: str, call: str, *payloads: str) -> None:
    for payload in payloads:
        bench.give(site, PublishCall(call, Item("orders", payload.encode())))


def begin(
    bench: Bench, terms: Terms = ORDERS, call: str = "k", site: str = "p", coordinator: str = "p", **options
) -> TxId:
    bench.give(site, BeginCall(call, terms, coordinator, **options))
    return bench.sites[site].opened.get(call)


def status(bench: Bench, call: str = "k", site: str = "p") -> Status:
    return bench.sites[site].outcomes[call][-1].status


def test_all_members_commit_and_nothing_is_left() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b", member()))
    begin(bench)
    publish(bench, "p", "k", "one", "two")
    bench.give("p", CommitCall("k"))
    assert status(bench) is Status.COMMITTED
    assert list(bench.sites["a"].resource.values) == ["one", "two"]
    assert list(bench.sites["b"].resource.values) == ["one", "two"]
    bench.give("p", ConfirmCall("k"))
    bench.fire("p", "linger")
    for name in ("a", "b"):
        bench.fire(name, "ask")
        assert not any(bench.sites[name].participant.subscriber.members.values()), "tombstones go with the mark"
    assert not bench.sites["p"].participant.coordinator.transactions


@pytest.mark.parametrize("commit", [True, False])
def test_a_member_with_nothing_to_prepare_or_to_finish_writes_nothing_down(commit: bool) -> None:
    empty, work = member(waits=False, resource=False), []
    bench = Bench(Site("p"), Site("a", empty), Site("b", empty))
    bench.spy = lambda site, effect: work.append(type(effect).__name__) if isinstance(effect, WORK) else None
    tx = begin(bench)
    publish(bench, "p", "k", "one")
    bench.lose = lambda target, message: isinstance(message, m.Vote) and not commit
    bench.give("p", CommitCall("k"))
    assert f"m/{tx}" not in bench.sites["a"].records
    if not commit:
        bench.give("p", AbortCall("k"))
    assert status(bench) is (Status.COMMITTED if commit else Status.ABORTED)
    assert set(work) == {"RunHandler"}
    bench.give("p", ConfirmCall("k"))
    bench.fire("p", "linger")
    for name in ("a", "b"):
        bench.fire(name, "ask")
        assert f"m/{tx}" not in bench.sites[name].records
    assert set(work) == {"RunHandler"}


@pytest.mark.parametrize("along", [True, False])
def test_in_one_shot_the_intent_is_logged_while_the_handler_runs_and_prepares(along: bool) -> None:
    """Whoever runs the handler may prepare along with it, or leave that to a piece of work of its own."""
    bench, asked = Bench(Site("p"), Site("a", member())), []
    bench.prepares_along = along
    bench.spy = lambda site, effect: asked.append(type(effect).__name__) if site.name == "a" else None
    bench.give("p", BeginCall("k", Terms("orders", one_shot=True), "p", (Item("orders", b"one"),)))
    assert status(bench) is Status.COMMITTED
    assert asked.index("Append") == asked.index("RunHandler") + 1
    assert asked.count("PrepareUnit") == (0 if along else 1)
    assert list(bench.sites["a"].resource.values) == ["one"]


def committed_unheard_by_a(bench: Bench) -> TxId:
    """A commit that names member a, which has voted and not heard of it."""
    tx = begin(bench)
    publish(bench, "p", "k", "one")
    bench.lose = lambda target, message: isinstance(message, m.Decision) and target == "a"
    bench.give("p", CommitCall("k"))
    assert status(bench) is Status.COMMITTED
    return tx


@pytest.mark.parametrize("scope", [Scope.LOCAL, Scope.NON_TRANSACTIONAL, Scope.NONE])
def test_a_commit_that_names_a_former_life_is_acknowledged_in_whatever_scope_the_next_one_is(scope: Scope) -> None:
    bench = Bench(Site("p"), Site("a", member(waits=False, resource=False)), Site("b", member()))
    tx = committed_unheard_by_a(bench)
    bench.sites["a"].scope = member(scope=scope)
    bench.restart("a")
    census = next(msg for target, msg in bench.sent if target == "a" and isinstance(msg, m.Census))
    bench.give("a", Received(census, b"frame"))
    bench.lose = lambda target, message: False
    bench.fire("p", "retry")
    assert not bench.sites["p"].participant.coordinator.transactions[tx].unacknowledged


def test_a_commit_of_work_that_the_resource_has_lost_is_not_acknowledged_and_told() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b", member()))
    tx = committed_unheard_by_a(bench)
    bench.sites["a"].resource = MemoryResource()
    bench.restart("a")
    bench.restart("a")  # what it refuses now it also knows the next time
    bench.lose = lambda target, message: False
    bench.fire("p", "retry")
    assert bench.sites["p"].participant.coordinator.transactions[tx].unacknowledged
    assert "lost" in [surface.what for surface in bench.sites["a"].surfaced]


def test_a_decision_that_cannot_be_checked_silences_no_refusal() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b", member()))
    tx = begin(bench)
    bench.restart("a")
    bench.lose = lambda target, message: isinstance(message, m.Vote)
    bench.give("p", CommitCall("k"))
    me = bench.sites["a"].participant.subscriber._me(tx)
    bench.give("a", Received(m.Decision(tx, b"x" * 32, (me,)), b"forged"))
    bench.lose = lambda target, message: False
    bench.fire("a", "doubt")
    assert status(bench) is Status.ABORTED


@pytest.mark.parametrize("one_shot", [True, False])
def test_without_a_resource_the_intent_is_logged_after_the_application_had_the_last_word(one_shot: bool) -> None:
    bench, asked = Bench(Site("p"), Site("a", member(resource=False))), []
    bench.spy = lambda site, effect: asked.append(type(effect).__name__) if site.name == "a" else None
    bench.give("p", BeginCall("k", Terms("orders", one_shot=one_shot), "p", (Item("orders", b"one"),) * one_shot))
    if not one_shot:
        publish(bench, "p", "k", "one")
        bench.give("p", CommitCall("k"))
    assert status(bench) is Status.COMMITTED
    assert asked.index("PrepareUnit") < asked.index("Append")


def test_a_forced_commit_of_what_was_never_prepared_ends_and_is_told() -> None:
    bench, site = Bench(Site("p"), Site("a", member())), "a"
    tx = TxId("p", "log-p", 7, "abcd")
    bench.sites[site].records[f"m/{tx}"] = MemberDecided(tx, "orders", True, b"")
    bench.restart(site)
    assert "lost" in [surface.what for surface in bench.sites[site].surfaced]


@pytest.mark.parametrize("asked_again", ["", "Prepare", "Census"])
def test_a_commit_that_names_a_life_without_a_record_is_acknowledged_by_the_next(asked_again: str) -> None:
    """Whatever reaches it first: the commit, a late copy of what its former life had answered, or all of that."""
    bench = Bench(Site("p"), Site("a", member(waits=False, resource=False)), Site("b", member()))
    tx = committed_unheard_by_a(bench)
    bench.restart("a")
    late = next((msg for target, msg in bench.sent if target == "a" and type(msg).__name__ == asked_again), None)
    if late is not None:
        bench.give("a", Received(late, b"frame"))
    assert bench.sites["p"].participant.coordinator.transactions[tx].unacknowledged
    bench.lose = lambda target, message: False
    bench.fire("p", "retry")
    assert not bench.sites["p"].participant.coordinator.transactions[tx].unacknowledged


@pytest.mark.parametrize(("waits", "patient"), [((False, False), True), ((False, True), False)])
def test_a_decision_is_patient_if_nobody_waits_for_it(waits: tuple[bool, bool], patient: bool) -> None:
    bench, said = Bench(Site("p"), *(Site(n, member(waits=w)) for n, w in zip("ab", waits, strict=True))), []
    bench.spy = lambda site, effect: said.append(effect) if isinstance(effect, Broadcast) else None
    begin(bench)
    publish(bench, "p", "k", "one")
    bench.give("p", CommitCall("k"))
    assert {type(one.message).__name__: one.patient for one in said}["Decision"] is patient
    assert not any(one.patient for one in said if not isinstance(one.message, m.Decision))


def test_census_closes_as_soon_as_everyone_present_has_answered() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b"))
    assert begin(bench) is not None, "no timer had to run out"


def test_census_without_enough_members_is_refused_and_nothing_begins() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    begin(bench, Terms("orders", require=Conditions(at_least=2)))
    assert "CensusFailed" not in bench.kinds(), "who comes late has the window"
    bench.fire("p", "window")
    assert status(bench) is Status.REFUSED
    assert "CensusFailed" in bench.kinds()
    assert "Begin" not in bench.kinds()


def test_named_members_must_take_part() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b", member()))
    begin(bench, Terms("orders", require=Conditions(named=("a", "c"))))
    bench.fire("p", "window")
    assert status(bench) is Status.REFUSED
    assert "c did not take part" in bench.sites["p"].outcomes["k"][-1].reason


def test_only_those_allowed_become_members() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b", member()))
    begin(bench, Terms("orders", require=Conditions(only=("a",))))
    begun = next(message for _, message in bench.sent if isinstance(message, m.Begin))
    assert begun.members == (bench.sites["a"].participant.seat.keyring.member(begun.tx),)


def test_predicate_on_the_answers_is_asked() -> None:
    seen = []
    bench = Bench(Site("p"), Site("a", member()))
    begin(bench, predicate=lambda answers: bool(seen.append([join.identity for join in answers])))
    bench.fire("p", "window")
    assert seen == [["a"], ["a"]]
    assert status(bench) is Status.REFUSED


def test_purely_local_transaction_begins_without_a_census() -> None:
    bench = Bench(Site("p"), Site("a", member(scope=Scope.LOCAL)))
    bench.lose = lambda target, message: target == "a"
    assert begin(bench, Terms("orders", tx_type=TxType.LOCAL)) is not None


def test_failing_handler_aborts_before_the_commitment_phase() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b", member()))
    bench.sites["a"].handlers.failing = ["bad"]
    begin(bench, Terms("orders", limit=Limit.DISTRIBUTED))
    publish(bench, "p", "k", "good", "bad")
    assert status(bench) is Status.ABORTED
    assert bench.sites["p"].outcomes["k"][-1].by == "a"
    assert "Prepare" not in bench.kinds()
    assert not bench.sites["b"].resource.values
    assert not bench.sites["b"].resource.units


def test_handler_is_retried_as_the_delivery_policy_says() -> None:
    bench = Bench(Site("p"), Site("a", member(handler_attempts=2)))
    handlers = bench.sites["a"].handlers
    handlers.failing = ["flaky"]
    original = handlers.handle

    def heals(tx, event, work):
        try:
            original(tx, event, work)
        finally:
            handlers.failing = []

    handlers.handle = heals
    begin(bench)
    publish(bench, "p", "k", "flaky")
    bench.give("p", CommitCall("k"))
    assert status(bench) is Status.COMMITTED


def test_two_of_three_settle_when_one_drops_out() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b", member()), Site("c", member()))
    bench.sites["c"].handlers.failing = ["x"]
    begin(bench, Terms("orders", settle_for=Conditions(at_least=2)))
    publish(bench, "p", "k", "x")
    bench.give("p", CommitCall("k"))
    assert status(bench) is Status.COMMITTED
    assert bench.sites["p"].outcomes["k"][-1].members == 2
    assert not bench.sites["c"].resource.values


def test_a_constraint_that_can_not_be_met_any_more_aborts_at_once() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b", member()))
    bench.sites["b"].handlers.failing = ["x"]
    begin(bench, Terms("orders", limit=Limit.DISTRIBUTED, settle_for=Conditions(at_least=2)))
    publish(bench, "p", "k", "x")
    assert status(bench) is Status.ABORTED
    assert "CommitRequest" not in bench.kinds()


def test_require_is_tested_at_the_census_only_then_all_must_agree() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b", member()), Site("c", member()))
    bench.sites["c"].handlers.failing = ["x"]
    begin(bench, Terms("orders", limit=Limit.DISTRIBUTED, require=Conditions(at_least=2)))
    publish(bench, "p", "k", "x")
    assert status(bench) is Status.ABORTED


def test_silent_members_are_dropped_at_the_deadline_where_the_rest_suffices() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b", member()))
    begin(bench, Terms("orders", settle_for=Conditions(at_least=1)))
    bench.lose = lambda target, message: isinstance(message, m.Vote) and message.member == _hash(bench, "b", message.tx)
    bench.give("p", CommitCall("k"))
    bench.fire("p", "votes")
    assert status(bench) is Status.COMMITTED
    assert bench.sites["p"].outcomes["k"][-1].members == 1
    assert not bench.sites["b"].resource.prepared, "a prepared member that is not named rolls back"


def test_missing_votes_surface_and_the_publisher_may_wait_or_abort() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    begin(bench)
    bench.lose = lambda target, message: isinstance(message, m.Vote)
    bench.give("p", CommitCall("k"))
    bench.fire("p", "votes")
    assert any(surface.what == "votes missing" for surface in bench.sites["p"].surfaced)
    bench.give("p", WaitLonger("k", 9.0))
    assert 9.0 in bench.sites["p"].timers.values()
    bench.give("p", AbortCall("k"))
    assert status(bench) is Status.ABORTED
    assert not bench.sites["a"].resource.prepared


def _hash(bench: Bench, name: str, tx: TxId) -> bytes:
    return bench.sites[name].participant.seat.keyring.member(tx)


def test_missing_event_is_asked_for_again() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    begin(bench)
    lost = []

    def lose_first(target, message):
        if isinstance(message, m.Event) and target == "a" and not lost:
            lost.append(message)
            return True
        return False

    bench.lose = lose_first
    publish(bench, "p", "k", "one", "two")
    bench.give("p", CommitCall("k"))
    assert "Resend" in bench.kinds()
    assert status(bench) is Status.COMMITTED
    assert list(bench.sites["a"].resource.values) == ["one", "two"]


def test_event_that_never_arrives_aborts_after_the_attempts_allowed() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    begin(bench, Terms("orders", limit=Limit.DISTRIBUTED, delivery_attempts=2))
    bench.lose = lambda target, message: isinstance(message, m.Event)
    publish(bench, "p", "k", "one")
    bench.give("p", CommitCall("k"))
    bench.fire("a", "gap")
    bench.fire("a", "gap")
    assert status(bench) is Status.ABORTED
    assert "did not arrive" in bench.sites["p"].outcomes["k"][-1].reason


def test_commit_request_waits_for_the_events_that_it_overtook() -> None:
    bench = Bench(Site("p"), Site("h"), Site("a", member()))
    begin(bench, coordinator="h")
    bench.lose = lambda target, message: isinstance(message, m.Submit)
    publish(bench, "p", "k", "one")
    bench.give("p", CommitCall("k"))
    assert "Prepare" not in bench.kinds()
    bench.lose = lambda target, message: False
    bench.fire("p", "retry", "p")
    assert status(bench) is Status.COMMITTED
    assert list(bench.sites["a"].resource.values) == ["one"]


def test_compensatable_members_commit_at_the_vote_and_undo_in_reverse() -> None:
    bench = Bench(Site("p"), Site("a", member(compensatable=True)), Site("b", member()))
    begin(bench, Terms("orders", limit=Limit.DISTRIBUTED))
    publish(bench, "p", "k", "one", "two")
    bench.lose = lambda target, message: isinstance(message, m.Vote) and message.member == _hash(bench, "b", message.tx)
    bench.give("p", CommitCall("k"))
    assert list(bench.sites["a"].resource.values) == ["one", "two"], "committed before the decision"
    bench.give("p", AbortCall("k"))
    assert bench.sites["a"].handlers.undone == ["two", "one"]
    assert not bench.sites["b"].resource.values


def test_one_shot_needs_one_round_trip() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b", member()))
    bench.give("p", BeginCall("k", Terms("orders", one_shot=True), "p", (Item("orders", b"x"),)))
    assert status(bench) is Status.COMMITTED
    assert not {"Join", "Begin", "Prepare", "Event"} & set(bench.kinds())


def test_one_shot_is_refused_where_outsiders_would_see_the_events() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    bench.give("p", BeginCall("k", Terms("orders", one_shot=True, limit=Limit.DISTRIBUTED), "p"))
    assert status(bench) is Status.REFUSED


def test_only_member_decides_alone_and_only_its_answer_counts() -> None:
    bench = Bench(Site("p"), Site("h"), Site("a", member(one_phase=True)))
    tx = begin(bench, Terms("orders", limit=Limit.DISTRIBUTED), coordinator="h")
    publish(bench, "p", "k", "x")
    bench.lose = lambda target, message: isinstance(message, m.Delegated)
    bench.give("p", CommitCall("k"))
    assert "Prepare" not in bench.kinds()
    bench.fire("h", "deadline")
    bench.give("h", bench.sites["a"].presence(alive=False))
    bench.give("h", bench.sites["p"].presence(alive=False))
    assert "k" not in bench.sites["p"].outcomes, "neither deadline nor presence decides for the delegate"
    bench.lose = lambda target, message: False
    bench.restart("h")
    assert bench.sites["h"].participant.coordinator.transactions[tx].outcome.status is Status.COMMITTED


def test_refused_delegation_stays_aborted_for_whoever_asks_after_a_restart() -> None:
    bench = Bench(Site("p"), Site("h"), Site("a", member(one_phase=True)))
    tx = begin(bench, Terms("orders", limit=Limit.DISTRIBUTED), coordinator="h")
    bench.sites["a"].handlers.failing = ["x"]
    bench.lose = lambda target, message: isinstance(message, m.Event | m.Abort | m.Vote | m.Delegated)
    publish(bench, "p", "k", "x")
    bench.give("p", CommitCall("k"))
    bench.lose = lambda target, message: False
    bench.fire("h", "retry", "c")
    bench.fire("a", "gap")
    bench.restart("h")
    bench.give("p", ConfirmCall("k"))
    assert not bench.sites["h"].participant.coordinator.transactions
    bench.give("p", AskCall("later", "h", tx))
    assert status(bench, "later") is Status.ABORTED


def test_who_gives_up_aborts_what_was_opened_meanwhile() -> None:
    bench = Bench(Site("p"), Site("h"), Site("a", member()))
    begin(bench, coordinator="h")
    bench.give("p", LeaveCall("k", "given up"))
    left = bench.sites["h"].participant.coordinator.transactions.values()
    assert all(one.outcome is not None and one.outcome.status is Status.ABORTED for one in left)
    assert "Abort" in bench.kinds()


def test_restarted_coordinator_presumes_abort_only_for_its_own_log() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    tx = begin(bench)
    bench.restart("p")
    bench.give("p", Received(m.InDoubt(tx, "orders", "transaction")))
    assert isinstance(bench.sent[-1][1], m.Decision)
    other = TxId("p", "another-log", 1, tx.nonce)
    bench.give("p", Received(m.InDoubt(other, "orders", "transaction")))
    assert isinstance(bench.sent[-1][1], m.Unknown)
    future = TxId("p", tx.incarnation, 10**9, tx.nonce)
    bench.give("p", Received(m.InDoubt(future, "orders", "transaction")))
    assert isinstance(bench.sent[-1][1], m.Unknown), "a number never given out: this log is older than it should be"


def test_prepared_member_that_restarts_votes_the_same_and_waits() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    begin(bench)
    publish(bench, "p", "k", "x")
    bench.lose = lambda target, message: isinstance(message, m.Vote)
    bench.give("p", CommitCall("k"))
    assert bench.sites["a"].resource.prepared
    bench.lose = lambda target, message: False
    bench.restart("a")
    assert status(bench) is Status.COMMITTED
    assert list(bench.sites["a"].resource.values) == ["x"]


def test_what_is_prepared_is_rolled_back_if_nobody_voted_for_it_and_kept_otherwise() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    tx = begin(bench)
    publish(bench, "p", "k", "x")
    bench.lose = lambda target, message: isinstance(message, m.Vote)
    bench.give("p", CommitCall("k"))
    forgotten = replace(tx, number=tx.number + 1)
    found = bench.sites["a"].participant.step(BranchesFound((tx, forgotten)))
    ((role, effects),) = found
    assert role == ("m", forgotten)
    assert effects[1:] == [AwaitLog(), FinishUnit(forgotten, False)]


@pytest.mark.parametrize("compensatable", [True, False])
def test_work_that_is_found_committed_can_be_forced_to_abort_only_if_it_can_be_undone(compensatable: bool) -> None:
    bench = Bench(Site("p"), Site("a", member(compensatable=compensatable)))
    tx = begin(bench)
    publish(bench, "p", "k", "x")
    bench.lose = lambda target, message: isinstance(message, m.Vote)
    bench.give("p", CommitCall("k"))
    if not compensatable:
        bench.sites["a"].resource.commit_prepared(tx)
    bench.restart("a")
    executor = bench.sites["a"].participant.subscriber._member(tx)
    assert bool(executor.on_forced(False)) == compensatable


@pytest.mark.parametrize(("compensatable", "found"), [(True, "committed"), (False, "prepared"), (False, "none")])
def test_a_decision_that_comes_before_the_resource_was_looked_at_is_applied_once(
    compensatable: bool, found: str
) -> None:
    bench = Bench(Site("p"), Site("a", member(compensatable=compensatable)))
    tx = begin(bench)
    publish(bench, "p", "k", "x")
    bench.lose = lambda target, message: isinstance(message, m.Vote | m.Decision)
    bench.give("p", CommitCall("k"))
    (record,) = bench.sites["a"].records.values()
    bench.give("p", AbortCall("k"))
    decision = next(message for _, message in bench.sent if isinstance(message, m.Decision))
    again = Executor.recover(bench.sites["a"].seat(), record)
    assert again.resume() == [InspectUnit(tx, compensatable)]
    applied = again.on_decision(decision, b"frame")
    assert [type(effect) for effect in applied if isinstance(effect, WORK)] == [
        Compensate if compensatable else FinishUnit
    ]
    assert again.on_inspected(UnitInspected(tx, found)) == []


def test_member_that_forgot_that_it_joined_votes_no() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    begin(bench, Terms("orders", limit=Limit.DISTRIBUTED))
    bench.restart("a")
    bench.give("p", CommitCall("k"))
    assert status(bench) is Status.ABORTED


def test_peer_repeats_the_decision_of_a_silent_coordinator() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b", member()))
    begin(bench)
    bench.lose = lambda target, message: target == "b" and isinstance(message, m.Decision)
    bench.give("p", CommitCall("k"))
    bench.lose = lambda target, message: target == "p"
    tx = next(iter(bench.sites["b"].resource.prepared))
    relayed = [
        effect
        for _, effects in bench.sites["a"].participant.step(Received(m.InDoubt(tx, "orders", "commitment")))
        for effect in effects
        if type(effect).__name__ == "Answer"
    ]
    assert relayed
    assert relayed[0].frame == b"frame"


def test_member_that_gave_its_name_and_is_gone_counts_as_a_no() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b", member()))
    begin(bench, Terms("orders", limit=Limit.DISTRIBUTED))
    bench.give("p", bench.sites["b"].presence(alive=False))
    assert status(bench) is Status.ABORTED
    assert "b is gone" in bench.sites["p"].outcomes["k"][-1].reason


def test_publisher_that_starts_again_with_a_new_log_is_served() -> None:
    bench = Bench(Site("p"), Site("h"), Site("a", member()))
    shot = Terms("orders", limit=Limit.DISTRIBUTED, one_shot=True, require=Conditions(only=("a",)))
    for key in ("k1", "k2"):
        bench.give("p", BeginCall(key, shot, "h", (Item("orders", b"x"),)))
        bench.give("p", ConfirmCall(key))
    copies = [message for target, message in bench.sent if target == "h" and isinstance(message, m.Create)]
    bench.start_anew("p")
    bench.give("p", BeginCall("k3", shot, "h", (Item("orders", b"y"),)))
    assert status(bench, "k3") is Status.COMMITTED
    before = len(bench.sites["a"].resource.marked)
    for copy in copies:
        bench.give("h", Received(copy))
    assert len(bench.sites["a"].resource.marked) == before, "copies of its past start nothing"


@pytest.mark.parametrize("gone", ["p", "a"])
def test_site_that_comes_back_with_a_new_log_was_gone_in_between(gone: str) -> None:
    bench = Bench(Site("p"), Site("h"), Site("a", member()), Site("b", member()))
    tx = begin(bench, Terms("orders", limit=Limit.DISTRIBUTED), coordinator="h")
    publish(bench, "p", "k", "x")
    former = bench.sites[gone].presence(alive=False)
    bench.start_anew(gone)
    coordinator = bench.sites["h"].participant.coordinator
    assert tx not in coordinator.transactions or coordinator.transactions[tx].outcome.status is Status.ABORTED
    assert gone in coordinator.present
    bench.give("h", former)
    assert gone in coordinator.present, "the late word of its past"


def test_hosted_coordinator_aborts_what_its_dead_publisher_left_undecided() -> None:
    bench = Bench(Site("p"), Site("h"), Site("a", member()))
    begin(bench, Terms("orders", limit=Limit.DISTRIBUTED), coordinator="h")
    publish(bench, "p", "k", "x")
    bench.give("h", bench.sites["p"].presence(alive=False))
    assert not bench.sites["a"].resource.units
    assert not bench.sites["h"].participant.coordinator.transactions


def test_second_publisher_gets_the_same_numbering_and_strangers_are_refused() -> None:
    bench = Bench(Site("p"), Site("h"), Site("q"), Site("a", member()))
    terms = Terms("orders", access=Access.MULTI, publishers=("q",), limit=Limit.DISTRIBUTED)
    tx = begin(bench, terms, coordinator="h")
    publish(bench, "p", "k", "one")
    bench.give("q", JoinCall("j", tx))
    publish(bench, "q", "j", "two")
    bench.give("a", JoinCall("stranger", tx))
    publish(bench, "a", "stranger", "three")
    assert bench.sites["a"].outcomes["stranger"][-1].status is Status.REFUSED
    bench.give("q", CommitCall("j"))
    assert bench.sites["q"].outcomes["j"][-1].status is Status.REFUSED, "it may publish, not commit"
    bench.give("p", CommitCall("k"))
    assert list(bench.sites["a"].resource.values) == ["one", "two"]


def test_initiator_may_take_part_as_any_other() -> None:
    bench = Bench(Site("p", member()), Site("a", member()))
    begin(bench)
    publish(bench, "p", "k", "x")
    bench.give("p", CommitCall("k"))
    assert list(bench.sites["p"].resource.values) == ["x"]


def test_any_event_type_travels_inside_a_transaction() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    begin(bench)
    bench.give("p", PublishCall("k", Item("locations", b"elsewhere")))
    bench.give("p", CommitCall("k"))
    assert list(bench.sites["a"].resource.values) == ["elsewhere"]


def test_member_abort_reaches_its_scope_only_and_locals_commit_at_the_call() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("l", member(scope=Scope.LOCAL)))
    tx = begin(bench)
    publish(bench, "p", "k", "x")
    bench.give("a", MemberAborts(tx, "no"))
    assert not bench.sites["l"].resource.values
    bench.give("p", CommitCall("k"))
    outcome = bench.sites["p"].outcomes["k"][-1]
    assert (outcome.status, outcome.called) == (Status.ABORTED, True)
    assert list(bench.sites["l"].resource.values) == ["x"]
    assert not bench.sites["a"].resource.values


def test_publisher_abort_before_its_call_reaches_all_scopes() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("l", member(scope=Scope.LOCAL)))
    begin(bench)
    publish(bench, "p", "k", "x")
    bench.give("p", AbortCall("k"))
    for name in ("a", "l"):
        assert not bench.sites[name].resource.values
        assert not bench.sites[name].resource.units


def test_publisher_abort_after_its_call_reaches_the_distributed_scope_only() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("l", member(scope=Scope.LOCAL)))
    begin(bench)
    publish(bench, "p", "k", "x")
    bench.lose = lambda target, message: (
        isinstance(message, m.Vote) or (target == "l" and isinstance(message, m.Called))
    )
    bench.give("p", CommitCall("k"))
    bench.give("p", AbortCall("k"))
    bench.lose = lambda target, message: False
    assert status(bench) is Status.ABORTED
    bench.fire("l", "doubt")
    assert list(bench.sites["l"].resource.values) == ["x"]
    assert not bench.sites["a"].resource.values


def test_local_member_that_has_the_call_and_all_events_finishes_though_its_coordinator_has_ended() -> None:
    """Its handler is slow: a question that it asked meanwhile is answered as one about something forgotten."""
    bench = Bench(Site("p"), Site("l", member(scope=Scope.LOCAL)))
    tx = begin(bench)
    local = bench.sites["l"].participant.subscriber._member(tx)
    assert isinstance(local, LocalExecutor)
    event = m.Numbered(1, Item("orders", b"x"), "p")
    keyring = bench.sites["p"].seat().keyring
    assert local.on_event(event) == [RunHandler(tx, event)]
    called = m.Called(tx, ORDERS, keyring.token(tx, "called"), 1, digest_of((event,)))
    assert local.on_called(called) == []
    assert local.on_withdrawn(m.Withdrawn(tx, keyring.token(tx, "withdrawn"))) == []
    assert local.on_below_mark() == []
    assert CommitUnit(tx) in local.on_handler_done(HandlerDone(tx, 1, True))


@pytest.mark.parametrize("wrong", [{"digest": b"of other events"}, {"last": 7}], ids=["digest", "last number"])
def test_a_yes_to_other_events_is_a_no(wrong: dict) -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b", member()))
    begin(bench)
    publish(bench, "p", "k", "x")
    bench.lose = lambda target, message: isinstance(message, m.Vote)
    bench.give("p", CommitCall("k"))
    bench.lose = lambda target, message: False
    votes = {message.member: message for _, message in bench.sent if isinstance(message, m.Vote)}
    good, bad = votes.values()
    bench.give("p", Received(good))
    bench.give("p", Received(replace(bad, **wrong)))
    assert status(bench) is Status.ABORTED


def test_local_member_fails_alone() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("l", member(scope=Scope.LOCAL)))
    bench.sites["l"].handlers.failing = ["x"]
    begin(bench)
    publish(bench, "p", "k", "x")
    bench.give("p", CommitCall("k"))
    assert status(bench) is Status.COMMITTED
    assert list(bench.sites["a"].resource.values) == ["x"]
    assert not bench.sites["l"].resource.values


def test_follower_applies_what_was_committed_even_if_it_was_away() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("f"))
    bench.give("f", FollowCall("p", "log-p", ChainKind.COMMITS, ("orders",)))
    bench.lose = lambda target, message: target == "f"
    begin(bench)
    bench.fire("p", "window")
    publish(bench, "p", "k", "x")
    bench.give("p", CommitCall("k"))
    assert not bench.sites["f"].resource.values
    bench.lose = lambda target, message: False
    bench.fire("p", "retry", "chain")
    assert list(bench.sites["f"].resource.values) == ["x"]
    assert not bench.sites["p"].participant.coordinator.chains[ChainKind.COMMITS].entries


def test_follower_beyond_retention_is_told_that_it_is_stale() -> None:
    bench = Bench(Site("p", bounds=Bounds(chain_entries=2)), Site("a", member()), Site("f"))
    bench.give("f", FollowCall("p", "log-p", ChainKind.COMMITS, ("orders",)))
    bench.lose = lambda target, message: target == "f"
    for number in range(4):
        begin(bench, call=f"k{number}")
        bench.fire("p", "window")
        bench.give("p", CommitCall(f"k{number}"))
    assert len(bench.sites["p"].participant.coordinator.chains[ChainKind.COMMITS].entries) == 2
    bench.lose = lambda target, message: False
    bench.fire("p", "retry", "chain")
    assert any(surface.what == "stale" for surface in bench.sites["f"].surfaced)
    bench.give("f", FollowCall("p", "log-p", ChainKind.COMMITS, ("orders",), anew=True))
    begin(bench, call="after")
    publish(bench, "p", "after", "fresh")
    bench.give("p", CommitCall("after"))
    assert list(bench.sites["f"].resource.values) == ["fresh"]


def test_repeated_key_gives_the_outcome_of_the_first_time() -> None:
    bench = Bench(Site("p"), Site("h"), Site("a", member()))
    shot = Terms("orders", one_shot=True)
    bench.give("p", BeginCall("order-7", shot, "h", (Item("orders", b"x"),)))
    first = bench.sites["p"].outcomes["order-7"][-1]
    bench.restart("p")
    bench.give("p", BeginCall("order-7", shot, "h", (Item("orders", b"x"),)))
    again = bench.sites["p"].outcomes["order-7"][-1]
    assert (again.tx, again.status) == (first.tx, Status.COMMITTED)


def test_caller_that_comes_back_learns_the_outcome_by_key_and_by_id() -> None:
    bench = Bench(Site("p"), Site("h"), Site("a", member()))
    tx = begin(bench, coordinator="h")
    bench.give("p", CommitCall("k"))
    bench.restart("p")
    bench.give("p", AskCall("k", "h", None, "k"))
    assert status(bench) is Status.COMMITTED
    bench.restart("p")
    bench.give("p", AskCall("x", "h", tx))
    assert bench.sites["p"].outcomes["x"][-1].status is Status.COMMITTED


def test_a_commit_forgotten_before_its_caller_confirmed_is_never_called_aborted() -> None:
    bench = Bench(Site("p"), Site("h", bounds=Bounds(unconfirmed=1)), Site("a", member()))
    first = begin(bench, Terms("orders", limit=Limit.DISTRIBUTED), coordinator="h", call="k0")
    bench.give("p", CommitCall("k0"))
    for number in (1, 2):
        begin(bench, Terms("orders", limit=Limit.DISTRIBUTED), coordinator="h", call=f"k{number}")
        bench.give("p", CommitCall(f"k{number}"))
    bench.restart("h")
    bench.restart("p")
    bench.give("p", AskCall("asks", "h", first))
    assert bench.sites["p"].outcomes["asks"][-1].status is Status.FINISHED


@pytest.mark.parametrize("restarted", [False, True])
def test_a_call_without_a_key_whose_commit_is_forgotten_is_neither_told_aborted_nor_made_again(restarted: bool) -> None:
    bench = Bench(Site("p"), Site("q"), Site("h", bounds=Bounds(unconfirmed=1)), Site("a", member()))
    shot = Terms("orders", one_shot=True)
    bench.lose = lambda target, message: target == "p" and isinstance(message, m.Outcome)
    bench.give("p", BeginCall(f"{NAMELESS}1", shot, "h", (Item("orders", b"first"),)))
    for number in (2, 3):
        bench.give("q", BeginCall(f"{NAMELESS}{number}", shot, "h", (Item("orders", b"other"),)))
    bench.lose = lambda target, message: False
    if restarted:
        bench.restart("h")
    bench.fire("p", "retry", "p")
    assert status(bench, f"{NAMELESS}1") is Status.FINISHED
    assert len({message.tx for _, message in bench.sent if isinstance(message, m.Census)}) == 3


@pytest.mark.parametrize("scope", [Scope.NONE, Scope.LOCAL])
def test_who_declined_repeats_that_and_the_application_is_asked_once(scope: Scope) -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b", member(scope=scope)))
    bench.lose = lambda target, message: isinstance(message, m.Decline)
    assert begin(bench) is None
    asked = bench.sites["b"].asked
    bench.lose = lambda target, message: False
    bench.fire("p", "retry", "c")
    assert bench.sites["p"].opened["k"]
    assert bench.sites["b"].asked == asked == 1


def test_refusals_to_take_part_are_remembered_up_to_a_bound() -> None:
    bench = Bench(Site("p"), Site("a", member(scope=Scope.NONE)))
    declined = bench.sites["a"].participant.subscriber.declined
    tx = bench.sites["p"].seat().tx(1)
    for number in range(DECLINED + 1):
        bench.give("a", Received(m.Census(replace(tx, number=number), ORDERS, HASHES, m.Standing()), b""))
    assert len(declined) == DECLINED


def test_a_publisher_that_comes_after_the_end_is_not_told_that_a_commit_aborted() -> None:
    """Of two who were there, one commits, confirms, and all is forgotten; the other still submits."""
    bench = Bench(Site("p"), Site("q"), Site("h"), Site("a", member()))
    tx = begin(bench, Terms("orders", access=Access.MULTI, limit=Limit.DISTRIBUTED), coordinator="h")
    bench.give("q", JoinCall("late", tx))
    bench.give("p", CommitCall("k"))
    assert status(bench) is Status.COMMITTED
    bench.give("p", ConfirmCall("k"))
    assert not bench.sites["h"].participant.coordinator.transactions
    publish(bench, "q", "late", "too late")
    assert status(bench, "late", "q") is Status.FINISHED


@pytest.mark.parametrize("identity", [True, False])
@pytest.mark.parametrize("one_shot", [True, False])
def test_a_no_that_was_logged_and_not_heard_is_said_after_the_restart_at_once(one_shot: bool, identity: bool) -> None:
    """In one shot it says with it who it is, or the coordinator could not count it."""
    options = {"identity": identity, "attributes": (("room", "B2"),)}
    bench = Bench(Site("p"), Site("a", member(**options)), Site("b", member()))
    bench.sites["a"].handlers.failing = ["one"]
    bench.lose = lambda target, message: isinstance(message, m.Vote)
    if one_shot:
        begin(bench, Terms("orders", one_shot=True), items=(Item("orders", b"one"),))
    else:
        begin(bench)
        publish(bench, "p", "k", "one")
    joins = [message.join for _, message in bench.sent if isinstance(message, m.Vote)]
    bench.lose = lambda target, message: False
    bench.sent.clear()
    bench.restart("a")
    said = [message for _, message in bench.sent if isinstance(message, m.Vote)]
    assert said[0].join == joins[0]
    assert (said[0].join is not None) == one_shot
    if not one_shot:
        bench.give("p", CommitCall("k"))
    assert status(bench) is Status.ABORTED
    assert bench.sites["p"].outcomes["k"][-1].reason == "told to fail"


def test_votes_of_outsiders_are_ignored_and_counted() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    tx = begin(bench)
    bench.lose = lambda target, message: isinstance(message, m.Vote)
    bench.give("p", CommitCall("k"))
    bench.lose = lambda target, message: False
    bench.give("p", Received(m.Vote(tx, b"stranger", b"token", 0, b"")))
    bench.give("p", Received(m.Vote(tx, _hash(bench, "a", tx), b"token", 0, b"")))
    assert "k" not in bench.sites["p"].outcomes
    assert [surface.what for surface in bench.sites["p"].surfaced].count("vote ignored") == 2


def test_open_transactions_are_bounded_and_the_refusal_names_the_limit() -> None:
    bench = Bench(Site("p", bounds=Bounds(open_transactions=1)), Site("a", member()))
    begin(bench)
    bench.give("p", BeginCall("second", ORDERS, "p"))
    assert "bounds.open_transactions" in bench.sites["p"].outcomes["second"][-1].reason


def test_an_event_that_arrives_again_after_the_coordinators_restart_is_not_refused() -> None:
    bench = Bench(Site("p"), Site("c"), Site("a", member()), Site("b", member()))
    tx = begin(bench, coordinator="c")
    publish(bench, "p", "k", "one")
    bench.lose = lambda target, message: isinstance(message, m.Outcome)
    bench.give("p", CommitCall("k"))
    bench.restart("c")
    bench.lose = lambda target, message: False
    bench.give("c", Received(m.Submit(tx, "p", 1, Item("orders", b"one")), b"frame"))
    assert status(bench) is Status.COMMITTED


def test_who_asks_for_the_outcome_is_not_told_a_refusal_of_something_else() -> None:
    bench = Bench(Site("p"), Site("c"), Site("a", member()))
    tx = begin(bench, coordinator="c")
    bench.restart("p")
    bench.lose = lambda target, message: isinstance(message, m.Inquire)
    bench.give("p", AskCall("q", "c", tx))
    bench.give("p", Received(m.Refused("", tx, "the transaction takes no more events"), b"frame"))
    assert "q" not in bench.sites["p"].outcomes


# Limits


def test_answers_to_a_census_are_remembered_up_to_a_limit() -> None:
    bench = Bench(Site("p", bounds=Bounds(members=10)))
    bench.give("p", BeginCall("k", Terms("orders", require=Conditions(at_least=1)), "p"))
    ((tx, coordinator),) = bench.sites["p"].participant.coordinator.transactions.items()
    coordinator.census.present = dict.fromkeys(map(str, range(100)))
    for number in range(20):
        bench.give("p", Received(m.Decline(tx, number.to_bytes(16))))
    assert len(coordinator.census.others) <= 10
    bench.fire("p", "window")
    assert "at least 1" in bench.sites["p"].outcomes["k"][-1].reason, "the window closes it"


def test_publishers_are_remembered_up_to_a_limit_and_one_more_is_told_which() -> None:
    bench = Bench(*(Site(name) for name in "pqr"), Site("h", bounds=Bounds(publishers=2)))
    for name in "pqr":
        begin(bench, site=name, call=name, coordinator="h")
    assert len(bench.sites["h"].participant.coordinator.creations.publishers) == 2
    assert "bounds.publishers" in bench.sites["r"].outcomes["r"][-1].reason
    begin(bench, site="q", call="again", coordinator="h")
    assert "again" not in bench.sites["q"].outcomes


def test_creations_since_the_oldest_unconfirmed_one_are_remembered_up_to_a_limit() -> None:
    bench = Bench(Site("p"), Site("h", bounds=Bounds(open_transactions=3)))
    none = Terms("orders", tx_type=TxType.LOCAL, one_shot=True)
    for key in ("first", "second", "third", "fourth"):
        bench.give("p", BeginCall(key, none, "h", (Item("orders", b"x"),)))
        bench.fire("h", "linger")
        if key != "first":
            bench.give("p", ConfirmCall(key))
            bench.fire("h", "linger")
    assert status(bench, "third") is Status.COMMITTED
    assert "since its oldest unconfirmed one" in bench.sites["p"].outcomes["fourth"][-1].reason
    bench.give("p", ConfirmCall("first"))
    bench.give("p", BeginCall("fifth", none, "h", (Item("orders", b"x"),)))
    assert status(bench, "fifth") is Status.COMMITTED


def test_censuses_that_wait_for_the_application_are_bounded_and_come_again() -> None:
    bench = Bench(Site("a", member(), bounds=Bounds(censuses=2)))
    subscriber = bench.sites["a"].participant.subscriber
    censuses = [m.Census(TxId("z", "log", number, "n"), ORDERS, HASHES, m.Standing()) for number in (1, 2, 3)]
    for census in censuses:
        subscriber.on_message(census, b"")
    assert list(subscriber.asked) == [census.tx for census in censuses[:2]]
    ((_, (surface,)),) = subscriber.on_message(censuses[2], b"")
    assert "bounds.censuses" in surface.detail
    subscriber.on_scope(ScopeChosen(censuses[0].tx, Scope.NONE))
    subscriber.on_message(censuses[2], b"")
    assert censuses[2].tx in subscriber.asked


def test_logs_of_coordinators_are_remembered_up_to_a_limit() -> None:
    bench = Bench(Site("a", member(), bounds=Bounds(peers=2)))
    subscriber = bench.sites["a"].participant.subscriber
    for log in ("one", "two", "three"):
        bench.give("a", Received(m.Census(TxId("z", log, 1, "n"), ORDERS, HASHES, m.Standing(1))))
        bench.give("a", Received(m.Mark("z", log, m.Standing(2))))
    assert set(subscriber.marks.known) == {("z", "one"), ("z", "two")}
    assert "bounds.peers" in bench.sites["a"].surfaced[-1].detail


def test_chains_are_read_up_to_a_limit() -> None:
    bench = Bench(Site("f", bounds=Bounds(peers=1)))
    for log in ("one", "two"):
        bench.give("f", FollowCall("z", log, ChainKind.COMMITS, ("orders",)))
    assert [key[1] for key in bench.sites["f"].participant.subscriber.readers] == ["one"]
    assert list(bench.sites["f"].records) == ["k/z/one/commits"]
    assert "bounds.peers" in bench.sites["f"].surfaced[-1].detail


def test_a_coordinator_registers_readers_up_to_a_limit() -> None:
    bench = Bench(Site("p", bounds=Bounds(readers=1)), Site("a", member()), Site("f"), Site("g"))
    for name in ("f", "g", "f"):
        bench.give(name, FollowCall("p", "log-p", ChainKind.COMMITS, ("orders",)))
    assert list(bench.sites["p"].participant.coordinator.chains[ChainKind.COMMITS].readers) == ["f"]
    assert [key for key in bench.sites["p"].records if key.startswith("r/")] == ["r/commits/f"]
    assert "g: more than 1 readers of commits: raise bounds.readers" in bench.sites["p"].surfaced[-1].detail
    assert len([one for one in bench.sites["p"].surfaced if one.what == "reader refused"]) == 1


def test_nothing_is_kept_of_a_coordinator_but_its_mark() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    shot = Terms("orders", limit=Limit.DISTRIBUTED, one_shot=True, require=Conditions(only=("a",)))
    bench.give("p", BeginCall("k", shot, "p", (Item("orders", b"x"),)))
    bench.give("p", ConfirmCall("k"))
    bench.fire("a", "ask")
    assert not bench.sites["a"].participant.subscriber.members
    assert list(bench.sites["a"].records) == ["w/p/log-p"]


def test_what_a_census_says_of_the_oldest_is_remembered_without_a_list_of_all_that_are_open() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    for key in ("k0", "k1", "k2", "k3"):
        begin(bench, call=key)
    bench.give("p", CommitCall("k1"))
    bench.give("p", ConfirmCall("k1"))
    bench.fire("p", "linger")
    bench.fire("a", "ask")
    assert bench.sites["a"].records["w/p/log-p"].standing == m.Standing(5, (1, 3, 4))
    bench.give("p", CommitCall("k0"))
    bench.give("p", ConfirmCall("k0"))
    bench.fire("p", "linger")
    begin(bench, call="k4")
    assert bench.sites["a"].records["v/p/log-p"].standing == m.Standing(3)
    bench.restart("a")
    marks = bench.sites["a"].participant.subscriber.marks
    assert marks.known["p", "log-p"] == m.Standing(5, (3, 4))


def test_predicate_goes_with_the_creation_that_it_was_given_for() -> None:
    bench = Bench(Site("p", bounds=Bounds(open_transactions=0)), Site("a", member()))
    begin(bench, predicate=lambda members: False)
    assert "bounds.open_transactions" in bench.sites["p"].outcomes["k"][-1].reason
    assert not bench.sites["p"].participant.coordinator.predicates
