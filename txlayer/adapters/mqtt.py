"""The MQTT bus, through paho: MQTT 5 by default, 3.1.1 with an envelope around the payload.

A bus has one session that publishes, follows latest values and serves subscriptions without a name. A session belongs
to a client, not to a subscription, and acknowledges in order, so these get sessions of their own: every durable name,
subscriptions that acknowledge by hand, those whose topics overlap with another's, and each presence, for its last will.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paho.mqtt.client import Client

from txlayer import metadata
from txlayer.adapters.base import DURABLE, EVENT_OVERHEAD, BusBase, as_bytes, buffer_full
from txlayer.adapters.event_checks import check_event
from txlayer.adapters.lane import Lane, LaneOptions
from txlayer.adapters.mqtt_options import NEVER_EXPIRES, Endpoint, MqttOptions, Will, make_client, read_target
from txlayer.adapters.mqtt_outbox import Outgoing
from txlayer.adapters.mqtt_patience import Pauses
from txlayer.adapters.mqtt_properties import cloud_event, compact
from txlayer.adapters.mqtt_session import Session
from txlayer.adapters.mqtt_subscription import (
    DIRECTORY,
    MqttSubscription,
    MqttWatch,
    Router,
    check_depth,
    check_filter,
)
from txlayer.adapters.streams import Stream
from txlayer.adapters.topics import check_name, escape
from txlayer.errors import BusError, Closed, PayloadTooLarge, UsageError
from txlayer.ports import Ack, Capabilities, WatchHandler
from txlayer.presence import Holder
from txlayer.receipt import Receipt

if TYPE_CHECKING:
    from paho.mqtt.properties import Properties

_logger = logging.getLogger(__name__)
_LEVEL = frozenset(chr(code) for code in range(33, 127)) - frozenset("/+#$")
_ROOM_FOR_HEADERS = 1024
_PRESENCE_KEEPALIVE = 5


def _start(subscription: MqttSubscription) -> MqttSubscription:
    try:
        subscription.start()
    except BaseException:
        subscription.stop()
        raise
    return subscription


def _check_topic(topic: str) -> None:
    check_name(topic)
    check_depth(topic)


def open_bus(target: object, options: Mapping[str, Any]) -> MqttBus:
    """Entry point."""
    endpoint, read, client = read_target(target, options)
    return MqttBus(endpoint, read, client)


class MqttBus(BusBase):
    """A bus on an MQTT broker."""

    _receives = True

    def __init__(self, endpoint: Endpoint, options: MqttOptions, own_client: Client | None = None) -> None:
        super().__init__(options.name or str(endpoint), options.cloudevents)
        self._endpoint = endpoint
        self._options = options
        self._own_client = own_client
        self._envelope = options.protocol != "5"
        self._topics: dict[str, Stream] = {}
        self._said: dict[str, bytes] = {}
        """Topics of `say`, as they stand in a packet."""
        self._client_ids = itertools.count(1)
        self._router = Router(self._envelope)
        self._pauses = Pauses()
        self._main = self._new_session(own_client or self._new_client(), self._router)
        self._main.open()
        self._warn_of_limits()

    @property
    def capabilities(self) -> Capabilities:
        limit = self._options.max_payload
        if limit is None:
            room = max(0, self._main.largest_packet - _ROOM_FOR_HEADERS)
            limit = room * 3 // 4 if self._envelope else room  # base64 in the envelope
        wildcards = self._main.limits.get("WildcardSubscriptionAvailable", 1) == 1
        return Capabilities("publisher", True, not self._envelope, wildcards, limit)

    @property
    def native(self) -> Client:
        return self._main.client

    def topic(self, *levels: str) -> str:
        return "/".join(escape(level, _LEVEL) for level in levels)

    def publish(
        self,
        topic: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        key: bytes | None = None,
        type: str = "",
    ) -> Receipt:
        self._check_open()
        payload = check_event(topic, payload, headers, key, type)
        main = self._main
        with self._lock:
            stream = self._topics.get(topic) or self._stream(topic)
            number = stream.number + 1
            properties, body = self._encode(stream.id, number, payload, headers, key, type)
            size = self._size(topic, len(payload), body, properties)
            if main.event_bytes + size > self._options.buffer_bytes:
                raise buffer_full(main.event_bytes, self._options.buffer_bytes)
            stream.number = number
            return main.send(Outgoing(topic, body, properties, size))

    def say(self, topic: str, payload: bytes) -> None:
        """At QoS 0, from the caller's thread; without a connection it waits as any event does."""
        self._check_open()
        if topic not in self._said:
            _check_topic(topic)
            self._said[topic] = topic.encode()
        self._size(topic, len(payload), payload, None)
        if not self._main.say(self._said[topic], payload):
            self.publish(topic, payload)

    def flush(self) -> None:
        self._main.flush()

    def announce(self, key: str, value: bytes | None) -> Receipt:
        if self._closed:
            raise Closed(f"bus {self._name} is closed")
        topic, value = f"{DIRECTORY}/{key}", b"" if value is None else as_bytes(value)
        _check_topic(topic)
        with self._lock:
            size = self._size(topic, len(value), value, None)
            if self._main.value_bytes + size > self._options.buffer_bytes:
                raise buffer_full(self._main.value_bytes, self._options.buffer_bytes)
            return self._main.send(Outgoing(topic, value, None, size, first=True, retain=True))

    def watch(self, prefix: str, handler: WatchHandler | None = None) -> MqttWatch:
        if self._closed:
            raise Closed(f"bus {self._name} is closed")
        _check_topic(f"{DIRECTORY}/{prefix}")
        watch = MqttWatch(self._main, self._router, prefix, handler, self._send_marker)
        try:
            watch.start(self._options.connect_timeout)
        except BaseException:
            watch.close()
            raise
        self._remember(watch)
        return watch

    def close(self, timeout: float = 5.0) -> None:
        self._main.retire()
        super().close(timeout)

    def _encode(
        self,
        stream: bytes,
        number: int,
        payload: bytes,
        headers: Mapping[str, str] | None,
        key: bytes | None,
        type: str,
    ) -> tuple[Properties | None, bytes]:
        now_us = time.time_ns() // 1000
        if self._envelope:
            attributes = metadata.cloud_attributes(stream, number, now_us, type)
            return None, metadata.wrap(attributes, payload, headers or {}, key)
        if self._cloudevents:
            attributes = metadata.cloud_attributes(stream, number, now_us, type)
            if key is not None:
                attributes["partitionkey"] = key.decode("utf-8", "surrogateescape")
            return cloud_event(attributes, headers), payload
        packed = metadata.pack(stream, number, now_us, type.encode(), key)
        return compact(metadata.to_text(packed), headers), payload

    def _size(self, topic: str, size: int, body: bytes, properties: Properties | None) -> int:
        """Bytes that a publish is counted for while it waits; refuses one that is too large."""
        limit = self._options.max_payload
        if limit is not None and size > limit:
            raise PayloadTooLarge(f"payload of {size} bytes: this bus takes at most {limit} (max_payload)")
        packet = len(body) + len(topic) * 4 + (len(properties.pack()) if properties else 1) + 16
        if packet > self._main.largest_packet:
            # Handed to paho it would break the connection, be sent again, and block everything behind it for ever.
            raise PayloadTooLarge(
                f"event of {size} bytes: the broker takes packets up to {self._main.largest_packet} bytes"
            )
        return packet + EVENT_OVERHEAD

    def _stream(self, topic: str) -> Stream:
        if topic not in self._topics:
            _check_topic(topic)
            self._streams.open_in(self._topics, topic)
        return self._topics[topic]

    def _open_subscription(
        self, topics: Sequence[str], options: LaneOptions, holder: Holder | None
    ) -> MqttSubscription:
        for topic in topics:
            check_filter(topic)
        lane = self._lane(options)
        try:
            shared = self._share(topics, lane) if holder is None and options.ack is Ack.AUTO else None
            subscription = shared or self._apart(topics, lane, options.name, holder)
            lane.on_low = subscription.look_again
            return _start(subscription)
        except BaseException:
            lane.close()
            raise

    def _share(self, topics: Sequence[str], lane: Lane) -> MqttSubscription | None:
        """On the session of the bus, unless the topics overlap with another's there."""
        with self._router.changing:
            if self._router.overlaps(topics):
                return None
            return MqttSubscription(topics, lane, None, self._main, self._router, None, self._start_apart)

    def _start_apart(self, topics: Sequence[str], lane: Lane, whole: MqttSubscription) -> MqttSubscription:
        return _start(self._apart(topics, lane, whole=whole))

    def _apart(
        self,
        topics: Sequence[str],
        lane: Lane,
        name: str = "",
        holder: Holder | None = None,
        whole: MqttSubscription | None = None,
    ) -> MqttSubscription:
        """On a session of its own, which reads while the lane has room."""
        self._refuse_own_client()
        router = Router(self._envelope)
        will = Will(f"{DIRECTORY}/{DURABLE}/{name}", holder.will) if holder else None
        client = self._new_client(name if holder else None)
        session = self._new_session(client, router, holder is not None, will, lambda: not lane.full)
        return MqttSubscription(topics, lane, holder, session, router, session, self._start_apart, whole)

    def _refuse_own_client(self) -> None:
        if self._own_client is not None:
            raise UsageError(
                "a client of your own serves subscriptions without a durable name, with automatic acknowledgement and "
                "without overlapping topics; for others open the bus by URL"
            )

    def _at_death(self, key: str, will: bytes) -> Callable[[], None]:
        if self._own_client is not None:
            return lambda: None  # heartbeats have to do
        session = Session(
            self._new_client(),
            self._endpoint,
            self._options,
            will=Will(f"{DIRECTORY}/{key}", will),
            keepalive=_PRESENCE_KEEPALIVE,
            pauses=self._pauses,
        )
        session.open()
        return lambda: session.close(1.0)

    def _shut_down(self, timeout: float) -> None:
        self._main.close(timeout)

    def _new_client(self, durable: str | None = None) -> Client:
        name = self._options.name or "txlayer"
        client_id = durable or f"{name}-{os.urandom(6).hex()}-{next(self._client_ids)}"
        return make_client(self._endpoint, self._options, client_id, durable is not None)

    def _new_session(
        self,
        client: Client,
        router: Router,
        durable: bool = False,
        will: Will | None = None,
        has_room: Callable[[], bool] = lambda: True,
    ) -> Session:
        return Session(
            client,
            self._endpoint,
            self._options,
            durable=durable,
            will=will,
            on_messages=router.route,
            on_resume=router.on_resume,
            on_ready=router.on_ready,
            on_ended=router.on_ended,
            on_refused=router.on_refused,
            has_room=has_room,
            neighbour=self._main if durable else None,
            pauses=self._pauses,
        )

    def _send_marker(self, topic: str, round: bytes) -> None:
        with self._lock:
            self._main.send(Outgoing(topic, round, None, 0, first=True))

    def _warn_of_limits(self) -> None:
        limits = self._main.limits
        if limits.get("MaximumQoS", 2) == 0:
            self._main.close(0.0)
            raise BusError(f"{self._endpoint} allows only QoS 0: events cannot be acknowledged")
        if limits.get("RetainAvailable", 1) == 0:
            _logger.warning("%s keeps no retained messages: presence and latest values will not work", self._endpoint)
        if limits.get("SessionExpiryInterval", NEVER_EXPIRES) < self._options.session_expiry:
            _logger.warning("%s keeps sessions for %s s only", self._endpoint, limits["SessionExpiryInterval"])
        if limits.get("ReceiveMaximum", 65_535) < 10:
            _logger.warning("%s takes only %s publishes at a time", self._endpoint, limits["ReceiveMaximum"])
