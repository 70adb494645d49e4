from __future__ import annotations

import pytest

from tests.unit.ordering.build import create, durable, host, of, published, register, sent
from txlayer.errors import LogCorrupt
from txlayer.ordering import effects as fx
from txlayer.ordering.host import Host
from txlayer.ordering.host_state import HostConfig
from txlayer.ordering.messages import (
    Acknowledged,
    Chained,
    Complete,
    Fill,
    Hail,
    Hello,
    Locate,
    Located,
    Missing,
    Published,
    Refused,
    Registered,
    Resend,
    Stamped,
    Void,
    Voided,
    Welcome,
)
from txlayer.ordering.records import AnyRecord, EpochRecord, TopicRecord
from txlayer.ordering.timestamp import WINDOW, rank_at


def with_topics(*names: str, **config: object) -> Host:
    made = host(**config)  # type: ignore[arg-type]
    made.step(Locate("s", names), 0.0)
    return made


def numbers(effects: list[fx.Effect]) -> list[int]:
    return [answer.stamp.number for answer in sent(effects, Stamped)]


def test_numbers_of_a_topic_follow_each_other() -> None:
    a = host()
    assert [numbers(a.step(create(seq), 0.0)) for seq in (1, 2, 3)] == [[1], [2], [3]]


def test_a_repeated_request_gets_the_same_answer_and_no_second_number() -> None:
    a = host()
    first = sent(a.step(create(1), 0.0), Stamped)
    assert sent(a.step(create(1), 0.0), Stamped) == first
    assert numbers(a.step(create(2), 0.0)) == [2]


def test_a_request_ahead_of_its_turn_waits_for_its_predecessor() -> None:
    a = host()
    assert numbers(a.step(create(2, low=1), 0.0)) == []
    assert numbers(a.step(create(1), 0.0)) == [1]
    assert numbers(a.step(create(2, low=1), 0.0)) == [2]


def test_a_batch_gets_as_many_numbers_as_it_asks_for() -> None:
    a = host()
    assert numbers(a.step(create(1, count=10), 0.0)) == [1]
    assert numbers(a.step(create(11), 0.0)) == [11]


def test_a_newer_generation_voids_what_was_not_released() -> None:
    a = host()
    for seq in (1, 2, 3):
        a.step(create(seq), 0.0)
    effects = a.step(create(2, generation=2), 0.0)
    assert [(void.first, void.last) for void in published(effects, Void)] == [(2, 2), (3, 3)]
    assert numbers(effects) == [4]
    assert a.step(create(3, generation=1), 0.0) == []


def test_a_ticket_is_voided_when_its_lease_ends_and_its_publisher_told() -> None:
    a = host(lease=5.0)
    a.step(create(1), 0.0)
    assert a.next_deadline() == 5.0
    assert published(a.step(fx.Tick(), 4.9), Void) == []
    effects = a.step(fx.Tick(), 5.0)
    assert [(void.first, void.last) for void in published(effects, Void)] == [(1, 1)]
    assert sent(effects, Voided)
    assert sent(a.step(Published("p", "a.x", 1, 1, 1), 6.0), Voided)


def test_a_confirmed_ticket_is_never_voided() -> None:
    a = host(lease=5.0)
    a.step(create(1), 0.0)
    assert sent(a.step(Published("p", "a.x", 1, 1, 1), 1.0), Acknowledged)
    assert published(a.step(fx.Tick(), 10.0), Void) == []


def test_a_number_is_bound_to_one_publisher() -> None:
    a = host()
    a.step(create(1), 0.0)
    assert "bound to p/1" in sent(a.step(Published("q", "a.x", 1, 1, 1), 0.0), Refused)[0].reason
    assert "never given" in sent(a.step(Published("p", "a.x", 2, 2, 1), 0.0), Refused)[0].reason


