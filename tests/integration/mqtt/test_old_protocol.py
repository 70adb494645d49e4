"""MQTT 3.1.1, alone and beside MQTT 5."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.conftest import DEADLINE, eventually
from tests.inbox import Inbox
from tests.integration.mqtt.rig import OLD, Opener, Plain, PrivateBroker, standing
from txlayer import (
    Identity,
    Roster,
    Standing,
    errors,
)
from txlayer.testing.server import Server


def test_old_protocol_round_trip_with_headers_and_key(
    mqtt_broker: Server, opened: Opener, plain: Callable[..., Plain], name: str
) -> None:
    bus, inbox = opened(f"{mqtt_broker.url}?protocol={OLD}"), Inbox()
    assert not bus.capabilities.native_headers
    bus.subscribe(name, inbox)
    payload = bytes(range(256))
    bus.publish(name, payload, headers={"a": "ä\n"}, key=b"k\0\xff", type="t").wait(DEADLINE)
    plain(mqtt_broker.url).publish(name, b"{not an envelope")
    inbox.wait(2)
    assert (inbox[0].payload, inbox[0].headers, inbox[0].key) == (payload, {"a": "ä\n"}, b"k\0\xff")
    assert inbox[0].metadata is not None
    assert (inbox[0].metadata.type, inbox[0].metadata.number) == ("t", 1)
    assert (inbox[1].payload, inbox[1].metadata) == (b"{not an envelope", None)


@pytest.mark.parametrize("protocols", [(OLD, "5"), ("5", OLD)], ids=["old to new", "new to old"])
def test_old_and_new_protocol_on_one_broker(
    mqtt_broker: Server, opened: Opener, name: str, protocols: tuple[str, str]
) -> None:
    publisher, subscriber = (opened(mqtt_broker.url, protocol=protocol) for protocol in protocols)
    inbox = Inbox()
    subscriber.subscribe(name, inbox)
    publisher.publish(name, b"hello", headers={"a": "b"}, key=b"k", type="t").wait(DEADLINE)
    inbox.wait(1)
    assert inbox[0].payload == b"hello"
    if protocols[0] == OLD:  # the broker leaves out what the old protocol has no place for
        assert (inbox[0].headers, inbox[0].key) == ({"a": "b"}, b"k")
        assert inbox[0].metadata is not None
        assert (inbox[0].metadata.type, inbox[0].metadata.number) == ("t", 1)


def test_a_structured_cloud_event_is_opened_on_mqtt_5_only_if_it_is_declared(
    mqtt_broker: Server, opened: Opener, plain: Callable[..., Plain], name: str
) -> None:
    inbox, event = Inbox(), b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":{"a":1}}'
    opened(mqtt_broker.url).subscribe(name, inbox)
    properties = Properties(PacketTypes.PUBLISH)
    properties.ContentType = "application/cloudevents+json; charset=utf-8"
    publisher = plain(mqtt_broker.url)
    publisher.publish(name, event)
    publisher.publish(name, event, properties=properties)
    inbox.wait(2)
    assert inbox.payloads == [event, b'{"a":1}']
    assert inbox[0].metadata is None
    assert inbox[1].metadata is not None
    assert (inbox[1].metadata.id, inbox[1].metadata.type) == ("1", "t")


@pytest.mark.parametrize("protocol", ["5", OLD])
def test_a_durable_name_collects_while_away_and_is_forgotten_by_unsubscribe(
    mqtt_broker: Server, opened: Opener, name: str, protocol: str
) -> None:
    publisher = opened(mqtt_broker.url, protocol=protocol)
    first, second, third = Inbox(), Inbox(), Inbox()
    consumer = opened(mqtt_broker.url, protocol=protocol)
    consumer.subscribe(name, first, durable=name)
    publisher.publish(name, b"1").wait(DEADLINE)
    first.wait(1)
    consumer.close()
    publisher.publish(name, b"2").wait(DEADLINE)
    again = opened(mqtt_broker.url, protocol=protocol)
    subscription = again.subscribe(name, second, durable=name)
    second.wait(1)
    assert second.payloads == [b"2"]
    subscription.unsubscribe()
    publisher.publish(name, b"3").wait(DEADLINE)
    again.subscribe(name, third, durable=name)
    publisher.publish(name, b"4").wait(DEADLINE)
    third.wait(1)
    assert third.payloads == [b"4"]


def test_what_the_next_holder_of_a_durable_name_does_not_want_is_no_longer_collected(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str
) -> None:
    broker = private_mqtt_broker(log_type="all")
    first = opened(broker.url).subscribe([f"{name}/1", f"{name}/2"], Inbox(), durable=name)
    first.add(f"{name}/3")
    first.remove(f"{name}/2")
    first.close()
    bus, inbox = opened(broker.url), Inbox()
    bus.subscribe(f"{name}/1", inbox, durable=name)
    for topic in ("3", "1"):
        bus.publish(f"{name}/{topic}", topic.encode()).wait(DEADLINE)
    inbox.wait(1)
    assert inbox.payloads == [b"1"]

    def given_back() -> list[str]:
        lines = broker.log_text().splitlines()
        ends = [lines[place + 1] for place, line in enumerate(lines) if f"Received UNSUBSCRIBE from {name}" in line]
        return [line.rpartition("/")[2] for line in ends]

    eventually(lambda: given_back() == ["2", "3"])


@pytest.mark.parametrize("filters", [("+", "a"), ("a", "+")], ids=["narrower", "wider"])
def test_a_durable_name_that_returns_with_another_filter_is_never_without_one(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str, filters: tuple[str, str]
) -> None:
    """The broker hears of the end of the old filter only after it has confirmed the new one."""
    broker = private_mqtt_broker(log_type="all")
    before, after = (f"{name}/{last}" for last in filters)
    opened(broker.url).subscribe(before, Inbox(), durable=name).close()
    opened(broker.url).subscribe(after, Inbox(), durable=name)
    eventually(lambda: f"Received UNSUBSCRIBE from {name}" in broker.log_text())
    until_then = broker.log_text().partition(f"Received UNSUBSCRIBE from {name}")[0]
    assert until_then.count(f"Sending SUBACK to {name}\n") == 2


def test_old_protocol_latest_values_and_presence(mqtt_broker: Server, opened: Opener, name: str) -> None:
    bus, other = opened(mqtt_broker.url, protocol=OLD), opened(mqtt_broker.url)
    bus.announce(f"test/{name}/a", b"1").wait(DEADLINE)
    assert other.watch(f"test/{name}").snapshot() == {f"test/{name}/a": b"1"}
    with Roster(other) as roster:
        presence = bus.enter(name, Identity("log"))
        eventually(lambda: standing(roster, name) is Standing.ALIVE)
        with pytest.raises(errors.NameTaken):
            other.enter(name, Identity("another"))
        presence.leave()
        eventually(lambda: standing(roster, name) is Standing.DEAD)
        roster.remove(name)
