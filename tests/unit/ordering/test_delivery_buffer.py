from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.ordering.build import event, of
from txlayer.ordering import effects as fx
from txlayer.ordering.bounded_buffer import BoundedBuffer
from txlayer.ordering.delivery_buffer import DeliveryBuffer
from txlayer.ordering.messages import Event, Void


def buffer(*clocks: int) -> DeliveryBuffer:
    made = DeliveryBuffer()
    for rank, clock in enumerate(clocks):
        made.add(f"t{rank}", rank, clock)
    return made


def bounded(*clocks: int, capacity: int = 100) -> BoundedBuffer:
    made = BoundedBuffer(capacity=capacity, time_to_live=1.0)
    for rank, clock in enumerate(clocks):
        made.add(f"t{rank}", rank, clock)
    return made


def got(effects: list[fx.Effect]) -> list[tuple[int, int]]:
    return [(one.event.stamp.rank, one.event.stamp.number) for one in of(effects, fx.Deliver)]


def test_an_event_waits_for_its_predecessor() -> None:
    b = buffer(0)
    assert got(b.take(event(0, 2), 0.0)) == []
    assert got(b.take(event(0, 1), 0.0)) == [(0, 1), (0, 2)]


def test_an_event_waits_for_what_its_stamp_names() -> None:
    b = buffer(0, 0)
    assert got(b.take(event(0, 1, {1: 2}), 0.0)) == []
    assert got(b.take(event(1, 1), 0.0)) == [(1, 1)]
    assert got(b.take(event(1, 2), 0.0)) == [(1, 2), (0, 1)]


def test_topics_of_others_are_not_waited_for() -> None:
    assert got(buffer(0).take(event(0, 1, {7: 5}), 0.0)) == [(0, 1)]


def test_being_further_than_the_stamp_says_is_enough() -> None:
    assert got(buffer(0, 9).take(event(0, 1, {1: 2}), 0.0)) == [(0, 1)]


def test_a_topic_whose_baseline_is_pending_is_waited_for() -> None:
    b = buffer(0)
    b.expect(1)
    assert got(b.take(event(0, 1, {1: 3}), 0.0)) == []
    b.add("t1", 1, 2)
    assert got(b.settle(1)) == []
    assert got(b.take(event(1, 3), 0.0)) == [(1, 3), (0, 1)]


def test_numbers_at_or_below_the_clock_and_repetitions_are_dropped() -> None:
    b = buffer(3)
    for number in (3, 1, 5, 5):
        assert got(b.take(event(0, number), 0.0)) == []
    assert (b.dropped, b.size) == (3, 1)


def test_a_void_is_stepped_over() -> None:
    b = buffer(0)
    b.take(event(0, 4), 0.0)
    assert got(b.take_void(Void(0, 1, 3, 1), 0.0)) == [(0, 4)]


def test_the_first_of_event_and_void_counts() -> None:
    b = buffer(0)
    b.take(event(0, 2), 0.0)
    assert got(b.take_void(Void(0, 1, 3, 1), 0.0)) == [(0, 2)]
    assert got(b.take(event(0, 3), 0.0)) == []
    assert b.lanes[0].clock == 3


def test_an_event_published_again_under_a_new_number_is_delivered_once() -> None:
    b = buffer(0)
    assert got(b.take(event(0, 1, serial=1), 0.0)) == [(0, 1)]
    assert got(b.take(event(0, 2, serial=1), 0.0)) == []
    assert b.lanes[0].clock == 2


def test_an_event_published_again_is_flagged_where_its_first_place_was_voided() -> None:
    b = buffer(0)
    b.take_void(Void(0, 1, 1, 1), 0.0)
    first = event(0, 3, serial=1)
    (late,) = of(b.take(event(0, 2, serial=2), 0.0), fx.Deliver)
    assert not late.out_of_order
    (late,) = of(b.take(Event("p", 1, first.stamp, b"", again=True), 0.0), fx.Deliver)
    assert late.out_of_order


def test_a_lost_event_is_a_gap_that_keeps_its_place() -> None:
    b = buffer(0, 0)
    assert b.take_void(Void(0, 1, 1, 1, True, True, (1,), (1,)), 0.0) == []
    effects = b.take(event(1, 1), 0.0)
    assert got(effects) == [(1, 1)]
    assert of(effects, fx.Gap) == [fx.Gap("t0", 1, 1)]


def test_what_rests_on_a_base_that_was_stepped_over_cannot_be_placed() -> None:
    b = buffer(0)
    assert of(b.take_void(Void(0, 1, 1, 1, lost=True), 0.0), fx.Gap) == [fx.Gap("t0", 1, 1)]
    effects = b.take(event(0, 2, base=1), 0.0)
    assert (got(effects), of(effects, fx.Gap)) == ([], [fx.Gap("t0", 2, 2)])
    assert of(b.take(event(0, 3, base=2), 0.0), fx.Gap) == [fx.Gap("t0", 3, 3)]
    assert got(b.take(event(0, 4), 0.0)) == [(0, 4)]


