from __future__ import annotations

import pytest

from tests.unit.ordering.build import of, published, publisher, sent
from txlayer.errors import Backpressure, UsageError
from txlayer.ordering import effects as fx
from txlayer.ordering.messages import (
    Acknowledged,
    Create,
    Event,
    Gone,
    Published,
    Refused,
    Resend,
    Stamped,
    Voided,
)
from txlayer.ordering.publisher import Publisher
from txlayer.ordering.timestamp import Stamp


def offer(p: Publisher, *payloads: bytes, topic: str = "a.x", now: float = 0.0) -> list[fx.Effect]:
    return [effect for payload in payloads for effect in p.step(fx.Offer(topic, payload), now)]


def stamped(number: int, seq: int, *, generation: int = 1, count: int = 1, topic: str = "a.x", rank: int = 0,
            epoch: int = 1) -> Stamped:  # fmt: skip
    return Stamped(topic, generation, seq, count, Stamp(rank, number, epoch))


def payloads(effects: list[fx.Effect]) -> list[tuple[int, bytes]]:
    return [(event.stamp.number, event.payload) for event in published(effects, Event)]


def test_events_are_released_in_the_order_of_publication() -> None:
    p = publisher(batch=1)
    offer(p, b"1", b"2")
    assert payloads(p.step(stamped(2, 2), 0.1)) == []
    assert payloads(p.step(stamped(1, 1), 0.1)) == [(1, b"1"), (2, b"2")]


def test_what_waits_is_asked_for_in_one_batch() -> None:
    p = publisher(window=1)
    (first,) = sent(offer(p, b"1", b"2", b"3"), Create)
    assert first.count == 1
    (second,) = sent(p.step(stamped(1, 1), 0.1), Create)
    assert (second.seq, second.count, second.low) == (2, 2, 2)
    assert payloads(p.step(stamped(5, 2, count=2), 0.2)) == [(5, b"2"), (6, b"3")]


def test_a_request_is_repeated_unchanged() -> None:
    p = publisher(repeat=0.5)
    (first,) = sent(offer(p, b"1"), Create)
    assert p.next_deadline() == 0.5
    assert sent(p.step(fx.Tick(), 0.5), Create) == [first]


def test_an_answer_older_than_the_guard_time_is_not_used() -> None:
    p = publisher(guard=1.0)
    offer(p, b"1")
    effects = p.step(stamped(1, 1), 1.1)
    assert payloads(effects) == []
    assert [create.generation for create in sent(effects, Create)] == [2]
    assert payloads(p.step(stamped(1, 1), 1.2)) == []
    assert payloads(p.step(stamped(2, 1, generation=2), 1.3)) == [(2, b"1")]


def test_a_number_that_is_not_above_the_last_one_is_not_used() -> None:
    p = publisher(batch=1)
    offer(p, b"1", b"2")
    p.step(stamped(5, 1), 0.0)
    effects = p.step(stamped(4, 2), 0.0)
    assert payloads(effects) == []
    assert [create.generation for create in sent(effects, Create)] == [2]


def test_publication_is_confirmed_when_the_bus_has_it_and_until_it_is_acknowledged() -> None:
    p = publisher(repeat=0.5)
    offer(p, b"1")
    assert sent(p.step(stamped(1, 1), 0.0), Published) == []
    assert sent(p.step(fx.Handed("a.x", 1), 0.1), Published) == [Published("p", "a.x", 1, 1, 1)]
    assert sent(p.step(fx.Tick(), 0.5), Published) == [Published("p", "a.x", 1, 1, 1)]
    assert of(p.step(Acknowledged("a.x", 1, 1, 1), 0.6), fx.Accepted) == [fx.Accepted("a.x", 1)]
    assert sent(p.step(fx.Tick(), 1.0), Published) == []
    assert p.buffered == 0


def test_after_a_void_the_same_event_is_published_under_a_new_number() -> None:
    p = publisher()
    offer(p, b"1")
    p.step(stamped(1, 1), 0.0)
    (create,) = sent(p.step(Voided("a.x", 1, 1, 1, 1), 0.1), Create)
    assert create.generation == 2
    (event,) = published(p.step(stamped(9, create.seq, generation=2), 0.2), Event)
    assert (event.serial, event.stamp.number, event.again) == (1, 9, True)


