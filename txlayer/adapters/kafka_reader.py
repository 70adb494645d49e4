"""A consumer and its thread: reads partitions from given positions and feeds what it reads to those who want it.

There is no group membership: partitions are assigned, so that nothing is ever rebalanced. Several feeds may read one
partition, each from its own position; a message below a feed's position is not for it. A feed that is full is left
behind, and the reader goes back to its position when it has room again, so that it does not hold up the others.

The driver lets only one thread use a consumer at a time and makes the others wait, so everything that touches the
consumer runs on the reader's thread; others leave a call for it.
"""

from __future__ import annotations

import concurrent.futures
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from txlayer.adapters.kafka_pace import Pace
from txlayer.adapters.kafka_renewal import Renewal, close_soon
from txlayer.errors import BrokerUnreachable, Closed, SubscribeFailed

_logger = logging.getLogger(__name__)

BATCH = 200
"""Well below the 700 new objects after which the garbage collector looks at them all."""
BUSY = 50
GATHER_SECONDS = 0.003
"""After a batch of at least `BUSY`, how long the next one grows: every batch wakes other threads."""
IDLE_SECONDS = 0.01
"""How long an idle reader waits for a message before it looks for calls."""
LONGEST_IDLE_SECONDS = 0.03
"""The same, when there were none for a second."""
QUIET_SECONDS = 0.1
"""How long nothing has come when a reader goes over to a patient consumer: it must not do so amid a stream."""
_ASK_SECONDS = 2.0
_AGAIN_SECONDS = 1.0
"""How long a partition that the reader could not go to is left alone: asking for it holds up the others."""
_FAR = 1000
"""Messages that are rather read again than skipped by a seek."""

Place = tuple[str, int]
"""(topic, partition)"""
_T = TypeVar("_T")


