"""What the reader does when its consumer refuses, against a consumer that is only written down."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.conftest import DEADLINE, eventually
from txlayer.adapters import kafka_pace, kafka_reader, kafka_renewal
from txlayer.adapters.kafka_reader import Feed, KafkaReader
from txlayer.errors import BrokerUnreachable, SubscribeFailed

AWAY = KafkaError._TRANSPORT
NEVER = 1e6


class Read:
    """A message, or what the driver says in the place of one."""

    def __init__(self, topic: str, offset: int, error: int | None = None) -> None:
        self._topic, self._offset = topic, offset
        self._error = None if error is None else KafkaError(error)

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return self._error


class Consumer:
    """Gives the batches that a test puts in, and fails what the test says as often as it says."""

    brokers_found: Iterator[bool] = iter(())
    """Whether the next ones find a broker; those after them do."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._on_error = settings["error_cb"]
        self.patient = settings.get("patient", False)
        self._lost = False
        self.paused: list[str] = []
        self.closed = threading.Event()
        self.batches: list[list[Read]] = []
        self.fails: dict[str, int] = {}
        self.positions: dict[str, int] = {}
        self.first_offset = 0
        self.changed = threading.Event()

    def lose_brokers(self) -> None:
        self._lost = True

    def consume(self, most: int, timeout: float) -> list[Read]:
        if self._lost:
            self._lost = False
            self._on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
        if not self.batches:
            self.changed.wait(timeout)
            self.changed.clear()
        return self.batches.pop(0) if self.batches else []

    def give(self, *batch: Read) -> None:
        self.batches.append(list(batch))
        self.changed.set()

    def incremental_assign(self, places: Sequence[TopicPartition]) -> None:
        self._perhaps_fail("incremental_assign")
        self.positions.update({place.topic: place.offset for place in places})

    def incremental_unassign(self, places: Sequence[TopicPartition]) -> None:
        self._perhaps_fail("incremental_unassign")
        for place in places:
            del self.positions[place.topic]

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        self._perhaps_fail("get_watermark_offsets")
        return self.first_offset, 1000

    def seek(self, place: TopicPartition) -> None:
        self._perhaps_fail("seek")
        self.positions[place.topic] = place.offset

    def list_topics(self, *args: Any, **rest: Any) -> Any:
        return SimpleNamespace(brokers={1: "a broker"} if next(Consumer.brokers_found, True) else {})

    def pause(self, places: Sequence[TopicPartition]) -> None:
        self.paused += [place.topic for place in places]

    def resume(self, places: Sequence[TopicPartition]) -> None:
        for place in places:
            self.paused.remove(place.topic)

    def commit(self, *args: Any, **rest: Any) -> None:
        """Nobody answers."""

    def unassign(self) -> None:
        self.positions.clear()

    def close(self) -> None:
        self.closed.set()

    def _perhaps_fail(self, call: str) -> None:
        if self.fails.get(call):
            self.fails[call] -= 1
            raise KafkaException(KafkaError(AWAY))


