"""What `publish` returns: a promise of the broker's acknowledgement.

It can be waited on, awaited, given a callback, or ignored; ignoring it costs one small object. There is no lock: the
side that completes writes the state first and looks for listeners second, the side that listens does the reverse, so
one of the two always sees the other, and `list.pop` lets only one of them call each listener. Only the making of the
list of listeners, which two threads may want at once, takes a lock.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Generator
from typing import Any

import msgspec

from txlayer.errors import PublishFailed, TxLayerError

_logger = logging.getLogger(__name__)

Callback = Callable[[Any], object]
"""Takes the receipt."""
_first_listener = threading.Lock()


class Receipt(msgspec.Struct, gc=False, eq=False):
    """Completes when the broker has acknowledged the event, fails with the reason when it cannot.

    A publisher may keep hundreds of thousands of them, so the garbage collector does not visit them. A cycle through
    a listener ends when the receipt completes, which every bus sees to when it is closed.
    """

    _done: bool = False
    _error: TxLayerError | None = None
    _listeners: list[Callback] | None = None

    @property
    def done(self) -> bool:
        """Whether the broker has answered, or the event has failed."""
        return self._done

    @property
    def error(self) -> TxLayerError | None:
        """Why it failed; None while it is pending and after success."""
        return self._error

    def wait(self, timeout: float | None = None) -> None:
        """Block until acknowledged. Raises the failure, or `PublishFailed` when the time is over."""
        if not self._done:
            arrived = threading.Event()

            def wake(_: Receipt) -> None:
                arrived.set()

            self._listen(wake)
            if not arrived.wait(timeout):
                self._forget(wake)
                raise PublishFailed(f"not acknowledged within {timeout} s; it may still be delivered")
        if self._error is not None:
            raise self._error

    def when_done(self, listener: Callback) -> None:
        """For layers: call `listener(receipt)` once it is done, on the driver's thread: be quick, and do not block."""
        self._listen(listener)

    def add_callback(self, callback: Callback) -> None:
        """Call `callback(receipt)` once it is done, on a thread that is allowed to run application code."""
        self._listen(lambda receipt: _callbacks.run(callback, receipt))

    def __await__(self) -> Generator[object, None, None]:
        if not self._done:
            loop = asyncio.get_running_loop()
            arrived = loop.create_future()

            def wake(_: Receipt) -> None:
                try:
                    loop.call_soon_threadsafe(_set, arrived)
                except RuntimeError:
                    return  # the loop was closed while this was pending: nobody waits any more

            self._listen(wake)
            yield from arrived
        if self._error is not None:
            raise self._error

    def complete(self, error: TxLayerError | None = None) -> None:
        """For adapters: the answer is here. Cheap, never blocks, runs no application code; the first one counts."""
        if self._done:
            return
        self._error = error
        self._done = True
        if self._listeners is not None:
            self._notify()

    def _listen(self, listener: Callback) -> None:
        if self._listeners is None:
            with _first_listener:
                if self._listeners is None:
                    self._listeners = []
        self._listeners.append(listener)
        if self._done:
            self._notify()

    def _forget(self, listener: Callback) -> None:
        try:
            (self._listeners or []).remove(listener)
        except ValueError:
            return  # called meanwhile

    def _notify(self) -> None:
        listeners = self._listeners
        while listeners:
            try:
                listener = listeners.pop(0)
            except IndexError:
                return
            listener(self)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class _CallbackThread:
    """One daemon thread for the callbacks of all receipts: they must not run on a driver's network thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: list[tuple[Callback, Receipt]] = []
        self._wake = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None

    def run(self, callback: Callback, receipt: Receipt) -> None:
        with self._lock:
            self._queue.append((callback, receipt))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._loop, name="txlayer-receipts", daemon=True)
                self._thread.start()
            self._wake.notify()

    def _loop(self) -> None:
        while True:
            with self._lock:
                while not self._queue:
                    self._wake.wait()
                batch, self._queue = self._queue, []
            for callback, receipt in batch:
                try:
                    callback(receipt)
                except Exception:
                    _logger.exception("a receipt's callback failed")


_callbacks = _CallbackThread()
