"""Several publishers: whose a key is, who may end a transaction, and what each of them is told."""

import pytest

from txlayer import messages as m
from txlayer.effects import AbortCall, AskCall, BeginCall, CommitCall, ConfirmCall, JoinCall, PublishCall
from txlayer.messages import Access, Conditions, Item, Limit, Status, Terms, TxId
from txlayer.transactions.event_coordinator import EventCoordinator, Limits, size_of
from txlayer.transactions.forgotten import KEYS, Forgotten

from .bench import Bench, Site, member

TX = TxId("c", "log", 5, "ab")
SHOT = Terms("orders", limit=Limit.DISTRIBUTED, one_shot=True, require=Conditions(only=("a",)))
SHARED = Terms("orders", access=Access.MULTI, committers=("q",), limit=Limit.DISTRIBUTED)


def together(terms: Terms = SHARED) -> tuple[Bench, TxId]:
    """`p` has begun a transaction at `c`, `q` has joined it as `j`, `a` is its member."""
    bench = Bench(Site("p"), Site("q"), Site("c"), Site("a", member()))
    bench.give("p", BeginCall("k", terms, "c"))
    tx = bench.sites["p"].opened["k"]
    bench.give("q", JoinCall("j", tx))
    return bench, tx


def publish(bench: Bench, site: str, call: str, payload: bytes) -> None:
    bench.give(site, PublishCall(call, Item("orders", payload)))


def told(bench: Bench, site: str, call: str) -> list[Status]:
    return [outcome.status for outcome in bench.sites[site].outcomes.get(call, [])]


@pytest.mark.parametrize("restarted", [False, True])
def test_key_of_another_site_is_taken(restarted: bool) -> None:
    bench = Bench(Site("p"), Site("q"), Site("c"), Site("a", member()))
    bench.give("p", BeginCall("k", SHOT, "c", (Item("orders", b"of p"),)))
    if restarted:
        bench.restart("c")
    bench.give("q", BeginCall("k", SHOT, "c", (Item("orders", b"of q"),)))
    bench.fire("q", "retry", "p")
    assert told(bench, "q", "k") == [Status.REFUSED]
    assert "a transaction of p has this key" in bench.sites["q"].outcomes["k"][0].reason
    assert list(bench.sites["a"].resource.values) == ["of p"]
    bench.give("q", AskCall("asks", "c", key="k"))
    assert told(bench, "q", "asks") == [Status.COMMITTED], "asking is allowed"


@pytest.mark.parametrize("finishers", [(), ("f",)])
def test_key_stays_with_its_publisher_when_another_one_called_commit(finishers: tuple[str, ...]) -> None:
    bench = Bench(Site("p"), Site("q"), Site("c", finishers=finishers), Site("a", member()), Site("f"))
    bench.give("p", BeginCall("k", SHARED, "c"))
    bench.give("q", JoinCall("j", bench.sites["p"].opened["k"]))
    bench.give("q", CommitCall("j"))
    assert told(bench, "q", "j") == [Status.COMMITTED]
    for name in ("c", "p"):
        bench.restart(name)
    bench.sites["p"].outcomes.clear()
    bench.give("p", BeginCall("k", SHARED, "c"))
    bench.fire("p", "retry", "p")
    assert told(bench, "p", "k") == [Status.COMMITTED]


