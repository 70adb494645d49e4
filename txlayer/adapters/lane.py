"""One thread that runs the handler of one subscription, event after event, in order.

Drivers hand events over from their network thread and go on; application code runs here. Duplicates and gaps are
recognised by the events' numbers, a failing handler is retried and then the event is put aside, and the broker is told
in the end. A slow handler fills its lane; `full` tells the adapter to stop fetching, which is how a broker is slowed.

The receiver of a layer gets all that has arrived together; where a thread of the bus puts it here, on that thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

import tenacity
from tenacity.stop import stop_base

from txlayer.adapters.streams import StreamTracker
from txlayer.delivery import REPLAY_FOR, Delivery, Gap
from txlayer.errors import Closed, TxLayerError
from txlayer.ports import Ack, Handler, Receiver, Retry, Stats
from txlayer.receipt import Receipt

_logger = logging.getLogger(__name__)
_TOGETHER_SECONDS = 0.005
"""Events that are handled within this time are acknowledged together."""
_STORING = Retry(longest_wait=30.0)
"""Pauses while the broker refuses a dead letter."""


@dataclass(frozen=True)
class LaneOptions:
    """What a subscriber asked for."""

    handler: Handler = lambda delivery: None
    ack: Ack = Ack.AUTO
    retry: Retry = field(default_factory=Retry)
    on_gap: Callable[[Gap], object] | None = None
    name: str = ""
    """The durable name; empty for a subscription without one."""
    receiver: Receiver | None = None
    """In place of the handler: takes whatever comes, as it comes."""


BuryDead = Callable[[Delivery, str, Exception, int], Callable[[], Receipt]]
"""Makes a dead letter of (event, subscription, reason, attempts). The result stores it; called again, the same one."""


class Lane:
    """The queue and the thread of one subscription."""

    def __init__(
        self,
        options: LaneOptions,
        bury: BuryDead,
        high_water: int = 10_000,
        high_water_bytes: int = 64 << 20,
        on_low: Callable[[], None] = lambda: None,
        numbered: bool = True,
        threaded: bool = True,
    ) -> None:
        """`numbered`: what came twice or never is told by the publishers' numbers; a layer may know better.

        `threaded`: whoever puts events here must not run a receiver.
        """
        self.stats = Stats()
        self._options = options
        self._bury = bury
        self._numbered = numbered
        self._tracker = StreamTracker()
        self._high_water = high_water
        self._high_water_bytes = high_water_bytes
        self.on_low = on_low
        """Called when the handler has worked off what had come."""
        self.on_failed: Callable[[Exception], object] = lambda error: None
        """Called, on its thread, when it cannot go on."""
        self._queue: list[Delivery] = []
        self._gaps: list[Gap] = []
        self._running = 0
        self._bytes = self._running_bytes = 0
        self._wanted: Callable[[str], bool] | None = None
        self._closing = threading.Event()
        self._closed = False
        """The same, quicker to ask."""
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._passing = threading.RLock()
        self._thread = threading.Thread(target=self._run, name=f"txlayer-lane-{options.name}", daemon=True)
        self._receiver = options.receiver
        self._direct = options.receiver is not None and not threaded
        if not self._direct:
            self._thread.start()

    @property
    def full(self) -> bool:
        """More events, or more bytes of them, wait for the handler than should."""
        return (
            len(self._queue) + self._running >= self._high_water
            or self._bytes + self._running_bytes >= self._high_water_bytes
        )

    def put(self, deliveries: Sequence[Delivery]) -> None:
        """Queue events in order of receipt. Never blocks."""
        if self._direct:
            self._pass_on(deliveries)
            return
        size = sum([len(delivery.payload) for delivery in deliveries])
        with self._lock:
            if not self._queue:
                self._wake.notify()
            self._queue.extend(deliveries)
            self._bytes += size

    def report(self, gap: Gap) -> None:
        """The adapter itself knows that events never come; `on_gap` hears of it before those queued after it."""
        if self._direct:
            self._report_gap(gap)
            return
        with self._lock:
            self._gaps.append(gap)
            self._wake.notify()

    def keep_only(self, wanted: Callable[[str], bool]) -> None:
        """Do not hand over, but acknowledge, what is queued or comes late of other topics."""
        self._wanted = wanted

    def close(self, timeout: float = 5.0) -> None:
        """Let the running handler finish, up to `timeout`; what is queued behind it stays unacknowledged."""
        self._closing.set()
        self._closed = True
        with self._lock:
            self._queue.clear()
            self._wake.notify()
        if self._direct:
            if self._passing.acquire(timeout=timeout):
                self._passing.release()
        elif threading.current_thread() is not self._thread:
            self._thread.join(timeout)
            if self._thread.is_alive():
                _logger.warning("a handler of subscription %r is still running after close", self._options.name)

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as exc:  # SystemExit of a handler, say: a thread would end by it without a word
            error = TxLayerError(f"the thread of subscription {self._options.name!r} was ended by {exc!r}")
            error.__cause__ = exc
            _logger.error("%s", error, exc_info=exc)
            if not self._closed:
                self.close()
                self.on_failed(error)

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._queue and not self._gaps and not self._closing.is_set():
                    self._wake.wait()
                batch, self._queue = self._queue, []
                gaps, self._gaps = self._gaps, []
                self._running, self._running_bytes, self._bytes = len(batch), self._bytes, 0
            if self._closing.is_set():
                return
            for gap in gaps:
                self._report_gap(gap)
            if self._receiver is None:
                self._handle_batch(batch)
            else:
                self._pass_on(batch)
            self._running = self._running_bytes = 0
            self.on_low()

    def _handle_batch(self, batch: list[Delivery]) -> None:
        handled: list[Delivery] = []
        try:
            self._handle_each(batch, handled)
        finally:
            _acknowledge(handled)

    def _handle_each(self, batch: list[Delivery], handled: list[Delivery]) -> None:
        handler, stats, name = self._options.handler, self.stats, self._options.name
        see, see_packed = self._tracker.see, self._tracker.see_packed
        auto, numbered = self._options.ack is Ack.AUTO, self._numbered
        acknowledged = monotonic()
        for delivery in batch:
            if self._closed:
                return
            if self._wanted is not None and not self._wanted(delivery.topic):
                delivery.ack()
                continue
            seen: tuple[int, int] | bool
            if not numbered:
                seen = False
            elif delivery.packed:
                seen = see_packed(delivery.packed)
            else:
                position = delivery.position
                seen = see(position) if position is not None else False
            if seen is True:
                stats.duplicates += 1
                if auto:  # handled before, or dead-lettered: only the acknowledgement was lost
                    delivery.ack()
                    continue
                delivery.redelivered = True
            elif seen is not False:
                self._report_gap(self._gap(delivery, *seen))
            if delivery.headers and delivery.headers.get(REPLAY_FOR, name) != name:
                delivery.ack()
                continue
            try:
                handler(delivery)
            except Exception as exc:
                if not self._try_again(delivery, exc):
                    return
            else:
                stats.handled += 1
            if auto:
                handled.append(delivery)
                if monotonic() - acknowledged > _TOGETHER_SECONDS:
                    _acknowledge(handled)
                    acknowledged = monotonic()

    def _pass_on(self, deliveries: Sequence[Delivery]) -> None:
        """What comes twice is the layer's to recognise: it knows its own messages."""
        assert self._receiver is not None
        with self._passing:
            if not self._closed:
                self._receiver(deliveries)
                self.stats.handled += len(deliveries)

    def _gap(self, delivery: Delivery, first: int, last: int) -> Gap:
        position = delivery.position
        assert position is not None
        return Gap(delivery.topic, position[0].hex(), first, last)

    def _report_gap(self, gap: Gap) -> None:
        self.stats.missing += gap.last - gap.first + 1
        _logger.warning("topic %s: events %d to %d of stream %s never came", gap.topic, gap.first, gap.last, gap.stream)
        if self._options.on_gap is not None:
            try:
                self._options.on_gap(gap)
            except Exception:
                _logger.exception("on_gap failed")

    def _try_again(self, delivery: Delivery, first_error: Exception) -> bool:
        """Retry as configured, then put the event aside. False when the subscription was closed meanwhile."""
        retry = self._options.retry
        failed = [first_error]

        def attempt() -> None:
            if failed:
                raise failed.pop()
            self._options.handler(delivery)

        try:
            self._retrying(tenacity.stop_after_attempt(retry.attempts), retry, Exception)(attempt)
        except Exception as exc:
            return not self._closing.is_set() and self._put_aside(delivery, exc)
        self.stats.handled += 1
        return True

    def _put_aside(self, delivery: Delivery, reason: Exception) -> bool:
        """Make a dead letter of it, however long the broker is away; until then it is not acknowledged."""
        _logger.warning("a handler keeps failing on an event of %s: dead letter", delivery.topic)
        store = self._bury(delivery, self._options.name, reason, self._options.retry.attempts)
        retrying = self._retrying(tenacity.stop_never, _STORING, TxLayerError)
        retrying.before_sleep = self._tell_blocked
        try:
            retrying(self._await_stored, store)
        except TxLayerError as exc:
            _logger.info(
                "an event of %s is not acknowledged, its dead letter could not be stored: %s", delivery.topic, exc
            )
            return False
        self.stats.blocked = ""
        self.stats.dead_letters += 1
        delivery.ack()
        return True

    def _tell_blocked(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        self.stats.blocked = f"a dead letter cannot be stored: {error}"
        _logger.warning(
            "subscription %r stands still, %s; trying again in %.1f s",
            self._options.name,
            self.stats.blocked,
            state.upcoming_sleep,
        )

    def _await_stored(self, store: Callable[[], Receipt]) -> None:
        receipt, arrived = store(), threading.Event()
        receipt.when_done(lambda _: arrived.set())  # a callback would wait behind those of the application
        while not arrived.wait(0.1):
            if self._closing.is_set():
                raise Closed("the subscription was closed before the broker was back")
        if receipt.error is not None:
            raise receipt.error

    def _retrying(self, stop: stop_base, retry: Retry, error: type[Exception]) -> tenacity.Retrying:
        return tenacity.Retrying(
            stop=tenacity.stop_any(stop, tenacity.stop_when_event_set(self._closing)),
            wait=tenacity.wait_random_exponential(multiplier=retry.first_wait, max=retry.longest_wait),
            sleep=tenacity.sleep_using_event(self._closing),
            retry=tenacity.retry_if_exception_type(error),
            reraise=True,
        )


def _acknowledge(handled: list[Delivery]) -> None:
    """From the last to the first: they leave as a prefix, so all of them with the first, in one go."""
    while handled:
        handled.pop().ack()
