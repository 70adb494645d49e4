"""How often a reader asks the broker while nothing comes.

A fetch is answered when there is something, or after `fetch.wait.max.ms`. librdkafka has one fetch at a time under way
to each broker, and nothing ends it early: partitions that are added, resumed or sought, and requests for metadata, wait
until it is answered. So a consumer whose partitions change asks 50 times a second, and a reader that has been left
alone for a while goes over to a patient one, which asks twice. What is published reaches both as soon. Before the next
change the reader goes back: a new consumer, which has no fetch under way, reads sooner than a patient one would.

Latest values are an exception. Every site follows the heartbeats of all, so with fifty sites a hundred come in a second
to each: a patient consumer takes ten times a second what has come.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from confluent_kafka import Consumer

from txlayer.adapters.kafka_renewal import close_soon, finds_broker

SETTLE_SECONDS = 3.0
"""How long nothing changes before a reader becomes patient."""
CONNECT_SECONDS = 0.25
"""What a new consumer gets to connect on its own threads, so that the reader's need not wait for it."""


class Pace:
    """For the reader's thread alone. `open`: makes a patient consumer; without it the reader never is."""

    def __init__(self, open: Callable[[], Consumer] | None) -> None:
        self._open = open
        self._next: Consumer | None = None
        self._not_before = monotonic() + SETTLE_SECONDS
        self.patient = False
        """The reader's consumer is a patient one."""

    def hurry(self) -> None:
        """Something changes: no patience for a while."""
        self._not_before = monotonic() + SETTLE_SECONDS
        self.close()

    def patient_one(self) -> Consumer | None:
        """Called while nothing comes: a patient consumer that a broker has answered, once it is time for it."""
        now = monotonic()
        if self._open is None or self.patient or now < self._not_before:
            return None
        if self._next is None:
            self._next = self._open()
            self._not_before = now + CONNECT_SECONDS
            return None
        if not finds_broker(self._next):
            self.hurry()
            return None
        consumer, self._next = self._next, None
        return consumer

    def close(self) -> None:
        """Nobody waits for the next one any more."""
        if self._next is not None:
            close_soon(self._next)
            self._next = None
