"""Positions in Kafka's logs: where they begin and end, and how the progress of a durable name is committed.

Committed positions are read and written through the name's own consumer. The admin client could do it too, but a
connection that breaks during a request of its to a group's coordinator ends the process (librdkafka, issue 4605).
"""

from __future__ import annotations

import concurrent.futures
import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol, TypeVar

import tenacity
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from txlayer.adapters.kafka_reader import Place
from txlayer.errors import BrokerUnreachable, SubscribeFailed

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")

COMMIT_SECONDS = 0.25
LAST_COMMIT_SECONDS = 3.0
ANSWER_SECONDS = 10.0
"""After which a commit that nobody answered is made again."""
_AWAY = (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
_PASSING = (  # seen for a moment after a topic was created, or a broker started
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._NOENT,  # no partition has a leader yet
)


class Positions:
    """Asks the broker. It needs no consumer, so it never disturbs one."""

    def __init__(self, admin: AdminClient, describe: Callable[[object], str], timeout: float) -> None:
        self._admin = admin
        self._describe = describe
        self._timeout = timeout

    def ends(self, places: Collection[Place]) -> dict[Place, int]:
        """The offset that the next event in each place will have."""
        return self._offsets(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def beginnings(self, places: Collection[Place]) -> dict[Place, int]:
        """The offset of the oldest event that each place still has."""
        return self._offsets(places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def forget(self, group: str) -> None:
        """Delete all positions of a group. The one request to a coordinator: not while the broker is away."""
        try:
            self._admin.list_topics(timeout=self._timeout)
            self._admin.delete_consumer_groups([group], request_timeout=self._timeout)[group].result()
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                _logger.error("durable name %s could not be forgotten: %s", group, self._describe(exc.args[0]))

    def _offsets(self, places: Collection[Place], spec: OffsetSpec) -> dict[Place, int]:
        if not places:
            return {}

        def ask() -> dict[Place, int]:
            asked = {TopicPartition(*place): spec for place in places}
            answers = self._admin.list_offsets(asked, request_timeout=self._timeout)
            return {
                (at.topic, at.partition): _real(answer.result(self._timeout + 1.0).offset)
                for at, answer in answers.items()
            }

        return self._insist(ask)

    def _insist(self, ask: Callable[[], _T]) -> _T:
        """Ask again while the answer is one that passes."""
        again = tenacity.Retrying(
            stop=tenacity.stop_after_delay(self._timeout),
            wait=tenacity.wait_random_exponential(multiplier=0.005, max=0.5),
            retry=tenacity.retry_if_exception(_passes),
            reraise=True,
        )
        try:
            return again(ask)
        except TimeoutError:
            raise BrokerUnreachable(f"Kafka did not answer within {self._timeout} s") from None
        except KafkaException as exc:
            error = exc.args[0]
            kind = BrokerUnreachable if error.code() in _AWAY else SubscribeFailed
            raise kind(f"Kafka: {self._describe(error)}") from exc


def _real(offset: int) -> int:
    """An answer without error may still be none: beside a broker that comes up librdkafka hands on its own -1001."""
    if offset < 0:
        raise KafkaException(KafkaError(KafkaError.OFFSET_NOT_AVAILABLE, f"the broker's answer is {offset}"))
    return offset


def _passes(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in _PASSING


class Safe(Protocol):
    """Somebody's place in a partition; everything before offset `safe` is acknowledged."""

    safe: int


class Commits(Protocol):
    """What commits, on the thread of its owner."""

    def commit(self, offsets: Mapping[Place, int]) -> concurrent.futures.Future[None]: ...

    def serve(self) -> None:
        """Wait a little for answers."""


class Committer:
    """Commits how far a durable name is safe: a little later, one commit at a time, and again while nothing happens."""

    def __init__(self, commits: Commits, recommit: float) -> None:
        self._commits = commits
        self._recommit = recommit
        self._committed: dict[Place, int] = {}
        self._pending: tuple[concurrent.futures.Future[None], dict[Place, int]] | None = None
        self._next = self._again = self._give_up = 0.0

    def know(self, committed: Mapping[Place, int]) -> None:
        """These are committed already."""
        self._committed.update(committed)
        self._again = time.monotonic() + self._recommit

    def tick(self, places: Mapping[Place, Safe]) -> None:
        """Called often, by one thread."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + min(COMMIT_SECONDS, self._recommit)
        self._take_answer()
        if self._pending is not None and now < self._give_up:
            return
        self._pending = None
        idle = now >= self._again
        self._commit({place: feed.safe for place, feed in places.items() if idle or self._is_news(place, feed)})

    def finish(self, places: Mapping[Place, Safe]) -> None:
        """Commit what is left, and wait for it, not long."""
        deadline = time.monotonic() + LAST_COMMIT_SECONDS
        while time.monotonic() < deadline:
            self._take_answer()
            if self._pending is None:
                self._commit({place: feed.safe for place, feed in places.items() if self._is_news(place, feed)})
            if self._pending is None:
                return
            self._commits.serve()

    def _is_news(self, place: Place, feed: Safe) -> bool:
        return self._committed.get(place) != feed.safe

    def _commit(self, offsets: dict[Place, int]) -> None:
        if offsets and self._pending is None:
            self._pending = (self._commits.commit(offsets), offsets)
            self._give_up = time.monotonic() + ANSWER_SECONDS

    def _take_answer(self) -> None:
        if self._pending is None or not self._pending[0].done():
            return
        future, offsets = self._pending
        self._pending = None
        error = future.exception()
        if error is None:
            self.know(offsets)
        else:
            _logger.info("positions are not committed yet: %s", error)
