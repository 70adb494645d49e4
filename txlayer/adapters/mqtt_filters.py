"""The topic filters of one MQTT session: asked for, confirmed, asked for again after a reconnect.

Everything here happens on the session's network thread, but for those who wait for an `Answer`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from paho.mqtt.client import Client
from paho.mqtt.subscribeoptions import SubscribeOptions

from txlayer.errors import BusError, SubscribeFailed

if TYPE_CHECKING:
    from paho.mqtt.reasoncodes import ReasonCode

_logger = logging.getLogger(__name__)
MQTT_LARGEST = 268_435_455
"""Bytes of a packet that MQTT allows."""
_LARGEST_SUBSCRIBE = 60_000

Filters = dict[str, SubscribeOptions | int]


class SessionFilters:
    """What this session has subscribed to. `resume` is called after every (re)connect, `on_lost` after every loss."""

    def __init__(
        self,
        client: Client,
        on_resume: Callable[[], None],
        on_ready: Callable[[], None],
        on_refused: Callable[[Collection[str]], None],
    ) -> None:
        self.largest_packet = MQTT_LARGEST
        self._client = client
        self._on_resume = on_resume
        self._on_ready = on_ready
        self._on_refused = on_refused
        self._wanted: Filters = {}
        self.dropping: set[str] = set()
        """Those whose end the broker has not confirmed."""
        self._asked: dict[int, tuple[Answer, list[str]]] = {}
        self._unanswered: list[Answer] = []

    @property
    def asking(self) -> bool:
        """Whether an answer of the broker is awaited."""
        return bool(self._asked)

    def subscribe(self, filters: Filters, answer: Answer) -> None:
        """Only while connected; if the broker's answer is lost with the connection, `resume` asks again."""
        self._wanted.update(filters)
        self.dropping.difference_update(filters)
        answer.filters = list(filters)
        for chunk in self._chunks(filters):
            _, mid = self._client.subscribe([(name, filters[name]) for name in chunk])  # type: ignore[arg-type]
            self._await(mid, answer, chunk)
        answer.sent()

    def unsubscribe(self, filters: Collection[str], answer: Answer) -> None:
        """Only while connected. One that the broker has never been asked for is not given back."""
        known = [pattern for pattern in filters if pattern in self._wanted or pattern in self.dropping]
        for pattern in known:
            self._wanted.pop(pattern, None)
        self.dropping.update(known)
        for chunk in self._chunks(known):
            _, mid = self._client.unsubscribe(chunk)
            self._await(mid, answer, chunk)
        answer.sent()

    def resume(self) -> None:
        """Subscribe to everything again; a session that the broker kept takes no harm."""
        unanswered, self._unanswered = list(dict.fromkeys(self._unanswered)), []

        def subscribed(refused: Collection[str]) -> None:
            if refused:
                _logger.error("after a reconnect the broker refused the subscription to %s", some(refused))
                self._on_refused(refused)
            # Not before: what matches a filter that goes and one that comes would match neither for a moment.
            self.unsubscribe(sorted(self.dropping), Answer(lambda _: ready(refused), unanswered))

        def ready(refused: Collection[str]) -> None:
            for answer in unanswered:
                answer.done(_refusal([name for name in answer.filters if name in refused]))
            self._on_ready()

        if self._wanted:
            self._on_resume()
        self.subscribe(dict(self._wanted), Answer(subscribed, unanswered))

    def give_back(self, filters: Collection[str]) -> None:
        """Only while connected. Filters that the broker may still have of an earlier holder of the session."""
        self.dropping.update(pattern for pattern in filters if pattern not in self._wanted)
        self.unsubscribe(sorted(self.dropping), Answer())

    def on_lost(self) -> None:
        for answer in dict.fromkeys(answer for answer, _ in self._asked.values()):
            self._ask_again(answer)
        self._asked.clear()

    def fail(self, error: BusError) -> None:
        """There will be no answer."""
        for answer in self._unanswered:
            answer.done(error)

    def on_suback(self, mid: int, reasons: list[ReasonCode]) -> None:
        answer, chunk = self._asked.pop(mid, (None, []))
        if answer is None:
            return
        refused = [name for name, reason in zip(chunk, reasons, strict=False) if reason.is_failure]
        for name in refused:
            self._wanted.pop(name, None)
        answer.to_one_packet(refused)

    def on_unsuback(self, mid: int) -> None:
        answer, chunk = self._asked.pop(mid, (None, []))
        self.dropping.difference_update(chunk)
        if answer is not None:
            answer.to_one_packet([])

    def _chunks(self, filters: Collection[str]) -> list[list[str]]:
        """In packets that the broker takes: a larger one would break the connection, and every one after it."""
        chunks: list[list[str]] = []
        room, limit = 0, min(_LARGEST_SUBSCRIBE, self.largest_packet) - 16
        for pattern in filters:
            size = len(pattern.encode()) + 3
            if room < size or not chunks:
                chunks.append([])
                room = limit
            chunks[-1].append(pattern)
            room -= size
        return chunks

    def _await(self, mid: int | None, answer: Answer, chunk: list[str]) -> None:
        answer.missing += 1
        if mid is None:
            self._ask_again(answer)
        else:
            self._asked[mid] = (answer, chunk)

    def _ask_again(self, answer: Answer) -> None:
        """After the next connect."""
        self._unanswered.extend([answer] if answer.on_behalf_of is None else answer.on_behalf_of)


class Answer:
    """The broker's answer to a request, which may go out in several packets."""

    def __init__(
        self,
        then: Callable[[Collection[str]], None] = lambda refused: None,
        on_behalf_of: Sequence[Answer] | None = None,
    ) -> None:
        self.on_behalf_of = on_behalf_of
        """If it is `resume` that asks: those whose own answers were lost."""
        self.filters: list[str] = []
        self.missing = 0
        self._refused: list[str] = []
        self._then = then
        self._event = threading.Event()
        self._error: BusError | None = None

    def sent(self) -> None:
        """All packets are out. There may have been none to send."""
        if not self.missing:
            self.to_one_packet([])

    def to_one_packet(self, refused: list[str]) -> None:
        self.missing -= 1
        self._refused += refused
        if self.missing <= 0:
            self.done(_refusal(self._refused))

    def done(self, error: BusError | None) -> None:
        self._error = error
        self._event.set()
        self._then(self._refused)

    def wait(self, timeout: float, otherwise: str) -> None:
        """From any other thread."""
        if not self._event.wait(timeout):
            raise SubscribeFailed(otherwise)
        if self._error is not None:
            raise self._error


def some(filters: Collection[str]) -> str:
    """A few of them, for a message."""
    names = sorted(filters)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _refusal(filters: Collection[str]) -> SubscribeFailed | None:
    return SubscribeFailed(f"the broker refused the subscription to {some(filters)}") if filters else None
