"""Copies that come late: of what was said to an earlier try, or in an earlier registration."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from txlayer import messages as m
from txlayer.effects import (
    AbortCall,
    AskCall,
    BeginCall,
    CommitCall,
    ConfirmCall,
    FollowCall,
    LeaveCall,
    PresenceChanged,
    PublishCall,
    Received,
    UnfollowCall,
)
from txlayer.messages import ChainKind, Conditions, Item, Limit, Scope, Status, Terms
from txlayer.transactions.participant import Participant
from txlayer.transactions.seat import Bounds

from .bench import Bench, Site, member

SHOT = Terms("orders", limit=Limit.DISTRIBUTED, one_shot=True, require=Conditions(only=("a",)))
ITEMS = (Item("orders", b"x"),)


def kind(*kinds: type[m.Message]) -> Callable[[str, m.AnyMessage], bool]:
    return lambda target, message: isinstance(message, kinds)


def said(bench: Bench, wanted: type[m.Message]) -> list[m.AnyMessage]:
    return [message for _, message in bench.sent if isinstance(message, wanted)]


def deliver(bench: Bench, site: str, message: m.AnyMessage) -> None:
    bench.give(site, Received(message, b"frame"))


def failed_once() -> tuple[Bench, m.AnyMessage]:
    """A first try under the key `k` has aborted, and its caller knows."""
    bench = Bench(Site("p"), Site("c"), Site("a", member()))
    bench.sites["a"].handlers.failing = ["x"]
    bench.give("p", BeginCall("k", SHOT, "c", ITEMS))
    (first,) = said(bench, m.Outcome)
    assert bench.sites["p"].outcomes.pop("k")[0].status is Status.ABORTED
    bench.give("p", ConfirmCall("k"))
    bench.sites["a"].handlers.failing = []
    return bench, first


def test_outcome_of_an_earlier_try_is_not_that_of_the_next_under_the_same_key() -> None:
    bench, first = failed_once()
    bench.lose = kind(m.Outcome)
    bench.give("p", BeginCall("k", SHOT, "c", ITEMS))
    deliver(bench, "p", first)
    assert bench.sites["a"].resource.values, "the second try has committed"
    assert "k" not in bench.sites["p"].outcomes, "and its caller was not told of the first"
    bench.lose = lambda target, message: False
    bench.fire("p", "retry", "p")
    assert [outcome.status for outcome in bench.sites["p"].outcomes["k"]] == [Status.COMMITTED]


@pytest.mark.parametrize("restarted", ["p", "c"])
def test_outcome_of_an_earlier_try_is_no_answer_to_a_question_by_key(restarted: str) -> None:
    bench, first = failed_once()
    bench.lose = kind(m.Outcome)
    bench.give("p", BeginCall("k", SHOT, "c", ITEMS))
    bench.restart(restarted)
    bench.give("p", AskCall("asks", "c", key="k"))
    deliver(bench, "p", first)
    assert "asks" not in bench.sites["p"].outcomes
    bench.lose = lambda target, message: False
    bench.fire("p", "retry", "p")
    assert [outcome.status for outcome in bench.sites["p"].outcomes["asks"]] == [Status.COMMITTED]


def test_outcome_of_an_earlier_try_does_not_answer_one_under_a_new_log() -> None:
    bench, first = failed_once()
    publisher = bench.sites["p"]
    assert publisher.participant.serial == 1
    publisher.participant = Participant(replace(publisher.seat(), incarnation="another log"))
    bench.give("c", PresenceChanged("p", 1, True, ("orders",), incarnation="another log"))
    bench.give("p", PresenceChanged("c", 1, True, ("orders",)))
    bench.lose = kind(m.Outcome)
    bench.give("p", BeginCall("k", SHOT, "c", ITEMS))
    deliver(bench, "p", first)
    assert bench.sites["a"].resource.values, "the second try has committed"
    assert "k" not in publisher.outcomes


def test_refusal_of_an_earlier_try_does_not_refuse_the_next_under_the_same_key() -> None:
    bench = Bench(Site("p"), Site("c", bounds=Bounds(open_transactions=1)), Site("a", member()))
    bench.give("c", BeginCall("full", Terms("orders"), "c"))
    bench.give("p", BeginCall("k", SHOT, "c", ITEMS))
    assert bench.sites["p"].outcomes.pop("k")[0].status is Status.REFUSED
    (refused,) = said(bench, m.Refused)
    bench.give("p", ConfirmCall("k"))
    bench.give("c", AbortCall("full", "room"))
    bench.lose = kind(m.Outcome)
    bench.give("p", BeginCall("k", SHOT, "c", ITEMS))
    deliver(bench, "p", refused)
    assert "k" not in bench.sites["p"].outcomes
    assert bench.sites["a"].resource.values


def test_what_is_said_of_an_earlier_try_does_not_touch_one_that_is_open() -> None:
    bench = Bench(Site("p"), Site("c"), Site("a", member()))
    bench.give("p", BeginCall("k", Terms("orders", limit=Limit.DISTRIBUTED), "c"))
    (created,) = said(bench, m.Created)
    bench.give("p", AbortCall("k", "not now"))
    (first,) = said(bench, m.Outcome)
    bench.sites["p"].outcomes.clear()
    bench.give("p", ConfirmCall("k"))
    bench.lose = kind(m.Created)
    bench.give("p", BeginCall("k", Terms("orders", limit=Limit.DISTRIBUTED), "c"))
    del bench.sites["p"].opened["k"]
    deliver(bench, "p", created)
    assert "k" not in bench.sites["p"].opened, "the first one has ended"
    bench.lose = lambda target, message: False
    bench.fire("p", "retry", "p")
    bench.give("p", PublishCall("k", *ITEMS))
    deliver(bench, "p", first)
    assert "k" not in bench.sites["p"].outcomes
    bench.give("p", CommitCall("k"))
    assert [outcome.status for outcome in bench.sites["p"].outcomes["k"]] == [Status.COMMITTED]


def follow(bench: Bench, *types: str, anew: bool = False) -> None:
    bench.give("f", FollowCall("p", "log-p", ChainKind.COMMITS, types or ("orders",), anew))


def commit(bench: Bench, *keys: str, event_type: str = "orders") -> None:
    for key in keys:
        bench.give("p", BeginCall(key, Terms(event_type, one_shot=True), "p", (Item(event_type, key.encode()),)))
        bench.give("p", ConfirmCall(key))


def followed() -> Bench:
    """A follower that was registered and has the first commit."""
    bench = Bench(
        Site("p", bounds=Bounds(chain_entries=2)), Site("a", member()), Site("f", member(scope=Scope.FOLLOWER))
    )
    follow(bench)
    commit(bench, "one")
    assert list(bench.sites["f"].resource.values) == ["one"]
    return bench


def test_registration_that_comes_late_does_not_hide_from_a_reader_what_it_missed() -> None:
    bench = followed()
    (late,) = said(bench, m.Follow)
    bench.lose = kind(m.Commit, m.Stale, m.Followed)
    commit(bench, "two", "three", "four", "five")
    deliver(bench, "p", late)
    bench.lose = lambda target, message: False
    bench.fire("p", "retry")
    assert [surface.what for surface in bench.sites["f"].surfaced] == ["stale"], "two and three are gone"
    follow(bench, anew=True)
    deliver(bench, "p", late)
    commit(bench, "six")
    assert list(bench.sites["f"].resource.values) == ["one", "six"]


def test_registration_that_comes_late_does_not_take_types_away() -> None:
    bench = followed()
    (late,) = said(bench, m.Follow)
    follow(bench, "orders", "stock")
    deliver(bench, "p", late)
    commit(bench, "two", event_type="stock")
    assert list(bench.sites["f"].resource.values) == ["one", "two"]


def test_reader_that_lost_its_log_is_told_that_it_is_stale_and_registered_again() -> None:
    bench = followed()
    bench.lose = kind(m.Commit, m.Stale, m.Followed)
    commit(bench, "two", "three", "four", "five")
    bench.lose = lambda target, message: False
    bench.sites["f"].records.clear()
    bench.restart("f")
    follow(bench)
    assert stale(bench)
    follow(bench, anew=True)
    commit(bench, "six")
    assert list(bench.sites["f"].resource.values) == ["one", "six"]


def stale(bench: Bench) -> bool:
    return "stale" in [surface.what for surface in bench.sites["f"].surfaced]


def test_reader_that_falls_behind_before_it_hears_that_it_is_registered_is_told_so() -> None:
    bench = Bench(
        Site("p", bounds=Bounds(chain_entries=2)), Site("a", member()), Site("f", member(scope=Scope.FOLLOWER))
    )
    bench.lose = kind(m.Commit, m.Stale, m.Followed)
    follow(bench)
    (late,) = said(bench, m.Followed)
    commit(bench, "one", "two", "three")
    bench.lose = lambda target, message: False
    bench.fire("f", "ask")
    assert stale(bench), "one is gone, and it was registered"
    deliver(bench, "f", late)
    commit(bench, "four")
    assert not bench.sites["f"].resource.values, "nothing after a gap"
    bench.restart("f")
    assert not bench.sites["f"].resource.values
    follow(bench, anew=True)
    commit(bench, "five")
    assert list(bench.sites["f"].resource.values) == ["five"]


def test_answer_to_an_earlier_registration_does_not_stop_the_next_one() -> None:
    bench = followed()
    (late,) = said(bench, m.Followed)
    bench.lose = kind(m.Follow)
    follow(bench, "stock")
    deliver(bench, "f", late)
    bench.lose = lambda target, message: False
    bench.fire("f", "ask")
    commit(bench, "two", event_type="stock")
    assert list(bench.sites["f"].resource.values) == ["one", "two"]


def test_late_word_that_an_earlier_registration_is_stale_does_not_end_the_next_one() -> None:
    bench = followed()
    bench.lose = kind(m.Commit, m.Stale, m.Followed)
    commit(bench, "two", "three", "four", "five")
    bench.fire("p", "retry", "chain")
    late = said(bench, m.Stale)[0]
    bench.lose = lambda target, message: False
    bench.fire("p", "retry", "chain")
    follow(bench, anew=True)
    deliver(bench, "f", late)
    commit(bench, "six")
    assert list(bench.sites["f"].resource.values) == ["one", "six"]


def test_reader_that_an_operator_removed_is_told_so_when_it_goes_on() -> None:
    bench = followed()
    chain = bench.sites["p"].participant.coordinator.chains[ChainKind.COMMITS]
    assert chain.remove("f")
    assert not chain.remove("f"), "it is none any more"
    assert not chain.read_by_anyone()
    commit(bench, "two")
    bench.restart("f")
    assert stale(bench), "two was kept for nobody"
    follow(bench, anew=True)
    commit(bench, "three")
    assert list(bench.sites["f"].resource.values) == ["one", "three"]


def test_reader_that_an_operator_removed_is_told_so_when_it_is_seen_again() -> None:
    bench = followed()
    bench.give("p", bench.sites["f"].presence(alive=False))
    bench.sites["p"].participant.coordinator.chains[ChainKind.COMMITS].remove("f")
    bench.give("p", bench.sites["f"].presence())
    assert stale(bench)


def test_reader_that_left_by_itself_is_not_told_so() -> None:
    bench = followed()
    bench.lose = kind(m.Followed)
    bench.give("f", UnfollowCall(("orders",)))
    bench.lose = lambda target, message: False
    for alive in (False, True):
        bench.give("p", bench.sites["f"].presence(alive))
    assert not stale(bench)


@pytest.mark.parametrize("restarted", [False, True])
def test_creation_that_comes_after_its_caller_was_told_that_it_aborted_starts_nothing(restarted: bool) -> None:
    bench = Bench(Site("p"), Site("c"), Site("a", member()))
    bench.lose = kind(m.Create)
    bench.give("p", BeginCall("k", SHOT, "c", ITEMS))
    (late,) = said(bench, m.Create)
    bench.lose = lambda target, message: False
    if restarted:
        bench.restart("p")
    else:
        bench.give("p", LeaveCall("k"))
    bench.give("p", AskCall("asks", "c", key="k"))
    assert bench.sites["p"].outcomes["asks"][0].status is Status.ABORTED
    deliver(bench, "c", late)
    assert not bench.sites["a"].resource.values