class Got(Feed):
    """Keeps the offsets that it was given."""

    def __init__(self, next: int = 0) -> None:
        super().__init__(next)
        self.offsets: list[int] = []
        self.lost: list[tuple[int, int]] = []
        self.at_end: list[int] = []
        self.no_room = False

    @property
    def full(self) -> bool:
        return self.no_room

    def take(self, messages: Sequence[Any]) -> None:
        self.offsets += [message.offset() for message in messages]

    def lose(self, first: int, last: int) -> None:
        self.lost.append((first, last))

    def fail(self, error: Exception) -> None:
        raise AssertionError(error)

    def reach_end(self, offset: int) -> None:
        self.at_end = list(self.offsets)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaReader]:
    monkeypatch.setattr(kafka_reader, "Consumer", Consumer)
    monkeypatch.setattr(kafka_reader, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(kafka_renewal, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(kafka_pace, "SETTLE_SECONDS", NEVER)
    monkeypatch.setattr(kafka_pace, "CONNECT_SECONDS", 0.0)
    made = KafkaReader({}, "test", str, {"patient": True})
    yield made
    made.close()


@pytest.fixture
def consumer(reader: KafkaReader) -> Consumer:
    made: Any = reader.consumer
    return made


def feeds(reader: KafkaReader, next: int = 0) -> tuple[Got, Got]:
    a, b = Got(next), Got(next)
    reader.attach({("a", 0): a, ("b", 0): b}, DEADLINE)
    return a, b


def test_a_position_that_is_not_found_drops_nothing_of_other_partitions(
    reader: KafkaReader, consumer: Consumer
) -> None:
    _, b = feeds(reader)
    consumer.fails["get_watermark_offsets"] = 1_000_000
    consumer.give(Read("b", 0), Read("a", 0, KafkaError._AUTO_OFFSET_RESET), Read("b", 1))
    consumer.give(Read("b", 2))
    eventually(lambda: b.offsets == [0, 1, 2])


@pytest.mark.parametrize("call", ["get_watermark_offsets", "incremental_unassign", "incremental_assign"])
def test_a_position_that_is_gone_is_looked_for_until_it_is_found(
    reader: KafkaReader, consumer: Consumer, call: str
) -> None:
    a, b = feeds(reader)
    consumer.first_offset = 5
    consumer.fails[call] = 3
    consumer.give(Read("a", 0, KafkaError._AUTO_OFFSET_RESET))
    eventually(lambda: consumer.positions == {"a": 5, "b": 0})
    assert consumer.fails[call] == 0
    consumer.give(Read("a", 5), Read("b", 0))
    eventually(lambda: (a.offsets, b.offsets) == ([5], [0]))
    assert a.lost == [(0, 4)]


def test_going_back_is_tried_until_it_succeeds(reader: KafkaReader, consumer: Consumer) -> None:
    a, b = feeds(reader, 100)
    early = Got(7)
    consumer.fails["seek"] = 3
    reader.attach({("a", 0): early}, DEADLINE)
    eventually(lambda: consumer.positions == {"a": 7, "b": 100})
    consumer.give(*(Read("a", offset) for offset in range(7, 102)))
    eventually(lambda: early.offsets == list(range(7, 102)))
    assert (a.offsets, b.offsets) == ([100, 101], [])


def test_a_partition_that_cannot_be_assigned_is_assigned_the_next_time(reader: KafkaReader, consumer: Consumer) -> None:
    consumer.fails["incremental_assign"] = 1
    with pytest.raises(SubscribeFailed):
        feeds(reader)
    assert consumer.positions == {}
    a, b = feeds(reader)
    assert consumer.positions == {"a": 0, "b": 0}
    consumer.give(Read("a", 0), Read("b", 0))
    eventually(lambda: (a.offsets, b.offsets) == ([0], [0]))


def test_a_partition_that_could_not_be_left_can_be_read_again(reader: KafkaReader, consumer: Consumer) -> None:
    a, b = feeds(reader)
    consumer.fails["incremental_unassign"] = 1
    with pytest.raises(SubscribeFailed):
        reader.detach({("a", 0): a}, DEADLINE)
    consumer.give(Read("a", 0), Read("b", 0))
    eventually(lambda: b.offsets == [0])
    again = Got(0)
    reader.attach({("a", 0): again}, DEADLINE)
    eventually(lambda: consumer.positions["a"] == 0)
    consumer.give(Read("a", 0))
    eventually(lambda: again.offsets == [0])
    assert a.offsets == []


def test_the_end_of_a_log_is_told_when_all_before_it_was_taken(reader: KafkaReader, consumer: Consumer) -> None:
    a, _ = feeds(reader)
    consumer.give(Read("a", 0), Read("a", 1), Read("a", 2, KafkaError._PARTITION_EOF))
    eventually(lambda: a.at_end == [0, 1])


def test_an_attachment_that_comes_too_late_is_undone(reader: KafkaReader, consumer: Consumer) -> None:
    go_on, busy = threading.Event(), threading.Event()

    def hold_up() -> None:
        busy.set()
        go_on.wait(DEADLINE)

    reader.tick = hold_up
    busy.wait(DEADLINE)
    late = Got()
    with pytest.raises(BrokerUnreachable):
        reader.attach({("a", 0): late}, 0.0)
    go_on.set()
    reader.detach({}, DEADLINE)  # what was left before it is done
    assert (reader._partitions, consumer.positions) == ({}, {})


def renewed(reader: KafkaReader, former: Consumer) -> Consumer:
    eventually(lambda: reader.consumer is not former, "a new consumer")
    made: Any = reader.consumer
    return made


@pytest.mark.parametrize("found", [(), (False, False, False)])
def test_a_consumer_that_has_lost_every_broker_is_replaced_where_it_stands_when_one_is_back(
    reader: KafkaReader, consumer: Consumer, monkeypatch: pytest.MonkeyPatch, found: tuple[bool, ...]
) -> None:
    """librdkafka may never ask a broker again that came up without knowing of itself."""
    a, b = feeds(reader, 5)
    consumer.give(Read("a", 5), Read("a", 6))
    eventually(lambda: a.offsets == [5, 6])
    monkeypatch.setattr(Consumer, "brokers_found", iter(found))
    consumer.lose_brokers()
    another = renewed(reader, consumer)
    assert another.positions == {"a": 7, "b": 5}
    assert consumer.closed.wait(DEADLINE)
    another.give(Read("a", 7), Read("b", 5))
    eventually(lambda: (a.offsets, b.offsets) == ([5, 6, 7], [5]))
    assert next(Consumer.brokers_found, None) is None, "each of them was asked"


def test_a_partition_that_nobody_has_room_for_stays_paused_with_another_consumer(
    reader: KafkaReader, consumer: Consumer
) -> None:
    a, b = feeds(reader)
    a.no_room = True
    consumer.give(Read("a", 0))
    eventually(lambda: consumer.paused == ["a"])
    consumer.lose_brokers()
    another = renewed(reader, consumer)
    assert another.paused == ["a"]
    another.give(Read("b", 0))
    eventually(lambda: b.offsets == [0])
    a.no_room = False
    reader.has_room()
    eventually(lambda: another.paused == [])


def test_a_commit_that_a_lost_broker_has_not_answered_fails_with_it(reader: KafkaReader, consumer: Consumer) -> None:
    feeds(reader)
    answer = reader._call(lambda: reader.commit({("a", 0): 1}), DEADLINE)
    consumer.lose_brokers()
    with pytest.raises(BrokerUnreachable):
        answer.result(DEADLINE)


def test_what_a_former_consumer_says_is_not_heard(reader: KafkaReader, consumer: Consumer) -> None:
    feeds(reader)
    consumer.lose_brokers()
    another = renewed(reader, consumer)
    consumer._on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    another.give(Read("a", 0))
    eventually(lambda: not another.batches)
    reader.detach({}, DEADLINE)
    assert reader.consumer is another


def settled(reader: KafkaReader, monkeypatch: pytest.MonkeyPatch) -> Consumer:
    """The patient consumer of a reader that nothing has been asked of for a while."""
    monkeypatch.setattr(kafka_pace, "SETTLE_SECONDS", 0.0)
    reader.hurry()
    eventually(lambda: reader._pace.patient, "a patient consumer")
    monkeypatch.setattr(kafka_pace, "SETTLE_SECONDS", NEVER)
    made: Any = reader.consumer
    assert made.patient
    return made


def test_a_reader_that_is_left_alone_goes_on_with_a_patient_consumer_where_it_stands(
    reader: KafkaReader, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = feeds(reader, 5)
    consumer.give(Read("a", 5), Read("a", 6))
    eventually(lambda: a.offsets == [5, 6])
    patient = settled(reader, monkeypatch)
    assert patient.positions == {"a": 7, "b": 5}
    assert consumer.closed.wait(DEADLINE)
    patient.give(Read("a", 7), Read("b", 5))
    eventually(lambda: (a.offsets, b.offsets) == ([5, 6, 7], [5]))
    assert reader.consumer is patient


def test_a_partition_that_is_added_does_not_wait_for_the_fetch_of_a_patient_consumer(
    reader: KafkaReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = feeds(reader, 5)
    patient, late = settled(reader, monkeypatch), Got(3)
    reader.attach({("c", 0): late}, DEADLINE)
    swift: Any = reader.consumer
    assert not swift.patient
    assert swift.positions == {"a": 5, "b": 5, "c": 3}
    assert patient.closed.wait(DEADLINE)
    swift.give(Read("a", 5), Read("c", 3))
    eventually(lambda: (a.offsets, late.offsets) == ([5], [3]))


def test_going_back_does_not_wait_for_the_fetch_of_a_patient_consumer(
    reader: KafkaReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds(reader, 100)
    patient, early = settled(reader, monkeypatch), Got(7)
    reader.attach({("a", 0): early}, DEADLINE)
    swift = renewed(reader, patient)
    assert (swift.patient, swift.positions) == (False, {"a": 7, "b": 100})


def test_without_a_broker_the_patient_consumer_takes_the_new_partition(
    reader: KafkaReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds(reader)
    patient = settled(reader, monkeypatch)
    monkeypatch.setattr(Consumer, "brokers_found", iter([False]))
    reader.attach({("c", 0): Got()}, DEADLINE)
    assert reader.consumer is patient
    assert patient.positions == {"a": 0, "b": 0, "c": 0}


def test_a_patient_consumer_that_has_lost_every_broker_is_replaced_too(
    reader: KafkaReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = feeds(reader)
    patient = settled(reader, monkeypatch)
    patient.lose_brokers()
    another = renewed(reader, patient)
    another.give(Read("a", 0))
    eventually(lambda: a.offsets == [0])
    assert not another.patient


def test_a_reader_is_not_patient_while_somebody_is_left_behind(
    reader: KafkaReader, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = feeds(reader)
    patient = settled(reader, monkeypatch)
    a.no_room = True
    patient.give(Read("a", 0))
    swift = renewed(reader, patient)
    eventually(lambda: swift.paused == ["a"])
    monkeypatch.setattr(kafka_pace, "SETTLE_SECONDS", 0.0)
    swift.give(Read("b", 0))
    eventually(lambda: b.offsets == [0])
    reader.detach({}, DEADLINE)
    assert reader.consumer is swift
    a.no_room = False
    reader.has_room()
    assert renewed(reader, swift).patient


def test_a_consumer_that_was_opened_for_later_is_closed_with_the_reader(
    reader: KafkaReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_pace, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(kafka_pace, "CONNECT_SECONDS", NEVER)
    reader.hurry()
    eventually(lambda: reader._pace._next is not None)
    opened: Any = reader._pace._next
    reader.close()
    assert opened.closed.wait(DEADLINE)


def test_a_reader_does_not_change_its_consumer_amid_a_stream(
    reader: KafkaReader, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = feeds(reader)
    reader._quiet = NEVER
    consumer.give(Read("a", 0))
    eventually(lambda: a.offsets == [0])
    monkeypatch.setattr(kafka_pace, "SETTLE_SECONDS", 0.0)
    reader.hurry()
    for _ in range(3):  # steps of the reader
        reader.detach({}, DEADLINE)
    assert reader.consumer is consumer
    reader._quiet = 0.0
    assert renewed(reader, consumer).patient
