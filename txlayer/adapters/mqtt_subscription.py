"""Subscriptions and watches of an MQTT session, and the router that gives each its messages."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from txlayer import metadata
from txlayer.adapters.ack_window import AckWindow
from txlayer.adapters.base import SubscriptionBase, name_lost
from txlayer.adapters.lane import Lane
from txlayer.adapters.latest_values import LatestValueWatch
from txlayer.adapters.memory_broker import below
from txlayer.adapters.mqtt_client import PackedProperties
from txlayer.adapters.topics import check_pattern, matches, overlap
from txlayer.delivery import NO_HEADERS, Delivery
from txlayer.errors import BusError, Closed, DecodeError, SubscribeFailed, TopicForbidden
from txlayer.ports import WatchHandler
from txlayer.presence import Holder

if TYPE_CHECKING:
    from paho.mqtt.client import Client, MQTTMessage

    from txlayer.adapters.mqtt_filters import Filters
    from txlayer.adapters.mqtt_session import Confirm, Session

_logger = logging.getLogger(__name__)

OWN = "txlayer/v1/"
DIRECTORY = "txlayer/v1/dir"
_SYNC = "txlayer/v1/sync"
_MOST_LEVELS = 200
_SEND_RETAINED, _NO_RETAINED = 0, 2
_STRUCTURED = "application/cloudevents+json"


class Router:
    """Gives each message of one session to the lane or the watches that want it, on the network thread."""

    def __init__(self, envelope: bool) -> None:
        self._envelope = envelope
        self.changing = threading.RLock()
        """Held from the look at who has which filters until some are taken or left, and the broker's request for it is
        queued: requests are in the order in which filters change hands, or one's end would be another's."""
        self._subscriptions: list[MqttSubscription] = []
        self._watches: list[MqttWatch] = []
        self._by_topic: dict[str, MqttSubscription | None] = {}

    def overlaps(self, topics: Sequence[str], besides: MqttSubscription | None = None) -> bool:
        """Whether a broker could send an event twice to this session, once for each of two subscriptions."""
        others = [subscription for subscription in self._subscriptions if subscription is not besides]
        taken = [f"{OWN}#", *(topic for subscription in others for topic in subscription.here)]
        return any(overlap(topic, other) for topic in topics for other in taken)

    def enter(self, subscription: MqttSubscription) -> None:
        with self.changing:
            self._subscriptions = [*self._subscriptions, subscription]
            self._by_topic = {}

    def leave(self, subscription: MqttSubscription) -> None:
        with self.changing:
            self._subscriptions = [other for other in self._subscriptions if other is not subscription]
            self._by_topic = {}

    def forget_routes(self) -> None:
        self._by_topic = {}

    def enter_watch(self, watch: MqttWatch) -> None:
        with self.changing:
            self._watches = [*self._watches, watch]

    def leave_watch(self, watch: MqttWatch) -> bool:
        """True if no other watch needs the same filter."""
        with self.changing:
            self._watches = [other for other in self._watches if other is not watch]
            return all(other.filter != watch.filter for other in self._watches)

    def on_resume(self) -> None:
        for watch in self._watches:
            watch.begin_round()

    def on_ready(self) -> None:
        for watch in self._watches:
            watch.end_round()

    def on_ended(self, error: BusError) -> None:
        """The session is over and does not come back."""
        for subscription in self._subscriptions:
            subscription.fail(error)

    def on_refused(self, filters: Collection[str]) -> None:
        """After a reconnect the broker does not take a subscription again."""
        for subscription in self._subscriptions:
            if not subscription.here.isdisjoint(filters):
                error = SubscribeFailed("after a reconnect the broker refused the subscription")
                threading.Thread(
                    target=subscription.fail, args=(error,), name="txlayer-mqtt-refused", daemon=True
                ).start()

    def route(self, messages: list[MQTTMessage], window: AckWindow) -> None:
        batch: list[Delivery] = []
        target: MqttSubscription | None = None
        for message in messages:
            topic = message.topic
            subscription = self._by_topic.get(topic) or self._find(topic)
            if subscription is not target:
                _hand_over(target, batch)
                target, batch = subscription, []
            if subscription is None or message.retain:  # MQTT 3.1.1 cannot be asked to leave out what is retained
                self._route_own(message, topic, window)
                continue
            delivery = self._deliver(message, topic)
            if message.qos:
                window.receive(delivery, message.mid)
            batch.append(delivery)
        _hand_over(target, batch)

    def _find(self, topic: str) -> MqttSubscription | None:
        if len(self._by_topic) > 10_000:
            self._by_topic = {}
        routes = self._by_topic  # whoever changes filters meanwhile puts another in its place
        routes[topic] = found = next((one for one in self._subscriptions if one.wants(topic)), None)
        return found

    def _route_own(self, message: MQTTMessage, topic: str, window: AckWindow) -> None:
        """What is no event of a subscription: latest values, their end markers, and leftovers of an old session."""
        if message.qos:
            receipt = Delivery(topic, b"")
            window.receive(receipt, message.mid)
            receipt.ack()
        for watch in self._watches:
            watch.offer(topic, bytes(message.payload))

    def _deliver(self, message: MQTTMessage, topic: str) -> Delivery:
        payload = bytes(message.payload)
        if self._envelope:
            return _from_envelope(topic, payload, message)
        properties = message.properties
        if isinstance(properties, PackedProperties) and properties.none:
            return _perhaps_enveloped(topic, payload, message)
        text = properties.metadata if isinstance(properties, PackedProperties) else None
        if text is not None:
            return _with_key(Delivery(topic, payload, None, NO_HEADERS, metadata.from_text(text), "", message))
        pairs = properties.user_pairs if isinstance(properties, PackedProperties) else None
        only_pairs = bool(pairs)
        if not only_pairs:
            pairs = getattr(properties, "UserProperty", None)
        if not pairs:
            return _perhaps_enveloped(topic, payload, message)
        headers = dict(pairs)
        packed = headers.pop(metadata.HEADER, None)
        content_type = None if only_pairs else getattr(properties, "ContentType", None)
        if content_type is not None:
            headers["content-type"] = content_type
        key = headers.get("partitionkey")
        delivery = Delivery(topic, payload, None, headers, metadata.from_text(packed) if packed else None, "", message)
        if packed is None and key is not None:
            delivery.key = key.encode("utf-8", "surrogateescape")
        return _with_key(delivery)


def _hand_over(subscription: MqttSubscription | None, batch: list[Delivery]) -> None:
    if subscription is not None and batch:
        subscription.receive(batch)


def _with_key(delivery: Delivery) -> Delivery:
    key = metadata.packed_key(delivery.packed) if delivery.packed else None
    if key is not None:
        delivery.key = key
    return delivery


def _from_envelope(topic: str, data: bytes, message: MQTTMessage) -> Delivery:
    opened = metadata.unwrap(data)
    if opened is None:
        return Delivery(topic, data, native=message)
    attributes, payload, headers, key = opened
    try:
        packed = metadata.repack(attributes)
    except DecodeError:
        return Delivery(topic, payload, key, {**attributes, **headers}, native=message)
    return Delivery(topic, payload, key, headers, packed, native=message)


def _perhaps_enveloped(topic: str, data: bytes, message: MQTTMessage) -> Delivery:
    """On MQTT 5 only what one of us put into an envelope, or what is declared to be one; any other payload stays."""
    delivery = _from_envelope(topic, data, message)
    if delivery.payload is data or delivery.packed:
        return delivery
    declared = getattr(message.properties, "ContentType", "").startswith(_STRUCTURED)
    return delivery if declared else Delivery(topic, data, native=message)


def check_filter(pattern: str) -> None:
    """Refuse what cannot be subscribed to here."""
    check_pattern(pattern)
    if pattern.startswith("$share/"):
        raise TopicForbidden(f"cannot subscribe to {pattern!r}: an event of a shared subscription reaches one of many")
    check_depth(pattern)


def check_depth(topic: str) -> None:
    """Mosquitto breaks the connection over more than 200 levels."""
    if topic.count("/") > _MOST_LEVELS:
        raise TopicForbidden(f"topic of {topic.count('/') + 1} levels: at most {_MOST_LEVELS}")


class MqttSubscription(SubscriptionBase):
    """Topics of one session that go to one handler. `own_session` is closed with it.

    `whole`: what it is a part of, if its topics were added to a subscription whose session could not take them.
    """

    def __init__(
        self,
        topics: Sequence[str],
        lane: Lane,
        holder: Holder | None,
        session: Session,
        router: Router,
        own_session: Session | None,
        open_apart: Callable[[Sequence[str], Lane, MqttSubscription], MqttSubscription],
        whole: MqttSubscription | None = None,
    ) -> None:
        self._whole = whole
        super().__init__(topics, lane, holder)
        self._session = session
        self._router = router
        self._own_session = own_session
        self._open_apart = open_apart
        self._apart: list[MqttSubscription] = []
        router.enter(self)

    @property
    def here(self) -> frozenset[str]:
        """The topics on its first session."""
        return frozenset(self._topics)

    @property
    def topics(self) -> frozenset[str]:
        return self.here.union(*(other.here for other in self._apart))

    @property
    def native(self) -> Client:
        return self._session.client

    def start(self) -> None:
        if self._holder is not None and self._holder.lost:  # its client id is another's by now: they would fight for it
            raise name_lost()
        if self._own_session is not None:
            self._own_session.open()
        self._session.subscribe(self._filters(self._topics))()
        before = self._holder.before if self._holder is not None else None
        leftover = set(before.info.get("topics", "").split("\n")) - self._topics - {""} if before else None
        if leftover:
            self._session.give_back(leftover)

    def add(self, *topics: str) -> None:
        for topic in topics:
            check_filter(topic)
        with self._router.changing:
            self._check_running()
            new = [topic for topic in topics if topic not in self.topics]
            confirm = self._take(new)
        if confirm is None:
            self._add_apart(new)
            return
        try:
            confirm()
        except BaseException:
            with self._router.changing:
                if not self.closed:  # then they are given back, and may be another's
                    self._give_back(new)
            raise
        self._tell_topics()

    def _take(self, topics: Sequence[str]) -> Confirm | None:
        """None if another subscription has them on the same session: its filters and its events must stay its own."""
        if self._own_session is None and self._router.overlaps(topics, besides=self):
            return None
        filters = self._filters(topics)
        self._topics.update(topics)
        self._router.forget_routes()
        return self._session.subscribe(filters)

    def _give_back(self, topics: Sequence[str]) -> Confirm:
        self._topics.difference_update(topics)
        self._router.forget_routes()
        return self._session.unsubscribe(topics)

    def _add_apart(self, topics: Sequence[str]) -> None:
        apart = self._open_apart(topics, self._lane, self)
        with self._router.changing:
            if not self.closed:
                self._apart.append(apart)
                return
        apart._stop(forget=True)
        self._check_running()

    def remove(self, *topics: str) -> None:
        with self._router.changing:
            self._check_running()
            confirm = self._give_back([topic for topic in topics if topic in self._topics])
        for other in self._apart:
            other._topics.difference_update(topics)
            other._router.forget_routes()
        self._lane.keep_only(lambda topic: self.wants(topic) or any(other.wants(topic) for other in self._apart))
        confirm()
        for other in [other for other in self._apart if not other.here]:
            self._apart.remove(other)
            other._stop(forget=True)
        self._tell_topics()

    def _tell_topics(self) -> None:
        """The next holder of the name gives back what it does not want."""
        if self._holder is not None:
            self._holder.update({"topics": "\n".join(sorted(self._topics))})

    def _check_running(self) -> None:
        if self.closed:
            raise Closed(f"the subscription to {sorted(self.topics)[:5]} is closed")

    def wants(self, topic: str) -> bool:
        """The layer's own topics only for those who name them."""
        return any(
            matches(pattern, topic) and (pattern.startswith(OWN) or not topic.startswith(OWN))
            for pattern in list(self._topics)
        )

    def receive(self, batch: list[Delivery]) -> None:
        self._lane.put(batch)
        if self._own_session is None and not self._lane.full:
            # Without a name nothing outlives this process anyway: what is in memory is as safe as it will be, and a
            # slow handler must not close the window that it shares with other subscriptions.
            for delivery in batch:
                delivery.ack()

    def look_again(self) -> None:
        """There is room in the lane again: the sessions that wait for it read on."""
        for one in (self, *self._apart):
            if one._own_session is not None:
                one._own_session.look_again()

    def fail(self, error: Exception) -> None:
        if self._whole is not None:
            self._whole.fail(error)
        else:
            super().fail(error)

    def stop(self) -> None:
        """Undo a start that failed, but for lane and holder."""
        self._stop(forget=False)

    def _stop(self, forget: bool) -> None:
        with self._router.changing:  # an `add` under way comes to an end, or finds this closed
            apart = list(self._apart)
        for other in apart:
            other._stop(forget)
        if self._own_session is not None:
            self._close(self._own_session, forget)
            return
        with self._router.changing:
            self._router.leave(self)
            confirm = _drop(self._session, self._topics)
        _await(confirm)

    def _close(self, session: Session, forget: bool) -> None:
        """Leaves the router last: the router acknowledges what nobody wants, and the broker would forget it."""
        try:
            if forget and session.connected:
                session.drop(self._topics)()  # confirmed, as a DISCONNECT is not: nothing more is collected
        finally:
            try:
                session.close(1.0, forget=forget)
            finally:
                self._router.leave(self)

    def _filters(self, topics: Collection[str]) -> Filters:
        return self._session.filters(topics, 1, _NO_RETAINED)


