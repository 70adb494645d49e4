"""Subscriptions that share a session, and sessions of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.conftest import DEADLINE, eventually
from tests.inbox import Inbox
from tests.integration.mqtt.rig import AS_DEBIAN_SHIPS_IT, Opener, Plain, PrivateBroker
from txlayer import (
    Ack,
    Delivery,
    Gap,
    errors,
)
from txlayer.adapters import streams
from txlayer.testing.server import Server


def test_a_topic_of_another_subscription_can_be_added_and_removed(
    mqtt_broker: Server, opened: Opener, name: str
) -> None:
    bus, one, other = opened(mqtt_broker.url), Inbox(), Inbox()
    first, second = bus.subscribe(f"{name}/1", one), bus.subscribe(f"{name}/2", other)
    first.add(f"{name}/2", f"{name}/+")
    assert first.topics == {f"{name}/1", f"{name}/2", f"{name}/+"}
    bus.publish(f"{name}/1", b"1")
    bus.publish(f"{name}/2", b"2")
    bus.publish(f"{name}/3", b"3")
    one.wait(3)
    other.wait(1)
    assert sorted(one.payloads) == [b"1", b"2", b"3"]
    first.remove(f"{name}/2", f"{name}/+")
    bus.publish(f"{name}/2", b"4")
    other.wait(2)
    bus.publish(f"{name}/1", b"5")
    one.wait(4)
    assert (one.payloads[3:], other.payloads) == ([b"5"], [b"2", b"4"])
    second.close()
    with pytest.raises(errors.Closed):
        second.add("x")


@pytest.mark.parametrize("by_adding", [False, True])
def test_subscriptions_to_the_same_topic_that_begin_at_once_get_all_its_events(
    mqtt_broker: Server, opened: Opener, name: str, by_adding: bool
) -> None:
    bus, inboxes, looked = opened(mqtt_broker.url), [Inbox(), Inbox()], threading.Barrier(2)
    router: Any = bus._router
    first = bus.subscribe(f"{name}/other", inboxes[0]) if by_adding else None
    overlaps = router.overlaps

    def look(*args: Any, **options: Any) -> bool:
        found: bool = overlaps(*args, **options)
        if not router.changing._is_owned():
            looked.wait(DEADLINE)  # the other looks too before either goes on
        return found

    router.overlaps = look
    begin = first.add if first is not None else partial(bus.subscribe, handler=inboxes[0])
    threads = [
        threading.Thread(target=begin, args=(name,)),
        threading.Thread(target=bus.subscribe, args=(name, inboxes[1])),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    bus.publish(name, b"x").wait(DEADLINE)
    for inbox in inboxes:
        inbox.wait(1)


@pytest.mark.parametrize("what", ["subscription", "topic", "watch"])
def test_what_ends_takes_nothing_from_what_begins_at_the_same_moment(
    mqtt_broker: Server, opened: Opener, name: str, what: str
) -> None:
    bus, inbox, seen = opened(mqtt_broker.url), Inbox(), list[str]()
    session: Any = bus._main
    ending = bus.watch(name) if what == "watch" else bus.subscribe(name, Inbox())

    def begin() -> None:
        if what == "watch":
            bus.watch(name, lambda key, _: seen.append(key))
        else:
            bus.subscribe(name, inbox)

    beginner = threading.Thread(target=begin)
    unsubscribe = session.unsubscribe

    def late(filters: Any) -> Any:
        if beginner.ident is None:
            beginner.start()
            if not bus._router.changing._is_owned():  # type: ignore[attr-defined]
                beginner.join(DEADLINE)  # it is let in before the broker is told that the other ended
        return unsubscribe(filters)

    session.unsubscribe = late
    if what == "topic":
        ending.remove(name)  # type: ignore[union-attr]
    else:
        ending.close()
    beginner.join(DEADLINE)
    bus.publish(name, b"x").wait(DEADLINE)
    bus.announce(f"{name}/key", b"x").wait(DEADLINE)
    eventually(lambda: inbox.payloads == [b"x"] or seen == [f"{name}/key"])


def test_a_watch_that_fails_to_begin_takes_nothing_from_another_of_the_same_values(
    mqtt_broker: Server, opened: Opener, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = opened(mqtt_broker.url)
    watch = bus.watch(name)

    def refuse(*_: object) -> None:
        raise errors.SubscribeFailed("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(bus._main, "_await", refuse)
        with pytest.raises(errors.SubscribeFailed):
            bus.watch(name)
    bus.announce(f"{name}/key", b"x").wait(DEADLINE)
    eventually(lambda: watch.snapshot() == {f"{name}/key": b"x"})


def test_room_in_the_lane_wakes_the_session_of_an_added_topic_too(
    mqtt_broker: Server, opened: Opener, name: str
) -> None:
    bus, woken = opened(mqtt_broker.url), threading.Event()
    bus.subscribe(f"{name}/1", Inbox())
    subscription: Any = bus.subscribe(f"{name}/2", Inbox())
    subscription.add(f"{name}/1")
    [apart] = subscription._apart
    apart._own_session.look_again = woken.set
    bus.publish(f"{name}/1", b"x")
    assert woken.wait(DEADLINE)


def test_a_handler_that_waits_for_another_subscription_s_event_is_not_stuck_behind_the_window(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str
) -> None:
    bus, arrived, done = opened(private_mqtt_broker(**AS_DEBIAN_SHIPS_IT).url), threading.Event(), threading.Event()

    def wait_for_the_other(_: Delivery) -> None:
        assert arrived.wait(DEADLINE)
        done.set()

    for durable in (None, name):
        arrived.clear()
        done.clear()
        topics = [f"{name}/{durable}/waiting", f"{name}/{durable}/other"]
        waiting = bus.subscribe(topics[0], wait_for_the_other, durable=durable)
        other = bus.subscribe(topics[1], lambda _: arrived.set())
        for _ in range(100):
            bus.publish(topics[0], b"x")
        bus.publish(topics[1], b"y")
        assert done.wait(DEADLINE)
        waiting.close()
        other.close()


@pytest.mark.parametrize("qos", [0, 1])
def test_a_slow_durable_handler_stops_the_reading_and_not_the_connection(
    private_mqtt_broker: PrivateBroker, opened: Opener, plain: Callable[..., Plain], name: str, qos: int
) -> None:
    broker, go_on, inbox = private_mqtt_broker(log_type="all"), threading.Event(), Inbox()

    def handler(delivery: Delivery) -> None:
        go_on.wait(DEADLINE)
        inbox(delivery)

    subscription: Any = opened(broker.url, keepalive=2).subscribe(name, handler, durable=name)
    subscription._lane._high_water = 10
    publisher, count = plain(broker.url), 3000
    sent = [publisher.client.publish(name, b"%d" % number + bytes(10_000), qos) for number in range(count)]
    sent[-1].wait_for_publish(DEADLINE)
    eventually(lambda: broker.log_text().count(f"Received PINGREQ from {name}\n") >= 3, "longer than two keepalives")
    assert len(subscription._lane._queue) < 1000
    subscription.add(f"{name}/more")  # its confirmation is behind the events
    go_on.set()
    inbox.wait(count)
    assert inbox.payloads == [b"%d" % number + bytes(10_000) for number in range(count)]
    assert subscription._own_session.generations == 1


def test_after_its_goodbye_a_session_does_not_connect_again(mqtt_broker: Server, opened: Opener, name: str) -> None:
    subscription: Any = opened(mqtt_broker.url).subscribe(name, Inbox(), durable=name)
    session = subscription._own_session
    command = session._command

    def slowly(request: Callable[[], None]) -> None:
        command(request)
        eventually(lambda: session.generations == 2 or not session._thread.is_alive())

    session._command = slowly
    subscription.close()
    assert session.generations == 1


def test_room_that_comes_with_the_goodbye_does_no_harm(
    mqtt_broker: Server, opened: Opener, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    subscription: Any = opened(mqtt_broker.url).subscribe(name, Inbox(), durable=name)
    session = subscription._own_session
    session._has_room = lambda: session._said_goodbye  # the socket is closed then
    session.look_again()
    subscription.close()
    assert "ended by a bug" not in caplog.text


def test_a_publisher_that_forgets_its_first_topics_goes_on(
    mqtt_broker: Server, opened: Opener, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "_MOST_TOPICS", 2)
    bus, inbox, gaps = opened(mqtt_broker.url), Inbox(), list[Gap]()
    subscription = bus.subscribe(f"{name}/+", inbox, on_gap=gaps.append)
    for number in range(9):
        bus.publish(f"{name}/{number % 3}", b"%d" % number)
    inbox.wait(9)
    assert inbox.payloads == [b"%d" % number for number in range(9)]
    assert (len(bus._topics), gaps, subscription.stats.duplicates) == (2, [], 0)


def test_publishes_from_many_threads_leave_in_the_order_of_their_numbers(
    mqtt_broker: Server, opened: Opener, name: str
) -> None:
    bus, inbox = opened(mqtt_broker.url), Inbox()
    subscription = opened(mqtt_broker.url).subscribe(name, inbox, ack=Ack.MANUAL)

    def publish(thread: int) -> None:
        for number in range(200):
            bus.publish(name, b"%d-%d" % (thread, number))

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    inbox.wait(1600)
    positions = [delivery.position for delivery in inbox]
    assert [position[1] for position in positions if position] == list(range(1, 1601))
    assert subscription.stats.missing == 0
