"""A publisher whose host comes with another log, or whose topic is claimed by another host."""

from __future__ import annotations

from tests.unit.ordering.build import of, published, publisher, sent
from txlayer.ordering import effects as fx
from txlayer.ordering.messages import Acknowledged, Create, Event, Gone, Resend, Stamped
from txlayer.ordering.timestamp import Stamp

ANOTHER = fx.Claimed(0, "a", 9, "another", ("a.*",), first=9)


def stamped(number: int, seq: int, generation: int, epoch: int) -> Stamped:
    return Stamped("a.x", generation, seq, 1, Stamp(0, number, epoch))


def test_numbers_of_a_log_that_is_gone_are_forgotten_and_what_has_none_is_asked_for_again() -> None:
    p = publisher(batch=1)
    for payload in (b"on the bus", b"waits"):
        p.step(fx.Offer("a.x", payload), 0.0)
    assert [one.payload for one in published(p.step(stamped(7, 1, 1, 1), 0.0), Event)] == [b"on the bus"]
    effects = p.step(ANOTHER, 0.1)
    assert [(one.serial, "no longer has its log" in one.reason) for one in of(effects, fx.Failed)] == [(1, True)]
    (create,) = sent(effects, Create)
    assert (create.generation, create.seq) == (2, 2)
    assert p.step(Acknowledged("a.x", 1, 7, 1), 0.1) == [], "a word of the former log"
    (event,) = published(p.step(stamped(1, 2, 2, 9), 0.2), Event)
    assert (event.payload, event.stamp.number) == (b"waits", 1), "the numbers begin anew"
    assert sent(p.step(Resend("a.x", 7), 0.3), Gone), "nothing of the former log is sent again"


def test_a_topic_whose_rank_is_known_is_published_at_its_host_whoever_claims_it() -> None:
    p = publisher(batch=1)
    p.step(fx.Offer("a.x", b"1"), 0.0)
    p.step(stamped(1, 1, 1, 1), 0.0)
    p.step(fx.Claimed(1, "b", 5, "log-b", ("a.x",)), 0.0)
    effects = p.step(fx.Offer("a.x", b"2"), 0.0)
    assert [one.to for one in of(effects, fx.Send)] == ["a"]
