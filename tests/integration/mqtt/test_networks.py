"""Connections that are cut, slow, half open, and brokers that restart."""

from __future__ import annotations

import random
import threading

import msgspec
import pytest

from tests.conftest import DEADLINE, eventually
from tests.inbox import Inbox
from tests.integration.mqtt.rig import OLD, Opener, PrivateBroker, numbers, port_of
from tests.proxy import Proxy
from txlayer import (
    Ack,
    Delivery,
    Receipt,
    Retry,
    dead_letters,
    errors,
)
from txlayer.testing.server import Server


@pytest.mark.parametrize("settings", [{}, {"max_inflight_messages": 20}], ids=["no limits", "window of 20"])
def test_cut_again_and_again_under_load_nothing_is_lost_doubled_or_inverted(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str, settings: dict[str, object]
) -> None:
    broker = private_mqtt_broker(**settings)
    count, chance = 3000, random.Random(7)
    with Proxy(port_of(broker.url)) as left, Proxy(port_of(broker.url)) as right:
        publisher = opened(f"mqtt://127.0.0.1:{left.port}")
        subscriber = opened(f"mqtt://127.0.0.1:{right.port}")
        inboxes = [Inbox(), Inbox(), Inbox()]
        subscriptions = [
            subscriber.subscribe(name, inboxes[0]),
            subscriber.subscribe(name, inboxes[1], durable=name),
            subscriber.subscribe(f"{name}/#", inboxes[2]),
        ]
        receipts: list[Receipt] = []
        for number in range(count):
            receipts.append(publisher.publish(name, b"%d" % number))
            if number % 150 == 75:
                eventually(lambda: receipts[-50].done)  # keep up, so that the cuts fall among the events
                proxy = chance.choice([left, right])
                chance.choice([proxy.cut, lambda proxy=proxy: proxy.cut_after(chance.randrange(2000))])()
        for receipt in receipts:
            receipt.wait(DEADLINE)
        for inbox in inboxes:
            inbox.wait(count)
            assert inbox.payloads == numbers(count)
        assert [subscription.stats.missing for subscription in subscriptions] == [0, 0, 0]
        assert left.connections + right.connections > 12


def test_an_acknowledgement_of_an_old_connection_never_reaches_the_new_one(
    mqtt_broker: Server, opened: Opener, name: str
) -> None:
    publisher, inbox = opened(mqtt_broker.url), Inbox()
    with Proxy(port_of(mqtt_broker.url)) as proxy:
        consumer = opened(f"mqtt://127.0.0.1:{proxy.port}")
        consumer.subscribe(name, inbox, durable=name, ack=Ack.MANUAL)
        for payload in numbers(5):
            publisher.publish(name, payload)
        inbox.wait(5)
        proxy.cut()
        inbox.wait(10)
        assert [delivery.redelivered for delivery in inbox] == [False] * 5 + [True] * 5
        for delivery in inbox[:5]:
            delivery.ack()  # too late
        inbox[5].ack()
        consumer.close()
    last = Inbox()
    opened(mqtt_broker.url).subscribe(name, last, durable=name, ack=Ack.MANUAL)
    last.wait(4)
    assert last.payloads == [b"1", b"2", b"3", b"4"]


def test_a_half_open_connection_is_noticed_and_replaced(mqtt_broker: Server, opened: Opener, name: str) -> None:
    with Proxy(port_of(mqtt_broker.url)) as proxy:
        bus, inbox = opened(f"mqtt://127.0.0.1:{proxy.port}", keepalive=1, connect_timeout=5.0), Inbox()
        bus.subscribe(name, inbox)
        proxy.freeze()
        receipt = bus.publish(name, b"x")
        eventually(lambda: not bus._main.connected, "the silence is noticed")
        proxy.cut()
        proxy.thaw()
        receipt.wait(DEADLINE)
        inbox.wait(1)


def test_a_slow_network_changes_nothing_but_the_time(mqtt_broker: Server, opened: Opener, name: str) -> None:
    with Proxy(port_of(mqtt_broker.url)) as proxy:
        proxy.delay = 0.02
        bus, inbox = opened(f"mqtt://127.0.0.1:{proxy.port}"), Inbox()
        bus.subscribe(name, inbox)
        for payload in numbers(300):
            bus.publish(name, payload)
        inbox.wait(300)
        assert inbox.payloads == numbers(300)


