"""The thread of one subscription: order, retries, dead letters, duplicates, gaps, close."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from tests.conftest import DEADLINE, eventually
from txlayer import Ack, Delivery, Gap, Receipt, Retry, dead_letters, metadata
from txlayer.adapters.ack_window import AckWindow
from txlayer.adapters.lane import Lane, LaneOptions
from txlayer.delivery import REPLAY_FOR
from txlayer.errors import Backpressure, PayloadTooLarge, PublishFailed, UsageError

QUICK = Retry(attempts=3, first_wait=0.001, longest_wait=0.01)
STREAM = b"s" * 12


class Harness:
    """A lane with a window whose acknowledgements are noted, and a graveyard."""

    def __init__(self) -> None:
        self.acked: list[int] = []
        self.buried: list[tuple[Delivery, str, str, int]] = []
        self.answers: list[Callable[[Receipt], object]] = []
        self.stored = 0
        self.window = AckWindow(lambda prefix: self.acked.extend(delivery.token for delivery in prefix))
        self.lanes: list[Lane] = []

    def lane(self, handler: Callable[[Delivery], object], **options: Any) -> Lane:
        options = {"retry": QUICK, "name": "name", **options}
        lane = Lane(LaneOptions(handler, **options), self.bury)
        self.lanes.append(lane)
        return lane

    def bury(self, delivery: Delivery, name: str, reason: Exception, attempts: int) -> Callable[[], Receipt]:
        self.buried.append((delivery, name, str(reason), attempts))
        return self.store

    def store(self) -> Receipt:
        self.stored += 1
        receipt = Receipt()
        (self.answers.pop(0) if self.answers else Receipt.complete)(receipt)
        return receipt

    def put(self, lane: Lane, *numbers: int, topic: str = "t", headers: dict[str, str] | None = None) -> None:
        deliveries = []
        for number in numbers:
            packed = metadata.pack(STREAM, number, 0, b"") if number else None
            delivery = Delivery(topic, b"%d" % number, None, headers, packed)
            self.window.receive(delivery, number)
            deliveries.append(delivery)
        lane.put(deliveries)


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    for lane in harness.lanes:
        lane.close()


def test_events_are_handled_in_order_and_acknowledged(harness: Harness) -> None:
    got: list[bytes] = []
    lane = harness.lane(lambda delivery: got.append(delivery.payload))
    for start in range(1, 100, 10):
        harness.put(lane, *range(start, start + 10))
    eventually(lambda: len(harness.acked) == 100)
    assert got == [b"%d" % number for number in range(1, 101)]
    assert harness.acked == list(range(1, 101))
    eventually(lambda: lane.stats.handled == 100)


def test_a_failing_handler_is_called_again_and_may_recover(harness: Harness) -> None:
    tries: list[int] = []

    def handler(_: Delivery) -> None:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")

    harness.put(harness.lane(handler), 1)
    eventually(lambda: harness.acked == [1])
    assert len(tries) == 3
    assert not harness.buried


def test_a_handler_that_keeps_failing_makes_one_dead_letter_and_the_next_event_comes(harness: Harness) -> None:
    def handler(delivery: Delivery) -> None:
        if delivery.payload == b"1":
            raise ValueError("never")

    lane = harness.lane(handler)
    harness.put(lane, 1, 2)
    eventually(lambda: harness.acked == [1, 2])
    [(delivery, name, reason, attempts)] = harness.buried
    assert (delivery.payload, name, reason, attempts) == (b"1", "name", "never", 3)
    assert lane.stats.dead_letters == 1


def test_what_is_handled_and_what_becomes_a_dead_letter_is_counted_apart(harness: Harness) -> None:
    tries: list[bytes] = []

    def handler(delivery: Delivery) -> None:
        tries.append(delivery.payload)
        if delivery.payload == b"1" or tries.count(b"2") == 1:
            raise ValueError

    lane = harness.lane(handler)
    harness.put(lane, 1, 2, 3)
    eventually(lambda: harness.acked == [1, 2, 3])
    assert (lane.stats.handled, lane.stats.dead_letters) == (2, 1)


def test_a_dead_letter_does_not_wait_for_callbacks_of_the_application(harness: Harness) -> None:
    busy, go_on = threading.Event(), threading.Event()

    def block(_: Receipt) -> None:
        busy.set()
        go_on.wait()

    published = Receipt()
    published.add_callback(block)
    published.complete()
    try:
        assert busy.wait(DEADLINE)
        harness.put(harness.lane(lambda _: 1 / 0), 1)
        eventually(lambda: harness.acked == [1])
    finally:
        go_on.set()


def test_a_lane_that_cannot_go_on_says_why(harness: Harness) -> None:
    told: list[Exception] = []

    def leave(_: Delivery) -> None:
        raise SystemExit("enough")

    lane = harness.lane(leave)
    lane.on_failed = told.append
    harness.put(lane, 1, 2)
    eventually(lambda: not lane._thread.is_alive())
    assert ["SystemExit('enough')" in str(error) for error in told] == [True]
    assert harness.acked == []


def test_while_the_broker_is_away_the_dead_letter_waits_and_nothing_is_acknowledged(harness: Harness) -> None:
    waiting: list[Receipt] = []

    def refuse(receipt: Receipt) -> None:
        raise Backpressure("full")

    harness.answers = [refuse, lambda receipt: receipt.complete(PublishFailed("refused")), waiting.append]
    lane = harness.lane(lambda _: 1 / 0)
    harness.put(lane, 1)
    eventually(lambda: waiting)
    assert harness.acked == []
    assert (len(harness.buried), harness.stored) == (1, 3), "one letter, stored again"
    waiting[0].complete()
    eventually(lambda: harness.acked == [1])


def test_a_dead_letter_that_the_broker_refuses_is_told_until_it_is_taken(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[Receipt] = []
    harness.answers = [lambda receipt: receipt.complete(PublishFailed("Not authorized")), waits.append]
    with caplog.at_level(logging.WARNING, "txlayer.adapters.lane"):
        lane = harness.lane(lambda _: 1 / 0)
        harness.put(lane, 1)
        eventually(lambda: len(waits) == 1)
    assert "stands still, a dead letter cannot be stored: Not authorized; trying again in" in caplog.text
    assert "Not authorized" in lane.stats.blocked
    assert harness.acked == []
    waits[0].complete()
    eventually(lambda: harness.acked == [1])
    assert (lane.stats.blocked, lane.stats.dead_letters) == ("", 1)


def test_close_while_burying_and_while_retrying_leaves_the_event_unacknowledged(harness: Harness) -> None:
    waiting: list[Receipt] = []
    harness.answers = [waiting.append]
    burying = harness.lane(lambda _: 1 / 0)
    harness.put(burying, 1)
    eventually(lambda: waiting)
    burying.close(DEADLINE)
    tried = threading.Event()

    def fail(_: Delivery) -> None:
        tried.set()
        raise ValueError

    retrying = harness.lane(fail, retry=Retry(attempts=100, first_wait=1000.0, longest_wait=1000.0))
    harness.put(retrying, 2)
    assert tried.wait(DEADLINE)
    retrying.close(DEADLINE)
    assert not burying._thread.is_alive()
    assert not retrying._thread.is_alive()
    assert harness.acked == []


def test_duplicates_are_dropped_and_acknowledged_in_auto(harness: Harness) -> None:
    got: list[bytes] = []
    lane = harness.lane(lambda delivery: got.append(delivery.payload))
    harness.put(lane, 1, 2, 2, 1, 3)
    eventually(lambda: harness.acked == [1, 2, 2, 1, 3])
    assert got == [b"1", b"2", b"3"]
    assert lane.stats.duplicates == 2


def test_duplicates_are_flagged_in_manual(harness: Harness) -> None:
    got: list[tuple[bytes, bool]] = []
    lane = harness.lane(lambda delivery: got.append((delivery.payload, delivery.redelivered)), ack=Ack.MANUAL)
    harness.put(lane, 1, 2, 1)
    eventually(lambda: len(got) == 3)
    assert got == [(b"1", False), (b"2", False), (b"1", True)]
    assert harness.acked == []


def test_events_without_numbers_are_never_duplicates(harness: Harness) -> None:
    got: list[bytes] = []
    harness.put(harness.lane(lambda delivery: got.append(delivery.payload)), 0, 0, 0)
    eventually(lambda: len(got) == 3)


def test_a_gap_is_told_before_the_event_behind_it(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    got: list[object] = []

    def on_gap(gap: Gap) -> None:
        got.append(gap)
        raise ValueError("on_gap may fail")

    with caplog.at_level(logging.ERROR):
        lane = harness.lane(lambda delivery: got.append(delivery.payload), on_gap=on_gap)
        harness.put(lane, 1, 5)
        eventually(lambda: len(got) == 3)
    assert got == [b"1", Gap("t", STREAM.hex(), 2, 4), b"5"]
    assert lane.stats.missing == 3
    assert "on_gap failed" in caplog.text


def test_what_is_no_longer_wanted_is_acknowledged_unseen(harness: Harness) -> None:
    got: list[str] = []
    lane = harness.lane(lambda delivery: got.append(delivery.topic))
    lane.keep_only(lambda topic: topic == "wanted")
    harness.put(lane, 1, topic="other")
    harness.put(lane, 2, topic="wanted")
    eventually(lambda: harness.acked == [1, 2])
    assert got == ["wanted"]


def test_a_replayed_dead_letter_is_for_one_subscription(harness: Harness) -> None:
    got: list[bytes] = []
    lane = harness.lane(lambda delivery: got.append(delivery.payload))
    harness.put(lane, 1, headers={REPLAY_FOR: "another"})
    harness.put(lane, 2, headers={REPLAY_FOR: "name"})
    eventually(lambda: harness.acked == [1, 2])
    assert got == [b"2"]


def test_close_waits_for_the_running_handler_and_drops_the_rest(harness: Harness) -> None:
    started, go_on, got = threading.Event(), threading.Event(), []

    def slow(delivery: Delivery) -> None:
        started.set()
        go_on.wait(DEADLINE)
        got.append(delivery.payload)

    lane = harness.lane(slow)
    harness.put(lane, 1, 2, 3)
    assert started.wait(DEADLINE)
    closer = threading.Thread(target=lane.close, args=(DEADLINE,))
    closer.start()
    eventually(lambda: lane._closing.is_set())
    go_on.set()
    closer.join(DEADLINE)
    assert (got, harness.acked) == ([b"1"], [1])


def test_close_does_not_wait_for_ever_for_a_handler_that_never_returns(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    started, go_on = threading.Event(), threading.Event()

    def stuck(_: Delivery) -> None:
        started.set()
        go_on.wait(DEADLINE)

    lane = harness.lane(stuck)
    harness.put(lane, 1)
    assert started.wait(DEADLINE)
    with caplog.at_level(logging.WARNING, "txlayer.adapters.lane"):
        lane.close(0.01)
    assert "still running after close" in caplog.text
    go_on.set()


def test_close_from_the_handler_itself(harness: Harness) -> None:
    lanes: list[Lane] = []
    lane = harness.lane(lambda _: lanes[0].close())
    lanes.append(lane)
    harness.put(lane, 1, 2)
    eventually(lambda: not lane._thread.is_alive())
    assert harness.acked == [1]


@pytest.mark.parametrize("threaded", [False, True])
def test_a_receiver_gets_what_arrived_together_and_acknowledges_it_itself(harness: Harness, threaded: bool) -> None:
    got: list[tuple[list[Delivery], int]] = []

    def receiver(deliveries: Sequence[Delivery]) -> None:
        got.append((list(deliveries), threading.get_ident()))

    lane = Lane(LaneOptions(ack=Ack.MANUAL, receiver=receiver), harness.bury, threaded=threaded)
    harness.put(lane, 1, 2)
    eventually(lambda: bool(got))
    [(deliveries, thread)] = got
    assert [delivery.payload for delivery in deliveries] == [b"1", b"2"]
    assert (thread == threading.get_ident()) is not threaded
    assert harness.acked == []
    for delivery in deliveries:
        delivery.ack()
    assert harness.acked == [1, 2]
    lane.close()
    harness.put(lane, 3)
    assert len(got) == 1


def test_a_lane_that_closes_waits_for_its_receiver(harness: Harness) -> None:
    inside, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def receiver(deliveries: Sequence[Delivery]) -> None:
        inside.set()
        go_on.wait(DEADLINE)
        over.set()

    lane = Lane(LaneOptions(ack=Ack.MANUAL, receiver=receiver), harness.bury, threaded=False)
    thread = threading.Thread(target=harness.put, args=(lane, 1))
    thread.start()
    assert inside.wait(DEADLINE)
    closing = threading.Thread(target=lane.close, args=(DEADLINE,))
    closing.start()
    go_on.set()
    closing.join(DEADLINE)
    assert over.is_set()
    thread.join(DEADLINE)


@pytest.mark.parametrize(("limit", "payload"), [({"high_water": 3}, b""), ({"high_water_bytes": 30}, b"x" * 10)])
def test_a_lane_says_when_it_is_full(limit: dict[str, int], payload: bytes) -> None:
    go_on, low = threading.Event(), threading.Event()
    lane = Lane(LaneOptions(lambda _: go_on.wait(DEADLINE)), lambda *_: Receipt, on_low=low.set, **limit)
    lane.put([Delivery("t", payload)] * 2)
    assert not lane.full
    lane.put([Delivery("t", payload)])
    assert lane.full
    go_on.set()
    assert low.wait(DEADLINE)
    eventually(lambda: not lane.full)
    lane.close()


class Values:
    """Latest values with a limit on their size."""

    def __init__(self, limit: int = 10_000) -> None:
        self.limit, self.values = limit, {}  # type: ignore[var-annotated]

    def announce(self, key: str, value: bytes | None) -> Receipt:
        if value is not None and len(value) > self.limit:
            raise PayloadTooLarge("too large")
        self.values[key] = value
        receipt = Receipt()
        receipt.complete()
        return receipt

    def watch(self, prefix: str, handler: object = None) -> Any:
        values = {key: value for key, value in self.values.items() if value is not None and key.startswith(prefix)}

        class Snapshot:
            def snapshot(self) -> dict[str, bytes]:
                return values

            def close(self) -> None: ...

        return Snapshot()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize("reason", [ValueError("\ud800"), Unprintable(), ValueError("x" * 100_000)])
def test_any_error_makes_a_letter_that_can_be_read(reason: Exception) -> None:
    values = Values()
    letter = dead_letters.write(Delivery("t", b"p", b"k", {"h": "v"}), "name", reason, 3)
    dead_letters.store(values, letter)
    dead_letters.store(values, letter)
    [read] = dead_letters.letters(values, "name")
    assert read.reason.startswith(type(reason).__name__)


def test_an_event_too_large_to_keep_leaves_its_position_and_cannot_be_replayed() -> None:
    values = Values()
    packed = metadata.pack(STREAM, 7, 0, b"")
    large = Delivery("t", bytes(20_000), b"k" * 20_000, {"h": "v" * 20_000}, packed)
    dead_letters.store(values, dead_letters.write(large, "name", ValueError("no"), 3))
    [letter] = dead_letters.letters(values)
    assert (letter.payload, letter.position) == (None, (STREAM.hex(), 7))
    with pytest.raises(UsageError, match="no payload"):
        dead_letters.replay(values, letter)  # type: ignore[arg-type]


def test_a_foreign_value_among_the_letters_is_skipped() -> None:
    values = Values()
    values.announce("dead/name/odd", msgspec.msgpack.encode([1]))
    values.announce("dead/name/bytes", b"\xff")
    assert dead_letters.letters(values) == []


def test_a_replayed_cloud_event_gets_a_number_of_its_own_and_keeps_its_id() -> None:
    attributes = metadata.cloud_attributes(STREAM, 7, 0, "t")
    letter = dead_letters.write(Delivery("t", b"", None, {**attributes, "own": "1"}), "", ValueError("no"), 1)
    assert "sequence" not in letter.headers
    assert "txstream" not in letter.headers
    assert (letter.headers["id"], letter.headers["own"]) == (attributes["id"], "1")
    foreign = {"specversion": "1.0", "id": "1", "sequence": "5"}
    assert dead_letters.write(Delivery("t", b"", None, foreign), "", ValueError("no"), 1).headers == foreign