def _drop(session: Session, filters: Collection[str]) -> Confirm:
    """Give filters of the shared session back, unless it is about to be closed with all of them."""
    return session.drop(filters) if not session.closing else lambda: None


def _await(confirm: Confirm) -> None:
    try:
        confirm()
    except BusError as exc:
        _logger.info("unsubscribing while the broker is away: %s", exc)


class MqttWatch(LatestValueWatch):
    """Retained messages below a prefix.

    Nothing in MQTT says where the retained messages end, so a marker is sent behind them. What was there before a
    reconnect and does not come again before the marker has been removed meanwhile.
    """

    def __init__(
        self,
        session: Session,
        router: Router,
        prefix: str,
        handler: WatchHandler | None,
        send_marker: Callable[[str, bytes], None],
    ) -> None:
        super().__init__(handler)
        self.filter = f"{DIRECTORY}/{prefix.rstrip('/')}/#"
        self._session = session
        self._router = router
        self._prefix = prefix
        self._send_marker = send_marker
        self._marker = f"{_SYNC}/{os.urandom(8).hex()}"
        self._round = 0
        self._seen: dict[str, int] = {}
        self._complete = threading.Event()
        router.enter_watch(self)

    def start(self, timeout: float) -> None:
        # At QoS 0: what exceeds the queue of a client Mosquitto drops at QoS 1, and there may be any number of values.
        # Nothing is lost by it, since after a reconnect all of them come again.
        values = self._session.filters([self.filter], 0, _SEND_RETAINED)
        self._session.subscribe({**values, **self._session.filters([self._marker], 0, _NO_RETAINED)})()
        self.end_round()
        if not self._complete.wait(timeout):
            raise BusError(f"the latest values below {self._prefix} did not come within {timeout} s")

    def begin_round(self) -> None:
        """Connected again: the broker is about to send all values anew."""
        self._round += 1

    def end_round(self) -> None:
        self._send_marker(self._marker, b"%d" % self._round)

    def offer(self, topic: str, value: bytes) -> None:
        """A message of the session, perhaps for this watch; on the network thread."""
        if topic == self._marker:
            if value == b"%d" % self._round:  # one of an earlier connection comes before the values, not after them
                self._forget_unseen()
                self._complete.set()
            return
        key = topic.removeprefix(f"{DIRECTORY}/")
        if key is not topic and below(key, self._prefix):
            self._seen[key] = self._round
            self._set(key, value or None)

    def _forget_unseen(self) -> None:
        for key in [key for key, round in self._seen.items() if round < self._round]:
            del self._seen[key]
            self._set(key, None)

    def _stop(self) -> None:
        with self._router.changing:
            last = self._router.leave_watch(self)
            confirm = _drop(self._session, [self._marker, *([self.filter] if last else [])])
        _await(confirm)