def test_a_stamp_has_an_entry_for_each_topic_that_shares_a_subscription() -> None:
    a = with_topics("a.x", "a.y", "a.z")
    a.step(register("s", 1, (0, 1)), 0.0)
    a.step(create(1, topic="a.y"), 0.0)
    (answer,) = sent(a.step(create(1), 0.0), Stamped)
    assert (answer.stamp.ranks, answer.stamp.values) == ((1,), (1,))
    assert a.group_of("a.x") == (0, 1)
    assert a.group_of("a.z") == (2,)


def test_a_subscription_reads_counters_and_does_not_raise_them() -> None:
    a = with_topics("a.x")
    a.step(create(1), 0.0)
    (done,) = sent(a.step(register("s", 1, (0,)), 0.0), Registered)
    assert (done.ranks, done.values) == ((0,), (1,))
    assert numbers(a.step(create(2), 0.0)) == [2]


def test_unsubscribing_shrinks_the_group() -> None:
    a = with_topics("a.x", "a.y")
    a.step(register("s", 1, (0, 1)), 0.0)
    a.step(register("s", 2, (0,), (0, 1)), 0.0)
    assert a.group_of("a.x") == (0,)


def test_an_older_version_of_a_subscription_is_refused() -> None:
    a = with_topics("a.x", "a.y")
    a.step(register("s", 2, (0,)), 0.0)
    (refused,) = sent(a.step(register("s", 1, (0, 1)), 0.0), Refused)
    assert refused.reason == "version 1 is older than 2"
    assert refused.current == 2
    assert a.group_of("a.x") == (0,)


def confirmed(a: Host, seq: int, topic: str = "a.x") -> Stamped:
    (answer,) = sent(a.step(create(seq, topic=topic), 0.0), Stamped)
    a.step(Published("p", topic, seq, answer.stamp.number, 1), 0.0)
    return answer


def test_a_stamp_holds_only_what_changed_since_the_confirmed_base() -> None:
    a = with_topics("a.x", "a.y", "a.z")
    a.step(register("s", 1, (0, 1, 2)), 0.0)
    assert confirmed(a, 1).stamp.ranks == (1, 2)
    confirmed(a, 1, "a.z")
    stamp = confirmed(a, 2).stamp
    assert (stamp.base, stamp.ranks, stamp.values) == (1, (2,), (1,))


def test_a_base_is_used_only_after_confirmation() -> None:
    a = with_topics("a.x", "a.y")
    a.step(register("s", 1, (0, 1)), 0.0)
    a.step(create(1), 0.0)
    (answer,) = sent(a.step(create(2), 0.0), Stamped)
    assert answer.stamp.base == 0


def test_a_base_is_not_used_across_a_subscription() -> None:
    a = with_topics("a.x", "a.y")
    a.step(register("s", 1, (0, 1)), 0.0)
    confirmed(a, 1)
    a.step(register("q", 1, (0, 1)), 0.0)
    assert confirmed(a, 2).stamp.base == 0
    assert confirmed(a, 3).stamp.base == 2


def test_a_base_is_before_the_number_and_not_too_old() -> None:
    a = with_topics("a.x", "a.y")
    a.step(register("s", 1, (0, 1)), 0.0)
    a.step(create(1), 0.0)
    (second,) = sent(a.step(create(2), 0.0), Stamped)
    a.step(Published("p", "a.x", 2, 2, 1), 0.0)
    assert sent(a.step(create(1), 0.0), Stamped)[0].stamp.base == 0
    a.step(create(3, count=WINDOW + 1), 0.0)
    assert sent(a.step(create(4 + WINDOW), 0.0), Stamped)[0].stamp.base == 0
    assert second.stamp.base == 0


def test_a_subscriber_that_needs_whole_stamps_gets_them() -> None:
    a = with_topics("a.x", "a.y")
    a.step(register("s", 1, (0, 1), whole=True), 0.0)
    confirmed(a, 1)
    assert confirmed(a, 2).stamp.base == 0


