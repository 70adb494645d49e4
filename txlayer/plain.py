"""Plain events on the same types: published and received outside any transaction."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from txlayer.delivery import Delivery
from txlayer.participant import Event, Participant, Subscriber
from txlayer.payloads import CONTENT_TYPE
from txlayer.ports import Bus, Subscription
from txlayer.runtime.membership import Application
from txlayer.runtime.wires import OF_TRANSACTION, plain_topic

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class PlainEvents:
    """Receives the plain topics of one site's subscribers."""

    bus: Bus
    application: Application
    running: list[tuple[Subscriber, Subscription]] = field(default_factory=list)

    def listen(self, subscriber: Subscriber) -> None:
        """Receive for one subscriber, from now on."""
        participant = subscriber.make()
        topics = self._topics(subscriber)
        subscription = self.bus.subscribe(topics, lambda delivery: self._handle(subscriber, participant, delivery))
        self.running.append((subscriber, subscription))
        self.on_types()  # of those that were advertised meanwhile, nobody has told this subscription

    def forget(self, gone: Sequence[Subscriber]) -> None:
        """Receive nothing more for these subscribers."""
        for subscriber, subscription in list(self.running):
            if any(subscriber is one for one in gone):
                self.running.remove((subscriber, subscription))
                subscription.close()

    def on_types(self) -> None:
        """New children of a type may have been advertised."""
        for subscriber, subscription in list(self.running):
            new = [topic for topic in self._topics(subscriber) if topic not in subscription.topics]
            if new:
                subscription.add(*new)

    def close(self, timeout: float) -> None:
        """Receive nothing any more. Handlers that run have `timeout` seconds, all together."""
        deadline = time.monotonic() + timeout
        for _, subscription in self.running:
            subscription.close(max(0.0, deadline - time.monotonic()))

    def _topics(self, subscriber: Subscriber) -> list[str]:
        return [plain_topic(self.bus, name) for name in self.application.types.descendants(subscriber.type)]

    def _handle(self, subscriber: Subscriber, participant: Participant, delivery: Delivery) -> None:
        if OF_TRANSACTION in delivery.headers:
            return  # its subscribers here hear of it as members, or not at all
        metadata = delivery.metadata
        name = (metadata.type if metadata is not None else "") or subscriber.type
        data = self.application.payloads.decode(
            delivery.payload, delivery.headers.get(CONTENT_TYPE), self.application.types.class_of(name)
        )
        attributes = dict(delivery.headers)
        if not subscriber.filter.matches({**_fields(data), **attributes}):
            return
        source = metadata.source if metadata is not None else ""
        event = Event(name, data, attributes, source, payload=delivery.payload)
        self.application.run(participant.on_plain(event))


def _fields(data: Any) -> Mapping[str, Any]:
    """What a filter may look at inside a payload: its top-level fields."""
    if isinstance(data, msgspec.Struct):
        return msgspec.structs.asdict(data)
    if dataclasses.is_dataclass(data):
        return {one.name: getattr(data, one.name) for one in dataclasses.fields(data)}
    return data if isinstance(data, dict) else {}
