"""What the world outside, an operator, a finisher or a stranger sees of transactions."""

import pytest
from msgspec.structs import replace

from txlayer import messages as m
from txlayer.effects import (
    AbortCall,
    Append,
    AskCall,
    BeginCall,
    Closing,
    CommitCall,
    ConfirmCall,
    Drop,
    FollowCall,
    JoinCall,
    LeaveCall,
    PublishCall,
    Received,
    RoomChanged,
    Surface,
    WholeApplied,
)
from txlayer.messages import Access, ChainKind, Item, Join, Limit, Scope, Status, Terms, TxId, TxType, Visibility
from txlayer.tokens import Keyring
from txlayer.transactions.census import Census
from txlayer.transactions.chain import Chain
from txlayer.transactions.coordinator_desk import CoordinatorDesk
from txlayer.transactions.reader import ChainReader
from txlayer.transactions.seat import Bounds, Seat
from txlayer.units import entry_of

from .bench import Bench, Site, member

TX = TxId("c", "log", 1, "nonce")


def open_with_events(bench: Bench, terms: Terms) -> TxId:
    bench.give("p", BeginCall("k", terms, "p"))
    for item in (Item("orders", b"own"), Item("other", b"another type"), Item("orders", b"second")):
        bench.give("p", PublishCall("k", item))
    return bench.sites["p"].opened["k"]


def status(bench: Bench, call: str = "k", site: str = "p") -> Status:
    return bench.sites[site].outcomes[call][-1].status


# Visibility


@pytest.mark.parametrize("tx_type", list(TxType))
@pytest.mark.parametrize(
    ("visibility", "while_open", "after"),
    [
        (Visibility.PRIVATE, [], []),
        (Visibility.PUBLIC, ["own", "second"], ["own", "second"]),
        (Visibility.PUBLIC_ON_COMMIT, [], ["own", "second"]),
    ],
)
def test_outside_sees_events_of_the_topic_as_visibility_says(
    visibility: Visibility, while_open: list[str], after: list[str], tx_type: TxType
) -> None:
    scope = Scope.DISTRIBUTED if tx_type is TxType.DISTRIBUTED else Scope.LOCAL
    bench = Bench(Site("p"), Site("a", member(scope=scope)))
    open_with_events(bench, Terms("orders", tx_type=tx_type, visibility=visibility))
    assert bench.sites["p"].public == while_open
    bench.give("p", CommitCall("k"))
    assert status(bench) is Status.COMMITTED
    assert bench.sites["p"].public == after


def test_outside_sees_nothing_on_commit_of_what_aborts() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    open_with_events(bench, Terms("orders", visibility=Visibility.PUBLIC_ON_COMMIT))
    bench.give("p", AbortCall("k"))
    assert bench.sites["p"].public == []


def test_one_shot_is_published_as_its_visibility_says() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    for visibility in Visibility:
        terms = Terms("orders", one_shot=True, visibility=visibility)
        bench.give("p", BeginCall(visibility.value, terms, "p", (Item("orders", visibility.value.encode()),)))
    assert bench.sites["p"].public == ["public", "public-on-commit"]


# In doubt, in all three states


def test_in_doubt_in_the_census_the_coordinator_repeats_the_list() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    bench.lose = lambda target, message: isinstance(message, m.Begin)
    bench.give("p", BeginCall("k", Terms("orders"), "p"))
    bench.lose = lambda target, message: False
    bench.give("p", PublishCall("k", Item("orders", b"x")))
    assert not bench.sites["a"].resource.units, "no member of anything yet"
    bench.fire("a", "doubt")
    assert bench.sites["a"].resource.units


def test_in_doubt_in_the_transaction_the_coordinator_repeats_prepare() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    bench.give("p", BeginCall("k", Terms("orders"), "p"))
    bench.lose = lambda target, message: isinstance(message, m.Prepare)
    bench.give("p", CommitCall("k"))
    bench.lose = lambda target, message: False
    bench.fire("a", "doubt")
    assert status(bench) is Status.COMMITTED


