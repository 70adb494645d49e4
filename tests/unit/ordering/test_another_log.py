"""A host that comes with another log, or claims a topic of another: what publishers and other hosts do."""

from __future__ import annotations

from tests.unit.ordering.build import create, host, of, published, publisher, sent
from txlayer.ordering import effects as fx
from txlayer.ordering.host import Host
from txlayer.ordering.host_state import HostConfig
from txlayer.ordering.messages import (
    Acknowledged,
    Chained,
    Complete,
    Create,
    Event,
    Fill,
    Gone,
    Hail,
    Locate,
    Located,
    Register,
    Resend,
    Stamped,
    Welcome,
)
from txlayer.ordering.timestamp import GONE, Stamp, rank_at

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
    (request,) = sent(effects, Create)
    assert (request.generation, request.seq) == (2, 2)
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


def test_a_stamp_of_a_log_that_is_gone_is_not_used() -> None:
    p = publisher(batch=1)
    p.step(ANOTHER, 0.0)
    p.step(fx.Offer("a.x", b"1"), 0.0)
    (report,) = of(p.step(stamped(7, 1, 1, 1), 0.0), fx.Report)
    assert "no longer has that log" in report.reason
    (event,) = published(p.step(stamped(1, 1, 1, 9), 0.0), Event)
    assert event.stamp.number == 1


def test_a_host_puts_its_events_after_all_of_a_log_that_is_gone() -> None:
    a = host(neighbours=fx.Neighbours((1, "b"), None))
    a.step(fx.Claimed(1, "b", 1, "log-b", ("b.*",)), 0.0)
    a.step(Locate("s", ("a.x",)), 0.0)
    b = rank_at(1, 0)
    a.step(Hail(1, 1), 0.0)
    a.step(Chained(1, 1, 1, 1, Welcome((b,), (5,))), 0.0)
    a.step(Chained(1, 1, 1, 2, Register("s", 1, (0, b), (), ranks=(b,), values=(5,))), 0.0)
    assert sent(a.step(create(1), 0.0), Stamped)[0].stamp.values == (5,)
    (report,) = of(a.step(fx.Claimed(1, "b", 3, "another", ("b.*",), first=3), 0.0), fx.Report)
    assert "comes with another log" in report.reason
    assert sent(a.step(create(2), 0.0), Stamped)[0].stamp.values == (GONE,)


def test_a_host_with_another_log_lets_stamps_pass_that_name_topics_of_the_former_one() -> None:
    a = Host("a", 0, ("a.*",), "another", HostConfig())
    a.start([], fx.Neighbours((1, "b"), None), 0.0, known_epoch=2)
    a.step(fx.Claimed(1, "b", 1, "log-b", ("b.*",)), 0.0)
    a.step(Chained(1, 1, 3, 1, Welcome((), ())), 0.0)
    fill = Fill(1, 1, rank_at(1, 0), 1, 1, (rank_at(0, 0),), (0,))
    (complete,) = sent(a.step(Chained(1, 1, 3, 2, fill), 0.0), Complete)
    assert complete.values == (GONE,)
    (located,) = sent(a.step(Locate("s", ("a.x",)), 0.0), Located)
    assert located.ranks == (rank_at(0, 0, log=2),), "no rank in common with the former log"