def test_counters_are_reserved_on_disk_before_a_number_is_given() -> None:
    a = host(block=3)
    effects = a.step(create(1), 0.0)
    at = {type(effect).__name__: place for place, effect in enumerate(effects)}
    assert at["Persist"] < at["Send"]
    assert of(a.step(create(2), 0.0), fx.Persist) == []
    for seq in (3, 4):
        a.step(create(seq), 0.0)
    assert [p.record.reserved for p in of(a.step(create(5), 0.0), fx.Persist)] == [8]  # type: ignore[union-attr]


def test_a_new_topic_is_durable_before_its_rank_is_told() -> None:
    a = host()
    effects = a.step(Locate("s", ("a.x",)), 0.0)
    assert isinstance(effects[0], fx.Persist)
    assert sent(effects, Located)[0].ranks == (rank_at(0, 0),)


def restarted(disk: dict[str, AnyRecord], now: float = 100.0, **config: object) -> tuple[Host, list[fx.Effect]]:
    again = Host("a", 0, ("a.*",), "log-a", HostConfig(**config))  # type: ignore[arg-type]
    return again, again.start(disk.values(), fx.Neighbours(None, None), now)


def test_after_a_restart_with_a_lost_tail_no_number_is_given_twice_and_the_skipped_ones_are_voided() -> None:
    disk: dict[str, AnyRecord] = {"epoch": EpochRecord(1)}
    a = host(block=10)
    for seq in (1, 2, 3):
        durable(a.step(create(seq), 0.0), disk)
    again, effects = restarted(disk, block=10, lease=5.0)
    assert again.state.epoch == 2
    assert published(effects, Void) == []
    assert numbers(again.step(create(1, publisher="q"), 100.0)) == [12]
    voids = published(again.step(fx.Tick(), 105.0), Void)
    assert [(void.first, void.last) for void in voids] == [(12, 12), (1, 11)]


def test_what_was_published_before_a_lost_tail_is_not_voided() -> None:
    disk: dict[str, AnyRecord] = {"epoch": EpochRecord(1)}
    durable(host(block=10).step(create(1), 0.0), disk)
    again, _ = restarted(disk, block=10, lease=5.0)
    assert sent(again.step(Published("p", "a.x", 1, 1, 1), 101.0), Acknowledged)
    assert [(v.first, v.last) for v in published(again.step(fx.Tick(), 105.0), Void)] == [(2, 11)]
    assert sent(again.step(Missing("s", 0, 1, 1), 106.0), Resend)


def test_durable_tickets_survive_a_restart() -> None:
    disk: dict[str, AnyRecord] = {"epoch": EpochRecord(1)}
    a = host(block=10, durable_tickets=True)
    durable(a.step(create(1), 0.0), disk)
    durable(a.step(create(2), 0.0), disk)
    durable(a.step(Published("p", "a.x", 1, 1, 1), 0.0), disk)
    again, effects = restarted(disk, block=10, durable_tickets=True)
    assert [(void.first, void.last) for void in published(effects, Void)] == [(3, 11)]
    assert numbers(again.step(create(2), 100.0)) == [2]
    assert sent(again.step(Published("p", "a.x", 1, 1, 1), 100.0), Acknowledged)


def test_closed_tickets_leave_the_log() -> None:
    disk: dict[str, AnyRecord] = {}
    a = host(block=10, durable_tickets=True, lease=5.0, retention=20.0)
    durable(a.step(create(1), 0.0), disk)
    durable(a.step(Published("p", "a.x", 1, 1, 1), 0.0), disk)
    a.step(fx.Tick(), 5.0)
    durable(a.step(fx.Tick(), 25.0), disk)
    assert sorted(disk) == ["topic/0"]
    record = disk["topic/0"]
    assert isinstance(record, TopicRecord)
    assert record.closed == 1