@pytest.mark.parametrize(
    "lost", [(m.Begin, m.Event, m.Prepare, m.Decision), (m.Prepare, m.Decision), (m.Decision,)], ids=len
)
def test_in_doubt_a_peer_repeats_what_a_silent_coordinator_said(lost: tuple[type[m.Message], ...]) -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b", member()))
    bench.lose = lambda target, message: target == "a" and isinstance(message, lost)
    bench.give("p", BeginCall("k", Terms("orders"), "p"))
    bench.give("p", PublishCall("k", Item("orders", b"x")))
    bench.give("p", CommitCall("k"))
    bench.lose = lambda target, message: target == "p"
    before = len(bench.sent)
    bench.relayed = []
    bench.fire("a", "doubt")
    assert set(bench.relayed) == {b"frame"}, "the frame of the coordinator itself, no opinion"
    assert not any(isinstance(message, m.Decision) for _, message in bench.sent[before:])


# Who may do what, and limits


def test_listed_publishers_may_publish_and_listed_committers_may_commit() -> None:
    terms = Terms("orders", access=Access.MULTI, publishers=("second",), committers=("second",))
    bench = Bench(Site("p"), Site("h"), Site("second"), Site("third"), Site("a", member()))
    bench.give("p", BeginCall("k", terms, "h"))
    tx = bench.sites["p"].opened["k"]
    for site in ("second", "third"):
        bench.give("h", Received(m.Submit(tx, site, 1, Item("orders", site.encode()))))
    bench.give("h", Received(m.CommitRequest(tx, "third", 0)))
    assert "k" not in bench.sites["p"].outcomes, "the third may do neither"
    bench.give("h", Received(m.CommitRequest(tx, "second", 1)))
    assert list(bench.sites["a"].resource.values) == ["second"]
    assert status(bench) is Status.COMMITTED


def test_a_transaction_that_is_not_complete_in_time_aborts() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    bench.give("p", BeginCall("k", Terms("orders", limit=Limit.DISTRIBUTED, complete_within=7.0), "p"))
    bench.fire("p", "deadline")
    assert status(bench) is Status.ABORTED
    assert bench.sites["p"].outcomes["k"][-1].reason == "not complete in time"


def test_members_of_a_census_are_bounded_and_the_refusal_names_the_limit() -> None:
    bench = Bench(Site("p", bounds=Bounds(members=1)), Site("a", member()), Site("b", member()))
    bench.give("p", BeginCall("k", Terms("orders", limit=Limit.DISTRIBUTED), "p"))
    bench.fire("p", "window")
    assert status(bench) is Status.REFUSED
    assert "bounds.members" in bench.sites["p"].outcomes["k"][-1].reason


def test_a_coordinator_that_closes_finishes_what_was_begun_and_begins_nothing_new() -> None:
    bench = Bench(Site("p"), Site("h"), Site("a", member()))
    bench.give("p", BeginCall("k", Terms("orders"), "h"))
    bench.give("h", Closing())
    bench.give("p", CommitCall("k"))
    assert status(bench) is Status.COMMITTED
    bench.give("p", BeginCall("new", Terms("orders"), "h"))
    assert status(bench, "new") is Status.REFUSED
    assert "h is closing" in bench.sites["p"].outcomes["new"][-1].reason


def test_site_without_room_finishes_what_was_begun_and_takes_on_nothing_new() -> None:
    bench = Bench(Site("p"), Site("a", member()), Site("b", member()))
    bench.give("p", BeginCall("k", Terms("orders"), "p"))
    for name in ("p", "a"):
        bench.give(name, RoomChanged(True))
    bench.give("p", CommitCall("k"))
    assert status(bench) is Status.COMMITTED
    bench.give("p", BeginCall("new", Terms("orders"), "p"))
    assert status(bench, "new") is Status.REFUSED
    assert "almost full" in bench.sites["p"].outcomes["new"][-1].reason
    bench.give("p", RoomChanged(False))
    bench.give("p", BeginCall("later", Terms("orders"), "p"))
    bench.give("p", CommitCall("later"))
    assert bench.sites["p"].outcomes["later"][-1].members == 1, "the member without room has declined"