def test_what_the_bus_lost_is_sent_again_under_the_same_number_until_it_is_forgotten() -> None:
    p = publisher(retention=10.0)
    offer(p, b"1")
    p.step(stamped(1, 1), 0.0)
    assert payloads(p.step(Resend("a.x", 1), 5.0)) == [(1, b"1")]
    p.step(fx.Tick(), 10.0)
    assert sent(p.step(Resend("a.x", 1), 11.0), Gone) == [Gone("p", "a.x", 1)]


def test_no_more_than_so_many_events_are_kept_for_sending_again() -> None:
    p = publisher(batch=1, retained=1)
    offer(p, b"1", b"2")
    for number in (1, 2):
        p.step(stamped(number, number), 0.0)
    p.step(fx.Tick(), 1.0)
    assert sent(p.step(Resend("a.x", 1), 1.0), Gone)
    assert payloads(p.step(Resend("a.x", 2), 1.0)) == [(2, b"2")]


def test_a_deadline_that_passes_without_a_number_is_a_clear_error() -> None:
    p = publisher()
    p.step(fx.Offer("a.x", b"1", deadline=2.0), 0.0)
    p.step(fx.Tick(), 0.5)
    failed = [effect for now in (1.0, 1.5, 2.0) for effect in of(p.step(fx.Tick(), now), fx.Failed)]
    assert [(one.serial, "no answer from host a" in one.reason) for one in failed] == [(1, True)]
    assert p.buffered == 0


def test_a_refused_topic_fails_with_the_hosts_reason() -> None:
    p = publisher()
    offer(p, b"1")
    (failed,) = of(p.step(Refused("create", "a.x", 0, 0, 1, "no host claims it"), 0.1), fx.Failed)
    assert failed.reason == "no host claims it"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (stamped(2, 2, rank=1), "changed its rank"),
        (stamped(2, 2, epoch=1), "epoch 1"),
        (stamped(0, 2, epoch=3), "out of range"),
    ],
)
def test_a_stamp_that_cannot_be_is_refused(answer: Stamped, reason: str) -> None:
    p = publisher(batch=1)
    offer(p, b"1", b"2")
    p.step(stamped(1, 1, epoch=2 if "epoch" in reason else 1), 0.0)
    (report,) = of(p.step(answer, 0.0), fx.Report)
    assert reason in report.reason


def test_wildcards_are_refused() -> None:
    with pytest.raises(UsageError, match="wildcards"):
        offer(publisher(), b"1", topic="a.#")


def test_a_full_buffer_takes_nothing() -> None:
    p = publisher(buffer=1)
    offer(p, b"1")
    with pytest.raises(Backpressure):
        offer(p, b"2")


def test_in_causal_mode_one_topic_follows_the_other() -> None:
    p = publisher(causal=True)
    assert [create.topic for create in sent(offer(p, b"1"), Create)] == ["a.x"]
    assert offer(p, b"2", topic="a.y") == []
    assert offer(p, b"3") == []
    p.step(stamped(1, 1), 0.0)
    p.step(fx.Handed("a.x", 1), 0.0)
    effects = p.step(Acknowledged("a.x", 1, 1, 1), 0.1)
    assert [create.topic for create in sent(effects, Create)] == ["a.y"]


def accepted(p: Publisher) -> None:
    offer(p, b"1")
    p.step(stamped(1, 1), 0.0)
    p.step(fx.Handed("a.x", 1), 0.1)
    p.step(Acknowledged("a.x", 1, 1, 1), 0.2)


def test_a_host_that_has_restarted_is_reminded_until_it_answers() -> None:
    p = publisher(repeat=0.5)
    accepted(p)
    reminder = Published("p", "a.x", 1, 1, 1)
    assert sent(p.step(fx.Claimed(0, "a", 2, "log-a", ("a.*",)), 1.0), Published) == [reminder]
    assert sent(p.step(fx.Tick(), 1.5), Published) == [reminder]
    assert p.step(Acknowledged("a.x", 1, 1, 1), 1.6) == [], "the word of the former life does not count"
    assert sent(p.step(fx.Tick(), 2.0), Published) == [reminder]
    p.step(Acknowledged("a.x", 1, 1, 2), 2.1)
    assert sent(p.step(fx.Tick(), 2.5), Published) == []


