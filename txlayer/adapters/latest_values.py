"""A watch of latest values: the map, and a thread that tells the handler."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque

from txlayer.ports import WatchHandler

_logger = logging.getLogger(__name__)


class LatestValueWatch(ABC):
    """Adapters call `_set` from their own thread; the handler runs on the watch's."""

    def __init__(self, handler: WatchHandler | None) -> None:
        self.closed = False
        self._handler = handler
        self._values: dict[str, bytes] = {}
        self._changes: deque[tuple[str, bytes | None]] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        if handler is not None:
            self._thread = threading.Thread(target=self._run, name="txlayer-watch", daemon=True)
            self._thread.start()

    @abstractmethod
    def _stop(self) -> None:
        """Stop following."""

    def snapshot(self) -> dict[str, bytes]:
        with self._changed:
            return dict(self._values)

    def catch_up(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._changes or self.closed)

    def close(self, timeout: float = 5.0) -> None:
        """`timeout` is for the handler that is running."""
        with self._changed:
            if self.closed:
                return
            self.closed = True
            self._changed.notify_all()
        self._stop()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _set(self, key: str, value: bytes | None) -> None:
        with self._changed:
            if value is None:
                self._values.pop(key, None)
            else:
                self._values[key] = value
            if self._handler is not None:
                self._changes.append((key, value))
                self._changed.notify_all()

    def _run(self) -> None:
        assert self._handler is not None
        while True:
            with self._changed:
                while not self._changes and not self.closed:
                    self._changed.wait()
                if self.closed:
                    return
                key, value = self._changes[0]
            try:
                self._handler(key, value)
            except Exception:
                _logger.exception("the handler of a watch failed on %s", key)
            with self._changed:
                self._changes.popleft()
                self._changed.notify_all()