@pytest.mark.parametrize("one_phase", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
def test_only_who_began_it_frees_the_key(restarted: bool, one_phase: bool) -> None:
    bench = Bench(Site("p"), Site("q"), Site("c"), Site("a", member(one_phase=one_phase)))
    bench.give("p", BeginCall("k", SHARED, "c"))
    bench.give("q", JoinCall("j", bench.sites["p"].opened["k"]))
    bench.lose = lambda target, message: target == "p" or (isinstance(message, m.Delegated) and restarted)
    bench.give("q", CommitCall("j"))
    if restarted:
        bench.restart("c")
        bench.lose = lambda target, message: target == "p"
        bench.fire("c", "retry")
        bench.fire("q", "retry")
    assert told(bench, "q", "j") == [Status.COMMITTED]
    bench.give("q", ConfirmCall("j"))
    bench.give("q", AskCall("asks", "c", key="k"))
    bench.give("q", ConfirmCall("asks"))
    bench.restart("p")
    bench.lose = lambda target, message: False
    bench.give("p", AskCall("k", "c", key="k"))
    assert told(bench, "p", "k") == [Status.COMMITTED], "known until p has heard it"
    bench.give("p", ConfirmCall("k"))
    assert not bench.sites["c"].participant.coordinator.keys


def test_confirmation_that_was_lost_is_asked_for_again_after_a_restart_of_the_coordinator() -> None:
    bench, _ = together()
    bench.give("q", CommitCall("j"))
    bench.lose = lambda target, message: isinstance(message, m.Confirm)
    bench.give("p", ConfirmCall("k"))
    bench.lose = lambda target, message: False
    bench.restart("c")
    assert not bench.sites["c"].participant.coordinator.keys


def test_event_over_the_limit_ends_nothing_for_those_who_may_not_end_it() -> None:
    bench, tx = together(Terms("orders", access=Access.MULTI, limit=Limit.DISTRIBUTED))
    publish(bench, "p", "k", b"of p")
    publish(bench, "q", "j", b"small")
    publish(bench, "q", "j", b"x" * (Limits().bytes + 1))
    assert told(bench, "q", "j") == [Status.REFUSED]
    assert "limits.bytes" in bench.sites["q"].outcomes["j"][0].reason
    assert told(bench, "p", "k") == []
    bench.give("p", CommitCall("k"))
    assert told(bench, "p", "k") == [Status.COMMITTED]
    assert list(bench.sites["a"].resource.values) == ["of p", "small"]
    assert not bench.sites["c"].participant.coordinator.transactions[tx].events.early


def test_what_waits_behind_a_refused_event_does_not_count_any_more() -> None:
    events = EventCoordinator(Terms("t", access=Access.MULTI), "p", Limits())
    item = Item("t", b"x" * 10)
    for publisher in ("p", "q"):
        events.on_submit(m.Submit(TX, publisher, 2, item))
    events.give_up("q")
    assert (list(events.early), events.waiting) == ([("p", 2)], size_of(item, "p"))


def test_event_over_the_limit_of_one_who_may_end_the_transaction_ends_it() -> None:
    bench, _ = together()
    publish(bench, "p", "k", b"x" * (Limits().bytes + 1))
    assert told(bench, "p", "k") == [Status.ABORTED]
    assert "limits.bytes" in bench.sites["p"].outcomes["k"][0].reason


@pytest.mark.parametrize("when", ["voting", "committed", "called too"])
def test_who_began_it_hears_of_the_commit_that_another_called_and_of_its_events_that_were_late(when: str) -> None:
    bench, _ = together()
    publish(bench, "p", "k", b"first")
    if when != "committed":
        bench.lose = lambda target, message: isinstance(message, m.Vote)
    bench.give("q", CommitCall("j"))
    publish(bench, "p", "k", b"second")
    if when == "called too":
        bench.give("p", CommitCall("k"))
    bench.lose = lambda target, message: False
    bench.fire("c", "retry", "c")
    assert told(bench, "q", "j") == [Status.COMMITTED]
    assert list(bench.sites["a"].resource.values) == ["first"]
    assert [surface.what for surface in bench.sites["p"].surfaced] == ["event refused"]
    if when != "called too":
        bench.give("p", CommitCall("k"))
    outcome = bench.sites["p"].outcomes["k"][-1]
    assert outcome.status is Status.COMMITTED
    assert "not all events of p are in it" in outcome.reason


@pytest.mark.parametrize("says", ["nothing", "an event", "commit"])
def test_after_a_restart_who_began_it_hears_that_its_events_may_have_been_late(says: str) -> None:
    bench, _ = together()
    bench.lose = lambda target, message: target == "p" or isinstance(message, m.Submit)
    publish(bench, "p", "k", b"late")
    bench.give("q", CommitCall("j"))
    if says == "nothing":
        bench.lose = lambda target, message: False
    bench.restart("c")
    bench.lose = lambda target, message: False
    if says == "commit":
        bench.give("p", CommitCall("k"))
    elif says == "an event":
        bench.fire("p", "retry", "p")
    outcome = bench.sites["p"].outcomes["k"][0]
    assert outcome.status is Status.COMMITTED
    assert "perhaps not all events of p are in it" in outcome.reason
    assert not bench.sites["a"].resource.values


def test_committer_whose_event_was_late_still_hears_of_the_outcome() -> None:
    bench, _ = together()
    bench.lose = lambda target, message: isinstance(message, m.Vote)
    bench.give("p", CommitCall("k"))
    bench.give("q", PublishCall("j", Item("orders", b"late")))
    assert told(bench, "q", "j") == [Status.REFUSED], "without a commit call its events are all it is about"
    bench, _ = together()
    bench.lose = lambda target, message: isinstance(message, m.Submit | m.Vote)
    publish(bench, "q", "j", b"late")
    bench.give("p", CommitCall("k"))
    bench.give("q", CommitCall("j"))
    bench.lose = lambda target, message: False
    bench.fire("q", "retry", "p")
    assert told(bench, "q", "j") == []
    bench.fire("c", "retry", "c")
    bench.fire("q", "retry", "p")
    assert told(bench, "q", "j") == [Status.COMMITTED]
    assert "not all events of q are in it" in bench.sites["q"].outcomes["j"][0].reason


def test_missing_votes_are_told_to_who_called_and_to_who_began() -> None:
    bench, _ = together()
    bench.lose = lambda target, message: isinstance(message, m.Vote)
    bench.give("q", CommitCall("j"))
    bench.fire("c", "votes")
    assert [surface.what for surface in bench.sites["p"].surfaced] == ["votes missing"]
    assert [surface.what for surface in bench.sites["q"].surfaced] == ["commit waits for votes"]
    bench.give("q", AbortCall("j", "not that long"))
    assert told(bench, "p", "k") == told(bench, "q", "j") == [Status.ABORTED]


def confirmed_commits(*keys: str) -> Bench:
    bench = Bench(Site("p"), Site("q"), Site("c"), Site("a", member()))
    for key in keys:
        bench.give("p", BeginCall(key, SHOT, "c", (Item("orders", key.encode()),)))
        bench.give("p", ConfirmCall(key))
    assert not bench.sites["c"].participant.coordinator.transactions
    return bench


def asked(bench: Bench, key: str) -> Status:
    bench.give("q", AskCall("asks", "c", key=key))
    (outcome,) = bench.sites["q"].outcomes.pop("asks")
    bench.give("q", ConfirmCall("asks"))
    return outcome.status


def test_confirmed_commit_is_never_called_aborted_by_its_key() -> None:
    bench = confirmed_commits("k")
    assert asked(bench, "k") is Status.FINISHED
    assert asked(bench, "never heard of") is Status.ABORTED
    bench.restart("c")
    assert asked(bench, "k") is Status.FINISHED
    assert asked(bench, "never heard of") is Status.ABORTED


def test_what_is_said_of_keys_is_the_same_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.transactions.forgotten.KEYS", 2)
    bench = confirmed_commits("first", "second", "third")
    for _ in range(2):
        assert [asked(bench, key) for key in ("second", "third")] == [Status.FINISHED] * 2
        assert asked(bench, "first") is Status.UNKNOWN
        assert asked(bench, "never heard of") is Status.UNKNOWN, "it might be one of those that are forgotten"
        bench.restart("c")
    bench.give("p", BeginCall("fourth", SHOT, "c", (Item("orders", b"fourth"),)))
    bench.give("p", ConfirmCall("fourth"))
    assert asked(bench, "second") is Status.UNKNOWN, "the oldest is given up first"
    assert len([key for key in bench.sites["c"].records if key.startswith("f/")]) == 2


def test_a_key_that_aborted_leaves_the_answer_to_others_certain_after_a_restart() -> None:
    bench = Bench(Site("p"), Site("q"), Site("c"), Site("a", member()))
    bench.sites["a"].handlers.failing = ["k"]
    bench.give("p", BeginCall("k", Terms("orders", one_shot=True), "c", (Item("orders", b"k"),)))
    assert told(bench, "p", "k") == [Status.ABORTED]
    bench.give("p", ConfirmCall("k"))
    bench.restart("c")
    assert asked(bench, "never heard of") is Status.ABORTED


def test_commits_that_nobody_can_ask_for_by_key_leave_the_answer_to_others_certain() -> None:
    bench = confirmed_commits(f"{m.NAMELESS}1")
    bench.restart("c")
    assert asked(bench, "never heard of") is Status.ABORTED


def test_keys_of_forgotten_commits_are_kept_up_to_a_bound() -> None:
    forgotten = Forgotten()
    for number in range(KEYS):
        forgotten.add(number, f"k{number}")
    assert not forgotten.keys_lost
    forgotten.add(KEYS, "one more")
    assert (len(forgotten.keys), "k0" in forgotten.keys, forgotten.keys_lost) == (KEYS, False, True)
