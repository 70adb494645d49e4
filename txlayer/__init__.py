"""A client-side transaction layer for message buses: MQTT, Kafka, or one process."""

from txlayer.connect import connect
from txlayer.delivery import Delivery, Gap
from txlayer.metadata import Metadata
from txlayer.ports import Ack, Bus, Capabilities, Identity, Retry, SiteView, Standing, Subscription, Watch
from txlayer.presence import Roster
from txlayer.receipt import Receipt
from txlayer.sequencing.ordered_bus import ordered

__all__ = [
    "Ack",
    "Bus",
    "Capabilities",
    "Delivery",
    "Gap",
    "Identity",
    "Metadata",
    "Receipt",
    "Retry",
    "Roster",
    "SiteView",
    "Standing",
    "Subscription",
    "Watch",
    "connect",
    "ordered",
]
