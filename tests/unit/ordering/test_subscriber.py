from __future__ import annotations

import pytest

from tests.unit.ordering.build import event, of, sent, subscriber
from txlayer.errors import UsageError
from txlayer.ordering import effects as fx
from txlayer.ordering.messages import Event, Locate, Located, Missing, Refused, Register, Registered, Void
from txlayer.ordering.subscriber import Subscriber
from txlayer.ordering.subscriber_config import Mode
from txlayer.ordering.timestamp import Stamp, host_of, rank_at

B = rank_at(1, 0)
ANOTHER = fx.Claimed(0, "a", 9, "another", ("a.*",), first=9)


def subscribed(s: Subscriber, baselines: dict[str, tuple[int, int]], now: float = 0.0) -> list[fx.Effect]:
    """Take a subscription through all its steps; `baselines` has rank and baseline of each topic."""
    s.step(fx.Want(tuple(baselines)), now)
    for topic, (rank, _) in baselines.items():
        s.step(Located(host_of(rank), 1, (topic,), (rank,)), now)
    effects: list[fx.Effect] = []
    for topic in baselines:
        effects = s.step(fx.BusSubscribed(topic), now)
    (register,) = sent(effects, Register)
    values = dict(baselines.values())
    return s.step(Registered(register.version, False, now, tuple(values), tuple(values.values())), now)


def got(effects: list[fx.Effect]) -> list[tuple[int, int]]:
    return [(one.event.stamp.rank, one.event.stamp.number) for one in of(effects, fx.Deliver)]


def test_the_bus_comes_first_then_the_rank_then_the_chain_from_its_lowest_host() -> None:
    s = subscriber()
    effects = s.step(fx.Want(("a.x", "b.x")), 0.0)
    assert {one.topic for one in of(effects, fx.BusSubscribe)} == {"a.x", "b.x"}
    assert sent(effects, Locate) == []
    s.step(fx.BusSubscribed("a.x"), 0.0)
    assert len(sent(s.step(fx.BusSubscribed("b.x"), 0.0), Locate)) == 2
    s.step(Located(0, 1, ("a.x",), (0,)), 0.0)
    effects = s.step(Located(1, 1, ("b.x",), (B,)), 0.0)
    assert [(one.to, one.message.new) for one in of(effects, fx.Send) if isinstance(one.message, Register)] == [
        ("b", (0, B))
    ]


def test_what_is_at_or_below_the_baseline_is_not_delivered_and_what_came_meanwhile_is() -> None:
    s = subscriber()
    s.step(fx.Want(("a.x",)), 0.0)
    s.step(fx.BusSubscribed("a.x"), 0.0)
    assert s.step(event(0, 6), 0.0) == []
    assert s.step(event(0, 5), 0.0) == []
    s.step(Located(0, 1, ("a.x",), (0,)), 0.0)
    effects = s.step(Registered(1, False, 0.0, (0,), (5,)), 0.0)
    assert got(effects) == [(0, 6)]
    assert of(effects, fx.Changed) == [fx.Changed(("a.x",))]


def test_the_clocks_of_other_topics_are_not_touched_by_a_subscription() -> None:
    s = subscriber()
    subscribed(s, {"a.x": (0, 0)})
    s.step(fx.Want(("a.x", "a.y")), 0.0)
    s.step(fx.BusSubscribed("a.y"), 0.0)
    s.step(Located(0, 1, ("a.y",), (1,)), 0.0)
    s.step(Registered(2, False, 0.0, (0, 1), (9, 4)), 0.0)
    assert got(s.step(event(0, 1), 0.0)) == [(0, 1)]


def test_an_event_with_an_entry_for_a_topic_under_way_is_held_back() -> None:
    s = subscriber()
    subscribed(s, {"a.x": (0, 0)})
    s.step(fx.Want(("a.x", "a.y")), 0.0)
    s.step(fx.BusSubscribed("a.y"), 0.0)
    s.step(Located(0, 1, ("a.y",), (1,)), 0.0)
    assert got(s.step(event(0, 1, {1: 5}), 0.0)) == []
    assert got(s.step(event(1, 5, {0: 0}), 0.0)) == []
    assert got(s.step(Registered(2, False, 0.0, (0, 1), (0, 4)), 0.0)) == [(1, 5), (0, 1)]


