from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlayer.errors import DecodeError
from txlayer.ordering import effects as fx
from txlayer.ordering.deadlines import Deadlines
from txlayer.ordering.directory import Directory
from txlayer.ordering.link import DownLink, UpLink
from txlayer.ordering.messages import Chained, Event, Register, Welcome, decode, encode
from txlayer.ordering.seen import Seen
from txlayer.ordering.timestamp import GONE, LOWEST_HOST, Stamp, fault_in, host_of, log_of, place_of, rank_at
from txlayer.ranges import Ranges


@given(st.lists(st.tuples(st.sampled_from(["add", "remove", "cut"]), st.integers(0, 30), st.integers(0, 5))))
def test_ranges_are_a_set_of_numbers(steps: list[tuple[str, int, int]]) -> None:
    ranges, model = Ranges(), set[int]()
    for step, first, more in steps:
        if step == "add":
            ranges.add(first, first + more)
            model |= set(range(first, first + more + 1))
        elif step == "cut":
            ranges.cut(first, first + more)
            model -= set(range(first, first + more + 1))
        else:
            assert ranges.remove(first) == (first in model)
            model.discard(first)
    assert [number for number in range(40) if number in ranges] == sorted(model)
    assert all(one[1] + 1 < other[0] for one, other in zip(ranges.pairs(), ranges.pairs()[1:], strict=False))


def test_ranges_forget_what_ends_below() -> None:
    ranges = Ranges()
    ranges.add(1, 2)
    ranges.add(5, 9)
    ranges.forget_below(6)
    assert ranges.pairs() == ((5, 9),)


@given(st.integers(0, LOWEST_HOST), st.integers(0, 2**20 - 1), st.integers(0, 2**20 - 1))
def test_a_rank_is_host_log_and_place(host: int, log: int, place: int) -> None:
    rank = rank_at(host, place, log)
    assert (host_of(rank), log_of(rank), place_of(rank)) == (host, log, place)
    assert rank < GONE, "it can be written"


def test_higher_hosts_rank_before_lower_ones() -> None:
    assert rank_at(0, 99) < rank_at(1, 0)


def test_a_later_deadline_replaces_the_earlier_one() -> None:
    times: Deadlines[str] = Deadlines()
    times.set("x", 1.0)
    times.set("x", 3.0)
    times.arm("x", 2.0)
    assert (times.next(), times.due(2.0), times.due(3.0), times.next()) == (3.0, [], ["x"], None)


def test_deadlines_that_are_set_again_and_again_take_no_more_room() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for now in range(40_000):
        deadlines.set("near", float(now + 60))
        deadlines.set("far", float(now + 604_800))
        assert deadlines.due(float(now)) == []
    assert len(deadlines.heap) < 200
    assert deadlines.due(40_059.0) == ["near"]
    assert deadlines.next() == 644_799.0


def test_the_most_specific_claim_owns_a_topic_and_the_newer_epoch_wins() -> None:
    directory = Directory()
    directory.see(fx.Claimed(0, "a", 1, "la", ("*",)))
    directory.see(fx.Claimed(1, "b", 1, "lb", ("orders*",)))
    directory.see(fx.Claimed(2, "c", 5, "lc", ("orders*", "orders.eu")))
    names = [claim.name for topic in ("x", "orders.us", "orders.eu") if (claim := directory.home(topic))]
    assert names == ["a", "c", "c"]
    assert Directory().home("x") is None


@pytest.mark.parametrize(
    ("claim", "reason"),
    [
        (fx.Claimed(0, "a", 1, "la", ()), "is of epoch 1"),
        (fx.Claimed(0, "b", 2, "la", ()), "claimed by b and by a"),
        (fx.Claimed(0, "a", 3, "other", ()), "another log"),
    ],
)
def test_a_claim_that_cannot_be_is_refused(claim: fx.Claimed, reason: str) -> None:
    directory = Directory()
    directory.see(fx.Claimed(0, "a", 2, "la", ("*",)))
    assert reason in str(directory.see(claim))
    assert directory.claims[0].epoch == 2


def test_the_chain_is_the_hosts_by_rank() -> None:
    directory = Directory()
    for rank in (5, 1, 3):
        directory.see(fx.Claimed(rank, f"h{rank}", 1, "", ()))
    assert directory.neighbours(3) == fx.Neighbours((5, "h5"), (1, "h1"))
    assert directory.neighbours(1).upper is None


def test_a_link_takes_frames_in_turn_after_the_welcome() -> None:
    up, down = UpLink(0, "a"), DownLink(1, "b")
    assert up.open(7)
    body = Register("s", 1, (), ())
    early = up.frame(1, 1, body)
    welcome, later = up.frame(1, 1, Welcome((), ())), up.frame(1, 1, body)
    assert [down.takes(frame, 7) for frame in (early, welcome, early, later, later)] == [
        False, True, False, True, False,
    ]  # fmt: skip
    assert not down.takes(up.frame(1, 1, body), 8)
    assert not down.takes(up.frame(1, 2, body), 7), "a sender that restarted must say its welcome first"
    assert not up.open(6)


def test_an_event_is_seen_once_whatever_its_number() -> None:
    seen = Seen()
    for serial in (5, 8):
        seen.add("p", 0, serial)
    known = [serial for serial in range(1, 10) if seen.knows("p", 0, serial)]
    assert known == [5, 8]
    seen.add("p", 0, 6)
    seen.add("p", 0, 2)
    assert [serial for serial in range(1, 10) if seen.knows("p", 0, serial)] == [2, 5, 6, 8]
    again = Seen()
    again.load(seen.dump())
    assert again == seen
    seen.forget(0)
    assert not seen.knows("p", 0, 5)


def test_messages_survive_the_wire() -> None:
    message = Chained(1, 2, 3, 4, Register("s", 1, (1, 2), (3,), values=(4,), ranks=(1,)))
    assert decode(encode(message)) == message
    sent = Event("p", 1, Stamp(1, 2, 3, 0, (4,), (5,)), b"x")
    assert decode(encode(sent)) == sent


@given(st.binary(max_size=60), st.integers(0, 400))
def test_bytes_that_are_no_message_are_a_decode_error_and_nothing_else(noise: bytes, at: int) -> None:
    frame = bytearray(encode(Chained(1, 2, 3, 4, Register("s", 1, (1, 2), (3,)))))
    frame[at % len(frame) : at % len(frame) + len(noise)] = noise
    for body in (noise, bytes(frame)):
        with suppress(DecodeError):
            assert encode(decode(body))


@given(st.integers(-2, 5), st.integers(-2, 5), st.integers(-1, 3), st.integers(-1, 6),
       st.lists(st.integers(-1, 6), max_size=3), st.lists(st.integers(-2, 6), max_size=3))  # fmt: skip
def test_a_stamp_without_fault_is_well_formed(
    rank: int, number: int, epoch: int, base: int, ranks: list[int], values: list[int]
) -> None:
    if fault_in(Stamp(rank, number, epoch, base, tuple(ranks), tuple(values))) is None:
        assert number >= 1
        assert epoch >= 1
        assert 0 <= base < number
        assert rank not in ranks
        assert ranks == sorted(set(ranks))
        assert len(ranks) == len(values)
        assert all(value >= 0 for value in values)