def test_compensation_that_fails_for_good_is_parked_listed_and_kept() -> None:
    bench = Bench(Site("p"), Site("a", member(compensatable=True)), Site("b", member()))
    bench.sites["b"].handlers.failing = ["x"]
    bench.sites["a"].handlers.failing_undo = True
    terms = Terms("orders", one_shot=True)
    bench.give("p", BeginCall("k", terms, "p", (Item("orders", b"x"),)))
    for _ in range(6):
        bench.fire("a", "compensate")
    assert status(bench) is Status.ABORTED
    assert [surface.what for surface in bench.sites["a"].surfaced] == ["parked"]
    assert "compensation parked" in [surface.what for surface in bench.sites["p"].surfaced]
    bench.fire("a", "ask", "marks")
    bench.restart("a")
    (record,) = (record for key, record in bench.sites["a"].records.items() if key.startswith("m/"))
    assert record.parked
    assert [surface.what for surface in bench.sites["a"].surfaced] == ["parked", "parked"], "said again: who heard it?"
    assert [event.item.payload for event in record.events] == [b"x"], "all that is needed to undo it by hand"


# Finishers


def dead_coordinator(settled: bool) -> tuple[Bench, TxId]:
    """All have voted yes; the coordinator died before or after its commit stood in the register."""
    bench = Bench(Site("c", finishers=("f",)), Site("f"), Site("a", member()), Site("b", member()))
    lost = m.Decision if settled else m.Vote
    bench.lose = lambda target, message: isinstance(message, lost)
    bench.give("c", BeginCall("k", Terms("orders", limit=Limit.DISTRIBUTED), "c"))
    tx = bench.sites["c"].opened["k"]
    bench.give("c", CommitCall("k"))
    bench.lose = lambda target, message: target == "c" or isinstance(message, m.Decision)
    return bench, tx


@pytest.mark.parametrize("settled", [False, True])
def test_finisher_says_what_stands_in_the_register(settled: bool) -> None:
    bench, _ = dead_coordinator(settled)
    for _ in range(2):
        bench.fire("a", "doubt")
    assert bench.sites["a"].resource.prepared, "as long as the coordinator seems alive nobody finishes for it"
    bench.give("f", bench.sites["c"].presence(alive=False))
    bench.fire("a", "doubt")
    assert [bool(bench.sites[name].resource.marked) for name in ("a", "b")] == [settled, settled]
    assert not any(bench.sites[name].resource.prepared for name in ("a", "b"))
    bench.lose = lambda target, message: False
    bench.restart("c")
    bench.give("c", AskCall("later", "c", key="k"))
    assert status(bench, "later", "c") is (Status.COMMITTED if settled else Status.ABORTED)
    assert not bench.register.values or settled


def test_only_a_finisher_that_the_census_names_is_believed() -> None:
    bench, tx = dead_coordinator(settled=False)
    key = Keyring(bench.sites["c"].seat().keyring.key_for("f"))
    final = tuple(bench.sites[name].seat().keyring.member(tx) for name in ("a", "b"))
    for forged in (
        m.Finish(tx, "b", key.token(tx, "commit"), final),
        m.Finish(tx, "f", bench.sites["b"].seat().keyring.token(tx, "commit"), final),
    ):
        bench.give("a", Received(forged, b"frame"))
        assert bench.sites["a"].resource.prepared
    bench.give("a", Received(m.Finish(tx, "f", key.token(tx, "abort")), b"frame"))
    assert not bench.sites["a"].resource.prepared


