"""When a consumer is replaced by a new one: after it has lost every broker.

Seen with librdkafka 2.16: after a broker was killed and came up, a consumer is connected and assigned, and asks for
nothing, for as long as we looked (five minutes). It fits its issue 5301: an answer that names topics and no brokers, as
that of a broker that is coming up, makes it drop the broker that it is talking to (since 2.10). It cannot be told from
one that has nothing to read. So whoever has lost every broker is replaced as soon as a broker answers a new consumer,
whether it would have come back by itself or not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, KafkaException

_ASK_SECONDS = 1.0
_AGAIN_SECONDS = 0.5


class Renewal:
    """For the reader's thread alone. `open`: makes a consumer."""

    def __init__(self, open: Callable[[], Consumer]) -> None:
        self._open = open
        self._not_before = 0.0
        self.due = False
        """The consumer has lost every broker."""

    def hear(self, error: KafkaError) -> None:
        """What the consumer says of its brokers."""
        self.due = self.due or error.code() == KafkaError._ALL_BROKERS_DOWN

    def replacement(self) -> Consumer | None:
        """A consumer that a broker has answered; None as long as there is no broker."""
        if time.monotonic() < self._not_before:
            return None
        consumer = self._open()
        if finds_broker(consumer):
            return consumer
        self._not_before = time.monotonic() + _AGAIN_SECONDS
        close_soon(consumer)
        return None

    def done(self) -> None:
        """It has taken over."""
        self.due = False


def finds_broker(consumer: Consumer) -> bool:
    """Whether a broker answers it; afterwards it knows the topics."""
    try:
        return bool(consumer.list_topics(timeout=_ASK_SECONDS).brokers)
    except KafkaException:
        return False


def close_soon(consumer: Consumer) -> None:
    """On a thread of its own: one that has lost its brokers may take its time."""
    threading.Thread(target=consumer.close, name="txlayer-kafka-former", daemon=True).start()