def test_nothing_waits_for_a_topic_that_is_unsubscribed() -> None:
    b = buffer(0, 0)
    b.take(event(0, 1, {1: 1}), 0.0)
    assert got(b.remove(1)) == [(0, 1)]


def test_a_full_buffer_drops_and_says_so() -> None:
    b = DeliveryBuffer(capacity=1)
    b.add("t0", 0, 0)
    b.take(event(0, 3), 0.0)
    assert "buffer full" in of(b.take(event(0, 2), 0.0), fx.Report)[0].reason


def test_a_full_buffer_takes_the_event_that_the_others_wait_for_and_knows_what_it_has_dropped() -> None:
    b = DeliveryBuffer(capacity=1)
    lane = b.add("t", 0, 0)
    b.take(event(0, 2), 0.0)
    assert of(b.take(event(0, 3), 0.0), fx.Report)
    assert got(b.take(event(0, 1), 0.0)) == [(0, 1), (0, 2)]
    assert b.missing(lane) == 3


def test_the_buffer_knows_what_is_missing() -> None:
    b = buffer(0, 0)
    assert b.missing(b.lanes[0]) is None
    b.take(event(0, 1, {1: 2}), 0.0)
    assert b.missing(b.lanes[1]) == 1
    b.learn(0, 1)
    assert b.missing(b.lanes[0]) is None
    b.take_void(Void(0, 2, 3, 1), 0.0)
    b.learn(0, 5)
    assert b.missing(b.lanes[0]) == 4
    b.take(event(0, 4), 0.0)
    assert b.missing(b.lanes[0]) == 5


def one_history(events: list[tuple[int, ...]], topics: int) -> list[Event]:
    """Stamps as one host gives them to topics that all belong to one group."""
    clocks = [0] * topics
    made = []
    for (rank,) in events:
        clocks[rank] += 1
        others = {other: clocks[other] for other in range(topics) if other != rank}
        made.append(event(rank, clocks[rank], others, publisher=f"p{rank}"))
    return made


@given(st.data())
def test_any_arrival_order_with_repetitions_gives_the_one_order(data: st.DataObject) -> None:
    topics = data.draw(st.integers(1, 4))
    history = one_history(data.draw(st.lists(st.tuples(st.integers(0, topics - 1)), max_size=15)), topics)
    twice = data.draw(st.permutations(history + history))
    b = buffer(*[0] * topics)
    delivered = [place for one in twice for place in got(b.take(one, 0.0))]
    assert delivered == [(one.stamp.rank, one.stamp.number) for one in history]
    assert b.size == 0


@given(st.data())
def test_with_a_bounded_buffer_what_is_not_flagged_is_in_order_and_nothing_comes_twice(data: st.DataObject) -> None:
    topics = data.draw(st.integers(1, 4))
    history = one_history(data.draw(st.lists(st.tuples(st.integers(0, topics - 1)), max_size=15)), topics)
    arrivals = data.draw(st.permutations(history + history))
    arrivals = arrivals[: data.draw(st.integers(0, len(arrivals)))]
    b = bounded(*[0] * topics, capacity=data.draw(st.integers(1, 6)))
    effects: list[fx.Effect] = []
    for at, one in enumerate(arrivals):
        effects += b.take(one, at * 0.3)
        effects += b.expire(at * 0.3)
    effects += b.expire(1000.0)
    delivered = of(effects, fx.Deliver)
    places = {(one.stamp.rank, one.stamp.number): place for place, one in enumerate(history)}
    ordered = [places[one.event.stamp.rank, one.event.stamp.number] for one in delivered if not one.out_of_order]
    assert ordered == sorted(ordered)
    assert len(delivered) == len({(one.stamp.rank, one.stamp.number) for one in arrivals})
    assert b.size == 0


def test_an_event_is_delivered_when_its_time_to_live_ends_and_its_predecessor_flagged_when_it_comes() -> None:
    b = bounded(0)
    assert got(b.take(event(0, 2), 0.0)) == []
    assert b.next_deadline() == 1.0
    assert got(b.expire(1.0)) == [(0, 2)]
    (late,) = of(b.take(event(0, 1), 2.0), fx.Deliver)
    assert late.out_of_order
    assert b.take(event(0, 1), 3.0) == []


def test_what_is_buffered_and_comes_before_is_delivered_first() -> None:
    b = bounded(0, 0)
    b.take(event(1, 2, {0: 0}), 0.5)
    b.take(event(0, 2, {1: 2}), 0.0)
    assert got(b.expire(1.6)) == [(1, 2), (0, 2)]


def test_a_full_bounded_buffer_makes_room_by_delivering_its_oldest() -> None:
    b = bounded(0, capacity=1)
    b.take(event(0, 2), 0.0)
    assert got(b.take(event(0, 5), 0.0)) == [(0, 2)]


def test_numbers_that_a_restarted_host_cannot_account_for_are_an_uncertain_gap() -> None:
    b = buffer(0)
    assert of(b.take_void(Void(0, 1, 3, 2, doubtful=True), 0.0), fx.Gap) == [fx.Gap("t0", 1, 3, certain=False)]
