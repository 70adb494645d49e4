"""The small parts of which roles are made."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlayer.conditions import all_of, only
from txlayer.effects import Append
from txlayer.errors import UsageError
from txlayer.messages import NAMELESS, Access, Conditions, Create, Item, Join, Numbered, Standing, Submit, Terms, TxId
from txlayer.records import Retired
from txlayer.tokens import Keyring, digest_of, member_hash
from txlayer.transactions.ballot import Ballot
from txlayer.transactions.census import Census
from txlayer.transactions.constraints import check_terms
from txlayer.transactions.creations import Creations
from txlayer.transactions.event_coordinator import EventCoordinator, Limits, size_of, size_of_terms
from txlayer.transactions.forgotten import KEPT, Forgotten
from txlayer.transactions.marks import Marks
from txlayer.transactions.seat import Patience
from txlayer.transactions.sequence import Sequence

TX = TxId("c", "log", 5, "ab")


def join(name: str, identity: bool = True) -> Join:
    ring = Keyring(name.encode())
    return Join(TX, ring.pseudonym(TX), ring.hashes(TX), name if identity else "")


def ballot(settle_for: Conditions | None, *names: str) -> tuple[Ballot, list[bytes]]:
    joins = [join(name) for name in names]
    members = {member_hash(one.pseudonym): one for one in joins}
    return Ballot(members, settle_for), list(members)


def test_one_no_aborts_and_names_who_said_it() -> None:
    votes, (a, b) = ballot(None, "a", "b")
    assert votes.on_vote(a, True, "") is None
    ruling = votes.on_vote(b, False, "full")
    assert ruling is not None
    assert (ruling.commit, ruling.by, ruling.reason) == (False, "b", "full")


def test_first_vote_counts_and_strangers_have_none() -> None:
    votes, (a, _) = ballot(None, "a", "b")
    votes.on_vote(a, True, "")
    assert votes.on_vote(a, False, "changed its mind") is None
    assert votes.on_vote(b"stranger", False, "") is None
    assert votes.ruling() is None


def test_dropping_out_is_fine_as_long_as_the_rest_settles() -> None:
    votes, (a, b, c) = ballot(Conditions(at_least=2), "a", "b", "c")
    assert votes.on_vote(a, False, "") is None
    ruling = votes.on_vote(b, False, "")
    assert ruling is not None
    assert not ruling.commit
    assert votes.missing() == [c]


def test_constraints_are_tested_once_more_when_all_have_voted() -> None:
    votes, (a, b) = ballot(Conditions(at_least=2), "a", "b")
    votes.votes = {a: True, b: False}
    ruling = votes.ruling()
    assert ruling is not None
    assert (ruling.commit, ruling.reason) == (False, "1 of at least 2 members")


def test_named_members_may_not_drop_out() -> None:
    votes, (a, _) = ballot(Conditions(named=("a",)), "a", "b")
    ruling = votes.on_vote(a, False, "")
    assert ruling is not None
    assert "a did not take part" in ruling.reason


def test_census_of_anonymous_subscribers_counts_pseudonyms() -> None:
    census = Census(TX, Terms("t", require=Conditions(at_least=2)), present=dict.fromkeys("abc"))
    census.on_join(join("a", identity=False))
    census.on_join(join("a", identity=False))
    assert census.failure()
    census.on_join(join("b", identity=False))
    assert not census.failure()
    assert not census.complete()
    census.on_decline(b"somebody")
    assert census.complete()


def waiting_for(*names: str) -> Census:
    return Census(TX, Terms("t"), present=dict.fromkeys(names))


def test_census_does_not_wait_for_a_site_that_left_without_an_answer() -> None:
    census = waiting_for("a", "b")
    census.on_join(join("a"))
    assert not census.complete()
    census.on_left("b", gone=False)
    assert not census.complete(), "it is back in its next life and will answer"
    census.on_left("b", gone=True)
    assert census.complete()


def test_census_waits_for_everyone_present_whoever_else_leaves() -> None:
    census = waiting_for("a", "b", "c")
    census.on_decline(b"of a, who knows")
    census.on_join(join("b"))
    census.on_left("a", gone=True)
    assert not census.complete(), "a has answered, c has not"
    census.on_left("of another type", gone=True)
    assert not census.complete()
    assert census.on_left("b", gone=True) is not None
    assert not census.complete(), "the answer of b is gone with it"
    census.on_join(join("c"))
    assert census.complete()


@pytest.mark.parametrize("admitted", [True, False])
def test_who_answers_by_name_stands_for_nobody_else(admitted: bool) -> None:
    """One that has just come, or leaves while its application chooses: nobody expects its answer."""
    census = waiting_for("a", "b")
    if not admitted:
        census.terms = Terms("t", require=Conditions(only=("a", "b")))
    census.on_join(join("a"))
    assert (census.on_join(join("of whom nobody has heard")) is not None) == admitted
    assert not census.complete(), "b has not answered"
    census.on_decline(b"of b")
    assert census.complete()


def test_full_census_closes_and_turns_further_members_away() -> None:
    census = Census(TX, Terms("t", require=Conditions(at_most=1)))
    assert census.on_join(join("a")) is not None
    assert census.complete()
    assert census.on_join(join("b")) is None


@given(st.permutations("abcd"))
def test_named_members_have_a_seat_whoever_answers_first(order: list[str]) -> None:
    require = Conditions(at_most=3, named=("c",))
    census = Census(TX, Terms("t", require=require, settle_for=Conditions(named=("d",))))
    taken = [name for name in order if census.on_join(join(name)) is not None]
    assert len(taken) == 3
    assert {"c", "d"} <= set(taken)
    assert census.complete()
    assert not census.failure()


@pytest.mark.parametrize(
    ("require", "settle_for", "reason"),
    [
        (Conditions(at_most=1, named=("a", "b")), None, "2 named members and at most 1"),
        (Conditions(at_most=1, named=("a",)), Conditions(named=("b",)), "2 named members and at most 1"),
        (Conditions(at_least=2, only=("a",)), None, "only 1 allowed"),
        (Conditions(only=("a", "b")), Conditions(at_least=2, only=("b", "c")), "only 1 allowed"),
        (Conditions(at_most=1), Conditions(at_least=2), "at least 2 and at most 1"),
    ],
)
def test_terms_that_no_members_could_meet_are_refused(
    require: Conditions, settle_for: Conditions | None, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        check_terms(Terms("t", require=require, settle_for=settle_for))


def test_only_these_and_only_those_is_not_everyone() -> None:
    with pytest.raises(UsageError, match="exclude all"):
        all_of(only("a"), only("b"))


def test_events_before_the_first_are_none() -> None:
    events = EventCoordinator(Terms("t"), "p", Limits())
    events.take_all(tuple(Item("t", b"x") for _ in range(5)), "p")
    assert [event.number for event in events.between(1, 2)] == [1, 2]
    for first, last in ((1, -1), (-9, -1), (1, 0), (-9, 0)):
        assert events.between(first, last) == []


@given(st.permutations(range(1, 9)), st.integers(0, 8))
def test_submissions_are_numbered_once_in_their_publishers_order(order: list[int], repeated: int) -> None:
    events = EventCoordinator(Terms("t", access=Access.MULTI), "p", Limits())
    for number in [*order, *order[:repeated]]:
        events.on_submit(Submit(TX, "p", number, Item("t", str(number).encode())))
    assert [event.item.payload for event in events.events] == [str(number).encode() for number in range(1, 9)]
    assert events.digest == digest_of(tuple(events.events))


def submitted(publisher: str, number: int, size: int = 1) -> Submit:
    return Submit(TX, publisher, number, Item("t", b"x" * size))


def test_the_event_that_is_waited_for_is_taken_however_many_came_before_it() -> None:
    events = EventCoordinator(Terms("t", access=Access.MULTI), "p", Limits(ahead=4))
    for publisher in ("p", "q", "r"):
        for number in range(2, 12):
            events.on_submit(submitted(publisher, number))
    assert len(events.early) == 3 * 3, "each publisher has a window of its own"
    for _ in range(3):
        for publisher in ("p", "q", "r"):
            for number in range(1, 12):
                events.on_submit(submitted(publisher, number))
    assert (len(events.events), len(events.early), events.waiting) == (33, 0, 0)


def test_events_that_wait_for_an_earlier_one_count_against_the_limits() -> None:
    three = size_of_terms(Terms("t")) + 3 * size_of(submitted("p", 1, size=10).item, "p")
    for limits, expected in ((Limits(events=3), "limits.events"), (Limits(bytes=three), "limits.bytes")):
        events = EventCoordinator(Terms("t"), "p", limits)
        over = []
        for number in (5, 4, 3, 3, 2, 1):
            submit = submitted("p", number, size=10)
            over.append(events.over_limit(submit))
            if not over[-1]:
                events.on_submit(submit)
        assert [bool(reason) for reason in over] == [False, False, False, False, True, True]
        assert expected in over[-1]


@given(st.text(max_size=40), st.binary(max_size=400), st.dictionaries(st.text(max_size=9), st.text(max_size=300)))
def test_an_event_takes_no_more_of_a_message_than_is_counted(
    type: str, payload: bytes, headers: dict[str, str]
) -> None:
    item = Item(type, payload, tuple(headers.items()))
    numbered = Numbered(2**31, item, "publisher")
    assert len(msgspec.msgpack.encode(numbered)) <= size_of(item, "publisher")


@given(st.lists(st.integers(1, 6), max_size=30))
def test_sequence_gives_out_every_event_once_and_in_order(arrivals: list[int]) -> None:
    sequence = Sequence(ahead=10)
    events = {number: Numbered(number, Item("t", b"%d" % number), "p") for number in range(1, 7)}
    for number in arrivals:
        sequence.take(events[number])
    sequence.end(6, digest_of(tuple(events.values())))
    complete = set(arrivals) == set(range(1, 7))
    assert sequence.intact() is complete
    assert (sequence.gap() is None) is complete
    assert [event.number for event in sequence.events()] == list(range(1, len(sequence.events()) + 1))


@given(st.lists(st.tuples(st.integers(0, 12), st.frozensets(st.integers(0, 11))), max_size=6), st.randoms())
def test_marks_add_up_in_any_order(facts: list[tuple[int, frozenset[int]]], random) -> None:
    """Marks that one coordinator could really have sent: what is finished stays finished."""
    history, finished, below = [], set(), 0
    for more, still_open in facts:
        below = max(below, more)
        finished |= {number for number in range(below) if number not in still_open}
        history.append(Standing(below, tuple(sorted(set(range(below)) - finished))))
    random.shuffle(history)
    marks = Marks()
    for standing in history:
        marks.advance(("c", "log"), standing)
    for number in range(12):
        assert marks.finished(TxId("c", "log", number, "")) is (number in finished)


def test_marks_with_many_open_do_not_compare_each_with_all() -> None:
    compared = 0

    class Number(int):
        def __lt__(self, other: int) -> bool:
            nonlocal compared
            compared += 1
            return int(self) < int(other)

        def __ge__(self, other: int) -> bool:
            nonlocal compared
            compared += 1
            return int(self) >= int(other)

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    many, marks = 2000, Marks()
    for _ in range(3):
        marks.advance(("c", "log"), Standing(many, tuple(Number(number) for number in range(many))))
    assert not any(marks.finished(TxId("c", "log", Number(number), "")) for number in range(many))
    assert compared < 100 * many
    compared = 0
    for below in (1, 2, 3):
        assert marks.advance(("c", "log"), Standing(below))
        assert not marks.advance(("c", "log"), Standing(below)), "every census says it again"
    assert compared < 100, "what a census says of the oldest is not compared with all that are open"


def test_creations_with_many_open_forget_the_oldest_without_a_look_at_all() -> None:
    creations = Creations()
    for serial in (3, 1, 2, *range(4, 2000)):
        creations.take(Create("k", "p", 1, Terms("t"), (), 1, serial, 0, incarnation="log"))
    (life,) = creations.publishers.values()
    before = life.taken
    assert creations.take(Create("k", "p", 1, Terms("t"), (), 1, 2000, 3, incarnation="log"))
    assert life.taken is before
    assert (len(life.taken), min(life.taken)) == (1998, 3)
    for serial in (1, 2, 3, 1999, 2000):
        assert not creations.take(Create("k", "p", 1, Terms("t"), (), 1, serial, 3, incarnation="log"))


def test_creation_is_taken_once_and_never_below_the_publishers_mark() -> None:
    def create(serial: int, below: int = 0, life: int = 1) -> Create:
        return Create(f"k{serial}", "p", life, Terms("t"), (), 1, serial, below, incarnation="log")

    creations = Creations()
    assert creations.take(create(1))
    assert creations.ended(create(1))
    assert not creations.take(create(1))
    assert creations.take(create(2, below=2))
    assert list(creations.publishers["p", "log"].taken) == [2], "what lies below is forgotten"
    assert not creations.take(create(1))
    assert creations.take(create(1, life=2))
    assert not creations.take(create(3, life=1)), "an older life has nothing to say"


def test_creations_of_a_new_log_count_for_themselves() -> None:
    def create(serial: int, incarnation: str) -> Create:
        return Create(f"k{serial}", "p", 1, Terms("t"), (), 1, serial, incarnation=incarnation)

    creations = Creations()
    assert creations.take(create(1, "first"))
    assert creations.take(create(1, "second"))
    assert not creations.take(create(1, "second"))
    assert not creations.take(create(1, "first")), "a late copy"
    assert creations.ended(create(1, "first"))


def test_pauses_grow_up_to_the_longest() -> None:
    patience = Patience(longest=3.0)
    pauses = [patience.backoff(1.0, attempt) for attempt in range(5)]
    assert pauses == sorted(pauses)
    assert pauses[0] == 1.0
    assert pauses[-1] == 3.0


def retired(forgotten: Forgotten, number: int) -> Retired:
    (effect,) = forgotten.add(number, NAMELESS)
    assert isinstance(effect, Append)
    assert isinstance(effect.record, Retired)
    return effect.record


def test_forgotten_commits_are_told_from_aborts_for_as_long_as_there_is_room() -> None:
    forgotten = Forgotten()
    for number in range(1, 2 * KEPT, 2):
        record = retired(forgotten, number)
    assert 1 in forgotten
    assert 2 not in forgotten
    forgotten = Forgotten()
    forgotten.recover(record)
    record = retired(forgotten, 2 * KEPT + 1)
    assert len(record.commits) == KEPT
    assert 2 not in forgotten, "the oldest range ended before it"
    forgotten.add(2 * KEPT + 3, NAMELESS)
    assert 2 in forgotten, "it may have committed: nobody knows any more"
    assert 4 not in forgotten