def test_what_a_restarted_host_has_voided_is_published_again() -> None:
    p = publisher()
    accepted(p)
    p.step(fx.Claimed(0, "a", 2, "log-a", ("a.*",)), 1.0)
    (create,) = sent(p.step(Voided("a.x", 0, 1, 1, 2), 1.1), Create)
    answer = stamped(9, create.seq, generation=create.generation, epoch=2)
    (event,) = published(p.step(answer, 1.2), Event)
    assert (event.serial, event.payload, event.again) == (1, b"1", True)


def released(p: Publisher, deadline: float) -> None:
    p.step(fx.Offer("a.x", b"1", deadline=deadline), 0.0)
    p.step(stamped(1, 1), 0.1)


def ticks(p: Publisher, *times: float) -> list[fx.Failed]:
    return [failed for now in times for failed in of(p.step(fx.Tick(), now), fx.Failed)]


def test_an_event_on_the_bus_that_is_not_acknowledged_by_its_deadline_is_in_doubt_and_told_once() -> None:
    p = publisher()
    released(p, deadline=2.0)
    (failed,) = ticks(p, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
    assert (failed.serial, failed.unknown) == (1, True)
    assert "on the bus" in failed.reason


def test_an_event_in_doubt_is_still_confirmed_and_nothing_more_is_said_of_it() -> None:
    p = publisher()
    released(p, deadline=2.0)
    assert ticks(p, 2.0)
    assert sent(p.step(fx.Handed("a.x", 1), 3.0), Published) == [Published("p", "a.x", 1, 1, 1)]
    assert of(p.step(Acknowledged("a.x", 1, 1, 1), 3.1), fx.Accepted) == []
    assert p.buffered == 0


def test_an_event_in_doubt_is_not_published_again_after_a_void() -> None:
    p = publisher()
    released(p, deadline=2.0)
    assert ticks(p, 2.0)
    assert sent(p.step(Voided("a.x", 1, 1, 1, 1), 3.0), Create) == []
    assert p.buffered == 0


def test_an_event_whose_number_was_voided_is_in_doubt_at_its_deadline() -> None:
    p = publisher()
    released(p, deadline=2.0)
    p.step(Voided("a.x", 1, 1, 1, 1), 1.0)
    (failed,) = ticks(p, 1.5, 2.0, 2.5)
    assert failed.unknown
    assert p.buffered == 0


def test_a_confirmation_that_the_host_cannot_judge_leaves_the_event_in_doubt() -> None:
    p = publisher()
    offer(p, b"1")
    p.step(stamped(1, 1), 0.1)
    (failed,) = of(p.step(Refused("published", "a.x", 0, 0, 1, "no longer known", number=1), 0.2), fx.Failed)
    assert failed == fx.Failed("a.x", 1, "no longer known", unknown=True)
    assert p.buffered == 0


def test_what_is_published_again_for_a_host_that_has_forgotten_it_is_accepted_once() -> None:
    p = publisher()
    offer(p, b"1")
    p.step(stamped(1, 1), 0.0)
    assert of(p.step(Acknowledged("a.x", 1, 1, 1), 0.1), fx.Accepted)
    p.step(fx.Claimed(0, "a", 2, "log-a", ("a.*",)), 0.2)
    (create,) = sent(p.step(Voided("a.x", 0, 1, 1, 2), 0.3), Create)
    assert payloads(p.step(stamped(9, create.seq, generation=2, epoch=2), 0.4)) == [(9, b"1")]
    assert of(p.step(Acknowledged("a.x", create.seq, 9, 2), 0.5), fx.Accepted) == []
    assert p.buffered == 0


def test_a_stamp_of_a_former_host_is_not_used_once_its_successor_is_known() -> None:
    p = publisher()
    offer(p, b"1")
    p.step(fx.Claimed(0, "a", 2, "log-a", ("a.*",)), 0.1)
    effects = p.step(stamped(1, 1), 0.2)
    assert published(effects, Event) == []
    assert len(of(effects, fx.Report)) == 1
    assert len(published(p.step(stamped(9, 1, epoch=2), 0.3), Event)) == 1
