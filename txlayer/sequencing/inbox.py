"""What waits for a host's thread: letters, up to a limit, and what must not be lost.

A host whose disk stands still for long is asked again and again. Letters beyond the limit are dropped: whoever has sent
them repeats them, as any that are lost.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Filled by any thread, emptied by one."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._queue: SimpleQueue[Sequence[T] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._dropped = 0

    def take(self, letters: Sequence[T]) -> None:
        """Of one packet; all or none."""
        with self._lock:
            if self._waiting + len(letters) > self.most:
                self._dropped += len(letters)
                return
            self._waiting += len(letters)
        self._queue.put(letters)

    def put(self, item: T) -> None:
        """What nobody would repeat: it is never dropped."""
        with self._lock:
            self._waiting += 1
        self._queue.put([item])

    def end(self) -> None:
        """Nothing after this counts."""
        self._queue.put(None)

    def collect(self, seconds: float, enough: int) -> list[T] | None:
        """What has come, or nothing when the time is over; None: the end."""
        items: list[T] = []
        try:
            batch = self._queue.get(timeout=seconds)
            while batch is not None:
                items.extend(batch)
                if len(items) >= enough:
                    return self._out(items)
                batch = self._queue.get_nowait()
        except Empty:
            return self._out(items)
        return None

    def _out(self, items: list[T]) -> list[T]:
        with self._lock:
            self._waiting -= len(items)
        return items

    def dropped(self) -> int:
        """How many since this was asked last."""
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        return dropped
