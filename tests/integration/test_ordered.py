"""The ordered bus at its edges: hosts that are down, sockets, modes, what the bus below loses, what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DEADLINE, eventually
from tests.inbox import Inbox
from tests.integration.ordered_load import start_host
from txlayer import Ack, Bus, Gap, connect, errors, ordered
from txlayer.adapters import mqtt_options
from txlayer.adapters.memory_broker import broker as memory_broker
from txlayer.logs.memory import MemoryDisk
from txlayer.logs.sqlite import SqliteDisk
from txlayer.ordering.host_state import HostConfig
from txlayer.ordering.messages import Event
from txlayer.ordering.timestamp import Stamp, rank_at
from txlayer.ports import Identity, Watch
from txlayer.sequencing import claims, embedded, stamps
from txlayer.sequencing.bus_exchange import BusExchange
from txlayer.sequencing.sequencer import Sequencer
from txlayer.sequencing.tcp_server import HostExchange
from txlayer.testing.server import Server

CHAIN = "edges"


class Edges:
    """A memory bus with hosts and ordered buses on it, all closed in the end."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._closing: list[Callable[[], object]] = []

    def connect(self, url: str | None = None) -> Bus:
        bus = connect(url or self.url)
        self._closing.append(bus.close)
        return bus

    def ordered(self, sequencer: str | None = None, **options: Any) -> Bus:
        bus = ordered(self.url, sequencer or f"{self.url}/{CHAIN}", **{"deadline": DEADLINE, **options})
        self._closing.append(bus.close)
        return bus

    def host(self, name: str = "a", rank: int = 0, disk: Any = None, patterns: tuple[str, ...] = ("*",)) -> Sequencer:
        bus = self.connect()
        exchange = BusExchange(bus, CHAIN)
        host = Sequencer(
            bus, exchange, disk or MemoryDisk(), name=name, rank=rank, patterns=patterns, chain=CHAIN,
            config=HostConfig(durable_tickets=True),
        )  # fmt: skip
        self._closing.append(host.close)
        return host

    def close(self) -> None:
        for close in reversed(self._closing):
            close()


_count = iter(range(1_000_000))


@pytest.fixture
def edges() -> Iterator[Edges]:
    edges = Edges(f"memory://edges-{next(_count)}")
    yield edges
    edges.close()


StartHost = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartHost]:
    """`start(url, chain, name, ...)`: a host by command; none outlives the test."""
    processes: list[subprocess.Popen[str]] = []

    def start_one(*arguments: str) -> subprocess.Popen[str]:
        processes.append(start_host(tmp_path, *arguments))
        return processes[-1]

    yield start_one
    for process in processes:
        with process:
            process.kill()


def test_a_host_that_is_down_fails_the_publisher_at_its_deadline_and_order_goes_on_when_it_is_back(
    mqtt_broker: Server, tmp_path: Path, start: StartHost
) -> None:
    url, chain, inboxes = mqtt_broker.url, f"down-{tmp_path.name}", [Inbox(), Inbox()]
    host = start(url, chain, "a")
    way = f"{url}/{chain}"
    with ordered(url, way, deadline=1.0) as bus, ordered(url, way, deadline=DEADLINE) as other:
        for inbox in inboxes:
            other.subscribe(["a-1", "a-2"], inbox)
        other.publish("a-1", b"1").wait(DEADLINE)
        with host:
            host.kill()
        with pytest.raises(errors.PublishFailed, match="no answer from host a"):
            bus.publish("a-1", b"lost").wait(DEADLINE)
        plain = Inbox()
        with connect(url) as below:
            below.subscribe("a-1", plain)
            below.publish("a-1", b"plain").wait(DEADLINE)
            plain.wait(1)
        start(url, chain, "a")
        for number in range(20):
            other.publish(f"a-{1 + number % 2}", b"%d" % number).wait(DEADLINE)
        for inbox in inboxes:
            eventually(lambda inbox=inbox: b"19" in inbox.payloads)
    for inbox in inboxes:
        in_order = [delivery.payload for delivery in inbox if not delivery.out_of_order]
        assert in_order == [b"1", *(b"%d" % number for number in range(20))]
        assert [delivery.payload for delivery in inbox if delivery.out_of_order] == [b"plain"]


