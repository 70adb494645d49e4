"""One paho client and the thread that runs it.

Everything paho does happens on this thread; other threads leave their requests in queues and wake it. So no callback of
paho's ever runs application code, no lock of paho's is held while anybody waits, and publishes leave in the order in
which they were made. They are handed to paho only between CONNACK and the loss of the connection: paho would let them
onto the wire before the CONNACK, where they overtake those that it sends again.

Each connection is a generation with an acknowledgement window of its own.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import tenacity
from paho.mqtt.client import Client
from paho.mqtt.subscribeoptions import SubscribeOptions

from txlayer.adapters.ack_window import AckWindow
from txlayer.adapters.mqtt_options import (
    CONNECT,
    DISCONNECT,
    NEVER_EXPIRES,
    Endpoint,
    MqttOptions,
    Will,
    expiry,
)
from txlayer.adapters.mqtt_socket import flush, no_delay
from txlayer.delivery import Delivery
from txlayer.errors import AuthenticationFailed, BrokerUnreachable, BusError, PublishFailed, SubscribeFailed
from txlayer.receipt import Receipt

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

_logger = logging.getLogger(__name__)
_READS_IN_A_ROW = 200
_BAD_CREDENTIALS = {0x86, 0x87}
_TAKEN_OVER = 0x8E

Filters = dict[str, SubscribeOptions | int]


class Outgoing:
    """A publish on its way."""

    __slots__ = ("payload", "properties", "receipt", "retain", "size", "topic")

    def __init__(self, topic: str, payload: bytes, properties: Properties | None, retain: bool, size: int) -> None:
        self.topic = topic
        self.payload = payload
        self.properties = properties
        self.retain = retain
        self.size = size
        self.receipt = Receipt()


class Session:
    """A connection that is kept up until `close`."""

    def __init__(
        self,
        client: Client,
        endpoint: Endpoint,
        options: MqttOptions,
        *,
        durable: bool = False,
        will: Will | None = None,
        keepalive: int | None = None,
        on_messages: Callable[[list[MQTTMessage], AckWindow], None] = lambda messages, window: None,
        on_resume: Callable[[], None] = lambda: None,
        on_ready: Callable[[], None] = lambda: None,
        on_taken_over: Callable[[], None] = lambda: None,
    ) -> None:
        self.client = client
        self.limits: dict[str, Any] = {}
        """What the broker said of itself in the CONNACK."""
        self._endpoint = endpoint
        self._options = options
        self._durable = durable
        self._on_messages = on_messages
        self._keepalive = keepalive or options.keepalive
        self._on_resume = on_resume
        self._on_ready = on_ready
        self._on_taken_over = on_taken_over
        self._outbox: deque[Outgoing] = deque()
        self._on_the_way: dict[int, Outgoing] = {}
        self._taken_bytes = self._done_bytes = 0
        self._acks: deque[tuple[AckWindow, int]] = deque()
        self._commands: deque[Callable[[], None]] = deque()
        self._filters: Filters = {}
        self._subscribing: dict[int, _Waiter] = {}
        self._unanswered: list[_Waiter] = []
        self._received: list[MQTTMessage] = []
        self._progress = 0
        self._inflight = options.inflight
        self._window = AckWindow(self._release)
        self._connected = self._taken_over = False
        self._refusal: BusError | None = None
        self._first = threading.Event()
        self._stopping = threading.Event()
        self._drained = threading.Event()
        self._asleep = False
        self._wake_r, self._wake_w = socket.socketpair()
        self._wake_r.setblocking(False)
        self._set_up(will)
        self._thread = threading.Thread(target=self._run, name=f"txlayer-mqtt-{endpoint}", daemon=True)

    def _set_up(self, will: Will | None) -> None:
        client = self.client
        client.manual_ack_set(True)
        client.max_inflight_messages_set(0)  # the window is ours: paho queues what exceeds its own
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_message = self._on_message
        client.on_publish = self._on_publish
        client.on_subscribe = self._on_subscribe
        client.on_unsubscribe = self._on_unsubscribe
        client.on_socket_open = lambda _, __, sock: no_delay(sock)
        client.on_socket_register_write = _ignore  # or paho writes to the socket inside publish()
        client.connect_timeout = self._options.connect_timeout
        if will is not None:
            client.will_set(will.topic, will.payload, qos=1, retain=True)
        if self._options.protocol == "5":
            seconds = NEVER_EXPIRES if self._durable else self._options.session_expiry
            client.connect_async(
                self._endpoint.host,
                self._endpoint.port,
                self._keepalive,
                clean_start=False,
                properties=expiry(CONNECT, seconds),
            )
        else:
            client.connect_async(self._endpoint.host, self._endpoint.port, self._keepalive)

    # -- called from any thread ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect; raises when the broker cannot be reached in time or refuses us."""
        self._thread.start()
        if not self._first.wait(self._options.connect_timeout) or not self._connected:
            error = self._refusal or BrokerUnreachable(
                f"no MQTT broker at {self._endpoint} within {self._options.connect_timeout} s"
            )
            self.close(0.0)
            raise error

    @property
    def waiting_bytes(self) -> int:
        return self._taken_bytes - self._done_bytes

    @property
    def closing(self) -> bool:
        return self._stopping.is_set()

    def filter_options(self, retain_handling: int) -> SubscribeOptions | int:
        """At least once; MQTT 5 can say what to do with retained messages."""
        if self._options.protocol == "5":
            return SubscribeOptions(qos=1, retainHandling=retain_handling)
        return 1

    def send(self, outgoing: Outgoing) -> Receipt:
        """Queue a publish. The caller serialises its calls."""
        self._taken_bytes += outgoing.size
        self._outbox.append(outgoing)
        if self._asleep:
            self._wake()
        return outgoing.receipt

    def subscribe(self, filters: Filters) -> None:
        """Returns when the broker has confirmed; survives reconnects."""
        waiter = _Waiter()
        self._command(lambda: self._send_subscribe(filters, waiter))
        try:
            waiter.wait(
                self._options.connect_timeout, f"the broker did not confirm the subscription to {list(filters)}"
            )
        except SubscribeFailed:
            self._command(lambda: self._send_unsubscribe(list(filters), _Waiter()))
            raise

    def unsubscribe(self, filters: Collection[str]) -> None:
        waiter = _Waiter()
        self._command(lambda: self._send_unsubscribe(list(filters), waiter))
        waiter.wait(self._options.connect_timeout, f"the broker did not confirm the end of {list(filters)}")

    def close(self, timeout: float, *, forget: bool = False) -> None:
        """Wait for receipts up to `timeout`, disconnect; `forget` ends the session at the broker too."""
        if timeout > 0 and self._connected:
            self._command(lambda: None)
            self._drained.wait(timeout)
        if self._thread.is_alive():
            self._command(lambda: self._goodbye(forget))
        self._stopping.set()
        self._wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(max(timeout, 5.0))
        self._wake_w.close()
        self._window.close()
        self._fail_the_rest()

    # -- the network thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and not self._taken_over:
                if self._connect():
                    self._serve()
                self._end_generation()
        except Exception:
            _logger.exception("the MQTT connection to %s ended by a bug", self._endpoint)
            raise
        finally:
            self._first.set()
            self._drained.set()
            self.client.disconnect()
            self._wake_r.close()
        if self._taken_over and not self._stopping.is_set():
            threading.Thread(target=self._on_taken_over, name="txlayer-mqtt-taken-over", daemon=True).start()

    def _connect(self) -> bool:
        """Open the socket, again and again with growing, jittered pauses."""

        def attempt() -> None:
            self._refusal = None
            self.client.reconnect()
            self._await_connack()

        pauses = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((OSError, ValueError, BusError)),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=10.0),
            stop=tenacity.stop_when_event_set(self._stopping),
            sleep=tenacity.sleep_using_event(self._stopping),
            after=self._note_failure,
            reraise=True,
        )
        try:
            pauses(attempt)
        except (OSError, ValueError, BusError):
            return False
        return True

    def _note_failure(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, AuthenticationFailed):
            self._refusal = error
            self._first.set()
        elif not self._first.is_set():
            self._refusal = BrokerUnreachable(
                f"no MQTT broker at {self._endpoint} within {self._options.connect_timeout} s: {error}"
            )
        _logger.info("no connection to %s (attempt %d): %s", self._endpoint, state.attempt_number, error)

    def _await_connack(self) -> None:
        end = time.monotonic() + self._options.connect_timeout
        while not self._connected:
            sock = self.client.socket()
            if sock is None or self._refusal is not None or time.monotonic() > end or self._stopping.is_set():
                raise self._refusal or BrokerUnreachable(f"{self._endpoint} does not answer as an MQTT broker")
            poller = select.poll()
            poller.register(sock, select.POLLIN | (select.POLLOUT if self.client.want_write() else 0))
            ready = poller.poll(100)
            if self.client.want_write():
                self.client.loop_write()
            flush(sock)
            if any(event != select.POLLOUT for _, event in ready):
                self.client.loop_read()

    def _serve(self) -> None:
        """Until the connection is lost or closed."""
        sock = self.client.socket()
        if sock is None:
            return
        poller = select.poll()
        poller.register(self._wake_r, select.POLLIN)
        poller.register(sock, select.POLLIN)
        pending = getattr(sock, "pending", None)
        writing, next_misc = False, 0.0
        self._resume()
        while self.client.socket() is sock and not (self._stopping.is_set() and not self._commands):
            self._pump()
            if self.client.want_write():
                self.client.loop_write()
            unsent = not flush(sock) or self.client.want_write()
            if unsent != writing:
                writing = unsent
                poller.modify(sock, select.POLLIN | select.POLLOUT if writing else select.POLLIN)
            self._asleep = True
            busy = self._commands or self._acks or (self._outbox and self._room()) or (pending and pending())
            ready = poller.poll(0 if busy else 500)
            self._asleep = False
            self._read(ready, pending)
            now = time.monotonic()
            if now > next_misc:
                next_misc = now + 0.5
                self.client.loop_misc()

    def _read(self, ready: Sequence[tuple[int, int]], pending: Callable[[], int] | None) -> None:
        wake = self._wake_r.fileno()
        if any(fd == wake for fd, _ in ready):
            self._wake_r.recv(4096)
        if not (pending and pending()) and all(fd == wake or event == select.POLLOUT for fd, event in ready):
            return
        for _ in range(_READS_IN_A_ROW):
            progress = self._progress
            self.client.loop_read()
            if progress == self._progress:
                break
        if self._received:
            received, self._received = self._received, []
            self._on_messages(received, self._window)

    def _room(self) -> bool:
        return self._connected and len(self._on_the_way) < self._inflight

    def _pump(self) -> None:
        """Hand to paho what others have asked for."""
        while self._acks:
            window, mid = self._acks.popleft()
            if window is self._window:
                self.client.ack(mid, 1)
        while self._commands:
            self._commands.popleft()()
        while self._outbox and self._room():
            outgoing = self._outbox.popleft()
            try:
                info = self.client.publish(outgoing.topic, outgoing.payload, 1, outgoing.retain, outgoing.properties)
            except ValueError as exc:
                self._finish(outgoing, PublishFailed(f"paho refused the event: {exc}"))
            else:
                self._on_the_way[info.mid] = outgoing
        if not self._outbox and not self._on_the_way:
            self._drained.set()
        else:
            self._drained.clear()

    def _resume(self) -> None:
        """After a (re)connect: subscribe to everything again; a session that the broker kept takes no harm."""
        unanswered, self._unanswered = self._unanswered, []

        def ready() -> None:
            for waiter in unanswered:
                waiter.done(None)
            self._on_ready()

        if self._filters:
            self._on_resume()
            self._send_subscribe(dict(self._filters), _Waiter(ready))
        else:
            ready()

    def _send_subscribe(self, filters: Filters, waiter: _Waiter) -> None:
        """Only while connected; if the answer is lost with the connection, `_resume` asks again."""
        self._filters.update(filters)
        waiter.filters = list(filters)
        _, mid = self.client.subscribe(list(filters.items()))  # type: ignore[arg-type]
        self._await_answer(mid, waiter)

    def _send_unsubscribe(self, filters: list[str], waiter: _Waiter) -> None:
        for pattern in filters:
            self._filters.pop(pattern, None)
        _, mid = self.client.unsubscribe(filters)
        self._await_answer(mid, waiter)

    def _await_answer(self, mid: int | None, waiter: _Waiter) -> None:
        if mid is None:
            self._unanswered.append(waiter)
        else:
            self._subscribing[mid] = waiter

    def _goodbye(self, forget: bool) -> None:
        if self._options.protocol == "5" and (forget or not self._durable):
            self.client.disconnect(properties=expiry(DISCONNECT, 0))
        else:
            self.client.disconnect()
        self.client.loop_write()

    def _end_generation(self) -> None:
        self._connected = False
        self._window.close()
        self._window = AckWindow(self._release)
        self._acks.clear()
        self._received.clear()
        self._unanswered.extend(self._subscribing.values())
        self._subscribing.clear()

    # -- paho's callbacks, on the network thread -----------------------------------------------------------------------

    def _on_connect(
        self, client: Client, _: object, flags: Any, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            refused = f"{self._endpoint} refused the connection: {reason}"
            self._refusal = AuthenticationFailed(refused) if reason.value in _BAD_CREDENTIALS else BusError(refused)
            return
        self.limits = {} if properties is None else properties.json()
        self._inflight = min(self._options.inflight, int(self.limits.get("ReceiveMaximum", 65_535)))
        self._connected = True
        self._first.set()

    def _on_disconnect(self, client: Client, _: object, flags: Any, reason: ReasonCode, properties: object) -> None:
        self._connected = False
        if flags.is_disconnect_packet_from_server and reason.value == _TAKEN_OVER:
            self._taken_over = True

    def _on_message(self, client: Client, _: object, message: MQTTMessage) -> None:
        self._progress += 1
        self._received.append(message)

    def _on_publish(self, client: Client, _: object, mid: int, reason: ReasonCode, properties: object) -> None:
        self._progress += 1
        outgoing = self._on_the_way.pop(mid, None)
        if outgoing is not None:
            failed = reason.value >= 0x80
            self._finish(outgoing, PublishFailed(f"the broker refused the event: {reason}") if failed else None)

    def _on_subscribe(self, client: Client, _: object, mid: int, reasons: list[ReasonCode], __: object) -> None:
        self._progress += 1
        waiter = self._subscribing.pop(mid, None)
        if waiter is None:
            return
        refused = [name for name, reason in zip(waiter.filters, reasons, strict=False) if reason.is_failure]
        for name in refused:
            self._filters.pop(name, None)
        waiter.done(SubscribeFailed(f"the broker refused the subscription to {refused}") if refused else None)

    def _on_unsubscribe(self, client: Client, _: object, mid: int, reasons: object, __: object) -> None:
        self._progress += 1
        waiter = self._subscribing.pop(mid, None)
        if waiter is not None:
            waiter.done(None)

    # -- small parts ---------------------------------------------------------------------------------------------------

    def _release(self, released: Sequence[Delivery]) -> None:
        window = self._window
        self._acks.extend((window, delivery.token) for delivery in released)
        if self._asleep:
            self._wake()

    def _finish(self, outgoing: Outgoing, error: BusError | None) -> None:
        self._done_bytes += outgoing.size
        outgoing.receipt.complete(error)

    def _fail_the_rest(self) -> None:
        for outgoing in [*self._on_the_way.values(), *self._outbox]:
            self._finish(outgoing, PublishFailed("closed before the broker acknowledged: it may or may not arrive"))
        self._on_the_way.clear()
        self._outbox.clear()

    def _command(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._wake()

    def _wake(self) -> None:
        self._asleep = False
        try:
            self._wake_w.send(b"x")
        except OSError:
            return  # closed: nobody sleeps there any more


class _Waiter:
    """Someone who waits for the broker's answer to a subscription."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.filters: list[str] = []
        self._then = then
        self._event = threading.Event()
        self._error: BusError | None = None

    def done(self, error: BusError | None) -> None:
        self._error = error
        self._event.set()
        self._then()

    def wait(self, timeout: float, otherwise: str) -> None:
        if not self._event.wait(timeout):
            raise SubscribeFailed(otherwise)
        if self._error is not None:
            raise self._error


def _ignore(*_: object) -> None:
    """paho calls it when it wants to write; our loop asks by itself."""
