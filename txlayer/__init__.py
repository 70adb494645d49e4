"""A client-side transaction layer for message buses: MQTT, Kafka, or one process."""

from txlayer.async_site import AsyncSite, AsyncTransaction
from txlayer.conditions import all_of, at_least, at_most, named, only
from txlayer.connect import connect
from txlayer.delivery import Delivery, Gap
from txlayer.event_types import event_type
from txlayer.messages import Access, Conditions, Limit, Outcome, Scope, Status, TxId, Visibility
from txlayer.metadata import Metadata
from txlayer.participant import Event, MemberTransaction, Participant
from txlayer.payloads import JSON, MSGPACK, RAW, Codec
from txlayer.ports import Ack, Bus, Capabilities, Identity, Retry, SiteView, Standing, Subscription, Watch
from txlayer.presence import Roster
from txlayer.receipt import Receipt
from txlayer.runtime.engine import Threads
from txlayer.runtime.inspection import TransactionView
from txlayer.security_levels import Secret, Signed
from txlayer.sequencing.ordered_bus import ordered
from txlayer.site import Site
from txlayer.site_base import Draft
from txlayer.transaction import Transaction
from txlayer.transactions.event_coordinator import Limits
from txlayer.transactions.seat import Bounds, Patience

__all__ = [
    "JSON",
    "MSGPACK",
    "RAW",
    "Access",
    "Ack",
    "AsyncSite",
    "AsyncTransaction",
    "Bounds",
    "Bus",
    "Capabilities",
    "Codec",
    "Conditions",
    "Delivery",
    "Draft",
    "Event",
    "Gap",
    "Identity",
    "Limit",
    "Limits",
    "MemberTransaction",
    "Metadata",
    "Outcome",
    "Participant",
    "Patience",
    "Receipt",
    "Retry",
    "Roster",
    "Scope",
    "Secret",
    "Signed",
    "Site",
    "SiteView",
    "Standing",
    "Status",
    "Subscription",
    "Threads",
    "Transaction",
    "TransactionView",
    "TxId",
    "Visibility",
    "Watch",
    "all_of",
    "at_least",
    "at_most",
    "connect",
    "event_type",
    "named",
    "only",
    "ordered",
]