def test_clients_and_hosts_over_sockets_find_each_other_again_after_a_kill(
    mqtt_broker: Server, tmp_path: Path, start: StartHost
) -> None:
    url, chain = mqtt_broker.url, f"tcp-{tmp_path.name}"
    hosts = {name: start(url, chain, name, "--listen", "tcp://127.0.0.1:0") for name in "ab"}
    found: dict[str, str] = {}
    with connect(url) as bus:
        claims.watch(bus, chain, lambda claim: found.__setitem__(claim.name, claim.address)).close()
    assert found.keys() == {"a", "b"}
    inboxes = [Inbox(), Inbox()]
    with ordered(url, found["a"], deadline=DEADLINE) as one, ordered(url, found["b"], deadline=DEADLINE) as other:
        one.subscribe(["a-1", "b-1"], inboxes[0])
        other.subscribe(["b-1", "a-1"], inboxes[1])
        threads = [threading.Thread(target=_publish, args=(bus, who)) for who, bus in ((b"x", one), (b"y", other))]
        for thread in threads:
            thread.start()
        with hosts["b"] as killed:
            killed.kill()
        start(url, chain, "b", "--listen", found["b"])
        for thread in threads:
            thread.join(2 * DEADLINE)
        for inbox in inboxes:
            inbox.wait(200)
    assert inboxes[0].payloads == inboxes[1].payloads


def test_a_claim_with_an_address_that_cannot_be_does_not_end_a_connection(edges: Edges) -> None:
    bus = edges.connect()
    exchange = HostExchange("tcp://127.0.0.1:0", BusExchange(bus, CHAIN))
    host = Sequencer(
        bus, exchange, MemoryDisk(), name="a", rank=0, patterns=["*"], chain=CHAIN, address=exchange.address,
        know=exchange.know,
    )  # fmt: skip
    try:
        exchange.know(claims.Claim(1, "b", 1, "log-b", ("b*",), address="tcp://nowhere:http"))
        client, inbox = edges.ordered(exchange.address), Inbox()
        client.subscribe("t", inbox)
        client.publish("t", b"x").wait(DEADLINE)
        inbox.wait(1)
        client.close()
    finally:
        host.close()
        exchange.close()


def _publish(bus: Bus, who: bytes) -> None:
    receipts = [bus.publish("ab"[number % 2] + "-1", b"%s%d" % (who, number)) for number in range(100)]
    for receipt in receipts:
        receipt.wait(DEADLINE)


def test_an_embedded_sequencer_goes_on_from_its_log(edges: Edges, tmp_path: Path) -> None:
    log = f"sqlite:///{tmp_path}/seq.db"
    for life in range(3):
        inbox = Inbox()
        with ordered(edges.url, "embedded", log=log, deadline=DEADLINE) as bus, ordered(edges.url) as other:
            other.subscribe(["x", "y"], inbox)
            for number in range(10):
                bus.publish("xy"[number % 2], b"%d" % number).wait(DEADLINE)
            inbox.wait(10)
            assert [delivery.payload for delivery in inbox] == [b"%d" % number for number in range(10)]
            places = [delivery.place for delivery in inbox if delivery.topic == "x"]
            assert places == sorted(set(places))
            assert life == 0 or (places[0] or 0) > 5, "numbers are not given twice"


def test_an_embedded_sequencer_with_a_log_knows_every_number_that_it_gave(edges: Edges, tmp_path: Path) -> None:
    edges.connect()  # the broker lives on
    log, gaps = f"sqlite:///{tmp_path}/seq.db", []
    for life in range(3):
        inbox = Inbox()
        with ordered(edges.url, "embedded", log=log, deadline=DEADLINE) as bus:
            bus.subscribe("t", inbox, durable="d", on_gap=gaps.append)
            bus.publish("t", b"%d" % life).wait(DEADLINE)
            inbox.wait(1)
        assert inbox.payloads == [b"%d" % life]
    assert gaps == []


