"""The contract of the bus port: the same tests over memory, Mosquitto and Kafka."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import DEADLINE, eventually
from tests.contract.conftest import (
    KINDS,
    ORDERED_KINDS,
    BusWorld,
    MemoryWorld,
    ServerWorld,
    open_private_world,
    open_world,
)
from tests.inbox import Inbox
from txlayer import Ack, Bus, Delivery, Gap, Identity, Receipt, Retry, Roster, Standing, dead_letters, errors
from txlayer.presence import decode


@pytest.fixture(params=[*KINDS, *ORDERED_KINDS])
def world(request: pytest.FixtureRequest) -> Iterator[BusWorld]:
    """The ordered bus keeps the same contract."""
    yield from open_world(request)


@pytest.fixture(params=[*KINDS, *ORDERED_KINDS])
def private_world(request: pytest.FixtureRequest) -> Iterator[BusWorld]:
    """Likewise."""
    yield from open_private_world(request)


def test_round_trip_leaves_payload_key_and_headers_as_they_were(world: BusWorld, name: str) -> None:
    bus, inbox = world.connect(), Inbox()
    topic = bus.topic(name)
    bus.subscribe(topic, inbox)
    payload = bytes(range(256))
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    bus.publish(topic, payload, headers={"a": "ä", "traceparent": trace}, key=b"k\0", type="meeting.time").wait(
        DEADLINE
    )
    inbox.wait(1)
    assert (inbox[0].topic, inbox[0].payload, inbox[0].key) == (topic, payload, b"k\0")
    assert inbox[0].headers == {"a": "ä", "traceparent": trace}
    assert inbox[0].metadata is not None
    assert (inbox[0].metadata.type, inbox[0].metadata.number) == ("meeting.time", 1)


def test_cloudevents_are_written_on_request_and_understood(world: BusWorld, name: str) -> None:
    writer, reader, inbox = world.connect(cloudevents=True), world.connect(), Inbox()
    topic = reader.topic(name)
    reader.subscribe(topic, inbox)
    writer.publish(topic, b"x", type="meeting.time", headers={"own": "1"})
    inbox.wait(1)
    metadata = inbox[0].metadata
    assert metadata is not None
    assert metadata.type == "meeting.time"
    assert metadata.number == 1
    assert metadata.time is not None
    assert metadata.id
    assert inbox[0].headers["own"] == "1"


def test_headers_of_a_cloudevent_can_be_passed_on(world: BusWorld, name: str) -> None:
    bus, inbox = world.connect(cloudevents=True), Inbox()
    source, target = bus.topic(name, "source"), bus.topic(name, "target")
    bus.subscribe(source, lambda delivery: bus.publish(target, delivery.payload, headers=delivery.headers))
    subscription = bus.subscribe([source, target], inbox)
    for number in range(5):
        bus.publish(source, b"%d" % number, headers={"own": "1", "sequence": "7", "ce_sequence": "7"})
    inbox.wait(10)
    assert sorted(inbox.payloads) == sorted(2 * [b"%d" % number for number in range(5)])
    assert {delivery.headers["own"] for delivery in inbox} == {"1"}
    assert (subscription.stats.duplicates, subscription.stats.missing) == (0, 0)


def test_events_of_one_publisher_arrive_in_order(world: BusWorld, name: str) -> None:
    bus, inbox = world.connect(), Inbox()
    topic = bus.topic(name)
    bus.subscribe(topic, inbox)
    sent = [b"%d" % number for number in range(1000)]
    for payload in sent:
        bus.publish(topic, payload)
    inbox.wait(1000)
    assert inbox.payloads == sent


def test_every_subscription_gets_every_event(world: BusWorld, name: str) -> None:
    publisher, one, other = world.connect(), Inbox(), Inbox()
    topic = publisher.topic(name)
    bus = world.connect()
    bus.subscribe(topic, one)
    bus.subscribe(topic, other)
    publisher.publish(topic, b"x")
    one.wait(1)
    other.wait(1)
    assert one.payloads == other.payloads == [b"x"]


def test_receipt_can_be_waited_on_awaited_and_given_a_callback(world: BusWorld, name: str) -> None:
    bus = world.connect()
    topic = bus.topic(name)
    receipt = bus.publish(topic, b"1")
    receipt.wait(DEADLINE)
    assert receipt.done
    assert receipt.error is None

    async def publish() -> None:
        await bus.publish(topic, b"2")

    asyncio.run(publish())
    called: list[Receipt] = []
    last = bus.publish(topic, b"3")
    last.add_callback(called.append)
    eventually(lambda: called == [last])


def test_a_receipt_callback_may_publish_and_wait(world: BusWorld, name: str) -> None:
    bus = world.connect()
    topic, done = bus.topic(name), threading.Event()

    def again(_: Receipt) -> None:
        bus.publish(topic, b"2").wait(DEADLINE)
        done.set()

    bus.publish(topic, b"1").add_callback(again)
    assert done.wait(DEADLINE)


def test_a_handler_may_publish_and_wait(world: BusWorld, name: str) -> None:
    bus, inbox = world.connect(), Inbox()
    question, answer = bus.topic(name, "question"), bus.topic(name, "answer")
    bus.subscribe(answer, inbox)
    bus.subscribe(question, lambda delivery: bus.publish(answer, delivery.payload).wait(DEADLINE))
    for number in range(50):
        bus.publish(question, b"%d" % number)
    inbox.wait(50)
    assert len(inbox) == 50


def test_a_slow_handler_does_not_hold_up_another_subscription(world: BusWorld, name: str) -> None:
    bus, inbox, go_on = world.connect(), Inbox(), threading.Event()
    slow, quick = bus.topic(name, "slow"), bus.topic(name, "quick")
    bus.subscribe(slow, lambda _: go_on.wait(DEADLINE))
    bus.subscribe(quick, inbox)
    for _ in range(200):
        bus.publish(slow, b"x")
        bus.publish(quick, b"y")
    inbox.wait(200)
    go_on.set()


def test_durable_subscription_gets_what_was_published_while_it_was_away(world: BusWorld, name: str) -> None:
    publisher, first, second = world.connect(), Inbox(), Inbox()
    topic = publisher.topic(name)
    consumer = world.connect()
    consumer.subscribe(topic, first, durable=name)
    publisher.publish(topic, b"1")
    first.wait(1)
    consumer.close()
    for number in range(2, 52):
        publisher.publish(topic, b"%d" % number).wait(DEADLINE)
    world.connect().subscribe(topic, second, durable=name)
    second.wait(50)
    assert second.payloads == [b"%d" % number for number in range(2, 52)]


def test_a_durable_subscriber_that_comes_and_goes_under_load_misses_nothing(world: BusWorld, name: str) -> None:
    publisher, consumer, inbox, stop = world.connect(), world.connect(), Inbox(), threading.Event()
    topic, sent = publisher.topic(name), list[Receipt]()
    consumer.subscribe(topic, inbox, durable=name).close()

    def publish() -> None:
        while not stop.wait(0.001):
            sent.extend([publisher.publish(topic, b"%d" % number) for number in range(len(sent), len(sent) + 20)])
            sent[-20].wait(DEADLINE)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        for _ in range(10):
            subscription, before = consumer.subscribe(topic, inbox, durable=name), len(inbox)
            inbox.wait(before + 100)
            subscription.close()
    finally:
        stop.set()
        thread.join(DEADLINE)
    consumer.subscribe(topic, inbox, durable=name)
    eventually(lambda: sent[-1].done and len(set(inbox.payloads)) == len(sent), "every event comes")


def _subscribe_by_hand(bus: Bus, topic: str, inbox: Inbox, name: str) -> None:
    bus.subscribe(topic, inbox, durable=name, ack=Ack.MANUAL)


def _receive(bus: Bus, topic: str, inbox: Inbox, name: str) -> None:
    bus.receive([topic], lambda deliveries: [inbox(delivery) for delivery in deliveries], durable=name)


@pytest.mark.parametrize("listen", [_subscribe_by_hand, _receive])
def test_unacknowledged_events_are_delivered_again_and_acknowledged_ones_are_not(
    world: BusWorld, name: str, listen: Callable[[Bus, str, Inbox, str], None]
) -> None:
    publisher, first, second = world.connect(), Inbox(), Inbox()
    topic = publisher.topic("txlayer", "v1", name) if listen is _receive else publisher.topic(name)
    consumer = world.connect()
    listen(consumer, topic, first, name)
    for number in range(6):
        publisher.publish(topic, b"%d" % number)
    first.wait(6)
    for safe in (0, 1, 4):  # 4 is not part of the prefix: the broker must not hear of it
        first[safe].ack()
    consumer.close()
    first[2].ack()  # too late: its connection is gone
    listen(world.connect(), topic, second, name)
    second.wait(4)
    assert second.payloads[:4] == [b"2", b"3", b"4", b"5"]


def test_a_durable_name_has_one_live_holder(world: BusWorld, name: str) -> None:
    holder, inbox = world.connect(), Inbox()
    topic = holder.topic(name)
    holder.subscribe(topic, inbox, durable=name)
    second = world.connect()
    with pytest.raises(errors.NameTaken):
        second.subscribe(topic, Inbox(), durable=name)
    holder.publish(topic, b"still mine").wait(DEADLINE)
    inbox.wait(1)
    assert inbox.payloads == [b"still mine"]


def test_a_later_life_takes_a_durable_name_over(world: BusWorld, name: str) -> None:
    old, topic = world.connect(), world.connect().topic(name)
    replaced = old.subscribe(topic, Inbox(), durable=name, identity=Identity("log", 1))
    inbox, bus = Inbox(), world.connect()
    bus.subscribe(topic, inbox, durable=name, identity=Identity("log", 2))
    eventually(lambda: isinstance(replaced.error, errors.NameTaken), "the older life was told")
    bus.publish(topic, b"x")
    inbox.wait(1)


def test_an_older_life_that_ends_late_leaves_the_name_to_the_later_one_on_the_same_bus(
    world: BusWorld, name: str
) -> None:
    bus, inbox = world.connect(), Inbox()
    topic, more = bus.topic(name), bus.topic(name, "more")
    older = bus.subscribe(topic, Inbox(), durable=name, identity=Identity("log", 1))
    later = bus.subscribe(topic, inbox, durable=name, identity=Identity("log", 2))
    eventually(lambda: older.closed, "the older life has ended")
    older.close()
    later.add(more)
    bus.publish(more, b"x").wait(DEADLINE)
    inbox.wait(1)
    assert inbox.payloads == [b"x"]


def test_a_durable_name_that_is_lost_while_the_subscription_is_opened_ends_it(
    world: BusWorld, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if world.ordered:
        pytest.skip("the bus below opens it")
    old, bus, inbox = world.connect(), world.connect(), Inbox()
    topic, opens = bus.topic(name), old._open_subscription  # type: ignore[attr-defined]

    def open_late(topics: Any, options: Any, holder: Any) -> Any:
        bus.subscribe(topic, inbox, durable=name, identity=Identity("log", 2))
        eventually(lambda: holder.lost)
        return opens(topics, options, holder)

    monkeypatch.setattr(old, "_open_subscription", open_late)
    try:
        replaced = old.subscribe(topic, Inbox(), durable=name, identity=Identity("log", 1))
    except errors.NameTaken:
        pass  # seen before anything was opened
    else:
        assert isinstance(replaced.error, errors.NameTaken)
        assert replaced.closed
    bus.publish(topic, b"x")
    inbox.wait(1)


def test_a_handler_that_ends_its_thread_ends_the_subscription_which_says_why(world: BusWorld, name: str) -> None:
    bus, inbox = world.connect(), Inbox()

    def leave(delivery: Delivery) -> None:
        raise SystemExit("enough")

    topic = bus.topic(name)
    subscription = bus.subscribe(topic, leave, durable=name)
    bus.publish(topic, b"x").wait(DEADLINE)
    eventually(lambda: subscription.closed)
    assert "SystemExit('enough')" in str(subscription.error)
    eventually(lambda: _subscribed(bus, topic, inbox, name), "the name is free again")
    inbox.wait(1)
    assert inbox.payloads == [b"x"]


def _subscribed(bus: Bus, topic: str, inbox: Inbox, name: str) -> bool:
    try:
        bus.subscribe(topic, inbox, durable=name)
    except errors.NameTaken:
        return False
    return True


def test_unsubscribe_at_run_time_ends_delivery(world: BusWorld, name: str) -> None:
    bus, kept, ended = world.connect(), Inbox(), Inbox()
    topic = bus.topic(name)
    subscription = bus.subscribe(topic, ended)
    bus.subscribe(topic, kept)
    bus.publish(topic, b"1")
    ended.wait(1)
    subscription.unsubscribe()
    bus.publish(topic, b"2")
    kept.wait(2)
    assert ended.payloads == [b"1"]


def test_topics_are_added_and_removed_at_run_time(world: BusWorld, name: str) -> None:
    bus, inbox = world.connect(), Inbox()
    one, two, end = bus.topic(name, "1"), bus.topic(name, "2"), bus.topic(name, "end")
    subscription = bus.subscribe([one, end], inbox)
    subscription.add(two)
    bus.publish(two, b"two").wait(DEADLINE)
    inbox.wait(1)
    subscription.remove(one)
    assert subscription.topics == {two, end}
    bus.publish(one, b"one").wait(DEADLINE)
    bus.publish(end, b"end").wait(DEADLINE)
    inbox.wait(2)
    assert inbox.payloads == [b"two", b"end"]


def test_nothing_published_after_subscribe_returns_is_missed(world: BusWorld, name: str) -> None:
    bus, publisher = world.connect(), world.connect()
    for round in range(10):
        topic, inbox = bus.topic(name, str(round)), Inbox()
        publisher.publish(topic, b"before").wait(DEADLINE)
        bus.subscribe(topic, inbox)
        publisher.publish(topic, b"after")
        inbox.wait(1)
        assert inbox.payloads == [b"after"]


def test_wildcards_match_levels_and_topics_that_are_new(world: BusWorld, name: str) -> None:
    bus, one_level, rest = world.connect(), Inbox(), Inbox()
    if world.ordered:
        assert not bus.capabilities.wildcards
        with pytest.raises(errors.TopicForbidden, match="wildcards"):
            bus.subscribe("a/+", Inbox())
        return
    assert bus.capabilities.wildcards
    here = bus.topic(name, "a", "x")
    bus.publish(here, b"old").wait(DEADLINE)
    separator = here[len(name)]
    bus.subscribe(separator.join([name, "+", "x"]), one_level)
    bus.subscribe(separator.join([name, "#"]), rest)
    for levels in (("a", "x"), ("b", "x"), ("c", "y"), ("d", "e", "f")):
        bus.publish(bus.topic(name, *levels), "/".join(levels).encode())
    rest.wait(4)
    one_level.wait(2)
    assert sorted(rest.payloads) == [b"a/x", b"b/x", b"c/y", b"d/e/f"]
    assert sorted(one_level.payloads) == [b"a/x", b"b/x"]


def test_two_hundred_topics(world: BusWorld, name: str) -> None:
    bus, inbox = world.connect(), Inbox()
    topics = [bus.topic(name, str(number)) for number in range(200)]
    bus.subscribe(topics, inbox)
    for topic in topics:
        bus.publish(topic, topic.encode())
    inbox.wait(200)
    assert sorted(inbox.payloads) == sorted(topic.encode() for topic in topics)


def test_latest_values_are_there_for_early_and_late_watchers(world: BusWorld, name: str) -> None:
    bus, early = world.connect(), {}
    bus.watch(f"test/{name}", early.__setitem__)
    for value in (b"1", b"2"):
        bus.announce(f"test/{name}/a", value)
    bus.announce(f"test/{name}/b", b"x").wait(DEADLINE)
    bus.announce(f"test/{name}/b", None).wait(DEADLINE)
    eventually(lambda: early == {f"test/{name}/a": b"2", f"test/{name}/b": None})
    late = world.connect().watch(f"test/{name}")
    assert late.snapshot() == {f"test/{name}/a": b"2"}


def test_presence_is_seen_and_leaving_too(world: BusWorld, name: str) -> None:
    here, there = world.connect(), world.connect()
    presence = here.enter(name, Identity("log", 3), {"role": "calendar"})
    with Roster(there) as roster:
        eventually(lambda: [view for view in roster.sites() if view.name == name])
        view = next(view for view in roster.sites() if view.name == name)
        assert (view.identity, view.standing, view.info) == (Identity("log", 3), Standing.ALIVE, {"role": "calendar"})
        presence.leave()
        eventually(lambda: _standing(roster, name) is Standing.DEAD)
        roster.remove(name)
        eventually(lambda: _standing(roster, name) is None)


def test_others_learn_within_seconds_that_a_site_died(world: BusWorld, name: str) -> None:
    bus, told = world.connect(), []
    with Roster(bus, told.append) as roster:
        world.die_present(name)
        eventually(lambda: _standing(roster, name) is Standing.DEAD)
        eventually(lambda: [view for view in told if view.name == name and view.standing is Standing.DEAD])


def test_where_the_bus_has_a_last_will_the_word_of_a_site_that_died_says_so(world: BusWorld, name: str) -> None:
    if not world.last_will:
        pytest.skip("heartbeats have to do")
    watch = world.connect().watch(f"sites/{name}")
    world.die_present(name)
    eventually(lambda: (word := decode(watch.snapshot().get(f"sites/{name}"))) and not word.alive)


def test_a_site_name_is_refused_while_it_is_held_and_free_after_death(world: BusWorld, name: str) -> None:
    bus, other = world.connect(), world.connect()
    bus.enter(name, Identity("log-a", 1))
    with pytest.raises(errors.NameTaken):
        other.enter(name, Identity("log-b", 7))
    world.die_present(f"{name}-dead")
    other.enter(f"{name}-dead", Identity("log-b", 1))


def test_a_later_life_takes_a_site_name_over_and_the_stale_one_knows(world: BusWorld, name: str) -> None:
    old = world.connect().enter(name, Identity("log", 1))
    new = world.connect().enter(name, Identity("log", 2))
    eventually(lambda: old.lost)
    old.leave()  # a stale word: it must not hide the later life
    with Roster(world.connect()) as roster:
        assert [view.identity.life for view in roster.sites() if view.name == name] == [2]
        assert _standing(roster, name) is Standing.ALIVE
    assert not new.lost


def _standing(roster: Roster, name: str) -> Standing | None:
    return next((view.standing for view in roster.sites() if view.name == name), None)


def test_survives_a_broker_that_is_killed_and_restarted(private_world: BusWorld, name: str) -> None:
    world, plain, durable = private_world, Inbox(), Inbox()
    publisher, subscriber = world.connect(), world.connect()
    topic = publisher.topic(name)
    subscriptions = [subscriber.subscribe(topic, plain), subscriber.subscribe(topic, durable, durable=name)]
    publisher.publish(topic, b"before").wait(DEADLINE)
    plain.wait(1)
    durable.wait(1)
    world.kill()
    receipts = [publisher.publish(topic, b"%d" % number) for number in range(100)]
    assert not any(receipt.done for receipt in receipts)
    world.restart()
    for receipt in receipts:
        receipt.wait(DEADLINE)

    def both_go_on() -> bool:
        publisher.publish(topic, b"after").wait(DEADLINE)
        return b"after" in plain.payloads and b"after" in durable.payloads

    eventually(both_go_on)
    for inbox, subscription in zip((plain, durable), subscriptions, strict=True):
        if world.ordered:  # what the broker forgot was published again, under other numbers
            assert inbox.payloads[:101] == [b"before", *(b"%d" % number for number in range(100))]
            assert subscription.stats.missing == 0
            continue
        numbers = [delivery.metadata.number for delivery in inbox if delivery.metadata and delivery.metadata.number]
        assert numbers == sorted(set(numbers)), "in order, none twice"
        # A broker that forgot its sessions cannot deliver what it took before the subscriber was back. Every event was
        # either delivered or reported as missing.
        assert len(numbers) + subscription.stats.missing == numbers[-1]


def test_publishes_beyond_the_buffer_are_refused_not_dropped(private_world: BusWorld, name: str) -> None:
    world = private_world
    bus = world.connect(buffer_bytes=1024 * 1024)
    topic = bus.topic(name)
    bus.publish(topic, b"x").wait(DEADLINE)
    world.kill()
    taken: list[Receipt] = []

    def publish_without_end() -> None:
        while len(taken) < 1000:
            taken.append(bus.publish(topic, bytes(10_000)))

    with pytest.raises(errors.Backpressure) as caught:
        publish_without_end()
    assert caught.value.retriable
    assert 10 <= len(taken) <= 110
    world.restart()
    for receipt in taken:
        receipt.wait(DEADLINE)


def test_a_payload_over_the_limit_is_refused_and_the_bus_goes_on(world: BusWorld, name: str) -> None:
    bus, inbox = world.connect(max_payload=10_000), Inbox()
    topic = bus.topic(name)
    bus.subscribe(topic, inbox)
    assert bus.capabilities.max_payload == 10_000
    with pytest.raises(errors.PayloadTooLarge, match="10000"):
        bus.publish(topic, bytes(10_001))
    bus.publish(topic, bytes(9_000)).wait(DEADLINE)
    inbox.wait(1)


def test_what_is_said_arrives_in_order_as_it_was(world: BusWorld, name: str) -> None:
    speaker, listener, inbox = world.connect(), world.connect(), Inbox()
    topic = speaker.topic("txlayer", "v1", "said", name)
    listener.subscribe(topic, inbox)
    said = [b"", bytes(range(256)), b"{", *(b"%d" % number for number in range(500)), bytes(70_000)]
    for number, payload in enumerate(said):
        speaker.say(topic, payload)
        if number % 7 == 0:
            speaker.flush()
    speaker.flush()
    inbox.wait(len(said))
    assert inbox.payloads == said
    assert not inbox[1].headers


def test_what_is_said_is_refused_over_the_limit_and_after_close(world: BusWorld, name: str) -> None:
    bus = world.connect(max_payload=10_000)
    topic = bus.topic("txlayer", "v1", "said", name)
    with pytest.raises(errors.PayloadTooLarge, match="10000"):
        bus.say(topic, bytes(10_001))
    bus.close()
    with pytest.raises(errors.Closed):
        bus.say(topic, b"x")
    bus.flush()


def test_who_goes_on_speaking_is_heard_after_the_broker_was_away(private_world: BusWorld, name: str) -> None:
    world, inbox = private_world, Inbox()
    speaker, listener = world.connect(), world.connect()
    topic = speaker.topic("txlayer", "v1", "said", name)
    listener.subscribe(topic, inbox)

    def heard(word: bytes) -> bool:
        speaker.say(topic, word)
        speaker.flush()
        return word in inbox.payloads

    eventually(lambda: heard(b"before"))
    world.kill()
    for _ in range(100):
        heard(b"meanwhile")
    world.restart()
    eventually(lambda: heard(b"after"))


def test_a_handler_that_keeps_failing_makes_a_dead_letter_and_the_position_moves_on(world: BusWorld, name: str) -> None:
    bus, good, tries = world.connect(), Inbox(), []

    def handler(delivery: Delivery) -> None:
        if delivery.payload == b"poison" and len(tries) < 3:
            tries.append(delivery)
            raise ValueError("no such room")
        good(delivery)

    topic = bus.topic(name)
    bus.subscribe(topic, handler, durable=name, retry=Retry(attempts=3, first_wait=0.001))
    bystander = Inbox()
    bus.subscribe(topic, bystander)
    bus.publish(topic, b"poison", type="meeting.room", key=b"k", headers={"h": "1"})
    bus.publish(topic, b"next")
    good.wait(1)
    assert (good.payloads, len(tries)) == ([b"next"], 3)
    operator = world.connect()
    [letter] = dead_letters.letters(operator, name)
    assert (letter.topic, letter.payload, letter.attempts, letter.key) == (topic, b"poison", 3, b"k")
    assert "no such room" in letter.reason
    dead_letters.replay(operator, letter)
    good.wait(2)
    assert (good[1].payload, good[1].metadata and good[1].metadata.type) == (b"poison", "meeting.room")
    assert dead_letters.letters(operator, name) == []
    bus.publish(topic, b"last")
    bystander.wait(3)
    assert bystander.payloads == [b"poison", b"next", b"last"]


def test_close_while_busy_ends_and_fails_what_is_left(world: BusWorld, name: str) -> None:
    bus, started, go_on = world.connect(), threading.Event(), threading.Event()
    topic = bus.topic(name)

    def slow(_: Delivery) -> None:
        started.set()
        go_on.wait(DEADLINE)

    bus.subscribe(topic, slow)
    receipts = [bus.publish(topic, b"%d" % number) for number in range(500)]
    assert started.wait(DEADLINE)
    closer = threading.Thread(target=bus.close)
    closer.start()
    go_on.set()
    closer.join(DEADLINE)
    assert not closer.is_alive()
    assert all(receipt.done for receipt in receipts)
    with pytest.raises(errors.Closed):
        bus.publish(topic, b"x")
    with pytest.raises(errors.Closed):
        bus.subscribe(topic, Inbox())
    bus.close()


def test_topics_that_the_bus_forbids_are_refused(world: BusWorld, name: str) -> None:
    bus = world.connect()
    for topic in ("", "a/+", "a#", "x" * 70_000):
        with pytest.raises(errors.TopicForbidden):
            bus.publish(topic, b"x")
    with pytest.raises(errors.TopicForbidden):
        bus.subscribe("#a", Inbox())
    odd = bus.topic(name, "a/b.c+d#e f_ü")
    bus.publish(odd, b"x").wait(DEADLINE)


BAD_EVENTS: list[dict[str, Any]] = [
    {"payload": "text"},
    {"payload": None},
    {"payload": 7},
    {"key": "text"},
    {"key": bytearray(b"k")},
    {"headers": {"a": 1}},
    {"headers": {1: "a"}},
    {"headers": {"a": b"bytes"}},
    {"headers": {"tx": "mine"}},
    {"headers": [("a", "b")]},
    {"type": 5},
    {"type": None},
    {"type": "y" * 300},
    {"topic": None},
    {"topic": 5},
]


@pytest.mark.parametrize("kind", ["memory", "mqtt", "kafka"])
def test_events_of_the_wrong_kind_are_refused_and_take_no_number(
    kind: str, request: pytest.FixtureRequest, name: str
) -> None:
    world: BusWorld = MemoryWorld() if kind == "memory" else ServerWorld(request.getfixturevalue(f"{kind}_broker"))
    bus, inbox = world.connect(), Inbox()
    topic = bus.topic(name)
    subscription = bus.subscribe(topic, inbox)

    def refuse_all() -> None:
        for bad in BAD_EVENTS:
            with pytest.raises(errors.UsageError):
                bus.publish(**{"topic": topic, "payload": b"x", **bad})

    refuse_all()  # before the topic is known
    bus.publish(topic, b"1").wait(DEADLINE)
    refuse_all()
    unusual: Any = [bytearray(b"2"), memoryview(b"3")]
    for payload in unusual:
        bus.publish(topic, payload).wait(DEADLINE)
    inbox.wait(3)
    assert inbox.payloads == [b"1", b"2", b"3"]
    assert [delivery.metadata.number for delivery in inbox if delivery.metadata] == [1, 2, 3]
    assert subscription.stats.missing == 0
    for value in ("text", 7):
        with pytest.raises(errors.UsageError):
            bus.announce("kind/name", value)  # type: ignore[arg-type]
    world.close()


def test_a_closed_subscription_takes_no_topics(world: BusWorld, name: str) -> None:
    bus = world.connect()
    topic = bus.topic(name)
    subscription = bus.subscribe(topic, Inbox())
    subscription.close()
    with pytest.raises(errors.Closed):
        subscription.add(bus.topic(name, "more"))
    with pytest.raises(errors.Closed):
        subscription.remove(topic)


def test_gaps_are_reported_with_their_numbers(world: BusWorld, name: str) -> None:
    """A publisher whose events 2 and 3 are lost on the way: its numbers are moved on, as a broker's drop does."""
    if world.ordered:
        pytest.skip("what the bus below loses is asked for again: see tests/integration/test_ordered.py")
    bus, inbox, gaps = world.connect(), Inbox(), []
    topic = bus.topic(name)
    subscription = bus.subscribe(topic, inbox, on_gap=gaps.append)
    bus.publish(topic, b"1").wait(DEADLINE)
    skip_numbers(bus, topic, 2)
    bus.publish(topic, b"4").wait(DEADLINE)
    inbox.wait(2)
    assert [(gap.topic, gap.first, gap.last) for gap in gaps] == [(topic, 2, 3)]
    assert isinstance(gaps[0], Gap)
    assert subscription.stats.missing == 2


def skip_numbers(bus: object, topic: str, count: int) -> None:
    """Lose the next `count` events of a topic before they leave."""
    bus._stream(topic).number += count  # type: ignore[attr-defined]