def test_settlements_are_forgotten_with_their_transactions() -> None:
    bench = Bench(Site("c", finishers=("f",)), Site("f"), Site("a", member()))
    for number in range(5):
        bench.give("c", BeginCall(f"k{number}", Terms("orders", limit=Limit.DISTRIBUTED), "c"))
        bench.give("c", CommitCall(f"k{number}"))
        assert status(bench, f"k{number}", "c") is Status.COMMITTED
        assert len(bench.register.values) == 1, "until its caller has confirmed"
        bench.give("c", ConfirmCall(f"k{number}"))
        assert bench.register.values == {}


# Strangers among members


def test_publisher_listens_to_its_own_coordinator_only() -> None:
    bench = Bench(Site("p"), Site("c"), Site("a", member()))
    bench.lose = lambda target, message: isinstance(message, m.Created | m.Vote)
    bench.give("p", BeginCall("k", Terms("orders"), "c"))
    foreign = TxId("evil", "log", 1, "00")
    for forged in (
        m.Outcome(foreign, "k", Status.COMMITTED),
        m.Outcome(None, "k", Status.ABORTED, coordinator="evil"),
        m.Outcome(None, "k", Status.ABORTED),
        m.Refused("k", None, "no", "evil"),
        m.Created("k", foreign),
        m.Hello("k", "evil", 99),
    ):
        bench.give("p", Received(forged))
        assert "k" not in bench.sites["p"].outcomes
        assert "k" not in bench.sites["p"].opened


def test_what_was_said_to_another_site_is_not_heeded_under_whatever_seal() -> None:
    """An outsider brings it here: two publishers of one transaction, two readers of one chain."""
    bench = Bench(Site("p"), Site("q"), Site("c"), Site("a", member()), Site("f"), Site("g"))
    bench.give("f", FollowCall("c", "log-c", ChainKind.COMMITS, ("orders",)))
    bench.give("g", FollowCall("c", "log-c", ChainKind.COMMITS, ("other",)))
    bench.give("p", BeginCall("k", Terms("orders"), "c"))
    tx = bench.sites["p"].opened["k"]
    bench.give("q", JoinCall("j", tx))
    bench.give("q", PublishCall("j", Item("orders", b"of q")))
    bench.lose = lambda target, message: target == "f" or isinstance(message, m.Submit)
    bench.give("p", PublishCall("k", Item("orders", b"of p")))
    for message in [message for target, message in bench.sent if target == "q"]:
        bench.give("p", Received(message))
    bench.give("p", Received(m.Accepted(tx, "q", 5)))
    assert "k" not in bench.sites["p"].outcomes
    assert bench.sites["p"].participant.publishers["k"].unaccepted, "not in: to be said again"
    bench.lose = lambda target, message: target == "f"
    bench.fire("p", "retry")
    bench.give("p", CommitCall("k"))
    for message in [message for target, message in bench.sent if target == "g" and isinstance(message, m.Commit)]:
        bench.give("f", Received(message))
    bench.lose = lambda target, message: False
    bench.fire("c", "retry", "chain")
    assert list(bench.sites["f"].resource.values) == ["of p"]


def test_outcome_that_is_repeated_after_the_one_who_asked_by_key_has_left_is_ignored() -> None:
    bench = Bench(Site("c"), Site("a", member()))
    bench.give("c", BeginCall("k", Terms("orders"), "c"))
    bench.give("c", CommitCall("k"))
    bench.give("c", AskCall("asks", "c", key="k"))
    (outcome,) = bench.sites["c"].outcomes["asks"][-1:]
    bench.give("c", LeaveCall("asks"))
    bench.give("c", LeaveCall("k"))
    bench.give("c", Received(m.Outcome(outcome.tx, "k", outcome.status)))
    assert bench.sites["c"].outcomes["asks"] == [outcome]


# Copies that come late


