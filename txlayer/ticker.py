"""A thread that calls functions again and again: heartbeats, expiry, watching metadata."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_logger = logging.getLogger(__name__)


class Ticker:
    """Calls each function every so many seconds, one after the other. A function that fails is called again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Condition()
        self._tasks: dict[int, tuple[float, float, Callable[[], object]]] = {}
        self._closed = False
        self._thread: threading.Thread | None = None
        self._next_id = 0

    def every(self, seconds: float, function: Callable[[], object]) -> Callable[[], None]:
        """Start calling `function`; the result cancels it."""
        with self._lock:
            self._next_id += 1
            task = self._next_id
            self._tasks[task] = (time.monotonic() + seconds, seconds, function)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name=f"txlayer-ticker-{self._name}", daemon=True)
                self._thread.start()
            self._lock.notify()

        def cancel() -> None:
            with self._lock:
                self._tasks.pop(task, None)

        return cancel

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._tasks.clear()
            self._lock.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def _run(self) -> None:
        while (due := self._wait_for_due()) is not None:
            for function in due:
                try:
                    function()
                except Exception:
                    _logger.exception("a periodic task of %s failed", self._name)

    def _wait_for_due(self) -> list[Callable[[], object]] | None:
        with self._lock:
            while not self._closed:
                now = time.monotonic()
                due = [(task, every, function) for task, (at, every, function) in self._tasks.items() if at <= now]
                if due:
                    for task, every, function in due:
                        self._tasks[task] = (now + every, every, function)
                    return [function for _, _, function in due]
                self._lock.wait(min((at for at, _, _ in self._tasks.values()), default=now + 60) - now)
        return None