def test_an_operation_is_repeated_with_its_version_until_it_is_answered() -> None:
    s = subscriber(repeat=0.5)
    s.step(fx.Want(("a.x",)), 0.0)
    s.step(fx.BusSubscribed("a.x"), 0.0)
    s.step(Located(0, 1, ("a.x",), (0,)), 0.0)
    assert [one.version for one in sent(s.step(fx.Tick(), 0.6), Register)] == [1]
    s.step(fx.Want(()), 0.7)
    assert [one.version for one in sent(s.step(fx.Tick(), 1.2), Register)] == [1]
    effects = s.step(Registered(1, False, 1.0, (0,), (0,)), 1.3)
    assert [(one.version, one.new, one.old) for one in sent(effects, Register)] == [(2, (), (0,))]


def test_an_unsubscribed_topic_is_forgotten_at_once() -> None:
    s = subscriber()
    subscribed(s, {"a.x": (0, 0)})
    effects = s.step(fx.Want(()), 0.0)
    assert of(effects, fx.BusUnsubscribe) == [fx.BusUnsubscribe("a.x")]
    assert got(s.step(event(0, 1), 0.0)) == []
    assert s.buffer.size == 0


def test_a_number_that_does_not_come_is_asked_for() -> None:
    s = subscriber(resend=2.0)
    subscribed(s, {"a.x": (0, 0)})
    s.step(event(0, 4), 1.0)
    assert sent(s.step(fx.Tick(), 2.9), Missing) == []
    assert sent(s.step(fx.Tick(), 3.0), Missing) == [Missing("s", 0, 1, 3)]
    assert sent(s.step(fx.Tick(), 5.0), Missing) == [Missing("s", 0, 1, 3)]
    s.step(event(0, 2), 6.0)
    assert sent(s.step(fx.Tick(), 7.0), Missing) == [Missing("s", 0, 1, 1), Missing("s", 0, 3, 3)]


def test_a_loss_at_the_very_end_is_noticed_by_the_sign_of_life() -> None:
    s = subscriber(resend=2.0, refresh=10.0)
    subscribed(s, {"a.x": (0, 0)})
    (alive,) = sent(s.step(fx.Tick(), 10.0), Register)
    assert alive.refresh
    s.step(Registered(1, True, 10.0, (0,), (1,)), 10.1)
    assert sent(s.step(fx.Tick(), 12.2), Missing) == [Missing("s", 0, 1, 1)]


def test_without_an_answer_to_signs_of_life_delivery_waits() -> None:
    s = subscriber(expiry=20.0)
    subscribed(s, {"a.x": (0, 0)})
    assert of(s.step(fx.Tick(), 20.0), fx.Report)
    assert got(s.step(event(0, 1), 21.0)) == []
    assert got(s.step(Registered(1, True, 19.0, (0,), (1,)), 22.0)) == [(0, 1)]


def test_a_subscriber_that_was_removed_goes_on_from_new_baselines_and_reports_the_gap() -> None:
    s = subscriber()
    subscribed(s, {"a.x": (0, 0)})
    (register,) = sent(s.step(Refused("register", "", 1, 0, 1, "removed", 0), 5.0), Register)
    assert (register.version, register.anew) == (2, True)
    assert got(s.step(event(0, 1), 5.0)) == []
    effects = s.step(Registered(2, False, 5.0, (0,), (7,)), 5.1)
    assert of(effects, fx.Gap) == [fx.Gap("a.x", 1, 7)]
    assert got(s.step(event(0, 8), 5.2)) == [(0, 8)]


def test_a_durable_subscriber_goes_on_where_its_cursor_stands() -> None:
    s = subscriber()
    subscribed(s, {"a.x": (0, 0)})
    s.step(event(0, 1), 0.0)
    cursor = s.cursor()
    s.step(event(0, 2), 0.0)
    again = subscriber()
    assert of(again.resume(cursor, 9.0), fx.BusSubscribe) == [fx.BusSubscribe("a.x")]
    again.step(event(0, 1), 9.0)
    again.step(event(0, 2), 9.0)
    (alive,) = sent(again.step(fx.Tick(), 9.0), Register)
    assert (alive.version, alive.refresh) == (1, True)
    assert got(again.step(Registered(1, True, 9.0, (0,), (2,)), 9.1)) == [(0, 2)]