def test_late_copy_of_a_creation_repeated_in_a_new_life_opens_nothing() -> None:
    """The publisher died after its first creation and repeated it in its next life, when the key was still known."""
    coordinator = CoordinatorDesk(Seat("c", "log", 1, Keyring(b"c")))
    shot = Terms("t", tx_type=TxType.LOCAL, one_shot=True)
    first = m.Create("k", "p", 1, shot, (Item("t", b"x"),), 1, serial=1, coordinator="c")
    coordinator.on_message(first)
    tx = coordinator.keys["k"]
    again = m.Create("k", "p", 2, shot, (Item("t", b"x"),), 1, serial=1, coordinator="c")
    coordinator.on_message(again)
    coordinator.on_message(m.Confirm(tx, "p"))
    coordinator.on_timer(tx, "linger")
    assert not coordinator.transactions, "all is forgotten"
    coordinator.on_message(again)
    assert not coordinator.transactions, "it was opened once"


def test_follower_that_has_all_entries_but_is_still_applying_them_is_not_stale() -> None:
    reader = ChainReader(Seat("f", "log-f", 1, Keyring(b"f")), "c", "log", ChainKind.COMMITS, ("t",), upto=3)
    tx = TxId("c", "log", 7, "ab")
    reader.on_commit(m.Commit("c", "log", ChainKind.COMMITS, 4, tx, Terms("t"), ()))
    reader.on_stale(m.Stale("c", "log", ChainKind.COMMITS, low=5))
    assert not reader.stale
    reader.on_applied(WholeApplied(entry_of(tx, ChainKind.COMMITS), ok=True))
    assert reader.upto == 4
    reader.on_stale(m.Stale("c", "log", ChainKind.COMMITS, low=6))
    assert reader.stale, "entry 5 is gone and never came"


# How often something is tried


def test_delivery_attempts_count_for_each_missing_event() -> None:
    bench = Bench(Site("p"), Site("a", member()))
    bench.give("p", BeginCall("k", Terms("orders", limit=Limit.DISTRIBUTED, delivery_attempts=2), "p"))
    bench.lose = lambda target, message: target == "a" and isinstance(message, m.Event)
    for number in range(6):
        bench.give("p", PublishCall("k", Item("orders", b"%d" % number)))
    events = [message for target, message in bench.sent if target == "a" and isinstance(message, m.Event)]
    bench.lose = lambda target, message: isinstance(message, m.Resend)
    for missing in (0, 2, 4):
        bench.give("a", Received(events[missing + 1], b"frame"))
        bench.fire("a", "gap")
        bench.give("a", Received(events[missing], b"frame"))
    bench.give("p", CommitCall("k"))
    assert status(bench) is Status.COMMITTED


def test_reader_that_nobody_answers_asks_less_and_less_often() -> None:
    bench = Bench(Site("f"))
    bench.give("f", FollowCall("gone", "log", ChainKind.COMMITS, ("orders",)))
    pauses = []
    for _ in range(4):
        (pause,) = [seconds for key, seconds in bench.sites["f"].timers.items() if key[2] == "ask"]
        pauses.append(pause)
        bench.fire("f", "ask")
    assert pauses == sorted(set(pauses))


def test_follower_that_fell_behind_says_so_again_after_a_restart() -> None:
    """It may have died between writing that it is stale and saying so."""
    reader = ChainReader(
        Seat("f", "log-f", 2, Keyring(b"f")), "c", "log", ChainKind.COMMITS, ("t",), upto=3, stale=True
    )
    assert [effect.what for effect in reader.resume() if isinstance(effect, Surface)] == ["stale"]


# Unsubscribing


def test_a_census_does_not_wait_for_who_unsubscribed_meanwhile() -> None:
    census = Census(TX, Terms("t"), present=dict.fromkeys("ab"))
    census.on_join(Join(TX, Keyring(b"a").pseudonym(TX), Keyring(b"a").hashes(TX), "a"))
    assert not census.complete()
    census.on_unsubscribed("b")
    assert census.complete()


def test_who_joined_before_it_unsubscribed_stays() -> None:
    census = Census(TX, Terms("t"), present=dict.fromkeys("ab"))
    census.on_join(Join(TX, Keyring(b"a").pseudonym(TX), Keyring(b"a").hashes(TX), "a"))
    census.on_unsubscribed("a")
    assert len(census.joined) == 1
    assert not census.complete(), "b has not answered"


