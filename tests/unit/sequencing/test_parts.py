"""The small parts of the ordered bus: headers, packets, frames, URLs, and the clock that stands still."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import DEADLINE
from txlayer.connect import connect
from txlayer.delivery import REPLAY_FOR
from txlayer.errors import DecodeError, UsageError
from txlayer.logs.memory import MemoryDisk
from txlayer.logs.sqlite import SqliteDisk
from txlayer.ordering.messages import Beat, Beside, Event, Hail
from txlayer.ordering.timestamp import Stamp
from txlayer.sequencing import claims, exchange, host_clock, stamps, tcp_frames
from txlayer.sequencing.host_clock import HostClock
from txlayer.sequencing.inbox import Inbox
from txlayer.sequencing.open_log import open_disk

numbers = st.integers(0, 2**40)
entries = st.lists(numbers, max_size=5).map(tuple)


@given(st.text(max_size=20), numbers, numbers, entries, st.booleans(), st.dictionaries(st.text("ab-"), st.text()))
def test_a_place_survives_its_header_and_leaves_the_application_s_alone(
    publisher: str, serial: int, number: int, ranks: tuple[int, ...], again: bool, own: dict[str, str]
) -> None:
    event = Event(publisher, serial, Stamp(3, number, 1, 0, ranks, ranks), b"payload", again, Beside(dict(own)))
    headers = stamps.headers(event)
    read = stamps.read(headers, b"payload")
    assert read == Event(publisher, serial, event.stamp, b"payload", again)
    assert headers == own


def test_a_replayed_event_is_for_one_subscription_and_has_its_place_for_all() -> None:
    event = Event("p/p", 1, Stamp(0, 1, 1), b"", beside=Beside({REPLAY_FOR: "name"}))
    headers = stamps.headers(event)
    assert REPLAY_FOR not in headers, "the bus below would keep it from all others"
    stamps.read(headers, b"")
    assert headers == {REPLAY_FOR: "name"}


@given(st.text(max_size=60))
def test_headers_of_others_raise_one_error(text: str) -> None:
    try:
        stamps.read({stamps.HEADER: text}, b"")
    except DecodeError:
        return


@given(st.binary(max_size=60))
def test_packets_of_others_raise_one_error(data: bytes) -> None:
    try:
        exchange.unpack(data)
    except DecodeError:
        return


def test_letters_of_a_packet_are_given_to_their_names_in_order() -> None:
    listeners, got = exchange.Listeners(), []
    listeners.by_name["a"] = lambda messages: got.append(("a", messages))
    listeners.by_name["b"] = lambda messages: got.append(("b", messages))
    one, two = Hail(1, 1), Hail(2, 2)
    listeners.take(exchange.pack([("a", one), ("b", one), ("nobody", one), ("a", two)]))
    listeners.take(b"\xc1")
    assert got == [("a", [one, two]), ("b", [one])]
    assert listeners.unreadable == 1


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("mqtt://host:1883", ("mqtt://host:1883", "seq")),
        ("mqtt://host:1883/", ("mqtt://host:1883", "seq")),
        ("mqtt://user:word@host/own?keepalive=5", ("mqtt://user:word@host?keepalive=5", "own")),
    ],
)
def test_a_sequencer_is_a_bus_and_a_chain(url: str, parts: tuple[str, str]) -> None:
    assert claims.split_chain(url) == parts


@pytest.mark.parametrize("url", ["host:1883", "mqtt://host/a/b"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="mqtt://host:1883/seq"):
        claims.split_chain(url)


def test_addresses() -> None:
    assert tcp_frames.addresses("tcp://a:1,[::1]:2") == [("a", 1), ("::1", 2)]
    for wrong in ("tcp://a", "a:1", "tcp://a:99999", "tcp://:1"):
        with pytest.raises(UsageError, match="tcp://host:port"):
            tcp_frames.addresses(wrong)


def test_a_frame_that_is_too_long_or_none_of_ours_is_refused() -> None:
    async def read(data: bytes) -> tcp_frames.Frame:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await tcp_frames.read(reader)

    with pytest.raises(DecodeError, match="at most"):
        asyncio.run(read(b"\xff\xff\xff\xff"))
    with pytest.raises(DecodeError, match="not a frame"):
        asyncio.run(read(b"\0\0\0\1\xc1"))
    with pytest.raises(asyncio.IncompleteReadError):
        asyncio.run(read(b"\0\0\0\5abc"))


def test_packets_are_bounded() -> None:
    letters = [("a", Beat()) for _ in range(600)]
    assert [len(packet.letters) for packet in tcp_frames.packets(letters)] == [256, 256, 88]


def test_the_time_of_a_host_stands_still_while_no_beat_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    real = [100.0]
    monkeypatch.setattr(host_clock.time, "monotonic", lambda: real[0])
    clock = HostClock(heard=100.0, read_at=100.0)
    real[0] += 1.5
    assert clock.now() == pytest.approx(1.5)
    real[0] += 60.0  # the broker is away
    assert clock.now() == pytest.approx(2.0)
    clock.hear()
    real[0] += 1.0
    assert clock.now() == pytest.approx(3.0)


def test_logs_by_url(tmp_path: pytest.TempPathFactory) -> None:
    assert isinstance(open_disk("memory:"), MemoryDisk)
    disk = open_disk(f"sqlite:///{tmp_path}/x.db")
    assert isinstance(disk, SqliteDisk)
    disk.close()
    with pytest.raises(UsageError, match="sqlite:///"):
        open_disk("x.db")


def test_letters_beyond_the_limit_are_dropped_and_counted_and_claims_are_not() -> None:
    inbox: Inbox[int] = Inbox(3)
    inbox.take([1, 2])
    inbox.take([3, 4])
    inbox.take([5])
    inbox.put(6)
    assert (inbox.dropped(), inbox.dropped()) == (2, 0)
    assert inbox.collect(0.0, 100) == [1, 2, 5, 6]
    inbox.take([7, 8, 9])
    inbox.take([10])
    assert (inbox.collect(0.0, 2), inbox.dropped()) == ([7, 8, 9], 1)
    inbox.end()
    assert inbox.collect(0.0, 100) is None


@pytest.mark.parametrize(
    ("rank", "value"),
    [
        (9, b"{"),
        (9, b"\xff"),
        (9, b"[" * 100_000),
        (-1, claims.Claim(-1, "b", 1, "log-b", ())),
        (4096, claims.Claim(4096, "b", 1, "log-b", ())),
        (9, claims.Claim(9, "b", 0, "log-b", ())),
        (9, claims.Claim(9, "b", 1, "log-b", (), first=2)),
        (9, claims.Claim(9, "", 1, "log-b", ())),
        (9, claims.Claim(9, "client/p", 1, "log-b", ())),
        (9, claims.Claim(8, "b", 1, "log-b", ())),
    ],
)
def test_a_claim_that_cannot_be_is_not_found_and_those_beside_it_are(rank: int, value: bytes | claims.Claim) -> None:
    good = claims.Claim(0, "a", 1, "log-a", ("*",))
    body = value if isinstance(value, bytes) else msgspec.json.encode(value)
    with connect("memory://claims") as bus:
        bus.announce(f"{claims.KIND}/c/{rank}", body).wait(DEADLINE)
        claims.announce(bus, "c", good).wait(DEADLINE)
        found: list[claims.Claim] = []
        claims.watch(bus, "c", found.append).close()
    assert set(found) == {good}, "what is announced meanwhile may be found twice"
