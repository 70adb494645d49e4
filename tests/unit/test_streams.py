"""Numbers of events: gaps, late fills and duplicates, against a model that remembers everything."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from txlayer.adapters.streams import Stream, Streams, StreamTracker

A, B = b"a" * 12, b"b" * 12


@given(st.lists(st.tuples(st.sampled_from([A, B]), st.integers(1, 30)), max_size=80))
def test_every_event_is_new_once_and_every_gap_is_told_when_it_opens(events: list[tuple[bytes, int]]) -> None:
    tracker = StreamTracker()
    seen: dict[bytes, set[int]] = {}
    for stream, number in events:
        known = seen.get(stream)
        answer = tracker.see((stream, number))
        if known is None:
            assert answer is False, "the first one sets the baseline"
            seen[stream] = {number}
            continue
        highest = max(known)
        if number in known:
            assert answer is True
        elif number > highest + 1:
            assert answer == (highest + 1, number - 1)
        else:
            assert answer is False
        known.add(number)


def test_a_late_event_fills_its_place_in_the_gap_once() -> None:
    tracker = StreamTracker()
    assert [tracker.see((A, number)) for number in (1, 5, 3, 3, 2, 4, 4)] == [
        False,
        (2, 4),
        False,
        True,
        False,
        False,
        True,
    ]
    assert tracker._holes == {}


def test_an_event_that_the_first_one_overtook_is_new_once() -> None:
    tracker = StreamTracker()
    assert [tracker.see((A, number)) for number in (3, 1, 4, 1, 2, 3)] == [False, False, False, True, False, True]


def test_numbers_below_the_first_are_remembered_up_to_a_bound() -> None:
    tracker = StreamTracker(max_holes=2)
    for number in (9, 1, 2, 3):
        assert tracker.see((A, number)) is False
    assert len(tracker._early[A]) == 2
    assert tracker.see((A, 3)) is True
    assert tracker.see((A, 1)) is False, "forgotten: rather handled twice than never"


def test_streams_beyond_the_bound_start_again() -> None:
    tracker = StreamTracker(max_streams=2)
    streams = [bytes([number]) * 12 for number in range(3)]
    for stream in streams:
        tracker.see((stream, 1))
        tracker.see((stream, 3))
    assert len(tracker._next) == len(tracker._holes) == 2
    assert tracker.see((streams[0], 9)) is False, "forgotten: a new baseline"
    assert tracker.see((streams[2], 9)) == (4, 8)


def test_holes_are_bounded_and_the_oldest_is_given_up() -> None:
    tracker = StreamTracker(max_holes=3)
    for number in range(1, 20, 2):
        tracker.see((A, number))
    assert len(tracker._holes[A]) == 3
    assert tracker.see((A, 2)) is True, "given up: taken for a duplicate"
    assert tracker.see((A, 18)) is False


def test_streams_of_one_publisher_differ_and_share_its_mark() -> None:
    streams = Streams()
    one, other = streams.open(), streams.open()
    assert one.id != other.id
    assert one.id[:8] == other.id[:8] == streams.publisher
    assert len(one.id) == 12


def test_a_publisher_s_table_of_topics_is_bounded_and_a_forgotten_topic_starts_anew() -> None:
    streams, table = Streams(), dict[str, Stream]()
    first = streams.open_in(table, "first")
    for number in range(65_536):
        streams.open_in(table, str(number))
    assert len(table) == 65_536
    assert "first" not in table
    assert streams.open_in(table, "first").id != first.id


def test_no_two_streams_of_a_publisher_have_one_id() -> None:
    streams = Streams()
    before = [streams.open().id for _ in range(3)]
    streams._count = itertools.count((1 << 32) - 2)
    late = [streams.open().id for _ in range(6)]
    assert len({*before, *late}) == 9
    assert {len(stream) for stream in late} == {12}
