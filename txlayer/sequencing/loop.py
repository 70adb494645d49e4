"""One thread for what has no thread of its own: confirmations, timers, what a log has made durable."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

_logger = logging.getLogger(__name__)
_TICK = 0.02

Act = Callable[[], object]


class Loop:
    """Runs what is posted, in order, and every ticker some fifty times a second."""

    def __init__(self, name: str) -> None:
        self._queue: SimpleQueue[Act | None] = SimpleQueue()
        self._tickers: dict[int, Act] = {}
        self._thread = threading.Thread(target=self._run, name=f"txlayer-{name}", daemon=True)
        self._thread.start()

    def post(self, act: Act) -> None:
        """From any thread; never blocks."""
        self._queue.put(act)

    def every_tick(self, ticker: Act) -> Act:
        """Start calling; the result ends it."""
        key = id(ticker)
        self._tickers[key] = ticker
        return lambda: self._tickers.pop(key, None)

    def close(self) -> None:
        """What was posted before is still done."""
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)

    def _run(self) -> None:
        due = time.monotonic() + _TICK
        while True:
            if time.monotonic() >= due:
                due = time.monotonic() + _TICK
                for ticker in list(self._tickers.values()):
                    _try(ticker)
            try:
                act = self._queue.get(timeout=max(0.0, due - time.monotonic()))
            except Empty:
                continue
            if act is None:
                return
            _try(act)


def _try(act: Act) -> None:
    try:
        act()
    except Exception:
        _logger.exception("the ordering layer failed at a task")
