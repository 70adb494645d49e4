"""Acknowledgements leave as a prefix, in order of receipt."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from txlayer.delivery import Delivery


class AckWindow:
    """Releases acknowledgements as a prefix, in order of receipt, for one generation of one connection.

    A broker takes an acknowledgement of a later event for one of all before it (Kafka), or expects them in order
    (MQTT). A window is thrown away with its connection, so an acknowledgement that comes late reaches nobody.
    """

    def __init__(self, release: Callable[[Sequence[Delivery]], None]) -> None:
        self._release = release
        self._lock = threading.Lock()
        self._waiting: deque[Delivery] = deque()
        self._open = True

    def __len__(self) -> int:
        return len(self._waiting)

    def receive(self, delivery: Delivery, token: int) -> None:
        """Enter an event in order of receipt. `token` is what the adapter acknowledges it by."""
        delivery.held_by(self, token)
        self._waiting.append(delivery)

    def settle(self, delivery: Delivery) -> None:
        """Mark one as safe and release the prefix that has become complete."""
        with self._lock:
            delivery.settled = True
            waiting = self._waiting
            if not self._open or not waiting or waiting[0] is not delivery:
                return
            prefix = []
            while waiting and waiting[0].settled:
                prefix.append(waiting.popleft())
            self._release(prefix)

    def close(self) -> None:
        """The connection is gone: nothing is released any more."""
        with self._lock:
            self._open = False
            self._waiting.clear()
