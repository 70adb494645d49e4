"""An event on its way through the subscriber's role, with the delivery of the bus that brought it."""

from __future__ import annotations

from txlayer.delivery import Delivery
from txlayer.ordering.messages import Beside, Event
from txlayer.sequencing import stamps


class Arrived(Beside, frozen=True, array_like=True):
    """Beside an event that came from the bus in this life."""

    delivery: Delivery | None = None


def read(delivery: Delivery) -> Event | None:
    """The event in a delivery; see `stamps.read`."""
    delivery.headers = headers = dict(delivery.headers)
    event = stamps.read(headers, delivery.payload)
    if event is None:
        return None
    beside = Arrived(headers, delivery.key, "", delivery)
    return Event(event.publisher, event.serial, event.stamp, event.payload, event.again, beside)


def delivery_of(topic: str, event: Event) -> Delivery:
    """What the application gets."""
    beside = event.beside
    if isinstance(beside, Arrived) and beside.delivery is not None:
        return beside.delivery
    beside = beside or Beside()
    return Delivery(topic, event.payload, beside.key, beside.headers)
