"""What connects a site to its bus: topics, frames out, deliveries in, presence.

Control topics are `txlayer/v1/ctl/<type>` (a coordinator to all subscribers of a type) and `txlayer/v1/in/<site>` (to
one site). One subscription serves them all; it is durable if the site's log is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from txlayer.codec import encode_bundle
from txlayer.errors import PayloadTooLarge, TxLayerError
from txlayer.logs.record_log import Head
from txlayer.messages import AnyMessage, Numbered, TxId
from txlayer.ports import Bus, Identity, Presence, Receiver, SiteView, Subscription
from txlayer.presence import UNREADABLE, Roster

_logger = logging.getLogger(__name__)

OF_TRANSACTION = "txlayer-tx"
"""Header of a public copy: transaction and number of the event, so that members do not take it for another event."""
TYPES, HOSTS = "types", "hosts"
_LARGE_BYTES = 2048
_MOST_IN_A_BUNDLE = 64

Said = tuple[AnyMessage, bytes]
"""A message and its frame."""
TooLarge = tuple[AnyMessage, str]
"""A message that the bus did not take, and what it said."""


class _Head(msgspec.Struct, frozen=True, array_like=True):
    incarnation: str
    number: int


def plain_topic(bus: Bus, event_type: str) -> str:
    """Where plain events of a type are published: the type is the topic, level by level."""
    return bus.topic(*event_type.split("/"))


def remembered_head(bus: Bus, site: str) -> Head | None:
    """What the bus remembers of a site's log."""
    watch = bus.watch(f"heads/{site}")
    try:
        value = watch.snapshot().get(f"heads/{site}")
    finally:
        watch.close()
    if value is None:
        return None
    try:
        head = msgspec.msgpack.decode(value, type=_Head)
    except UNREADABLE:
        _logger.warning("what the bus remembers of the log of %s cannot be read", site)
        return None
    return Head(head.incarnation, head.number)


def forget_head(bus: Bus, site: str) -> None:
    """Retire a log for good: the name may start again with a new one."""
    bus.announce(f"heads/{site}", None).wait(10.0)


@dataclass(slots=True)
class Wires:
    """One site's end of the bus."""

    bus: Bus
    site: str
    lost: int = 0
    """Messages that the bus did not take; their senders repeat them, or give up what they belong to."""
    presence: Presence | None = None
    roster: Roster | None = None
    subscription: Subscription | None = None
    _inboxes: dict[str, str] = field(default_factory=dict)
    _controls: dict[str, str] = field(default_factory=dict)
    _head: int = -1
    said: dict[str, list[Said]] = field(default_factory=dict)
    """What waits for the next `flush`, by topic."""
    hurry: bool = False
    """Whether somebody waits for some of it, or for what the bus has and has not let go."""

    def control(self, event_type: str) -> str:
        """The control topic of a type."""
        topic = self._controls.get(event_type)
        if topic is None:
            topic = self._controls[event_type] = self.bus.topic("txlayer", "v1", "ctl", event_type)
        return topic

    def inbox(self, site: str) -> str:
        """The topic of one site."""
        topic = self._inboxes.get(site)
        if topic is None:
            topic = self._inboxes[site] = self.bus.topic("txlayer", "v1", "in", site)
        return topic

    def enter(self, identity: Identity, info: dict[str, str]) -> None:
        """Hold the site's name; `NameTaken` while another log does."""
        self.presence = self.bus.enter(self.site, identity, info)

    def listen(
        self,
        types: Iterable[str],
        durable: bool,
        identity: Identity,
        receiver: Receiver,
        on_presence: Callable[[SiteView], object],
    ) -> None:
        """Receive, and hear who is there."""
        topics = [self.inbox(self.site), *(self.control(name) for name in types)]
        name = f"txlayer-site-{self.site}" if durable else None
        self.subscription = self.bus.receive(topics, receiver, durable=name, identity=identity)
        self.roster = Roster(self.bus, on_presence)

    def add_types(self, types: Iterable[str], info: dict[str, str]) -> None:
        """Listen to more types; in force when it returns."""
        assert self.subscription is not None
        assert self.presence is not None
        self.subscription.add(*(self.control(name) for name in types))
        self.presence.update(info)

    def remove_types(self, types: Iterable[str]) -> None:
        """Listen to these types no more; best effort, what still comes is ignored."""
        assert self.subscription is not None
        try:
            self.subscription.remove(*(self.control(name) for name in types))
        except TxLayerError as exc:
            _logger.warning("%s still receives %s: %s", self.site, ", ".join(types), exc)

    def say(self, topic: str, message: AnyMessage, frame: bytes, patient: bool = False) -> list[TooLarge]:
        """Send a frame with the next `flush`, bundled with others; a large one at once, because the bus may refuse it.

        What the bus refuses for its size comes back. What it does not take for another reason the protocol says again.
        """
        said = self.said.setdefault(topic, [])
        said.append((message, frame))
        self.hurry = self.hurry or not patient
        if len(frame) <= _LARGE_BYTES and len(said) < _MOST_IN_A_BUNDLE:
            return []
        del self.said[topic]
        self.hurry = True  # the bus has it, and lets go of it only with a flush
        return self._hand_over(topic, said)

    def flush(self) -> list[TooLarge]:
        """Let go of what was said."""
        if not self.said and not self.hurry:
            return []
        said, self.said = self.said, {}
        self.hurry = False
        refused = [one for topic, frames in said.items() for one in self._hand_over(topic, frames)]
        self.bus.flush()
        return refused

    def _hand_over(self, topic: str, said: list[Said]) -> list[TooLarge]:
        try:
            self.bus.say(topic, encode_bundle([frame for _, frame in said]))
        except PayloadTooLarge as exc:
            if len(said) > 1:
                return [refused for one in said for refused in self._hand_over(topic, [one])]
            self.lost += 1
            return [(said[0][0], str(exc))]
        except TxLayerError as exc:
            self.lost += len(said)
            _logger.warning("a message on %s was not sent: %s", topic, exc)
        return []

    def publish_plain(self, tx: TxId, event: Numbered) -> None:
        """The public copy of an event."""
        headers = {**dict(event.item.headers), OF_TRANSACTION: f"{tx}/{event.number}"}
        try:
            topic = plain_topic(self.bus, event.item.type)
            self.bus.publish(topic, event.item.payload, headers=headers, type=event.item.type)
        except TxLayerError as exc:
            self.lost += 1
            _logger.warning("an event of %s was not published: %s", tx, exc)

    def remember(self, head: Head) -> None:
        """Let the bus know how far the log has come, so that an older copy of it is noticed."""
        if head.number == self._head:
            return
        self._head = head.number
        try:
            self.bus.announce(f"heads/{self.site}", msgspec.msgpack.encode(_Head(head.incarnation, head.number)))
        except TxLayerError as exc:
            _logger.warning("the head of the log of %s was not announced: %s", self.site, exc)

    def close(self) -> None:
        """Leave: a durable subscription goes on collecting."""
        if self.subscription is not None:
            self.subscription.close()
        if self.presence is not None:
            self.presence.leave()
        if self.roster is not None:
            self.roster.close()
