"""A topic has one home, however claims overlap and change."""

from __future__ import annotations

from tests.unit.ordering.build import ALONE, create, durable, of, sent
from txlayer.ordering import effects as fx
from txlayer.ordering.host import Host
from txlayer.ordering.host_state import HostConfig
from txlayer.ordering.messages import Create, Locate, Located, Refused, Seek, Sought, Stamped
from txlayer.ordering.records import AnyRecord, TopicRecord
from txlayer.ordering.timestamp import rank_at


def overlapping() -> tuple[Host, Host]:
    """Host a claims everything, b the topic `t`."""
    a = Host("a", 0, ("*",), "log-a", HostConfig())
    b = Host("b", 1, ("t",), "log-b", HostConfig())
    for one in (a, b):
        one.start([], ALONE, 0.0)
    return a, b


def introduce(*hosts: Host) -> None:
    for one in hosts:
        for other in hosts:
            if one is not other:
                one.step(other.claim(), 0.0)


def converse(hosts: dict[str, Host], effects: list[fx.Effect], now: float = 0.0) -> list[fx.Effect]:
    """Let hosts answer each other; what is left is for clients."""
    left: list[fx.Effect] = []
    while effects:
        effect = effects.pop(0)
        if isinstance(effect, fx.Send) and effect.to in hosts:
            effects.extend(hosts[effect.to].step(effect.message, now))  # type: ignore[arg-type]
        else:
            left.append(effect)
    return left


def test_a_topic_that_exists_stays_when_another_host_claims_it() -> None:
    a, b = overlapping()
    a.step(create(1, topic="t"), 0.0)
    (report,) = of(a.step(b.claim(), 0.0), fx.Report)
    assert "host b claims 1 topics of this host, which stay: ['t']" in report.reason
    assert [one.stamp.number for one in sent(a.step(create(2, topic="t"), 0.0), Stamped)] == [2]


def test_a_host_asks_before_it_creates_a_topic_that_others_claim_and_hands_on_what_is_theirs() -> None:
    a, b = overlapping()
    hosts = {"a": a, "b": b}
    a.step(create(1, topic="t"), 0.0)
    introduce(a, b)
    request = create(1, topic="t", publisher="q")
    asking = b.step(request, 0.0)
    assert sent(asking, Seek) == [Seek(1, 1, "t")]
    converse(hosts, asking)
    assert b.step(request, 0.5) == [fx.Send("a", request)]
    (stamped,) = sent(converse(hosts, b.step(request, 0.5)), Stamped)
    assert (stamped.stamp.rank, stamped.stamp.number) == (0, 2)
    (located,) = sent(converse(hosts, b.step(Locate("s", ("t",)), 0.5)), Located)
    assert (located.host, located.ranks) == (0, (0,))
    assert "t" not in b.state.topics


def test_a_topic_that_nobody_has_is_created_when_all_have_said_so() -> None:
    a, b = overlapping()
    introduce(a, b)
    effects = b.step(Locate("s", ("t",)), 0.0)
    assert not of(effects, fx.Persist)
    effects = converse({"a": a, "b": b}, effects)
    assert [one.record for one in of(effects, fx.Persist)] == [TopicRecord(rank_at(1, 0), "t", 0, 0)]
    (located,) = sent(b.step(Locate("s", ("t",)), 0.5), Located)
    assert located.ranks == (rank_at(1, 0),)
    assert sent(a.step(Locate("s", ("t",)), 0.5), Refused)[0].reason == "topic 't' belongs to host b (rank 1, epoch 1)"


def test_a_question_is_repeated_until_it_is_answered() -> None:
    a, b = overlapping()
    introduce(a, b)
    for now in (0.0, 0.5, 1.0):
        assert sent(b.step(create(1, topic="t"), now), Seek) == [Seek(1, 1, "t")]


def test_who_wants_a_topic_is_told_when_another_claimant_does_not_answer() -> None:
    a, b = overlapping()
    introduce(a, b)
    b.step(create(1, topic="t"), 0.0)
    late = b.state.config.lease
    (refused,) = sent(b.step(create(1, topic="t"), late), Refused)
    assert refused.reason == "topic 't' is claimed by host a too, which does not say whether it has it"
    effects = b.step(create(2, topic="t"), late)
    assert sent(effects, Seek) == [Seek(1, 1, "t")], "the next one begins anew"
    assert of(converse({"a": a, "b": b}, effects, late), fx.Persist)