def test_subscriptions_survive_a_restart() -> None:
    disk: dict[str, AnyRecord] = {"epoch": EpochRecord(1)}
    a = host()
    durable(a.step(Locate("s", ("a.x", "a.y")), 0.0), disk)
    durable(a.step(register("s", 1, (0, 1)), 0.0), disk)
    again, _ = restarted(disk)
    assert again.group_of("a.x") == (0, 1)


def test_a_log_whose_ranks_do_not_add_up_is_refused() -> None:
    a = Host("a", 0, ("a.*",), "log-a", HostConfig())
    with pytest.raises(LogCorrupt, match=r"topic a\.x has rank 7"):
        a.start([TopicRecord(7, "a.x", 0, 0)], fx.Neighbours(None, None), 0.0)


def lower_of_two() -> tuple[Host, Host]:
    a = host("a", 0, fx.Neighbours((1, "b"), None))
    b = host("b", 1, fx.Neighbours(None, (0, "a")))
    for made, other in ((a, b), (b, a)):
        made.step(other.claim(), 0.0)
    link(a, b)
    return a, b


def link(a: Host, b: Host) -> None:
    (welcome,) = sent(b.step(Hello(0, a.state.epoch), 0.0), Chained)
    a.step(welcome, 0.0)


def test_a_stamp_is_filled_by_the_higher_host_and_comes_straight_home() -> None:
    a, b = lower_of_two()
    a.step(Locate("s", ("a.x",)), 0.0)
    b.step(Locate("s", ("b.x",)), 0.0)
    low, high = rank_at(1, 0), rank_at(0, 0)
    (onward,) = sent(b.step(register("s", 1, (high, low)), 0.0), Chained)
    assert sent(a.step(onward, 0.0), Registered)[0].values == (0, 0)
    a.step(create(1), 0.0)
    (fill,) = sent(b.step(create(1, topic="b.x"), 0.0), Chained)
    (complete,) = sent(a.step(fill, 0.0), Complete)
    (answer,) = sent(b.step(complete, 0.0), Stamped)
    assert (answer.stamp.ranks, answer.stamp.values) == ((high,), (1,))
    (own,) = sent(a.step(create(2), 0.0), Stamped)
    assert (own.stamp.ranks, own.stamp.values) == ((low,), (1,))
    assert a.step(fill, 0.0) == []


def test_a_frame_out_of_turn_is_dropped() -> None:
    a, b = lower_of_two()
    a.step(Locate("s", ("a.x",)), 0.0)
    b.step(Locate("s", ("b.x",)), 0.0)
    (onward,) = sent(b.step(register("s", 1, (0, rank_at(1, 0))), 0.0), Chained)
    a.step(onward, 0.0)
    (first,) = sent(b.step(create(1, topic="b.x"), 0.0), Chained)
    (second,) = sent(b.step(create(2, topic="b.x"), 0.0), Chained)
    assert sent(a.step(second, 0.0), Complete)
    assert a.step(first, 0.0) == []


def test_a_restarted_host_serves_only_after_it_has_heard_what_passed_by() -> None:
    _, b = lower_of_two()
    b.step(Locate("s", ("b.x",)), 0.0)
    b.step(create(1, topic="b.x"), 0.0)
    again = Host("a", 0, ("a.*",), "log-a", HostConfig())
    again.start([EpochRecord(1)], fx.Neighbours((1, "b"), None), 0.0)
    assert not again.serving
    assert again.step(create(1), 0.0) == []
    link(again, b)
    assert again.serving
    assert again.state.counters.get(rank_at(1, 0)) == 1


def test_frames_for_an_earlier_life_are_dropped() -> None:
    a, _ = lower_of_two()
    stale = Chained(1, 1, 0, 99, Welcome((), ()))
    assert sent(a.step(stale, 0.0), Hello) == [Hello(0, 1)], "the sender is told of this life"
    assert a.down is not None
    assert a.down.seq != 99


