"""Events: filters, plain ones beside transactions, visibility to the world outside, declared types, codecs."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from tests.conftest import DEADLINE, eventually
from tests.sites.conftest import Notes, Sites
from txlayer import MSGPACK, RAW, Event, Participant, Visibility, event_type
from txlayer.errors import TransactionAborted, UsageError
from txlayer.filters import above, below, between, one_of, starts_with
from txlayer.participant import MemberTransaction, Subscriber
from txlayer.plain import PlainEvents
from txlayer.ports import SiteView
from txlayer.runtime.neighbours import types_of

# Filters


@pytest.mark.parametrize(
    ("where", "passes", "stops"),
    [
        ({"subject": "DSOnline"}, {"subject": "DSOnline", "more": "x"}, {"subject": "other"}),
        ({"room": one_of("B1", "B2")}, {"room": "B2"}, {"room": "B3"}),
        ({"seats": between(10, 50)}, {"seats": 50}, {"seats": 51}),
        ({"seats": above(10)}, {"seats": 11}, {"seats": "many"}),
        ({"seats": below(10)}, {"seats": 9.5}, {"seats": 10}),
        ({"city": starts_with("New")}, {"city": "New York"}, {"city": "York"}),
        ({"open": True}, {"open": "true"}, {"open": "false"}),
        ({"open": True}, {"open": True}, {"open": False}),
        ({"seats": 10}, {"seats": "10.0"}, {}),
    ],
)
def test_a_filter_chooses_transactions_by_their_attributes(
    memory_sites: Sites, notes: Notes, where: Any, passes: Any, stops: Any
) -> None:
    sites = memory_sites
    type = sites.name("meetings")
    member = sites.member("a", type, notes.handler("a"), where=where)
    publisher = sites.start("p")
    sites.know(publisher, type, member)
    assert publisher.send(type, ["yes"], passes).members == 1
    assert publisher.send(type, ["no"], stops).members == 0
    assert notes.of("a") == ["yes"]


def test_inside_a_transaction_the_filter_does_not_apply(sites: Sites, notes: Notes) -> None:
    type = sites.name("meetings")
    member = sites.member("a", type, notes.handler("a"), where={"subject": "DSOnline"})
    publisher = sites.start("p")
    sites.know(publisher, type, member)
    with publisher.transaction(type, {"subject": "DSOnline"}) as tx:
        tx.publish("one", attributes={"subject": "lunch"})
        tx.publish("two", type="lunch")
    assert notes.of("a") == ["one", "two"]


def test_bad_filters_are_refused(memory_sites: Sites, notes: Notes) -> None:
    site = memory_sites.make("a")
    with pytest.raises(UsageError, match="takes a text, a number or a test"):
        site.subscribe("t", notes.handler("a"), where={"x": ["a"]})
    with pytest.raises(UsageError, match="matches nothing"):
        between(2, 1)


# Plain events


def test_one_type_serves_plain_and_transactional_events(sites: Sites) -> None:
    type = sites.name("meetings")
    seen: list[Any] = []

    class Attend(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None:
            seen.append(("inside", event.data))

        def on_plain(self, event: Event) -> None:
            seen.append(("plain", event.data))

    member = sites.member("a", type, Attend, where={"subject": "DSOnline"})
    publisher = sites.start("p")
    sites.know(publisher, type, member)
    publisher.publish(type, {"subject": "lunch"}).wait(DEADLINE)
    publisher.publish(type, {"n": 1}, {"subject": "DSOnline"}).wait(DEADLINE)
    publisher.publish(type, {"subject": "DSOnline"}).wait(DEADLINE)
    eventually(lambda: len(seen) == 2)
    publisher.send(type, [{"n": 2}], {"subject": "DSOnline"}, visibility=Visibility.PUBLIC)
    eventually(lambda: len(seen) == 3)
    assert seen == [("plain", {"n": 1}), ("plain", {"subject": "DSOnline"}), ("inside", {"n": 2})]


# What the world outside sees


@contextmanager
def outsider(url: str, topic: str) -> Iterator[list[bytes]]:
    """Payloads that a consumer which has never heard of txlayer gets from a topic."""
    kind = url.partition(":")[0]
    watch: Callable[..., Any] = {"mqtt": _paho, "kafka": _confluent, "memory": _memory}[kind]
    with watch(url, topic) as got:
        yield got


@contextmanager
def _paho(url: str, topic: str) -> Iterator[list[bytes]]:
    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion

    parts = urlsplit(url)
    assert parts.hostname is not None
    got: list[bytes] = []
    subscribed = threading.Event()
    client = Client(CallbackAPIVersion.VERSION2)
    client.on_message = lambda client, userdata, message: got.append(message.payload)
    client.on_subscribe = lambda *args: subscribed.set()
    client.on_connect = lambda *args: client.subscribe(topic, qos=1)
    client.connect(parts.hostname, parts.port or 1883)
    client.loop_start()
    assert subscribed.wait(DEADLINE)
    yield got
    client.disconnect()
    client.loop_stop()


@contextmanager
def _confluent(url: str, topic: str) -> Iterator[list[bytes]]:
    from confluent_kafka import Consumer

    got: list[bytes] = []
    over = threading.Event()
    consumer = Consumer({"bootstrap.servers": urlsplit(url).netloc, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])

    def read() -> None:
        while not over.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                got.append(message.value())

    thread = threading.Thread(target=read)
    thread.start()
    yield got
    over.set()
    thread.join(DEADLINE)
    consumer.close()


@contextmanager
def _memory(url: str, topic: str) -> Iterator[list[bytes]]:
    from txlayer import connect

    got: list[bytes] = []
    with connect(url) as bus:
        bus.subscribe(topic, lambda delivery: got.append(delivery.payload))
        yield got


def test_outsiders_see_public_events_as_the_publisher_asks(sites: Sites) -> None:
    type = sites.name("news")
    refuse = threading.Event()

    def handle(tx: MemberTransaction, event: Event) -> None:
        if refuse.is_set():
            raise ValueError("no")

    member = sites.member("a", type, handle)
    publisher = sites.start("p")
    sites.know(publisher, type, member)
    publisher.publish(type, "plain").wait(DEADLINE)
    other = sites.name("other")
    publisher.publish(other, "plain").wait(DEADLINE)
    with outsider(sites.world.url, type) as got, outsider(sites.world.url, other) as foreign:
        if not sites.world.url.startswith("kafka"):  # its outsider reads from the beginning
            publisher.publish(type, "plain").wait(DEADLINE)
        publisher.send(type, ["private"], visibility=Visibility.PRIVATE)
        with publisher.transaction(type, visibility=Visibility.PUBLIC) as tx:
            tx.publish("at once")
            eventually(lambda: b'"at once"' in got, "public events are seen before the commit")
            tx.publish("of another type", type=other)
        with publisher.transaction(type, visibility=Visibility.PUBLIC_ON_COMMIT) as tx:
            tx.publish("on commit")
            tx.publish("of another type", type=other)
        refuse.set()
        with pytest.raises(TransactionAborted):
            publisher.send(type, ["aborted"], visibility=Visibility.PUBLIC_ON_COMMIT)
        publisher.publish(type, "last").wait(DEADLINE)
        eventually(lambda: b'"last"' in got)
        publisher.publish(other, "last").wait(DEADLINE)
        eventually(lambda: b'"last"' in foreign)
    assert [msgspec.json.decode(payload) for payload in got] == ["plain", "at once", "on commit", "last"]
    assert set(foreign) <= {b'"plain"', b'"last"'}, "inside a transaction a foreign type is for its members alone"


# Declared types


@event_type("meeting")
class Meeting(msgspec.Struct, frozen=True):
    subject: str


@event_type("meeting.location")
class MeetingLocation(Meeting, frozen=True):
    room: str


@event_type("meeting.cost", parent=Meeting)
@dataclasses.dataclass
class MeetingCost:
    euros: int


def test_declared_types_are_checked_and_arrive_as_instances(sites: Sites, notes: Notes) -> None:
    type = sites.name("meetings")
    member = sites.member("a", type, notes.handler("a"), types=[MeetingLocation, MeetingCost])
    publisher = sites.start("p", types=[Meeting])
    sites.know(publisher, type, member)
    with publisher.transaction(type) as tx:
        tx.publish(MeetingLocation("DSOnline", "B2"))
        tx.publish(MeetingCost(7))
        tx.publish({"subject": "as a dict"}, type="meeting")
        with pytest.raises(UsageError, match="not an event of type 'meeting'"):
            tx.publish({"object": "?"}, type="meeting")
        for wrong in (MeetingLocation("DSOnline", 2), MeetingCost("7")):  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="not an event of type"):
                tx.publish(wrong)
    assert notes.of("a") == [MeetingLocation("DSOnline", "B2"), MeetingCost(7), {"subject": "as a dict"}]


def test_a_declared_field_may_be_what_only_the_users_codec_knows(memory_sites: Sites, notes: Notes) -> None:
    @event_type(memory_sites.name("shape"))
    @dataclasses.dataclass
    class Shape:
        form: complex

    publisher = memory_sites.start("p", codec=Reversed())
    publisher.publish(Shape, Shape(1j)).wait(DEADLINE)


def test_plain_events_are_filtered_by_their_fields(memory_sites: Sites) -> None:
    cost, meeting = memory_sites.name("cost"), memory_sites.name("meeting")

    @event_type(cost)
    @dataclasses.dataclass
    class Cost:
        euros: int
        paid: bool

    @event_type(meeting)
    class Talk(msgspec.Struct, frozen=True):
        subject: str

    heard: list[Any] = []
    site = memory_sites.start("a")
    site.listener(Cost, where={"euros": above(5), "paid": True})(lambda event: heard.append(event.data))
    site.listener(Talk, where={"subject": "DSOnline"})(lambda event: heard.append(event.data))
    publisher = memory_sites.start("p")
    for event in (Cost(4, True), Cost(6, False), Cost(7, True)):
        publisher.publish(Cost, event).wait(DEADLINE)
    for subject in ("lunch", "DSOnline"):
        publisher.publish(Talk, Talk(subject)).wait(DEADLINE)
    eventually(lambda: len(heard) == 2)
    assert Cost(7, True) in heard
    assert Talk("DSOnline") in heard


def test_subscribers_of_a_parent_get_its_children(sites: Sites, notes: Notes) -> None:
    parent, child = sites.name("parent"), sites.name("child")
    member = sites.member("a", parent, notes.handler("a"))
    heard: list[Any] = []
    member.listener(parent)(lambda event: heard.append((event.type, event.data)))
    publisher = sites.start("p")
    publisher.advertise(child, parent=parent)
    sites.know(publisher, child, member)
    publisher.send(child, ["inside"])
    publisher.publish(child, "plain").wait(DEADLINE)
    eventually(lambda: (child, "plain") in heard)
    assert notes.of("a") == ["inside"]


def test_a_child_that_is_advertised_while_a_listener_subscribes_is_heard(
    memory_sites: Sites, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, child = memory_sites.name("parent"), memory_sites.name("child")
    member, publisher = memory_sites.start("a"), memory_sites.start("p")
    subscribe, heard = member.bus.subscribe, list[Any]()

    def subscribe_slowly(topics: Any, handler: Any) -> Any:
        publisher.advertise(child, parent=parent)
        eventually(lambda: child in member._application.types.parents)
        return subscribe(topics, handler)

    monkeypatch.setattr(member.bus, "subscribe", subscribe_slowly)
    member.listener(parent)(lambda event: heard.append(event.data))
    memory_sites.know(publisher, child, member)
    publisher.publish(child, "plain").wait(DEADLINE)
    eventually(lambda: heard == ["plain"])


def test_a_site_listens_to_a_child_before_it_says_so(memory_sites: Sites) -> None:
    sites = memory_sites
    member, publisher = sites.member("a", sites.name("parent"), lambda tx, event: None), sites.start("p")
    engine, order = member._engine, list[str]()
    listen, announce = engine.on_types, engine._listen_to
    engine.on_types = lambda: (listen(), order.append("listens"))[1]
    engine._listen_to = lambda before: (order.append("says so"), announce(before))[1]  # type: ignore[method-assign]
    publisher.advertise(sites.name("child"), parent=sites.name("parent"))
    sites.know(publisher, sites.name("child"), member)
    assert order == ["listens", "says so"]


@pytest.mark.parametrize("running", [False, True])
def test_who_sees_that_a_site_listens_is_heard(
    memory_sites: Sites, monkeypatch: pytest.MonkeyPatch, running: bool
) -> None:
    type, heard, published = memory_sites.name("news"), list[Any](), threading.Event()
    publisher, member = memory_sites.start("p"), memory_sites.make("a")
    listen, told = PlainEvents.listen, publisher._engine._on_presence

    def on_presence(view: SiteView) -> None:
        told(view)
        if type in types_of(view) and not published.is_set():
            publisher.publish(type, "early")
            published.set()

    def listen_late(plain: PlainEvents, subscriber: Subscriber) -> None:
        published.wait(0.3)
        listen(plain, subscriber)

    assert publisher._engine.wires.roster is not None
    monkeypatch.setattr(publisher._engine.wires.roster, "_on_change", on_presence)
    monkeypatch.setattr(PlainEvents, "listen", listen_late)
    if running:
        member.start().listener(type)(lambda event: heard.append(event.data))
    else:
        member.listener(type)(lambda event: heard.append(event.data))
        member.start()
    eventually(lambda: heard == ["early"])


def test_a_strict_site_publishes_only_what_is_advertised(sites: Sites, notes: Notes) -> None:
    type = sites.name("orders")
    member = sites.member("a", type, notes.handler("a"))
    publisher = sites.start("p", strict=True)
    sites.know(publisher, type, member)
    with pytest.raises(UsageError, match="not advertised"):
        publisher.send(type, ["x"])
    with pytest.raises(UsageError, match="not advertised"):
        publisher.publish(type, "x")
    publisher.advertise(type)
    publisher.send(type, ["x"])
    with publisher.transaction(type) as tx, pytest.raises(UsageError, match="not advertised"):
        tx.publish("y", type=sites.name("other"))
    publisher.unadvertise(type)
    with pytest.raises(UsageError, match="not advertised"):
        publisher.send(type, ["x"])
    assert notes.of("a") == ["x"]


def test_declarations_are_checked() -> None:
    with pytest.raises(UsageError, match=r"msgspec\.Struct or a dataclass"):
        event_type("plain")(type("Plain", (), {}))


# Codecs


class Reversed:
    """A codec of the user's own."""

    content_type = "text/reversed"

    def encode(self, value: Any) -> bytes:
        return str(value)[::-1].encode()

    def decode(self, data: bytes, type: Any) -> Any:
        return data.decode()[::-1]


@pytest.mark.parametrize(
    ("codec", "value"),
    [(MSGPACK, {"b": b"\x00\xff"}), (RAW, b"\x00\xff"), (Reversed(), "abc")],
    ids=["mp", "raw", "own"],
)
def test_payloads_in_any_codec(sites: Sites, notes: Notes, codec: Any, value: Any) -> None:
    type = sites.name("orders")
    member = sites.member("a", type, notes.handler("a"), codecs=[Reversed()])
    heard: list[Any] = []
    member.listener(type)(lambda event: heard.append(event.data))
    publisher = sites.start("p", codec=codec)
    sites.know(publisher, type, member)
    publisher.send(type, [value])
    publisher.publish(type, value).wait(DEADLINE)
    eventually(lambda: value in heard)
    assert notes.of("a") == [value]


def test_an_unreadable_event_is_a_vote_of_no(memory_sites: Sites, notes: Notes) -> None:
    type = memory_sites.name("orders")
    member = memory_sites.member("a", type, notes.handler("a"))
    publisher = memory_sites.start("p", codec=Reversed())
    memory_sites.know(publisher, type, member)
    with pytest.raises(TransactionAborted, match="no codec for text/reversed"):
        publisher.send(type, ["x"])