def test_a_host_asks_about_so_many_topics_at_a_time_and_no_more() -> None:
    a = Host("a", 0, ("*",), "log-a", HostConfig(founding=2))
    a.start([], ALONE, 0.0)
    a.step(Locate("s", ("alone",)), 0.0)
    a.step(fx.Claimed(1, "b", 1, "log-b", ("*",)), 0.0)
    for topic in ("t1", "t2"):
        assert sent(a.step(create(1, topic=topic), 0.0), Seek)
    (refused,) = sent(a.step(create(1, topic="t3"), 1.0), Refused)
    assert refused.reason == "host a asks others about 2 topics, its limit"
    assert sent(a.step(Locate("s", ("alone",)), 1.0), Located), "nobody is asked about it"
    assert sent(a.step(create(1, topic="t3"), a.state.config.lease), Seek), "what nobody wants any more makes room"


def test_of_two_hosts_that_are_about_to_create_a_topic_only_one_does() -> None:
    a, b = overlapping()
    b.step(a.claim(), 0.0)
    # Host a takes itself for the owner of `t`: the claim that it has of b is older than the pin.
    a.step(fx.Claimed(1, "b", 1, "log-b", ("t*",)), 0.0)
    a.patterns = ("*", "t")
    a.directory.claims[0] = a.claim()
    asked = {"a": sent(a.step(create(1, topic="t"), 0.0), Seek), "b": sent(b.step(create(1, topic="t"), 0.0), Seek)}
    assert asked == {"a": [Seek(0, 1, "t")], "b": [Seek(1, 1, "t")]}
    to_b, to_a = sent(a.step(asked["b"][0], 0.0), Sought), sent(b.step(asked["a"][0], 0.0), Sought)
    a.step(to_a[0], 0.0)
    b.step(to_b[0], 0.0)
    assert "t" in a.state.topics
    assert "t" not in b.state.topics
    assert not sent(b.step(create(1, topic="t"), 0.5), Stamped)
    later = 0.5 + b.state.config.lease
    converse({"a": a, "b": b}, b.step(create(1, topic="t"), later))
    assert sent(b.step(create(1, topic="t"), later), Create) == [create(1, topic="t")], "handed on"


def test_a_promise_binds_a_host_that_has_not_heard_of_the_other_claim() -> None:
    a, b = overlapping()
    b.step(a.claim(), 0.0)
    a.step(fx.Claimed(1, "b", 1, "log-b", ("elsewhere",)), 0.0)
    (question,) = sent(b.step(create(1, topic="t"), 0.0), Seek)
    (answer,) = sent(a.step(question, 0.0), Sought)
    assert a.step(create(1, topic="t", publisher="q"), 0.0) == []
    b.step(answer, 0.0)
    assert ("t" in a.state.topics, "t" in b.state.topics) == (False, True)


def test_a_host_that_has_asked_gives_way_when_nobody_wants_the_topic_here_any_more() -> None:
    a, b = overlapping()
    b.step(a.claim(), 0.0)
    a.step(fx.Claimed(1, "b", 1, "log-b", ("t*",)), 0.0)
    a.patterns = ("*", "t")
    a.directory.claims[0] = a.claim()
    assert sent(a.step(create(1, topic="t"), 0.0), Seek)
    assert sent(a.step(Seek(1, 1, "t"), 0.5), Sought)[0].rank == -2, "it goes first"
    assert sent(a.step(Seek(1, 1, "t"), a.state.config.lease), Sought)[0].rank == -1


def test_a_host_that_is_given_other_patterns_still_claims_the_topics_that_it_has() -> None:
    disk: dict[str, AnyRecord] = {}
    first = Host("a", 0, ("*",), "log-a", HostConfig())
    durable(first.start([], ALONE, 0.0), disk)
    durable(first.step(Locate("s", ("t", "orders.eu")), 0.0), disk)
    again = Host("a", 0, ("orders*",), "log-a", HostConfig())
    again.start(disk.values(), ALONE, 0.0)
    assert again.claim().patterns == ("orders*", "t")
    assert sent(again.step(create(1, topic="t"), 0.0), Stamped)