@pytest.mark.parametrize(
    "message",
    [
        Event("p", 1, Stamp(0, 0, 1), b""),
        Event("p", 1, Stamp(0, 1, 0), b""),
        Event("p", 1, Stamp(0, 1, 1, 1), b""),
        Event("p", 1, Stamp(0, 1, 1, 0, (0,), (1,)), b""),
        Event("p", 1, Stamp(0, 1, 1, 0, (2, 1), (1, 1)), b""),
        Event("p", 1, Stamp(0, 1, 1, 0, (1,), (1, 1)), b""),
        Event("p", 1, Stamp(0, 1, 1, 0, (1,), (-1,)), b""),
        Event("p", 1, Stamp(rank_at(9, 0), 1, 1), b""),
        Void(0, 3, 2, 1),
        Void(0, 1, 1, 1, True, True, (1,), ()),
        Void(rank_at(9, 0), 1, 1, 1),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason_and_changes_nothing(message: Event | Void) -> None:
    s = subscriber()
    subscribed(s, {"a.x": (0, 0)})
    (report,) = s.step(message, 0.0)
    assert isinstance(report, fx.Report)
    assert report.reason
    assert got(s.step(event(0, 1), 0.0)) == [(0, 1)]


def test_an_event_of_an_epoch_that_is_not_known_waits_for_the_directory() -> None:
    s = subscriber()
    subscribed(s, {"a.x": (0, 0)})
    assert s.step(event(0, 1, epoch=2), 0.0) == []
    assert got(s.step(fx.Claimed(0, "a", 2, "log-a", ("a.*",)), 0.0)) == [(0, 1)]


def test_a_rank_that_changes_is_refused() -> None:
    s = subscriber()
    subscribed(s, {"a.x": (0, 0)})
    (report,) = of(s.step(Located(0, 1, ("a.x",), (5,)), 0.0), fx.Report)
    assert report.reason == "topic a.x changed its rank from 0 to 5"


def test_topics_of_a_host_with_another_log_begin_anew_with_a_gap_that_is_not_certain() -> None:
    s = subscriber()
    subscribed(s, {"a.x": (0, 0), "b.x": (B, 0)})
    s.step(event(0, 1), 0.0)
    effects = s.step(ANOTHER, 0.0)
    assert "no longer has its log" in of(effects, fx.Report)[0].reason
    assert got(s.step(event(0, 2, epoch=1), 0.0)) == [], "it is of the former log"
    assert sent(s.step(fx.BusSubscribed("a.x"), 0.0), Locate) == [Locate("s", ("a.x",))]
    (register,) = sent(s.step(Located(0, 9, ("a.x",), (5,)), 0.0), Register)
    assert (register.new, register.old) == ((5, B), (B,))
    effects = s.step(Registered(register.version, False, 0.0, (5, B), (3, 0)), 0.0)
    assert of(effects, fx.Gap) == [fx.Gap("a.x", 2, 2, certain=False), fx.Gap("a.x", 1, 3, certain=False)]
    assert got(s.step(event(5, 4, epoch=9), 0.0)) == [(5, 4)]
    assert got(s.step(event(B, 1), 0.0)) == [(B, 1)]


def test_an_operation_that_another_log_breaks_off_holds_nothing_back() -> None:
    s = subscriber()
    subscribed(s, {"a.x": (0, 0), "b.x": (B, 0)})
    s.step(fx.Want(("a.x", "b.x", "b.y")), 0.0)
    s.step(fx.BusSubscribed("b.y"), 0.0)
    assert sent(s.step(Located(1, 1, ("b.y",), (B + 1,)), 0.0), Register)
    s.step(ANOTHER, 0.0)
    for topic in ("a.x", "b.y"):
        s.step(fx.BusSubscribed(topic), 0.0)
    s.step(fx.Want(("b.x",)), 0.0)
    assert got(s.step(event(B, 1, {B + 1: 7}), 0.0)) == [(B, 1)], "b.y is no longer wanted"
    (register,) = sent(s.step(fx.Tick(), 9.0), Register)
    assert (register.new, register.old) == ((B,), (B, B + 1)), "the host may have it of us"


def test_who_left_all_topics_of_a_host_with_another_log_waits_for_no_answer() -> None:
    s = subscriber(expiry=5.0)
    subscribed(s, {"a.x": (0, 0)})
    (register,) = sent(s.step(fx.Want(()), 0.0), Register)
    s.step(ANOTHER, 0.0)
    s.step(Refused("register", "", register.version, 0, 9, "a topic of this host that does not exist"), 0.1)
    s.step(fx.Tick(), 9.0)
    assert s.at_rest


@pytest.mark.parametrize("claim_comes_first", [True, False])
def test_a_cursor_that_rests_on_another_log_begins_anew_with_a_gap(claim_comes_first: bool) -> None:
    s = subscriber()
    subscribed(s, {"a.x": (0, 0)})
    s.step(event(0, 1), 0.0)
    cursor = s.cursor()
    again = Subscriber("s", s.config)
    if claim_comes_first:
        again.step(ANOTHER, 1.0)
        again.resume(cursor, 1.0)
    else:
        again.resume(cursor, 1.0)
        again.step(ANOTHER, 1.0)
    assert again.cursor().topics == cursor.topics, "until the gap is reported the cursor says what it said"
    assert again.cursor().logs == cursor.logs
    assert again.wanted == ("a.x",)
    again.step(fx.BusSubscribed("a.x"), 1.0)
    (register,) = sent(again.step(Located(0, 9, ("a.x",), (0,)), 1.0), Register)
    effects = again.step(Registered(register.version, False, 1.0, (0,), (0,)), 1.0)
    assert of(effects, fx.Gap) == [fx.Gap("a.x", 2, 2, certain=False)]
    assert got(again.step(event(0, 1, epoch=9), 1.0)) == [(0, 1)]
    assert again.cursor().logs == ((0, "another"),)


def test_a_registration_that_is_refused_is_repeated_in_its_time_and_tells_the_reason() -> None:
    s = subscriber(repeat=0.5)
    s.step(fx.Want(("a.x",)), 0.0)
    s.step(fx.BusSubscribed("a.x"), 0.0)
    s.step(Located(0, 1, ("a.x",), (0,)), 0.0)
    assert sent(s.step(Refused("register", "", 1, 0, 1, "no such topic"), 0.1), Register) == []
    assert s.waits_for() == "refused by host a: no such topic"
    assert [one.version for one in sent(s.step(fx.Tick(), 0.5), Register)] == [2]


def test_a_host_that_has_its_limit_of_subscribers_is_named_and_nothing_else_stops() -> None:
    s = subscriber()
    s.step(fx.Want(("a.x",)), 0.0)
    s.step(fx.BusSubscribed("a.x"), 0.0)
    s.step(Located(0, 1, ("a.x",), (0,)), 0.0)
    s.step(Refused("limit", "", 1, 0, 1, "host a has 1 subscribers, its limit"), 0.1)
    assert s.waits_for() == "refused by host a: host a has 1 subscribers, its limit"
    assert not s.stopped
    assert [again.version for again in sent(s.step(fx.Tick(), 1.0), Register)] == [1]


def test_what_is_waited_for_is_named() -> None:
    s = subscriber()
    s.step(fx.Want(("a.x", "c.x")), 0.0)
    assert s.waits_for() == "no answer from a host that claims c.x"
    s.step(fx.Want(("a.x", "b.x")), 0.0)
    assert s.waits_for() == "no answer from host a, b"
    s.step(fx.BusSubscribed("a.x"), 0.0)
    s.step(fx.BusSubscribed("b.x"), 0.0)
    s.step(Located(0, 1, ("a.x",), (0,)), 0.0)
    s.step(Located(1, 1, ("b.x",), (B,)), 0.0)
    assert s.waits_for() == "no answer from host b, or from host a"


def test_an_answer_without_the_counter_of_a_new_topic_is_refused() -> None:
    s = subscriber(repeat=0.5)
    s.step(fx.Want(("a.x",)), 0.0)
    s.step(fx.BusSubscribed("a.x"), 0.0)
    s.step(Located(0, 1, ("a.x",), (0,)), 0.0)
    (report,) = s.step(Registered(1, False, 0.0, (), ()), 0.0)
    assert isinstance(report, fx.Report)
    assert len(sent(s.step(fx.Tick(), 0.5), Register)) == 1
    s.step(Registered(1, False, 0.0, (0,), (0,)), 0.6)
    assert s.at_rest


def test_nothing_waits_for_a_topic_that_is_no_longer_wanted() -> None:
    s = subscriber()
    subscribed(s, {"a.x": (0, 0)})
    s.step(fx.Want(("a.x", "b.x")), 0.0)
    s.step(fx.BusSubscribed("b.x"), 0.0)
    s.step(Located(1, 1, ("b.x",), (B,)), 0.0)
    assert got(s.step(event(0, 1, {B: 5}), 0.0)) == []
    assert got(s.step(fx.Want(("a.x",)), 0.0)) == [(0, 1)]
    effects = s.step(Registered(2, False, 0.0, (B, 0), (5, 1)), 0.0)
    assert of(effects, fx.Changed) == [fx.Changed(("a.x",))]
    (register,) = sent(effects, Register)
    assert (register.new, register.old) == ((0,), (0, B)), "the hosts hear of it"
    s.step(Registered(3, False, 0.0, (0,), (1,)), 0.0)
    assert s.at_rest
    assert list(s.topics) == ["a.x"]


def test_a_topic_that_is_not_located_yet_is_given_up_at_once() -> None:
    s = subscriber()
    subscribed(s, {"a.x": (0, 0)})
    s.step(fx.Want(("a.x", "b.x")), 0.0)
    s.step(fx.BusSubscribed("b.x"), 0.0)
    s.step(fx.Want(("a.x",)), 0.0)
    assert s.at_rest


def test_a_stamp_with_a_base_is_refused_in_unreliable_mode() -> None:
    s = subscriber(Mode.UNRELIABLE)
    subscribed(s, {"a.x": (0, 0)})
    assert "rests on a base" in of(s.step(event(0, 2, base=1), 0.0), fx.Report)[0].reason


def test_per_topic_mode_asks_for_no_group_and_waits_for_no_other_topic() -> None:
    s = subscriber(Mode.PER_TOPIC)
    s.step(fx.Want(("a.x", "a.y")), 0.0)
    s.step(fx.BusSubscribed("a.x"), 0.0)
    s.step(Located(0, 1, ("a.x", "a.y"), (0, 1)), 0.0)
    (register,) = sent(s.step(fx.BusSubscribed("a.y"), 0.0), Register)
    assert not register.related
    s.step(Registered(1, False, 0.0, (0, 1), (0, 0)), 0.0)
    assert got(s.step(event(0, 1, {1: 5}), 0.0)) == [(0, 1)]


def test_wildcards_are_refused() -> None:
    with pytest.raises(UsageError, match="wildcards"):
        subscriber().step(fx.Want(("a.*",)), 0.0)


def test_a_topic_that_nobody_owns_fails_and_leaves_the_rest_as_it_was() -> None:
    s = subscriber()
    subscribed(s, {"a.x": (0, 0)})
    s.step(fx.Want(("a.x", "a.y")), 0.0)
    s.step(fx.BusSubscribed("a.y"), 0.0)
    effects = s.step(Refused("locate", "a.y", 0, 0, 1, "belongs to host c"), 0.0)
    assert of(effects, fx.Failed) == [fx.Failed("a.y", 0, "belongs to host c")]
    assert of(effects, fx.BusUnsubscribe) == [fx.BusUnsubscribe("a.y")]
    assert got(s.step(event(0, 1), 0.0)) == [(0, 1)]
    assert s.at_rest


def test_a_durable_subscriber_saves_before_its_new_set_leaves() -> None:
    s = subscriber()
    subscribed(s, {"a.x": (0, 0), "a.y": (1, 0)})
    effects = s.step(fx.Want(("a.x",)), 1.0)
    places = [type(effect).__name__ for effect in effects]
    assert places.index("Checkpoint") < places.index("Send")
    assert [topic for topic, _, _ in s.cursor().topics] == ["a.x"]
    assert s.cursor().version == 2


@pytest.mark.parametrize("wanted", [("a.x",), ("a.x", "a.z")])
def test_a_durable_subscriber_saves_before_the_bus_lets_go_of_a_topic(wanted: tuple[str, ...]) -> None:
    # Resumed with the topic, it would wait for what the bus has not kept for it.
    s = subscriber()
    subscribed(s, {"a.x": (0, 0), "a.y": (1, 0)})
    effects = s.step(fx.Want(wanted), 1.0)
    assert of(effects, fx.Checkpoint) == [fx.Checkpoint()]
    assert effects.index(fx.Checkpoint()) < effects.index(fx.BusUnsubscribe("a.y"))
    assert [topic for topic, _, _ in s.cursor().topics] == ["a.x"]


def test_what_an_unsubscribed_topic_held_up_is_delivered_before_the_cursor_is_kept() -> None:
    s = subscriber()
    subscribed(s, {"a.x": (0, 0), "a.y": (1, 0)})
    s.step(event(0, 1, {1: 1}), 0.0)
    effects = s.step(fx.Want(("a.x", "a.z")), 1.0)
    assert got(effects) == [(0, 1)]
    assert effects.index(of(effects, fx.Deliver)[0]) < effects.index(fx.Checkpoint())


def subscribed_at_a_successor(s: Subscriber) -> list[fx.Effect]:
    """Up to number 9 the former holder may still give some: 4 and those from 6 on."""
    s.step(fx.Claimed(0, "a", 2, "log-a", ("a.*",)), 0.0)
    s.step(fx.Want(("a.x",)), 0.0)
    s.step(fx.BusSubscribed("a.x"), 0.0)
    s.step(Located(0, 2, ("a.x",), (0,)), 0.0)
    s.step(event(0, 4), 0.0)
    return s.step(Registered(1, False, 0.0, (0,), (9,), ((0, 4, 4), (0, 6, 9))), 0.0)


def test_an_event_that_a_former_host_numbers_after_the_subscription_is_an_uncertain_gap_once() -> None:
    s = subscriber()
    assert of(subscribed_at_a_successor(s), fx.Gap) == []
    assert s.step(event(0, 7), 0.1) == [fx.Gap("a.x", 7, 7, certain=False)]
    assert s.step(event(0, 7), 0.1) == [], "it was told"
    assert s.step(event(0, 4), 0.1) == [], "it came before the subscription was in force"
    assert s.step(event(0, 5), 0.1) == [], "the holder knew of it when it told the baseline"
    assert got(s.step(event(0, 10, epoch=2), 0.2)) == [(0, 10)]


def test_what_a_former_host_may_have_numbered_is_asked_for_until_its_successor_knows() -> None:
    s = subscriber(resend=1.0)
    subscribed_at_a_successor(s)
    assert sent(s.step(fx.Tick(), 1.0), Missing) == [Missing("s", 0, 6, 9)]
    assert s.step(Void(0, 6, 6, 1), 1.1) == [], "the word of the former holder settles nothing"
    assert s.step(Void(0, 6, 7, 2), 1.1) == [], "void for certain: it comes again under another number"
    assert sent(s.step(fx.Tick(), 2.0), Missing) == [Missing("s", 0, 8, 9)]
    assert s.step(Void(0, 8, 8, 2, lost=True), 2.1) == [fx.Gap("a.x", 8, 8, certain=False)]
    s.step(Void(0, 9, 9, 2), 2.1)
    assert sent(s.step(fx.Tick(), 3.0), Missing) == []


def test_numbers_of_a_former_host_that_nobody_has_confirmed_are_an_uncertain_gap() -> None:
    s = subscriber(resend=1.0)
    subscribed_at_a_successor(s)
    assert s.step(Void(0, 2, 7, 2, doubtful=True), 1.1) == [fx.Gap("a.x", 6, 7, certain=False)]
    assert s.step(Void(0, 2, 9, 2, doubtful=True), 1.2) == [fx.Gap("a.x", 8, 9, certain=False)]
    assert sent(s.step(fx.Tick(), 2.0), Missing) == [], "all is told"


def test_a_durable_subscriber_remembers_what_a_former_host_may_have_numbered() -> None:
    s = subscriber()
    subscribed_at_a_successor(s)
    cursor = s.cursor()
    again = subscriber(resend=1.0)
    again.step(fx.Claimed(0, "a", 2, "log-a", ("a.*",)), 0.0)
    again.resume(cursor, 0.0)
    assert sent(again.step(fx.Tick(), 1.0), Missing) == [Missing("s", 0, 6, 9)]
    assert of(again.step(Registered(1, True, 1.0, (0,), (9,)), 1.1), fx.Gap) == []
    assert again.step(event(0, 8), 1.2) == [fx.Gap("a.x", 8, 8, certain=False)]
