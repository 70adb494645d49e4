"""Letters over the bus itself: a topic for each host, and a fixed number of topics that clients share.

A client's topic is found by the hash of its name, so that nothing is left on a bus whose topics stay for ever when
clients come and go; a client drops what is not for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from zlib import crc32

from txlayer.delivery import Delivery
from txlayer.errors import TxLayerError
from txlayer.ports import Bus, Subscription
from txlayer.receipt import Receipt
from txlayer.sequencing.exchange import Letter, Listeners, Receive, is_client, pack

_logger = logging.getLogger(__name__)
_SHARES = 64
_LARGEST = 128
"""Letters in one packet."""


class BusExchange:
    """Shares the bus with everything else on it; does not close it."""

    def __init__(self, bus: Bus, chain: str) -> None:
        self._bus = bus
        self._chain = chain
        self._listeners = Listeners()
        self._subscription: Subscription | None = None
        self._lock = threading.Lock()

    def topic_of(self, name: str) -> str:
        """Where letters to this name go."""
        if is_client(name):
            share = crc32(name.partition("/")[0].encode()) % _SHARES
            return self._bus.topic("txlayer", "v1", "order", self._chain, "to", str(share))
        return self._bus.topic("txlayer", "v1", "order", self._chain, "at", name)

    def listen(self, name: str, receive: Receive) -> None:
        self._listeners.by_name[name] = receive
        topic = self.topic_of(name)
        with self._lock:
            if self._subscription is None:
                self._subscription = self._bus.subscribe(topic, self._take)
            elif topic not in self._subscription.topics:
                self._subscription.add(topic)

    def silence(self, name: str, receive: Receive) -> None:
        self._listeners.remove(name, receive)

    def send(self, letters: Sequence[Letter]) -> None:
        by_topic: dict[str, list[Letter]] = {}
        for letter in letters:
            by_topic.setdefault(self.topic_of(letter[0]), []).append(letter)
        for topic, these in by_topic.items():
            for at in range(0, len(these), _LARGEST):
                self._publish(topic, these[at : at + _LARGEST])

    def _publish(self, topic: str, letters: list[Letter]) -> None:
        try:
            self._bus.publish(topic, pack(letters)).when_done(_told)
        except TxLayerError as exc:
            _logger.info("%d letters to %s were not sent: %s", len(letters), topic, exc)

    def _take(self, delivery: Delivery) -> None:
        self._listeners.take(delivery.payload)

    def close(self) -> None:
        with self._lock:
            if self._subscription is not None:
                self._subscription.close()


def _told(receipt: Receipt) -> None:
    if receipt.error is not None:
        _logger.warning("letters of the ordering layer were not sent: %s", receipt.error)