def test_keys_removed_while_a_watch_was_cut_off_are_gone_afterwards(
    mqtt_broker: Server, opened: Opener, name: str
) -> None:
    other, told = opened(mqtt_broker.url), list[tuple[str, bytes | None]]()
    for key in ("a", "b", "c"):
        other.announce(f"test/{name}/{key}", b"1").wait(DEADLINE)
    with Proxy(port_of(mqtt_broker.url)) as proxy:
        bus = opened(f"mqtt://127.0.0.1:{proxy.port}", protocol=OLD)  # its session ends with the connection
        watch = bus.watch(f"test/{name}", lambda key, value: told.append((key, value)))
        assert len(watch.snapshot()) == 3
        proxy.refusing = True
        proxy.cut()
        eventually(lambda: not bus._main.connected)
        other.announce(f"test/{name}/a", None).wait(DEADLINE)
        other.announce(f"test/{name}/b", b"2").wait(DEADLINE)
        proxy.refusing = False
        eventually(lambda: watch.snapshot() == {f"test/{name}/b": b"2", f"test/{name}/c": b"1"})
        eventually(lambda: (f"test/{name}/a", None) in told)
    for key in ("b", "c"):
        other.announce(f"test/{name}/{key}", None)


def test_entering_while_the_broker_restarts(private_mqtt_broker: PrivateBroker, opened: Opener, name: str) -> None:
    broker = private_mqtt_broker(persistence=True)
    bus = opened(broker.url)
    bus.subscribe(name, Inbox())
    broker.kill()
    restarting = threading.Thread(target=broker.restart)
    restarting.start()
    inbox, entered = Inbox(), False
    while not entered:
        try:
            bus.subscribe(f"{name}/d", inbox, durable=name)
            entered = True
        except errors.BusError:
            pass
    restarting.join(DEADLINE)
    bus.publish(f"{name}/d", b"x").wait(DEADLINE)
    inbox.wait(1)


def test_an_unsubscribe_that_is_lost_with_the_connection_is_sent_again(
    mqtt_broker: Server, opened: Opener, name: str
) -> None:
    with Proxy(port_of(mqtt_broker.url)) as proxy:
        bus = opened(f"mqtt://127.0.0.1:{proxy.port}")
        inbox, manual = Inbox(), Inbox()
        subscription = bus.subscribe([f"{name}/1", f"{name}/2"], inbox)
        apart = bus.subscribe([f"{name}/1", f"{name}/3"], manual, ack=Ack.MANUAL)
        proxy.refusing = True
        proxy.cut()
        eventually(lambda: not bus._main.connected)
        for one in (subscription, apart):
            session = one._session  # type: ignore[attr-defined]
            session._options = msgspec.structs.replace(session._options, connect_timeout=0.2)
            with pytest.raises(errors.SubscribeFailed):
                one.remove(f"{name}/1")
        proxy.refusing = False
        for topic in ("1", "2", "3"):
            bus.publish(f"{name}/{topic}", topic.encode()).wait(DEADLINE)
        inbox.wait(1)
        manual.wait(1)
        assert (inbox.payloads, manual.payloads) == ([b"2"], [b"3"])
        assert not bus._main._filters.dropping


def test_a_dead_letter_waits_for_a_broker_that_is_away_and_is_one(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str
) -> None:
    broker = private_mqtt_broker(persistence=True)
    bus, tried, fail = opened(broker.url), threading.Event(), threading.Event()

    def handler(_: Delivery) -> None:
        tried.set()
        fail.wait(DEADLINE)
        raise ValueError("no such room")

    subscription = bus.subscribe(name, handler, durable=name, retry=Retry(2, 0.001, 0.001))
    bus.publish(name, b"poison").wait(DEADLINE)
    assert tried.wait(DEADLINE)
    broker.stop()
    eventually(lambda: not bus._main.connected)
    fail.set()
    eventually(lambda: bus._main.value_bytes)
    broker.restart()
    eventually(lambda: subscription.stats.dead_letters == 1)
    assert len(dead_letters.letters(opened(broker.url), name)) == 1


def test_a_replayed_cloud_event_is_handled_again(mqtt_broker: Server, opened: Opener, name: str) -> None:
    bus, good, fail = opened(mqtt_broker.url, cloudevents=True), Inbox(), [True]

    def handler(delivery: Delivery) -> None:
        if fail:
            raise ValueError("not today")
        good(delivery)

    subscription = bus.subscribe(name, handler, durable=name, retry=Retry(1))
    bus.publish(name, b"poison", type="t")
    eventually(lambda: subscription.stats.dead_letters == 1)
    [letter] = dead_letters.letters(bus, name)
    fail.clear()
    dead_letters.replay(bus, letter)
    good.wait(1)
    assert (good[0].payload, good[0].metadata and good[0].metadata.type) == (b"poison", "t")
