"""Closing: what is still delivered, how long it takes, what is left."""

from __future__ import annotations

import os
import threading
import time

import pytest

from tests.conftest import DEADLINE, eventually
from tests.inbox import Inbox
from tests.integration.mqtt.rig import Opener, PrivateBroker
from txlayer import (
    Bus,
    Delivery,
    Identity,
    Receipt,
    errors,
)
from txlayer.testing.server import Server


def test_what_was_published_just_before_close_is_delivered(mqtt_broker: Server, opened: Opener, name: str) -> None:
    inbox = Inbox()
    opened(mqtt_broker.url).subscribe(name, inbox)
    for number in range(20):
        bus = opened(mqtt_broker.url)
        receipts = [bus.publish(name, b"%d" % number) for _ in range(10)]
        bus.close()
        assert [receipt.error for receipt in receipts] == [None] * 10
    inbox.wait(200)


def test_close_while_the_broker_is_away_takes_its_time_and_no_more(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str
) -> None:
    broker = private_mqtt_broker()
    bus = opened(broker.url)
    subscriptions = [bus.subscribe(f"{name}/{number}", Inbox()) for number in range(5)]
    durable = [bus.subscribe(name, Inbox(), durable=f"{name}-{number}") for number in range(2)]
    bus.enter(name, Identity("log"))
    bus.watch("test")
    broker.kill()
    eventually(lambda: not bus._main.connected)
    began = time.monotonic()
    subscriptions[0].close()
    with pytest.raises(errors.BusError, match="away"):
        durable[0].unsubscribe()
    receipt = bus.publish(name, b"x")
    bus.close(timeout=1.0)
    assert time.monotonic() - began < DEADLINE
    assert isinstance(receipt.error, errors.PublishFailed)
    bus.close()


def test_close_with_handlers_that_never_return_has_one_deadline(mqtt_broker: Server, opened: Opener, name: str) -> None:
    bus, go_on, started = opened(mqtt_broker.url), threading.Event(), list[int]()

    def stuck(_: Delivery) -> None:
        started.append(1)
        go_on.wait(DEADLINE)

    for number in range(5):
        bus.subscribe(f"{name}/{number}", stuck)
        bus.publish(f"{name}/{number}", b"x")
    eventually(lambda: len(started) == 5)
    began = time.monotonic()
    bus.close(timeout=0.5)
    assert time.monotonic() - began < 15.0
    go_on.set()


def test_a_handler_may_close_its_subscription_and_its_bus(mqtt_broker: Server, opened: Opener, name: str) -> None:
    bus, closed = opened(mqtt_broker.url), list[str]()
    subscriptions = {}

    def close_subscription(_: Delivery) -> None:
        subscriptions["one"].close()
        closed.append("subscription")

    def close_bus(_: Delivery) -> None:
        bus.close()
        closed.append("bus")

    subscriptions["one"] = bus.subscribe(f"{name}/1", close_subscription, durable=name)
    bus.subscribe(f"{name}/2", close_bus)
    bus.publish(f"{name}/1", b"x")
    eventually(lambda: closed == ["subscription"])
    bus.publish(f"{name}/2", b"x")
    eventually(lambda: closed == ["subscription", "bus"])
    with pytest.raises(errors.Closed):
        bus.publish(name, b"x")


def test_a_receipt_s_callback_may_close_the_bus(mqtt_broker: Server, opened: Opener, name: str) -> None:
    bus, closed = opened(mqtt_broker.url), threading.Event()

    def close(_: Receipt) -> None:
        bus.close()
        closed.set()

    bus.publish(name, b"x").add_callback(close)
    assert closed.wait(DEADLINE)


def test_publishing_while_another_thread_closes_completes_every_receipt(
    mqtt_broker: Server, opened: Opener, name: str
) -> None:
    for _ in range(10):
        bus, receipts = opened(mqtt_broker.url), list[Receipt]()

        def publish(bus: Bus = bus, receipts: list[Receipt] = receipts) -> None:
            try:
                while True:
                    receipts.append(bus.publish(name, b"x"))
            except (errors.Closed, errors.Backpressure):
                return

        thread = threading.Thread(target=publish)
        thread.start()
        eventually(lambda receipts=receipts: len(receipts) > 50)  # type: ignore[misc]
        bus.close(timeout=0.2)
        thread.join(DEADLINE)
        assert not [receipt for receipt in receipts if not receipt.done]


def test_nothing_is_left_open(mqtt_broker: Server, opened: Opener, name: str) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    def once() -> None:
        bus = opened(mqtt_broker.url)
        bus.subscribe(name, Inbox(), durable=name).unsubscribe()
        bus.subscribe(name, Inbox())
        bus.enter(name, Identity("log")).leave()
        bus.watch("sites").close()
        bus.close()
        opened.open.clear()

    once()
    before = descriptors()
    for _ in range(3):
        once()
    eventually(lambda: descriptors() <= before)
