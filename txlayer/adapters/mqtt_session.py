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
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import tenacity
from paho.mqtt.client import Client
from paho.mqtt.subscribeoptions import SubscribeOptions

from txlayer.adapters.ack_window import AckWindow
from txlayer.adapters.mqtt_client import QuickClient
from txlayer.adapters.mqtt_filters import MQTT_LARGEST, Answer, Filters, SessionFilters, some
from txlayer.adapters.mqtt_options import (
    NEVER_EXPIRES,
    Endpoint,
    MqttOptions,
    Will,
    connect_properties,
    end_of_session,
    make_client,
)
from txlayer.adapters.mqtt_outbox import Outbox, Outgoing
from txlayer.adapters.mqtt_patience import FIGHT_SECONDS, LONGEST_PAUSE, LOST_FIGHT, Patience, Pauses
from txlayer.adapters.mqtt_socket import BufferedSocket, flush, no_delay
from txlayer.adapters.wake_up import WakeUp
from txlayer.delivery import Delivery
from txlayer.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    BusError,
    Closed,
    NameTaken,
    PublishFailed,
    TopicForbidden,
)
from txlayer.receipt import Receipt

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage
    from paho.mqtt.properties import Properties
    from paho.mqtt.reasoncodes import ReasonCode

_logger = logging.getLogger(__name__)
_READS_IN_A_ROW = 200
_BAD_CREDENTIALS = {0x86, 0x87}
_TAKEN_OVER = 0x8E
_FIGHT_LOST = (
    f"its connection broke {LOST_FIGHT} times within {FIGHT_SECONDS:.0f} s while another one of this bus stayed. "
    "Another client may be connecting with it, or the network cuts this connection: see which, then subscribe again"
)