def test_a_former_holder_of_a_neighbours_rank_is_not_linked_to() -> None:
    a, b = lower_of_two()
    a.step(fx.Claimed(1, "b", 5, "log-b", ("b.*",)), 0.0)
    b.step(fx.Claimed(0, "a", 5, "log-a", ("a.*",)), 0.0)
    assert a.step(Chained(1, 1, 1, 50, Welcome((), ())), 0.0) == []
    assert a.step(Hail(1, 1), 0.0) == []
    assert sent(b.step(Hello(0, 1), 0.0), Chained) == []
    assert sent(b.step(Hello(0, 5), 0.0), Chained)


def test_a_counter_that_goes_back_on_the_chain_is_refused() -> None:
    a, _ = lower_of_two()
    a.step(Locate("s", ("a.x",)), 0.0)
    a.state.counters.raise_to(rank_at(1, 1), 9)
    fill = Fill(1, 1, rank_at(1, 0), 1, 1, (0, rank_at(1, 1)), (0, 5))
    (report,) = of(a.step(Chained(1, 1, 1, 50, fill), 0.0), fx.Report)
    assert "went back to 5" in report.reason


@pytest.mark.parametrize(
    ("fill", "reason"),
    [
        (Fill(1, 1, rank_at(1, 0), 1, 1, (), ()), "does not come this way"),
        (Fill(1, 1, rank_at(0, 0), 1, 1, (1,), (0,)), "does not come this way"),
        (Fill(1, 1, rank_at(1, 0), 1, 1, (0,), (0, 0)), "1 topics and 2 values"),
        (Fill(1, 1, rank_at(1, 0), 1, 1, (9,), (0,)), "does not exist here"),
    ],
)
def test_a_malformed_stamp_on_the_chain_is_refused(fill: Fill, reason: str) -> None:
    a, _ = lower_of_two()
    a.step(Locate("s", ("a.x",)), 0.0)
    (report,) = of(a.step(Chained(1, 1, 1, 50, fill), 0.0), fx.Report)
    assert reason in report.reason


def test_a_newer_holder_of_the_rank_fences_this_one() -> None:
    a = with_topics("a.x")
    (report,) = of(a.step(fx.Claimed(0, "a2", 7, "log-a", ("a.*",)), 0.0), fx.Report)
    assert report.reason == "host a of epoch 1 is fenced by a2, epoch 7"
    assert sent(a.step(create(1), 0.0), Refused)[0].reason == report.reason
    assert a.next_deadline() is None


def test_a_topic_that_another_host_claims_by_name_is_refused() -> None:
    a = host()
    a.step(fx.Claimed(3, "c", 1, "log-c", ("a.x",)), 0.0)
    assert "belongs to host c" in sent(a.step(create(1), 0.0), Refused)[0].reason


def test_a_topic_that_nobody_claims_is_refused() -> None:
    a = host()
    assert "no host claims topic 'z'" in sent(a.step(create(1, topic="z"), 0.0), Refused)[0].reason
    assert "no host claims topic 'z'" in sent(a.step(Locate("s", ("z",)), 0.0), Refused)[0].reason


def test_a_silent_subscriber_is_removed_and_told_when_it_returns() -> None:
    a = with_topics("a.x", "a.y", expiry=10.0)
    a.step(register("s", 1, (0, 1)), 0.0)
    a.step(register("s", 1, (0, 1), refresh=True), 5.0)
    assert of(a.step(fx.Tick(), 10.0), fx.Report) == []
    assert of(a.step(fx.Tick(), 15.0), fx.Report)
    assert a.group_of("a.x") == (0,)
    for refresh in (True, False):
        (refused,) = sent(a.step(register("s", 1 + (not refresh), (0, 1), (0, 1), refresh=refresh), 16.0), Refused)
        assert refused.current == 0
    assert sent(a.step(register("s", 3, (0, 1), (0, 1), anew=True), 16.0), Registered)