def test_a_second_embedded_sequencer_is_refused_while_the_first_lives(edges: Edges) -> None:
    first = edges.ordered("embedded")
    with pytest.raises(errors.NameTaken, match="leave sequencer='embedded' out"):
        edges.ordered("embedded")
    inbox = Inbox()
    first.subscribe("t", inbox)
    ordered_beside(edges).publish("t", b"x").wait(DEADLINE)
    inbox.wait(1)


def ordered_beside(edges: Edges) -> Bus:
    """On the chain that is meant when none is named."""
    return edges.ordered(f"{edges.url}/{claims.CHAIN}")


def test_an_embedded_sequencer_takes_the_rank_of_its_like_that_died_and_of_nobody_else(
    edges: Edges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_ANSWER", 0.1)
    below = edges.connect()
    died = claims.Claim(0, "embedded", 3, "gone", ("*",), first=3, passing=True)
    claims.announce(below, claims.CHAIN, died).wait(DEADLINE)
    bus = edges.ordered("embedded")
    bus.publish("t", b"x").wait(DEADLINE)
    held = claims.at_rank(below, claims.CHAIN, 0)
    assert held is not None
    assert (held.epoch, held.first) == (4, 4)
    bus.close()
    held = claims.at_rank(below, claims.CHAIN, 0)
    assert held is not None
    assert (held.epoch, held.retired) == (5, True), "the next one does not have to wait"
    claims.announce(below, claims.CHAIN, claims.Claim(0, "a", 6, "kept", ("*",))).wait(DEADLINE)
    with pytest.raises(errors.LogForeign, match="held by host a"):
        edges.ordered("embedded")


@pytest.mark.parametrize("early", [0, 3])
def test_a_durable_subscription_begins_anew_with_a_gap_when_the_embedded_sequencer_has(
    edges: Edges, early: int
) -> None:
    edges.connect()  # the broker lives on
    for life in range(3):
        inbox, gaps = Inbox(), []
        with ordered(edges.url, "embedded", deadline=DEADLINE) as bus:
            for _ in range(early):
                bus.publish("t", b"early").wait(DEADLINE)
            bus.subscribe("t", inbox, durable="d", on_gap=gaps.append)
            for number in range(5):
                bus.publish("t", b"%d.%d" % (life, number)).wait(DEADLINE)
            inbox.wait(5)
        assert inbox.payloads == [b"%d.%d" % (life, number) for number in range(5)]
        last = early + 5
        again = [Gap("t", "", last + 1, last + 1, certain=False), Gap("t", "", 1, early, certain=False)]
        assert gaps == ([] if life == 0 else again if early else again[:1])


def test_live_subscribers_and_publishers_go_on_with_a_gap_when_an_embedded_sequencer_is_followed_by_another(
    edges: Edges,
) -> None:
    first = edges.ordered("embedded")
    other, inbox, gaps = ordered_beside(edges), Inbox(), []
    other.subscribe(["t", "u"], inbox, on_gap=gaps.append)
    for number in range(4):
        other.publish("tu"[number % 2], b"%d" % number).wait(DEADLINE)
    inbox.wait(4)
    first.close()
    edges.ordered("embedded")
    eventually(lambda: len(gaps) == 2, "gaps of both topics")
    for number in range(4, 8):
        other.publish("tu"[number % 2], b"%d" % number).wait(DEADLINE)
    inbox.wait(8)
    assert inbox.payloads == [b"%d" % number for number in range(8)]
    assert sorted((gap.topic, gap.first, gap.certain) for gap in gaps) == [("t", 3, False), ("u", 3, False)]


def test_a_durable_subscription_begins_anew_when_a_rank_was_retired_and_has_a_new_log(edges: Edges) -> None:
    old, below, inbox, gaps = edges.host(), edges.connect(), Inbox(), []
    with ordered(edges.url, f"{edges.url}/{CHAIN}", deadline=DEADLINE) as bus:
        bus.subscribe("t", inbox, durable="d")
        bus.publish("t", b"1").wait(DEADLINE)
        inbox.wait(1)
    old.close()
    claims.retire(below, CHAIN, 0).wait(DEADLINE)
    assert edges.host().epoch > old.epoch, "what is left of the old log is known by its epoch"
    bus = edges.ordered()
    bus.subscribe("t", inbox, durable="d", on_gap=gaps.append)
    bus.publish("t", b"2").wait(DEADLINE)
    inbox.wait(2)
    assert gaps == [Gap("t", "", 2, 2, certain=False)]


def test_hosts_that_run_go_on_beside_one_that_has_come_with_another_log(edges: Edges) -> None:
    edges.host("a", 0)
    old, below, inbox, gaps = edges.host("b", 1, patterns=("t",)), edges.connect(), Inbox(), []
    reader, writer = edges.ordered(), edges.ordered()
    reader.subscribe(["s", "t"], inbox, on_gap=gaps.append)
    for number in range(6):
        writer.publish("st"[number % 2], b"%d" % number).wait(DEADLINE)
    inbox.wait(6)
    old.close()
    claims.retire(below, CHAIN, 1).wait(DEADLINE)
    edges.host("b", 1, patterns=("t",))
    eventually(lambda: gaps == [Gap("t", "", 4, 4, certain=False)])
    for number in range(6, 12):
        writer.publish("st"[number % 2], b"%d" % number).wait(DEADLINE)
    inbox.wait(12)
    assert inbox.payloads == [b"%d" % number for number in range(12)]
    assert len(gaps) == 1


@pytest.mark.parametrize("durable", ["d", None])
def test_topics_of_a_rank_that_was_retired_begin_anew_at_the_host_that_claims_them(
    edges: Edges, durable: str | None
) -> None:
    disk = MemoryDisk()
    other = edges.host("a", 0, disk)
    old, below, inbox, gaps = edges.host("b", 1, patterns=("t",)), edges.connect(), Inbox(), []
    reader = edges.ordered()
    reader.subscribe("t", inbox, durable=durable, on_gap=gaps.append)
    edges.ordered().publish("t", b"1").wait(DEADLINE)
    inbox.wait(1)
    if durable:
        reader.close()
    old.close()
    claims.retire(below, CHAIN, 1).wait(DEADLINE)
    other.close()
    edges.host("a", 0, disk)
    if durable:
        edges.ordered().subscribe("t", inbox, durable=durable, on_gap=gaps.append)
    eventually(lambda: gaps == [Gap("t", "", 2, 2, certain=False)])


def test_an_added_topic_that_failed_leaves_nothing_waiting(edges: Edges, tmp_path: Path) -> None:
    host = edges.host(disk=SqliteDisk(tmp_path / "a.db"))
    reader, writer, inbox = edges.ordered(), edges.ordered(), Inbox()
    subscription = reader.subscribe("t", inbox)
    subscription._patience = 0.5  # type: ignore[attr-defined]
    writer.publish("u", b"u0").wait(DEADLINE)
    host.close()
    with pytest.raises(errors.SubscribeFailed, match="no answer from host a"):
        subscription.add("u")
    assert subscription.topics == {"t"}
    edges.host(disk=SqliteDisk(tmp_path / "a.db"))
    writer.publish("u", b"u1").wait(DEADLINE)
    writer.publish("t", b"t1").wait(DEADLINE)
    inbox.wait(1)
    assert inbox.payloads == [b"t1"]


def test_publishers_and_subscribers_of_the_plain_bus_go_on_as_before(edges: Edges) -> None:
    edges.host()
    plain, below, above = edges.connect(), Inbox(), Inbox()
    bus = edges.ordered()
    plain.subscribe("t", below)
    bus.subscribe("t", above)
    bus.publish("t", b"ordered", headers={"h": "1"}, key=b"k", type="kind").wait(DEADLINE)
    plain.publish("t", b"plain").wait(DEADLINE)
    below.wait(2)
    above.wait(2)
    assert below.payloads == [b"ordered", b"plain"]
    assert below[0].headers["h"] == "1"
    assert below[0].key == b"k"
    assert [(one.payload, one.out_of_order) for one in above] == [(b"ordered", False), (b"plain", True)]
    assert above[0].headers == {"h": "1"}
    assert above[0].metadata is not None
    assert above[0].metadata.type == "kind"


def test_what_the_bus_below_loses_is_sent_again(edges: Edges) -> None:
    edges.host()
    bus, inbox, gaps = edges.ordered(), Inbox(), []
    bus.subscribe(["t", "u"], inbox, on_gap=gaps.append)
    lost: list[str] = []

    def lose(record: Any) -> bool:
        if record.topic == "t" and len(lost) < 2:
            lost.append(record.topic)
            return True
        return False

    _lose(edges, lose)
    for number in range(6):
        bus.publish("tu"[number % 2], b"%d" % number).wait(DEADLINE)
    inbox.wait(6)
    assert inbox.payloads == [b"%d" % number for number in range(6)]
    assert (len(lost), gaps) == (2, [])


def _lose(edges: Edges, lose: Callable[[Any], bool]) -> None:
    """Let the memory broker acknowledge events that it then does not deliver."""
    broker = memory_broker(edges.url.removeprefix("memory://"))
    deliver = broker.publish
    broker.publish = lambda record: True if lose(record) else deliver(record)  # type: ignore[method-assign]


def test_what_nobody_has_any_more_is_reported_as_a_gap(edges: Edges) -> None:
    edges.host()
    reader, inbox, gaps = edges.ordered(), Inbox(), []
    reader.subscribe("t", inbox, on_gap=gaps.append)
    _lose(edges, lambda record: record.payload == b"lost")
    writer = ordered(edges.url, f"{edges.url}/{CHAIN}", deadline=DEADLINE)
    writer.publish("t", b"lost").wait(DEADLINE)
    writer.close()  # whoever could send it again is gone
    edges.ordered().publish("t", b"kept").wait(DEADLINE)
    inbox.wait(1)
    assert inbox.payloads == [b"kept"]
    assert gaps == [Gap("t", "", 1, 1)]


def test_late_events_of_the_unreliable_mode_are_flagged(edges: Edges) -> None:
    edges.host()
    bus, inbox = edges.ordered(mode="unreliable", time_to_live=0.2), Inbox()
    bus.subscribe("t", inbox)
    broker = memory_broker(edges.url.removeprefix("memory://"))
    deliver, held = broker.publish, []

    def hold_first(record: Any) -> bool:
        if record.payload == b"late":
            held.append(record)
            return True
        return deliver(record)

    broker.publish = hold_first  # type: ignore[method-assign]
    for payload in (b"first", b"late", b"next"):
        bus.publish("t", payload).wait(DEADLINE)
    inbox.wait(2)
    deliver(held[0])
    inbox.wait(3)
    assert [(one.payload, one.out_of_order) for one in inbox] == [(b"first", False), (b"next", False), (b"late", True)]
    with pytest.raises(errors.UsageError, match="no durable"):
        bus.subscribe("t", Inbox(), durable="name")


@pytest.mark.parametrize("mode", ["causal", "per-topic"])
def test_the_other_modes_deliver_everything_in_their_order(edges: Edges, mode: str) -> None:
    edges.host()
    bus, inbox = edges.ordered(mode=mode), Inbox()
    bus.subscribe(["t", "u"], inbox)
    for number in range(50):
        bus.publish("tu"[number % 2], b"%02d" % number)
    inbox.wait(50)
    for topic in "tu":
        of_topic = [one.payload for one in inbox if one.topic == topic]
        assert of_topic == sorted(of_topic)
    if mode == "causal":
        assert inbox.payloads == sorted(inbox.payloads)


def test_a_durable_subscription_gets_on_over_a_broker_with_a_small_window(
    mqtt_broker: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event that all others wait for is behind the window: what waits is kept beside the cursor."""
    # In MQTT 5 the window is the client's word; the broker's own limit counts only for those who say nothing.
    monkeypatch.setattr(mqtt_options, "RECEIVE_MAXIMUM", 5)
    broker = mqtt_broker
    with connect(broker.url) as below:
        host = Sequencer(below, BusExchange(below, CHAIN), MemoryDisk(), name="a", rank=0, patterns=["*"], chain=CHAIN)
        with ordered(broker.url, f"{broker.url}/{CHAIN}", deadline=DEADLINE) as bus:
            inbox, sent = Inbox(), connect(broker.url)
            subscription = bus.subscribe(["t", "u"], inbox, durable="small-window")
            _publish_backwards(bus, sent, 30)
            inbox.wait(30)
            assert inbox.payloads == [b"%d" % number for number in range(30)]
            subscription.unsubscribe()
            sent.close()
        host.close()
        claims.retire(below, CHAIN, 0).wait(DEADLINE)


def _publish_backwards(bus: Bus, sent: Bus, count: int) -> None:
    """Hold the events back below the ordered bus, and publish the last one first."""
    held: list[tuple[str, bytes, dict[str, str]]] = []
    inner = bus._bus  # type: ignore[attr-defined]
    publish = inner.publish

    def hold(topic: str, payload: bytes, **beside: Any) -> Any:
        if topic in "tu":
            held.append((topic, payload, beside["headers"]))
            return sent.publish("elsewhere", b"")
        return publish(topic, payload, **beside)

    inner.publish = hold
    for number in range(count):
        bus.publish("tu"[number % 2], b"%d" % number).wait(DEADLINE)
    inner.publish = publish
    for topic, payload, headers in reversed(held):
        sent.publish(topic, payload, headers=headers).wait(DEADLINE)


def test_a_durable_subscription_lasts_over_a_bus_that_takes_only_small_cursors(edges: Edges) -> None:
    edges.host()
    bus, inbox = edges.ordered(max_payload=600), Inbox()
    subscription = bus.subscribe("t", inbox, durable="small-cursor")
    for number in range(20):
        with ordered(edges.url, f"{edges.url}/{CHAIN}", deadline=DEADLINE) as one:
            one.publish("t", b"%d" % number).wait(DEADLINE)
    inbox.wait(20)
    subscription.add("u")
    bus.publish("u", b"after").wait(DEADLINE)
    inbox.wait(21)


def test_a_topic_that_no_host_claims_is_refused(edges: Edges) -> None:
    edges.host(patterns=("orders*",))
    bus = edges.ordered(deadline=1.0)
    with pytest.raises(errors.PublishFailed, match="a host that claims the topic"):
        bus.publish("prices", b"").wait(DEADLINE)
    with pytest.raises(errors.SubscribeFailed, match="no answer from a host that claims prices"):
        bus.subscribe("prices", Inbox())
    edges.ordered().publish("orders.1", b"").wait(DEADLINE)


def test_a_topic_stays_where_it_is_when_another_host_claims_it(edges: Edges) -> None:
    edges.host("a", 0)
    reader, inbox, gaps = edges.ordered(), Inbox(), []
    reader.subscribe("t", inbox, on_gap=gaps.append)
    before = edges.ordered()
    before.publish("t", b"0").wait(DEADLINE)
    edges.host("b", 1, patterns=("t", "u"))
    before.publish("t", b"1").wait(DEADLINE)
    after, late = edges.ordered(), Inbox()
    after.subscribe(["t", "u"], late)
    after.publish("t", b"2").wait(DEADLINE)
    after.publish("u", b"3").wait(DEADLINE)
    inbox.wait(3)
    late.wait(2)
    assert (inbox.payloads, gaps) == ([b"0", b"1", b"2"], [])
    assert late.payloads == [b"2", b"3"]


def test_an_event_under_another_rank_than_its_topic_has_is_reported_as_a_gap(edges: Edges) -> None:
    edges.host("a", 0, patterns=("t",))
    edges.host("b", 1, patterns=("u",))
    bus, below, inbox, gaps = edges.ordered(), edges.connect(), Inbox(), []
    bus.subscribe("t", inbox, on_gap=gaps.append)
    foreign = Event("x/p", 1, Stamp(rank_at(1, 0), 7, 1), b"")
    below.publish("t", b"foreign", headers=stamps.headers(foreign)).wait(DEADLINE)
    bus.publish("t", b"own").wait(DEADLINE)
    inbox.wait(1)
    assert inbox.payloads == [b"own"]
    assert gaps == [Gap("t", "", 7, 7)]


def test_an_older_host_is_fenced_by_a_newer_epoch_and_says_so(edges: Edges, tmp_path: Path) -> None:
    disk = MemoryDisk()
    old = edges.host(disk=disk)
    new = edges.host(disk=disk)  # the same log: a copy that was started while the first was thought dead
    assert new.epoch == old.epoch + 1
    eventually(lambda: old.ended.is_set())
    assert isinstance(old.error, errors.NameTaken)
    assert "fenced by a, epoch 2" in str(old.error)
    inbox, bus = Inbox(), edges.ordered()
    bus.subscribe("t", inbox)
    bus.publish("t", b"x").wait(DEADLINE)
    inbox.wait(1)


def test_a_log_of_another_host_and_another_log_for_a_rank_are_refused(edges: Edges, tmp_path: Path) -> None:
    disk = SqliteDisk(tmp_path / "a.db")
    edges.host(disk=disk).close()
    with pytest.raises(errors.LogForeign, match="this is the log of host a, rank 0"):
        edges.host(name="b", rank=1, disk=SqliteDisk(tmp_path / "a.db"))
    with pytest.raises(errors.LogForeign, match="txlayer sequencer retire --rank 0"):
        edges.host(disk=SqliteDisk(tmp_path / "new.db"))


def test_stamps_that_are_malformed_or_of_an_unknown_host_are_dropped(edges: Edges) -> None:
    edges.host()
    bus, below, inbox = edges.ordered(), edges.connect(), Inbox()
    bus.subscribe("t", inbox)
    place = json.dumps(["forger/p", 1]).encode()
    for header in ("no base64", "", place.decode()):
        below.publish("t", b"forged", headers={"txo": header}).wait(DEADLINE)
    bus.publish("t", b"real").wait(DEADLINE)
    inbox.wait(1)
    assert inbox.payloads == [b"real"]


def test_packets_that_cannot_be_read_do_not_stop_a_host(edges: Edges) -> None:
    edges.host()
    below, bus, inbox = edges.connect(), edges.ordered(), Inbox()
    topic = BusExchange(below, CHAIN).topic_of("a")
    for packet in (b"", b"\xc1", b"[1]", b"\x91\x92\xa1a\x91\xa5Event"):
        below.publish(topic, packet).wait(DEADLINE)
    bus.subscribe("t", inbox)
    bus.publish("t", b"x").wait(DEADLINE)
    inbox.wait(1)


def test_wrong_calls_say_what_to_change(edges: Edges) -> None:
    with pytest.raises(errors.UsageError, match="known: total, causal, per-topic, unreliable"):
        ordered(edges.url, mode="some")
    with pytest.raises(errors.UsageError, match="embedded"):
        ordered(edges.url, log="sqlite:///x.db")
    with pytest.raises(errors.UsageError, match="tcp://host:port"):
        ordered(edges.url, "tcp://nowhere")
    with pytest.raises(errors.UsageError, match=r"sqlite:///file\.db"):
        ordered(edges.url, "embedded", log="/tmp/x")
    with pytest.raises(errors.UsageError, match="tcp://host:port"):
        HostExchange("tcp://127.0.0.1:http", BusExchange(edges.connect(), CHAIN))
    bus = edges.ordered()
    own = bus.topic("txlayer", "v1", "in", "site")
    with pytest.raises(errors.UsageError, match="apart"):
        bus.subscribe([own, "t"], Inbox())
    with pytest.raises(errors.TopicForbidden, match="wildcards"):
        bus.publish("a/#", b"")


def test_control_topics_of_the_layer_pass_beside_the_order(edges: Edges) -> None:
    """No host is there: what does not need one works."""
    bus, inbox = edges.ordered(), Inbox()
    own = bus.topic("txlayer", "v1", "in", "site")
    bus.subscribe(own, inbox, ack=Ack.MANUAL)
    bus.publish(own, b"control").wait(DEADLINE)
    inbox.wait(1)
    bus.announce("kind/name", b"value").wait(DEADLINE)
    assert bus.watch("kind").snapshot() == {"kind/name": b"value"}


def test_the_command_says_what_is_wrong(mqtt_broker: Server, tmp_path: Path) -> None:
    command = ["sequencer", "serve", "--name", "a", "--rank", "-1", "--log", f"sqlite:///{tmp_path}/a.db"]
    done = _cli(*command, "--bus", mqtt_broker.url)
    assert done.returncode == 2
    assert "--rank -1" in done.stderr
    command[5] = "0"
    done = _cli(*command, "--bus", mqtt_broker.url, "--lease", "2.5")
    assert done.returncode == 2
    assert "guard time of 3.0 s" in done.stderr


def _cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "txlayer.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * DEADLINE, check=False)


def test_whoever_is_refused_a_durable_name_leaves_its_holder_with_ears_and_cursor(
    edges: Edges, monkeypatch: pytest.MonkeyPatch
) -> None:
    edges.host()
    bus, inbox = edges.ordered(), Inbox()
    holder = bus.subscribe("a", inbox, durable="mine")
    cursor = edges.connect().watch("ordered/mine")
    below = bus._bus  # type: ignore[attr-defined]
    opens, seen = below.subscribe, []

    def open_late(*args: Any, **options: Any) -> Any:
        before = cursor.snapshot()
        bus.publish("a", b"1").wait(DEADLINE)
        eventually(lambda: cursor.snapshot() != before and _settled(cursor), "the holder's cursor has moved")
        seen.append(cursor.snapshot())
        return opens(*args, **options)

    monkeypatch.setattr(below, "subscribe", open_late)
    with pytest.raises(errors.NameTaken):
        bus.subscribe("a", Inbox(), durable="mine")
    monkeypatch.undo()
    assert [cursor.snapshot()] == seen
    holder.add("b")
    bus.publish("b", b"2").wait(DEADLINE)
    inbox.wait(2)
    assert inbox.payloads == [b"1", b"2"]


def test_a_former_holder_of_a_durable_name_does_not_touch_the_cursor_of_its_successor(edges: Edges) -> None:
    edges.host()
    first, second, third = (edges.ordered() for _ in range(3))
    former = first.subscribe("a", Inbox(), durable="mine", identity=Identity("site", 1))
    former._below._holder._watch.close()  # type: ignore[attr-defined]  # it does not hear that it is replaced
    inbox = Inbox()
    successor = second.subscribe(["a", "b"], inbox, durable="mine", identity=Identity("site", 2))
    second.publish("b", b"1").wait(DEADLINE)
    inbox.wait(1)
    successor.close()
    saved = threading.Event()
    former._keeper.save_now(saved.set)  # type: ignore[attr-defined]
    assert saved.wait(DEADLINE)
    second.publish("b", b"2").wait(DEADLINE)
    later = Inbox()
    third.subscribe(["a", "b"], later, durable="mine", identity=Identity("site", 3))
    later.wait(1)
    assert later.payloads == [b"2"]
    cursors = edges.connect().watch("ordered/mine")
    eventually(lambda: list(cursors.snapshot()) == ["ordered/mine/cursor/3"], "one cursor is left")


def _settled(cursor: Watch) -> bool:
    """Whether the cursor stands still: it is saved every twentieth of a second while something moves."""
    before = cursor.snapshot()
    threading.Event().wait(0.3)
    return cursor.snapshot() == before