Confirm = Callable[[], None]
"""Waits until the broker has confirmed a request; raises if it refuses or does not answer."""


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
        on_ended: Callable[[BusError], None] = lambda error: None,
        on_refused: Callable[[Collection[str]], None] = lambda filters: None,
        has_room: Callable[[], bool] = lambda: True,
        neighbour: Session | None = None,
        pauses: Pauses | None = None,
    ) -> None:
        self.client = client
        self.limits: dict[str, Any] = {}
        """What the broker said of itself in the CONNACK."""
        self.largest_packet = MQTT_LARGEST
        self._endpoint = endpoint
        self._options = options
        self._durable = durable
        self._on_messages = on_messages
        self._has_room = has_room
        self._keepalive = keepalive or options.keepalive
        self._on_ended = on_ended
        self._neighbour = neighbour
        self._patience = Patience()
        self._pauses = pauses or Pauses()
        self._outbox = Outbox(client)
        self._acks: deque[tuple[AckWindow, int]] = deque()
        self._commands: deque[Callable[[], None]] = deque()
        self._filters = SessionFilters(client, on_resume, on_ready, on_refused)
        self._received: list[MQTTMessage] = []
        self._progress = 0
        self._inflight = options.inflight
        self._window = AckWindow(self._release)
        self._connected = False
        self._taken_over = ""
        """What makes us believe that another client has our client id."""
        self.generations = 0
        """How many connections there have been."""
        self._retired = self._said_goodbye = self._draining = False
        self._refusal: BusError | None = None
        self._failure: BusError | None = None
        self._ended: BusError | None = None
        self._first = threading.Event()
        self._stopping = threading.Event()
        self._drained = threading.Event()
        self._wake_up = WakeUp()
        self._set_up(will)
        self._thread = threading.Thread(target=self._run, name=f"txlayer-mqtt-{endpoint}", daemon=True)

    def _set_up(self, will: Will | None) -> None:
        client = self.client
        client.manual_ack_set(True)
        client.max_inflight_messages_set(0)  # the window is ours: paho queues what exceeds its own
        client.max_queued_messages_set(0)
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
                properties=connect_properties(seconds),
            )
        else:
            client.connect_async(self._endpoint.host, self._endpoint.port, self._keepalive)

    # -- called from any thread ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect; raises when the broker cannot be reached in time or refuses us."""
        self._thread.start()
        if not self._first.wait(self._options.connect_timeout) or not self.generations:
            error = self._failure or BrokerUnreachable(
                f"no MQTT broker at {self._endpoint} within {self._options.connect_timeout} s"
            )
            self.close(0.0)
            raise error

    @property
    def event_bytes(self) -> int:
        """Of events that wait for the broker."""
        return self._outbox.event_bytes

    @property
    def value_bytes(self) -> int:
        """Of latest values that wait for the broker."""
        return self._outbox.value_bytes

    @property
    def connected(self) -> bool:
        return self._connected

    @property
    def closing(self) -> bool:
        return self._retired or self._stopping.is_set()

    def look_again(self) -> None:
        """There may be room for events again."""
        self._wake_up.call()

    def retire(self) -> None:
        """It is about to be closed: filters need not be given back one by one."""
        self._retired = True

    def filters(self, patterns: Collection[str], qos: int, retain_handling: int) -> Filters:
        """How to ask for them, if the broker can take that: MQTT 5 can say what to do with retained messages."""
        for pattern in patterns:
            if len(pattern.encode()) + 16 > self.largest_packet:
                raise TopicForbidden(f"topic of {len(pattern)} characters: over the broker's largest packet")
        if self._options.protocol == "5":
            return {pattern: SubscribeOptions(qos=qos, retainHandling=retain_handling) for pattern in patterns}
        return dict.fromkeys(patterns, qos)

    def send(self, outgoing: Outgoing) -> Receipt:
        """Queue a publish. The caller serialises its calls."""
        self._outbox.put(outgoing)
        self._wake_up.call()
        if self._ended is not None:
            self._outbox.fail(self._ended)
        return outgoing.receipt

    def say(self, topic: bytes, payload: bytes) -> bool:
        """Put a message at QoS 0 behind what is being sent; False if that cannot be done now."""
        return self._connected and isinstance(self.client, QuickClient) and self.client.say(topic, payload)

    def flush(self) -> None:
        """Send what was said: here, or on the network thread where only that may."""
        sock: Any = self.client.socket()
        if isinstance(sock, BufferedSocket) and not (sock.shared and flush(sock)):
            self._wake_up.insist()

    def subscribe(self, filters: Filters) -> Confirm:
        """Ask for them, behind what was asked for before. Survives reconnects; whoever gives up unsubscribes."""
        answer = Answer()
        self._command(lambda: self._filters.subscribe(filters, answer))
        return lambda: self._await(answer, f"the broker did not confirm the subscription to {some(filters)}")

    def unsubscribe(self, filters: Collection[str]) -> Confirm:
        """Give them back, behind what was asked for before."""
        filters, answer = list(filters), Answer()
        self._command(lambda: self._filters.unsubscribe(filters, answer))
        return lambda: self._await(answer, f"the broker did not confirm the end of {some(filters)}")

    def drop(self, filters: Collection[str]) -> Confirm:
        """As `unsubscribe`, but a broker that is away is not waited for."""
        connected, confirm = self._connected, self.unsubscribe(filters)
        return confirm if connected else lambda: None

    def give_back(self, filters: Collection[str]) -> None:
        """Unsubscribe what an earlier holder of the session may have left; does not wait."""
        self._command(lambda: self._filters.give_back(filters))

    def _await(self, answer: Answer, otherwise: str) -> None:
        if isinstance(self._ended, PublishFailed):
            raise Closed(f"the connection to {self._endpoint} is closed")
        if self._ended is not None:
            raise self._ended
        answer.wait(self._options.connect_timeout, otherwise)

    def close(self, timeout: float, *, forget: bool = False) -> None:
        """Wait for receipts up to `timeout`, disconnect; `forget` ends the session at the broker too."""
        self._retired = True
        elsewhere = threading.current_thread() is not self._thread
        if timeout > 0 and elsewhere and self._thread.is_alive() and not self._outbox.empty:
            self._drained.clear()
            self._draining = True
            self._wake_up.insist()
            self._drained.wait(timeout)
        if self._thread.is_alive():
            self._command(lambda: self._goodbye(forget))
        self._stopping.set()
        self._pauses.stop()
        self._wake_up.insist()
        if self._thread.is_alive() and elsewhere:
            self._thread.join(max(timeout, 5.0 if forget else 2.0))  # longer only inside a connect that hangs
        self._wake_up.close()
        if self._thread.ident is None:  # never opened: nobody else will
            self._wake_up.close_reader()
        self._window.close()
        self._ended = self._ended or _closed()
        self._outbox.fail(self._ended)
        if forget and self._durable:
            self._forget_session()

    def _forget_session(self) -> None:
        """Raises if the broker could not be told: it would go on collecting events for nobody."""
        if self._options.protocol == "5":
            if not self._said_goodbye:
                raise BusError(f"{self._endpoint} is away: it keeps the durable subscription and its events")
            return
        # MQTT 3.1.1 ends a session only by beginning a clean one under the same client id.
        client_id = self.client._client_id.decode()
        clean = Session(make_client(self._endpoint, self._options, client_id, False), self._endpoint, self._options)
        clean.open()
        clean.close(0.0)

    # -- the network thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and not self._taken_over:
                if self._connect():
                    self._serve()
                    self._note_loss()
                self._end_generation()
        except Exception as exc:
            _logger.exception("the MQTT connection to %s ended by a bug", self._endpoint)
            self._ended = BusError(f"the connection to {self._endpoint} ended by a bug: {exc!r}")
            raise
        finally:
            self._hang_up()
            if not self._stopping.is_set():
                # Not here: those who are told close this session, and wait for this thread.
                threading.Thread(
                    target=self._on_ended, args=(self._ended,), name="txlayer-mqtt-ended", daemon=True
                ).start()

    def _note_loss(self) -> None:
        neighbour = self._neighbour
        if self._stopping.is_set() or not self._durable or neighbour is None or not neighbour.connected:
            return
        if self._patience.lost(time.monotonic(), neighbour.generations):
            self._taken_over = self._taken_over or _FIGHT_LOST

    def _pause(self) -> None:
        """Before the next connection, if the ones before broke before anything came through."""
        self._stopping.wait(self._patience.begin())
        breaks = self._patience.fruitless - 1
        if self._patience.exhausted and self._outbox.give_up_largest(breaks):
            _logger.error("%s broke the connection %d times: an event is given up", self._endpoint, breaks)
            self._patience.progress()

    def _hang_up(self) -> None:
        """Nobody waits for this thread any more."""
        sock = self.client.socket()
        if sock is not None:
            self.client.disconnect()
            self.client.loop_write()
            sock.close()
        self._end_generation()
        if self._taken_over:
            client_id = self.client._client_id.decode()
            self._ended = NameTaken(f"client id {client_id!r} at {self._endpoint}: {self._taken_over}")
        self._ended = self._ended or _closed()
        self._filters.fail(self._ended)
        self._outbox.fail(self._ended)
        self._first.set()
        self._drained.set()
        self._wake_up.close_reader()

    def _connect(self) -> bool:
        """Open the socket, again and again with growing, jittered pauses."""
        reached = 0

        def attempt() -> None:
            nonlocal reached
            reached = self._pauses.reached
            self._refusal = None
            self.client.reconnect()
            self._await_connack()

        pauses = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type((OSError, ValueError, BusError)),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=LONGEST_PAUSE),
            stop=tenacity.stop_when_event_set(self._stopping),
            sleep=lambda seconds: self._pauses.wait(seconds, reached, self._stopping),
            after=self._note_failure,
            reraise=True,
        )
        self._pause()
        try:
            pauses(attempt)
        except (OSError, ValueError, BusError):
            return False
        return True

    def _note_failure(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, AuthenticationFailed):
            self._failure = error
            self._first.set()
        elif isinstance(error, ssl.SSLCertVerificationError):
            self._failure = BusError(
                f"the certificate of {self._endpoint} is not trusted (ca=... names its authority): {error}"
            )
            self._first.set()
        elif not self._first.is_set():
            self._failure = BrokerUnreachable(
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
        poller.register(self._wake_up, select.POLLIN)
        poller.register(sock, select.POLLIN)
        pending: Callable[[], int] | None = getattr(sock, "pending", None)
        wanted, next_misc, began = select.POLLIN, 0.0, time.monotonic()
        self._filters.resume()
        while self.client.socket() is sock and not (self._stopping.is_set() and not self._commands):
            self._pump()
            if self.client.want_write():
                self.client.loop_write()
            unsent = not flush(sock) or self.client.want_write()
            if self.client.socket() is not sock:  # closed behind a DISCONNECT
                return
            self._wake_up.asleep = True
            reading = self._has_room() or self._filters.asking
            before, wanted = wanted, (select.POLLIN if reading else 0) | (select.POLLOUT if unsent else 0)
            if wanted != before:
                poller.modify(sock, wanted)
            unread = bool(reading and pending and pending())
            busy = self._commands or self._acks or self._outbox.has_work(self._room) or unread
            ready = poller.poll(0 if busy else 500)
            self._wake_up.asleep = False
            self._read(ready, unread, pending)
            now = time.monotonic()
            if now > next_misc:
                next_misc = now + 0.5
                if not reading:
                    self.client._ping_t = 0.0  # the answer to the last ping waits unread; the broker must hear the next
                self.client.loop_misc()
                if now - began > LONGEST_PAUSE:
                    self._patience.progress()

    def _read(self, ready: Sequence[tuple[int, int]], unread: bool, pending: Callable[[], int] | None) -> None:
        wake = self._wake_up.fileno()
        if any(fd == wake for fd, _ in ready):
            self._wake_up.clear()
        if not unread and all(fd == wake or event == select.POLLOUT for fd, event in ready):
            return
        for _ in range(_READS_IN_A_ROW):
            progress = self._progress
            self.client.loop_read()
            if progress == self._progress or (pending is not None and not pending()):
                break
        if self._received:
            received, self._received = self._received, []
            self._on_messages(received, self._window)

    @property
    def _room(self) -> int:
        """How many publishes may be on their way now."""
        return self._inflight if self._connected else 0

    def _pump(self) -> None:
        """Hand to paho what others have asked for."""
        while self._acks:
            window, mid = self._acks.popleft()
            if window is self._window:
                self.client.ack(mid, 1)
        while self._commands:
            self._commands.popleft()()
        self._outbox.pump(self._room)
        if self._draining and self._outbox.empty:
            self._drained.set()

    def _goodbye(self, forget: bool) -> None:
        self._stopping.set()  # here too: whoever closes may not have come to it, and this thread would connect again
        self._said_goodbye = self._connected
        if self._options.protocol == "5" and (forget or not self._durable):
            self.client.disconnect(properties=end_of_session())
        else:
            self.client.disconnect()
        self.client.loop_write()

    def _end_generation(self) -> None:
        self._connected = False
        self._window.close()
        self._window = AckWindow(self._release)
        self._acks.clear()
        self._received.clear()
        self._filters.on_lost()

    # -- paho's callbacks, on the network thread -----------------------------------------------------------------------

    def _on_connect(
        self, client: Client, _: object, flags: Any, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            refused = f"{self._endpoint} refused the connection: {reason}"
            self._refusal = AuthenticationFailed(refused) if reason.value in _BAD_CREDENTIALS else BusError(refused)
            return
        self.limits = {} if properties is None else properties.json()
        self.largest_packet = self._filters.largest_packet = int(self.limits.get("MaximumPacketSize", MQTT_LARGEST))
        self._inflight = min(self._options.inflight, int(self.limits.get("ReceiveMaximum", 65_535)))
        self._connected = True
        self.generations += 1
        self._first.set()
        self._pauses.reach()

    def _on_disconnect(self, client: Client, _: object, flags: Any, reason: ReasonCode, properties: object) -> None:
        self._connected = False
        if flags.is_disconnect_packet_from_server and reason.value == _TAKEN_OVER:
            self._taken_over = "the broker says that another client connected with it"

    def _on_message(self, client: Client, _: object, message: MQTTMessage) -> None:
        self._progress += 1
        self._patience.progress()
        self._received.append(message)

    def _on_publish(self, client: Client, _: object, mid: int, reason: ReasonCode, properties: object) -> None:
        self._progress += 1
        self._patience.progress()
        refused = reason.value >= 0x80
        self._outbox.acknowledge(mid, PublishFailed(f"the broker refused the event: {reason}") if refused else None)

    def _on_subscribe(self, client: Client, _: object, mid: int, reasons: list[ReasonCode], __: object) -> None:
        self._progress += 1
        self._filters.on_suback(mid, reasons)

    def _on_unsubscribe(self, client: Client, _: object, mid: int, reasons: object, __: object) -> None:
        self._progress += 1
        self._filters.on_unsuback(mid)

    # -- small parts ---------------------------------------------------------------------------------------------------

    def _release(self, released: Sequence[Delivery]) -> None:
        window = self._window
        self._acks.extend((window, delivery.token) for delivery in released)
        self._wake_up.call()

    def _command(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._wake_up.insist()


def _closed() -> PublishFailed:
    return PublishFailed("closed before the broker acknowledged: it may or may not arrive")


def _ignore(*_: object) -> None:
    """paho calls it when it wants to write; our loop asks by itself."""