def test_a_confirmed_number_that_a_subscriber_misses_is_asked_for_and_then_declared_lost() -> None:
    a = with_topics("a.x", "a.y", search=1.0, searches=2)
    a.step(register("s", 1, (0, 1)), 0.0)
    confirmed(a, 1)
    assert sent(a.step(Missing("s", 0, 1, 1), 0.0), Resend) == [Resend("a.x", 1)]
    assert sent(a.step(fx.Tick(), 1.0), Resend)
    (void,) = sent(a.step(fx.Tick(), 2.0), Void)
    assert (void.first, void.lost, void.placed, void.ranks, void.values) == (1, True, True, (1,), (0,))


def test_a_void_that_a_subscriber_misses_is_told_again() -> None:
    a = host(lease=1.0)
    a.step(create(1), 0.0)
    a.step(fx.Tick(), 1.0)
    assert [(void.first, void.lost) for void in sent(a.step(Missing("s", 0, 1, 1), 2.0), Void)] == [(1, False)]


def test_no_more_than_so_many_closed_tickets_are_kept() -> None:
    a = with_topics("a.x", retained=2)
    for seq in range(1, 6):
        confirmed(a, seq)
    a.step(fx.Tick(), 1.0)
    assert sorted(a.state.topics["a.x"].by_first) == [4, 5]
    assert [void.lost for void in sent(a.step(Missing("s", 0, 1, 1), 1.0), Void)] == [True]


def test_a_number_that_was_never_given_is_not_declared_lost() -> None:
    a = with_topics("a.x")
    assert sent(a.step(Missing("s", 0, 1, 1), 0.0), Void) == []


def test_numbers_skipped_by_a_restart_without_durable_tickets_are_in_doubt() -> None:
    disk: dict[str, AnyRecord] = {"epoch": EpochRecord(1)}
    durable(host(block=10).step(create(1), 0.0), disk)
    again, _ = restarted(disk, block=10, lease=5.0)
    assert [void.doubtful for void in published(again.step(fx.Tick(), 105.0), Void)] == [True]
    assert [void.doubtful for void in sent(again.step(Missing("s", 0, 1, 1), 106.0), Void)] == [True]


def restarted_behind_a_settled_number() -> Host:
    """Number 1 of a.x was published and is settled on disk; its ticket is not there any more."""
    disk: dict[str, AnyRecord] = {"epoch": EpochRecord(1)}
    a = host(block=1)
    durable(a.step(create(1), 0.0), disk)
    durable(a.step(Published("p", "a.x", 1, 1, 1), 0.0), disk)
    for seq in (2, 3):
        durable(a.step(create(seq), 0.0), disk)  # the next block is reserved: what is settled is written down with it
    again, _ = restarted(disk, block=1, lease=5.0)
    assert again.state.topics["a.x"].closed == 1
    return again


def test_a_settled_number_of_a_publisher_that_still_has_it_is_not_declared_lost_after_a_restart() -> None:
    again = restarted_behind_a_settled_number()
    assert sent(again.step(Missing("s", 0, 1, 1), 101.0), Void) == [], "its publisher is about to say that it has it"
    assert sent(again.step(Published("p", "a.x", 1, 1, 1), 102.0), Acknowledged)
    for now in (103.0, 120.0):
        again.step(fx.Tick(), now)
    (effect,) = again.step(Missing("s", 0, 1, 1), 121.0)
    assert effect == fx.Send("p", Resend("a.x", 1))


def test_a_settled_number_that_nobody_claims_after_a_restart_is_declared_lost_when_a_lease_is_over() -> None:
    again = restarted_behind_a_settled_number()
    again.step(fx.Tick(), 105.0)
    assert [void.lost for void in sent(again.step(Missing("s", 0, 1, 1), 106.0), Void)] == [True]


def test_a_host_with_its_limit_of_topics_refuses_another() -> None:
    a = with_topics("a.x", topics=1)
    assert "its limit" in sent(a.step(create(1, topic="a.y"), 0.0), Refused)[0].reason