def test_who_leaves_says_so_by_name_and_stands_for_nobody_else() -> None:
    census = Census(TX, Terms("t"), present=dict.fromkeys("bc"))
    census.on_join(Join(TX, Keyring(b"b").pseudonym(TX), Keyring(b"b").hashes(TX), "b"))
    census.on_decline(b"a leaves", "a")
    assert not census.complete(), "c has not answered"


def test_a_census_does_not_wait_for_who_leaves_though_others_answered_without_a_name() -> None:
    bench = Bench(Site("p"), Site("a", member(scope=Scope.NONE, leaving=True)), Site("b", member()), Site("c"))
    bench.lose = lambda target, message: isinstance(message, m.Decline) and bool(message.identity)
    bench.give("p", BeginCall("k", Terms("orders"), "p"))
    bench.give("p", replace(bench.sites["a"].presence(), types=()))
    assert not bench.sites["p"].opened, "whether it has answered without a name is not known"
    bench.lose = lambda target, message: False
    bench.fire("p", "retry", "c")
    assert bench.sites["p"].opened["k"]
    assert bench.sites["a"].asked == 1


def test_a_late_registration_does_not_bring_back_a_reader_that_gave_it_back() -> None:
    chain = Chain(Seat("c", "log", 1, Keyring(b"c")), ChainKind.COMMITS)
    first = m.Follow("f", ChainKind.COMMITS, "log", ("t",))
    chain.on_follow(first)
    chain.on_follow(m.Follow("f", ChainKind.COMMITS, "log", (), 0, 2))
    assert not chain.read_by_anyone()
    chain.on_follow(first)
    assert not chain.read_by_anyone()
    chain.on_follow(m.Follow("f", ChainKind.COMMITS, "log", ("t",), -1, 3))
    assert chain.read_by_anyone()
    chain.on_follow(m.Follow("f", ChainKind.COMMITS, "log", (), 0, 2))
    assert chain.read_by_anyone(), "a late copy of the word that gave back an earlier registration"


def test_readers_that_gave_their_registration_back_do_not_count_and_only_the_latest_are_remembered() -> None:
    chain = Chain(Seat("c", "log", 1, Keyring(b"c"), bounds=Bounds(readers=2)), ChainKind.COMMITS)
    records: dict[str, object] = {}
    for number in range(10):
        for types, registration in ((("t",), 1), ((), 2)):
            for effect in chain.on_follow(m.Follow(f"f{number}", ChainKind.COMMITS, "log", types, -1, registration)):
                if isinstance(effect, Append):
                    records[effect.key] = effect.record
                elif isinstance(effect, Drop):
                    del records[effect.key]
    assert not chain.readers
    assert list(chain.released) == ["f8", "f9"]
    assert [key for key in records if key.startswith("r/")] == ["r/commits/f8", "r/commits/f9"]
    for name in ("f9", "new"):
        chain.on_follow(m.Follow(name, ChainKind.COMMITS, "log", ("t",), -1, 3))
    assert list(chain.readers) == ["f9", "new"]
    assert list(chain.released) == ["f8"]
    (refused,) = chain.on_follow(m.Follow("one more", ChainKind.COMMITS, "log", ("t",)))
    assert isinstance(refused, Surface)


def test_what_was_given_back_is_known_after_a_restart() -> None:
    seat = Seat("c", "log", 1, Keyring(b"c"))
    chain = Chain(seat, ChainKind.COMMITS)
    first = m.Follow("f", ChainKind.COMMITS, "log", ("t",))
    chain.on_follow(first)
    effects = chain.on_follow(m.Follow("f", ChainKind.COMMITS, "log", (), 0, 2))
    (record,) = [effect.record for effect in effects if isinstance(effect, Append)]
    again = Chain(seat, ChainKind.COMMITS)
    again.recover(record)
    again.on_follow(first)
    assert not again.read_by_anyone()
