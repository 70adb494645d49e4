"""A client of the user's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.conftest import DEADLINE, eventually
from tests.inbox import Inbox
from tests.integration.mqtt.rig import Opener, Plain, numbers, port_of, standing
from txlayer import (
    Ack,
    Identity,
    Roster,
    Standing,
    connect,
    errors,
)
from txlayer.testing.server import Server


def own_client(**options: Any) -> Client:
    return Client(CallbackAPIVersion.VERSION2, **{"protocol": MQTTProtocolVersion.MQTTv5, **options})


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311])
def test_the_user_s_own_client_works(
    mqtt_broker: Server, opened: Opener, name: str, version: MQTTProtocolVersion
) -> None:
    client = own_client(protocol=version)
    client.max_queued_messages_set(5)
    bus, inbox = opened(client, host="127.0.0.1", port=port_of(mqtt_broker.url)), Inbox()
    assert bus.native is client
    bus.subscribe(name, inbox)
    receipts = [bus.publish(name, payload, key=b"k") for payload in numbers(500)]
    for receipt in receipts:
        receipt.wait(DEADLINE)
    inbox.wait(500)
    assert inbox.payloads == numbers(500)
    bus.announce(f"test/{name}", b"x").wait(DEADLINE)
    assert bus.watch("test").snapshot()[f"test/{name}"] == b"x"
    presence = bus.enter(name, Identity("log"))
    with Roster(bus) as roster:
        eventually(lambda: standing(roster, name) is Standing.ALIVE)
    presence.leave()


def test_what_the_user_s_own_client_cannot_do_is_refused(mqtt_broker: Server, opened: Opener, name: str) -> None:
    port = port_of(mqtt_broker.url)
    bus = opened(own_client(), host="127.0.0.1", port=port)
    subscription = bus.subscribe(f"{name}/a", Inbox())
    bus.subscribe(f"{name}/b", Inbox())
    for options in ({"durable": name}, {"ack": Ack.MANUAL}):
        with pytest.raises(errors.UsageError, match="client of your own"):
            bus.subscribe(f"{name}/c", Inbox(), **options)  # type: ignore[arg-type]
    with pytest.raises(errors.UsageError, match="client of your own"):
        bus.subscribe(f"{name}/+", Inbox())
    with pytest.raises(errors.UsageError, match="client of your own"):
        subscription.add(f"{name}/b")
    logging_client, filtering_client = own_client(), own_client()
    logging_client.on_log = lambda *_: None
    filtering_client.message_callback_add(f"{name}/#", lambda *_: None)
    for client, taken in ((logging_client, "on_log.*enable_logger"), (filtering_client, "message_callback_add")):
        with pytest.raises(errors.UsageError, match=taken):
            connect(client, host="127.0.0.1", port=port)
    connected = own_client()
    connected.connect("127.0.0.1", port)
    with pytest.raises(errors.UsageError, match="connected already"):
        connect(connected, host="127.0.0.1", port=port)
    connected.disconnect()
    connected.loop_write()


def test_a_foreign_client_with_the_same_id_ends_a_durable_subscription_without_a_fight(
    mqtt_broker: Server, opened: Opener, plain: Callable[..., Plain], name: str
) -> None:
    bus, other = opened(mqtt_broker.url), Inbox()
    subscription = bus.subscribe(name, Inbox(), durable=name)
    bus.subscribe(f"{name}/other", other)
    foreign = plain(mqtt_broker.url, client_id=name)
    eventually(lambda: isinstance(subscription.error, errors.NameTaken))
    assert re.search(r"broke 3 times .* may be connecting .* or the network", str(subscription.error))
    eventually(lambda: subscription.closed)
    bus.publish(f"{name}/other", b"x").wait(DEADLINE)
    other.wait(1)
    eventually(foreign.client.is_connected)