class Feed(ABC):
    """Somebody's place in one partition. All of it is called on the reader's thread."""

    def __init__(self, next: int) -> None:
        self.next = next
        """The offset that it wants next."""
        self.behind = False
        """It was full and is left behind."""

    @property
    @abstractmethod
    def full(self) -> bool:
        """It has no room for more."""

    @abstractmethod
    def take(self, messages: Sequence[Message]) -> None:
        """These come next."""

    @abstractmethod
    def lose(self, first: int, last: int) -> None:
        """The log begins later than its position: these offsets are gone."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """It cannot be read."""

    @abstractmethod
    def reach_end(self, offset: int) -> None:
        """All that the log has was taken, up to `offset`; only told by a reader that was asked to."""


class _Partition:
    __slots__ = ("assigned", "astray", "feeds", "not_before", "paused", "position")

    def __init__(self, position: int) -> None:
        self.feeds: list[Feed] = []
        self.position = position
        self.paused = False
        self.assigned = True
        self.astray = False
        """The log has no such position any more: it stays so until another one is found."""
        self.not_before = 0.0
        """When to try again what has failed."""


_NONE: Mapping[Place, _Partition] = {}


class KafkaReader:
    """One consumer, one thread."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        name: str,
        describe: Callable[[object], str],
        patient: Mapping[str, Any] | None = None,
        quiet: float = QUIET_SECONDS,
    ) -> None:
        """`patient`: settings for when nothing has changed for a while; without them it is as it is always."""
        self._describe = describe
        self.tick: Callable[[], None] = lambda: None
        """Called again and again on the reader's thread."""
        self.last: Callable[[], None] = lambda: None
        """Called there when nothing more is read, before the consumer is closed."""
        self._commits: deque[concurrent.futures.Future[None]] = deque()
        self._renewal = Renewal(lambda: self._open(settings))
        self._pace = Pace(None if patient is None else lambda: self._open(patient))
        self.consumer = self._open(settings)
        self._partitions: dict[Place, _Partition] = {}
        self._calls: deque[tuple[Callable[[], Any], concurrent.futures.Future[Any]]] = deque()
        self._behind = self._busy = False
        self._idle = IDLE_SECONDS
        self._quiet = quiet
        self._came = 0.0
        """When the last messages came."""
        self._room = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"txlayer-kafka-reader-{name}", daemon=True)
        self._thread.start()

    def attach(self, feeds: Mapping[Place, Feed], timeout: float) -> None:
        """Begin to feed, each from its position; the reader has the topics when it returns."""
        try:
            self._call(lambda: self._attach(feeds), timeout)
        except BaseException:  # it may still be done later, when nobody wants it any more
            self._leave_call(lambda: self._detach(feeds))
            raise

    def detach(self, feeds: Mapping[Place, Feed], timeout: float) -> None:
        """Nothing more is given to these."""
        self._call(lambda: self._detach(feeds), timeout)

    def committed(self, places: Collection[Place], timeout: float) -> dict[Place, int]:
        """Where the reader's group stands, as far as it does."""
        if not places:
            return {}
        asked = [TopicPartition(*place) for place in places]
        found = self._call(lambda: self.consumer.committed(asked, timeout=timeout), 2 * timeout)
        return {(at.topic, at.partition): at.offset for at in found if at.offset >= 0}

    def commit_now(self, offsets: Mapping[Place, int], timeout: float) -> None:
        """Commit positions of the reader's group, and wait for it."""
        if not offsets:
            return
        try:
            self._call(lambda: self.commit(offsets), timeout).result(timeout)
        except TimeoutError:
            raise BrokerUnreachable(f"Kafka did not take the position within {timeout} s") from None

    def hurry(self) -> None:
        """Somebody waits for what comes next; from any thread."""
        self._leave_call(self._hurry)

    def has_room(self) -> None:
        """A feed that was full may have room again; from any thread."""
        if self._behind:
            self._room.set()

    def close(self) -> None:
        """Stop reading."""
        self._stopping = True
        self._room.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_ASK_SECONDS + 3.0)

    # -- on the reader's thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._step()
            except KafkaException as exc:
                _logger.warning("reading from Kafka: %s", self._describe(exc.args[0]))
                self._room.wait(IDLE_SECONDS)
        self._end()
        while self._calls:
            self._calls.popleft()[1].set_exception(Closed("the reader is closed"))

    def _end(self) -> None:
        try:
            self.consumer.unassign()
            self.last()
        except KafkaException as exc:
            _logger.warning("the last positions were not committed: %s", self._describe(exc.args[0]))
        self._pace.close()
        self.consumer.close()

    def commit(self, offsets: Mapping[Place, int]) -> concurrent.futures.Future[None]:
        """Begin to commit; on the reader's thread."""
        answer: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.consumer.commit(
            offsets=[TopicPartition(*place, offset) for place, offset in offsets.items()], asynchronous=True
        )
        self._commits.append(answer)  # answered on this thread, so not before now
        return answer

    def serve(self) -> None:
        """Wait a little for answers; on the reader's thread, when nothing is assigned."""
        self.consumer.poll(IDLE_SECONDS)

    def _on_commit(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        if not self._commits:
            return
        answer = self._commits.popleft()
        failed = error or next((place.error for place in places if place.error is not None), None)
        if failed is None:
            answer.set_result(None)
        else:
            answer.set_exception(SubscribeFailed(f"Kafka did not take the position: {self._describe(failed)}"))

    def _step(self) -> None:
        while self._calls:
            self._idle = IDLE_SECONDS  # there may be another one soon
            self._answer(*self._calls.popleft())
        self.tick()
        if self._renewal.due:
            self._renew()
        if self._behind and not self._catch_up():
            self._room.wait(IDLE_SECONDS)
            self._room.clear()
            return
        if self._busy:
            time.sleep(GATHER_SECONDS)  # a `consume` that waits is woken by every answer of the broker
        batch = self.consumer.consume(BATCH, 0)
        self._busy = BUSY <= len(batch) < BATCH
        if not batch:
            batch = self.consumer.consume(1, self._idle)
        if batch:
            self._came = time.monotonic()
            self._sort(batch)
            batch.clear()
        else:
            self._rest()

    def _rest(self) -> None:
        """Nothing came."""
        self._idle = min(self._idle * 1.02, LONGEST_IDLE_SECONDS)
        if self._behind or self._commits or time.monotonic() - self._came < self._quiet:
            return
        consumer = self._pace.patient_one()
        if consumer is not None:
            self._go_on_with(consumer, patient=True)

    def _open(self, settings: Mapping[str, Any]) -> Consumer:
        """A consumer that is heard as long as it is the reader's."""
        opened: list[Consumer] = []

        def on_error(error: KafkaError) -> None:
            _logger.info("Kafka consumer: %s", self._describe(error))
            if opened and opened[0] is self.consumer:
                self._renewal.hear(error)

        def on_commit(error: KafkaError | None, places: list[TopicPartition]) -> None:
            if opened and opened[0] is self.consumer:
                self._on_commit(error, places)

        opened.append(Consumer({**settings, "error_cb": on_error, "on_commit": on_commit}))
        return opened[0]

    def _renew(self) -> None:
        """This consumer has lost every broker."""
        consumer = self._renewal.replacement()
        if consumer is None:
            return
        self._pace.hurry()
        self._go_on_with(consumer)
        self._renewal.done()
        _logger.info("Kafka: a broker is back, reading goes on with a new consumer")

    def _hurry(self, new: Mapping[Place, _Partition] = _NONE) -> bool:
        """Before partitions or positions change: a patient consumer would first wait for the answer that it asked for.

        False if it is the same consumer still, so that `new` has to be assigned: a swift one, or no broker is there
        to tell another one the topics.
        """
        self._pace.hurry()
        if not self._pace.patient or (consumer := self._renewal.replacement()) is None:
            return False
        self._go_on_with(consumer, new)
        return True

    def _go_on_with(
        self, consumer: Consumer, new: Mapping[Place, _Partition] = _NONE, *, patient: bool = False
    ) -> None:
        """Another consumer begins where the feeds stand; what this one has fetched ahead is fetched again."""
        assigned = {place: partition for place, partition in self._partitions.items() if partition.assigned}
        assigned.update(new)  # at once: those assigned later would wait for its first fetch
        for partition in assigned.values():
            partition.position = _first(partition)
        if assigned:
            consumer.incremental_assign([TopicPartition(*place, one.position) for place, one in assigned.items()])
        if paused := [TopicPartition(*place) for place, partition in assigned.items() if partition.paused]:
            consumer.pause(paused)
        former, self.consumer = self.consumer, consumer
        self._pace.patient = patient
        close_soon(former)
        while self._commits:
            self._commits.popleft().set_exception(BrokerUnreachable("the consumer was replaced before it was answered"))

    def _sort(self, batch: list[Message]) -> None:
        """Give each partition its messages, in order."""
        if len(self._partitions) == 1 and not any(map(Message.error, batch)):
            [only] = self._partitions.values()
            self._feed(only, batch)
            return
        groups: dict[Place, list[Message]] = {}
        bad = []
        for message in batch:
            if message.error() is not None:
                bad.append(message)
                continue
            place = (message.topic(), message.partition())
            group = groups.get(place)  # type: ignore[arg-type]
            if group is None:
                groups[place] = [message]  # type: ignore[index]
            else:
                group.append(message)
        for place, messages in groups.items():
            partition = self._partitions.get(place)
            if partition is not None:
                self._feed(partition, messages)
        for message in bad:  # after the others: the end of a log is told when all before it was taken
            self._on_bad_message(message)

    def _feed(self, partition: _Partition, messages: list[Message]) -> None:
        first, end = _offset(messages[0]), _offset(messages[-1]) + 1
        partition.position = end
        for feed in partition.feeds:
            if feed.behind or end <= feed.next:
                continue
            wanted = messages if first >= feed.next else [m for m in messages if _offset(m) >= feed.next]
            feed.next = end
            feed.take(wanted)
            if feed.full:
                feed.behind = self._behind = True

    def _catch_up(self) -> bool:
        """See who has room again, and go where the first of them stands. False when nobody has room."""
        behind = False
        some = not self._partitions
        for partition in self._partitions.values():
            for feed in partition.feeds:
                if feed.behind and not feed.full:
                    feed.behind = False
                behind = behind or feed.behind
                some = some or not feed.behind
        if some:  # otherwise there is nothing to stop: the reader itself waits
            for place, partition in self._partitions.items():
                behind = not self._take_place(place, partition) or behind
            self._behind = behind
        return some

    def _take_place(self, place: Place, partition: _Partition) -> bool:
        """Go where the first feed of a partition stands. False when that has failed and must be tried again."""
        if time.monotonic() < partition.not_before:
            return False
        try:
            self._go_to_first(place, partition)
        except KafkaException as exc:
            _logger.warning("%s/%d cannot be read yet: %s", *place, self._describe(exc.args[0]))
            partition.not_before = time.monotonic() + _AGAIN_SECONDS
            return False
        return True

    def _go_to_first(self, place: Place, partition: _Partition) -> None:
        here = TopicPartition(*place)
        if all(feed.behind for feed in partition.feeds):
            if not partition.paused:
                self._hurry()
                self.consumer.pause([here])
                partition.paused = True
            return
        if partition.astray:
            self._find_position(place, partition)
            return
        if partition.paused or _is_elsewhere(partition):
            self._hurry()
        if partition.paused:
            self.consumer.resume([here])
            partition.paused = False
        if _is_elsewhere(partition):
            first = _first(partition)
            self.consumer.seek(TopicPartition(*place, first))
            partition.position = first

    def _attach(self, feeds: Mapping[Place, Feed]) -> None:
        new = {place: _Partition(feed.next) for place, feed in feeds.items() if place not in self._partitions}
        if new and not self._hurry(new):
            self._learn({topic for topic, _ in new})
            self.consumer.incremental_assign([TopicPartition(*place, one.position) for place, one in new.items()])
        self._partitions.update(new)
        for place, feed in feeds.items():
            partition = self._partitions[place]
            partition.feeds.append(feed)
            if feed.next < partition.position or partition.paused:
                self._behind = True  # it has to go back

    def _learn(self, topics: Collection[str]) -> None:
        """A consumer that does not know a topic yet takes a second to ask for it by itself.

        While the broker is away it has to: whoever gave up here would leave partitions that count as read and are not.
        """
        try:
            if len(topics) > 5:
                self.consumer.list_topics(timeout=_ASK_SECONDS)
                return
            for topic in sorted(topics):
                self.consumer.list_topics(topic, timeout=_ASK_SECONDS)
        except KafkaException as exc:
            _logger.info("Kafka: topics to be read are not known yet: %s", exc)

    def _detach(self, feeds: Mapping[Place, Feed]) -> None:
        gone = {}
        for place, feed in feeds.items():
            partition = self._partitions.get(place)
            if partition is None or feed not in partition.feeds:
                continue
            partition.feeds.remove(feed)
            if not partition.feeds:
                gone[place] = partition
            self._behind = True
        if assigned := [TopicPartition(*place) for place, partition in gone.items() if partition.assigned]:
            self.consumer.incremental_unassign(assigned)
        for place in gone:
            del self._partitions[place]

    def _on_bad_message(self, message: Message) -> None:
        error, topic, number = message.error(), message.topic(), message.partition()
        assert error is not None
        place = (topic or "", -1 if number is None else number)
        partition = self._partitions.get(place)
        if partition is None:
            return
        if error.code() == KafkaError._PARTITION_EOF:
            for feed in partition.feeds:
                feed.reach_end(_offset(message))
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            partition.astray = self._behind = True
        elif error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED):
            for feed in partition.feeds:
                feed.fail(SubscribeFailed(f"topic {topic}: {error.str()}"))
        else:
            _logger.warning("reading %s: %s", topic, self._describe(error))

    def _find_position(self, place: Place, partition: _Partition) -> None:
        """The position is gone: retention has removed it, or the topic was deleted and made again."""
        here = TopicPartition(*place)
        self._hurry()
        low, high = self.consumer.get_watermark_offsets(here, timeout=_ASK_SECONDS)
        for feed in partition.feeds:
            if feed.next < low:
                feed.lose(feed.next, low - 1)
            elif feed.next > high:
                _logger.warning("%s/%d: the log was replaced by one that is shorter; reading all of it", *place)
            else:
                continue
            feed.next = low
        if partition.assigned:
            self.consumer.incremental_unassign([here])
            partition.assigned = partition.paused = False
        partition.position = _first(partition)
        self.consumer.incremental_assign([TopicPartition(*place, partition.position)])
        partition.assigned, partition.astray = True, False

    # -- calls from other threads --------------------------------------------------------------------------------------

    def _call(self, function: Callable[[], _T], timeout: float) -> _T:
        if self._thread is threading.current_thread():
            return function()
        future = self._leave_call(function)
        if self._stopping and not self._thread.is_alive():
            raise Closed("the reader is closed")
        try:
            return future.result(timeout)
        except TimeoutError:
            raise BrokerUnreachable(f"Kafka did not answer within {timeout} s") from None

    def _leave_call(self, function: Callable[[], _T]) -> concurrent.futures.Future[_T]:
        future: concurrent.futures.Future[_T] = concurrent.futures.Future()
        self._calls.append((function, future))
        self._room.set()
        return future

    def _answer(self, function: Callable[[], Any], future: concurrent.futures.Future[Any]) -> None:
        try:
            future.set_result(function())
        except KafkaException as exc:
            future.set_exception(SubscribeFailed(self._describe(exc.args[0])))


def _offset(message: Message) -> int:
    offset = message.offset()
    assert offset is not None
    return offset


def _first(partition: _Partition) -> int:
    """Where the first of those stands that are not left behind; its own position if all are."""
    return min((feed.next for feed in partition.feeds if not feed.behind), default=partition.position)


def _is_elsewhere(partition: _Partition) -> bool:
    """Its first feed is not where it reads."""
    first = _first(partition)
    return first < partition.position or first > partition.position + _FAR