def test_a_host_with_its_limit_of_subscribers_refuses_another() -> None:
    a = with_topics("a.x", subscribers=1)
    assert sent(a.step(register("s", 1, (0,)), 0.0), Registered)
    (refused,) = sent(a.step(register("t", 1, (0,)), 0.0), Refused)
    assert (refused.about, refused.reason) == ("limit", "host a has 1 subscribers, its limit")
    assert sent(a.step(register("s", 2, (), (0,)), 0.0), Registered), "who is there may change and leave"


def test_a_publisher_that_never_had_a_number_leaves_nothing_behind() -> None:
    a = with_topics("a.x")
    for number in range(100):
        a.step(create(2, publisher=f"p{number}", low=1), 0.0)
    assert a.state.topics["a.x"].lines == {}


def voided_long_ago(disk: dict[str, AnyRecord], **config: object) -> Host:
    """A host that has voided number 1 of a.x, given number 2, and forgotten the tickets of both."""
    a = host(lease=10.0, retention=60.0, block=10, **config)
    durable(a.step(create(1), 0.0), disk)
    durable(a.step(fx.Tick(), 10.0), disk)
    durable(a.step(create(1, publisher="q"), 11.0), disk)
    durable(a.step(Published("q", "a.x", 1, 2, 1), 11.0), disk)
    for now in (25.0, 85.0, 200.0):
        durable(a.step(fx.Tick(), now), disk)
    assert not a.state.topics["a.x"].by_first
    return a


@pytest.mark.parametrize("durable_tickets", [False, True])
def test_a_void_number_is_never_acknowledged_however_late_it_is_confirmed(durable_tickets: bool) -> None:
    disk: dict[str, AnyRecord] = {"epoch": EpochRecord(1)}
    a = voided_long_ago(disk, durable_tickets=durable_tickets)
    again, _ = restarted(disk, block=10, durable_tickets=durable_tickets)
    for late in (a, again):
        answers = late.step(Published("p", "a.x", 1, 1, 1), 300.0)
        assert [voided.first for voided in sent(answers, Voided)] == [1]
        assert sent(answers, Acknowledged) == []
        assert sent(late.step(Published("q", "a.x", 1, 2, 1), 300.0), Acknowledged)


def test_a_void_is_durable_before_it_is_said() -> None:
    a = host(lease=10.0)
    a.step(create(1), 0.0)
    kinds = [type(effect) for effect in a.step(fx.Tick(), 10.0)]
    assert kinds.index(fx.Persist) < kinds.index(fx.Publish)


def test_of_voids_that_were_forgotten_the_host_says_that_it_does_not_know() -> None:
    disk: dict[str, AnyRecord] = {"epoch": EpochRecord(1)}
    a = host(lease=10.0, retention=60.0, voids=1)
    for seq in (1, 2):
        durable(a.step(create(seq), 0.0), disk)
    durable(a.step(fx.Tick(), 10.0), disk)
    durable(a.step(fx.Tick(), 100.0), disk)
    assert [key for key in disk if key.startswith("void/")] == ["void/0/2"]
    again, _ = restarted(disk, voids=1)
    for late in (a, again):
        (refused,) = sent(late.step(Published("p", "a.x", 1, 1, 1), 200.0), Refused)
        assert (refused.number, "no longer known" in refused.reason) == (1, True)
        assert sent(late.step(Published("p", "a.x", 2, 2, 1), 200.0), Voided)


def test_of_a_number_that_may_have_been_void_no_subscriber_is_told_that_an_event_is_lost() -> None:
    a = host(lease=10.0, retention=60.0, voids=1)
    for seq in (1, 2, 3):
        a.step(create(seq), 0.0)
    a.step(Published("p", "a.x", 3, 3, 1), 0.0)
    for now in (10.0, 100.0):
        a.step(fx.Tick(), now)
    answers = sent(a.step(Missing("s", 0, 1, 3), 200.0), Void)
    assert [(void.first, void.lost, void.doubtful) for void in answers] == [
        (1, False, True), (2, False, False), (3, True, False),
    ]  # fmt: skip


def test_a_void_that_was_forgotten_beside_an_open_number_is_not_acknowledged_after_a_restart() -> None:
    disk: dict[str, AnyRecord] = {"epoch": EpochRecord(1)}
    a = host(lease=10.0, voids=1, block=10)
    durable(a.step(create(1, publisher="open"), 0.0), disk)
    for generation in (1, 2, 3):  # numbers 2 to 4; 2 and 3 become void
        durable(a.step(create(1, publisher="p", generation=generation), 0.0), disk)
    again, _ = restarted(disk, voids=1, block=10)
    (refused,) = sent(again.step(Published("p", "a.x", 1, 2, 1), 101.0), Refused)
    assert (refused.number, "no longer known" in refused.reason) == (2, True)


def test_a_second_number_of_a_request_is_voided_as_soon_as_the_first_is_confirmed() -> None:
    disk: dict[str, AnyRecord] = {"epoch": EpochRecord(1)}
    durable(host(block=10).step(create(1), 0.0), disk)
    again, _ = restarted(disk, block=10, lease=5.0)
    assert numbers(again.step(create(1), 100.0)) == [12]
    effects = again.step(Published("p", "a.x", 1, 1, 1), 100.1)
    assert [(void.first, void.last) for void in published(effects, Void)] == [(12, 12)]
    assert sent(effects, Acknowledged)


def test_a_tick_at_the_end_of_a_retention_ends_it_however_the_times_are_rounded() -> None:
    for now in (turn * 0.037 for turn in range(2000)):
        a = host(lease=0.8, retention=0.05)
        a.step(create(1), now)
        a.step(Published("p", "a.x", 1, 1, 1), now)
        a.step(fx.Tick(), now)
        due = a.next_deadline()
        while due is not None:
            a.step(fx.Tick(), due)
            later = a.next_deadline()
            assert later is None or later > due
            due = later


def test_a_new_holder_tells_with_the_baseline_what_its_former_one_may_still_give() -> None:
    disk: dict[str, AnyRecord] = {"epoch": EpochRecord(1)}
    durable(host(block=10).step(create(1), 0.0), disk)
    again, _ = restarted(disk, block=10, lease=5.0)
    again.step(Published("p", "a.x", 1, 1, 1), 100.0)
    (done,) = sent(again.step(register("s", 1, (0,)), 100.0), Registered)
    assert (done.values, done.unsure) == ((11,), ((0, 2, 11),))
    (alive,) = sent(again.step(register("s", 1, (0,), refresh=True), 101.0), Registered)
    assert alive.unsure == ()
    again.step(fx.Tick(), 105.0)
    (later,) = sent(again.step(register("t", 1, (0,)), 105.0), Registered)
    assert later.unsure == (), "what nobody has confirmed is void"


def test_numbers_in_doubt_that_are_in_too_many_pieces_are_waited_for() -> None:
    disk: dict[str, AnyRecord] = {"epoch": EpochRecord(1)}
    durable(host(block=10).step(create(1), 0.0), disk)
    again, _ = restarted(disk, block=10, lease=5.0, unsure_ranges=2)
    for number in (2, 4, 6):
        again.step(Published("p", "a.x", number, number, 1), 100.0)
    effects = again.step(register("s", 1, (0,)), 100.0)
    assert [report.reason for report in of(effects, fx.Report)] == [
        "s waits, at most for a lease: 4 ranges of numbers are in doubt, more than 2 are not told"
    ]
    assert (sent(effects, Registered), again.registry.known) == ([], {})
    again.step(fx.Tick(), 105.0)
    assert sent(again.step(register("s", 1, (0,)), 105.0), Registered)
