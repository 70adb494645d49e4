"""What sites publish as latest values for each other: open transactions to be joined, and event types.

A coordinator announces a transaction that several may publish in while it takes events; others find it by type and
attributes. A site that advertises a type announces the type and its parent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from txlayer import messages as m
from txlayer.effects import Broadcast, Send
from txlayer.errors import TxLayerError
from txlayer.messages import Access, TxId
from txlayer.ports import Bus, Watch
from txlayer.presence import UNREADABLE
from txlayer.transactions.coordinator_desk import CoordinatorDesk

_logger = logging.getLogger(__name__)
OPEN, TYPES = "open", "types"
_CLOSING = (m.Prepare, m.Delegate, m.Decision, m.CensusFailed, m.Called, m.Withdrawn)


class OpenTransaction(msgspec.Struct, frozen=True):
    """A transaction that others may publish in."""

    tx: TxId
    type: str
    attributes: dict[str, str]


class AdvertisedType(msgspec.Struct, frozen=True):
    """A type that some site publishes."""

    type: str
    parent: str | None
    site: str


@dataclass(slots=True)
class OpenTransactions:
    """The coordinator's side: announces what is open, and takes it back."""

    bus: Bus
    desk: CoordinatorDesk
    announced: dict[TxId, None] = field(default_factory=dict)

    def on_said(self, effect: Send | Broadcast) -> None:
        """Created tells that it is open; what goes to all members tells that it takes no more events."""
        if type(effect) is Send and type(effect.message) is m.Created:
            self._open(effect.message.tx)
        elif self.announced and type(effect) is Broadcast and isinstance(effect.message, _CLOSING):
            self.withdraw(effect.message.tx)

    def withdraw(self, tx: TxId) -> None:
        """It takes no more events."""
        if self.announced.pop(tx, 0) is None:
            announce(self.bus, _open_key(tx), None)

    def _open(self, tx: TxId) -> None:
        one = self.desk.transactions.get(tx)
        if one is None or one.terms.access is not Access.MULTI or tx in self.announced:
            return
        self.announced[tx] = None
        entry = OpenTransaction(tx, one.terms.type, dict(one.terms.attributes))
        announce(self.bus, _open_key(tx), msgspec.msgpack.encode(entry))


def forget_former(bus: Bus, site: str) -> None:
    """What an earlier life of this site had open is aborted: take the announcements back."""
    watch = bus.watch(OPEN)
    try:
        for key in watch.snapshot():
            if key.startswith(f"{OPEN}/{site}/"):
                announce(bus, key, None)
    finally:
        watch.close()


def found(watch: Watch, event_type: str, attributes: Mapping[str, str]) -> list[OpenTransaction]:
    """Open transactions of the type that have these attributes, oldest first."""
    entries = []
    for value in watch.snapshot().values():
        try:
            entry = msgspec.msgpack.decode(value, type=OpenTransaction)
        except UNREADABLE:
            continue
        if entry.type == event_type and attributes.items() <= entry.attributes.items():
            entries.append(entry)
    return sorted(entries, key=lambda entry: entry.tx)


def advertise(bus: Bus, site: str, event_type: str, parent: str | None) -> str:
    """Tell every site of a type; the key of the advertisement."""
    key = _type_key(site, event_type)
    bus.announce(key, msgspec.msgpack.encode(AdvertisedType(event_type, parent, site))).wait(10.0)
    return key


def unadvertise(bus: Bus, site: str, event_type: str) -> str:
    """Take it back; the key of the advertisement."""
    key = _type_key(site, event_type)
    bus.announce(key, None).wait(10.0)
    return key


def watch_types(bus: Bus, on_change: Callable[[str, AdvertisedType | None], None]) -> Watch:
    """Hear of every advertisement, by its key; None when it is taken back."""

    def on_value(key: str, value: bytes | None) -> None:
        try:
            entry = msgspec.msgpack.decode(value, type=AdvertisedType) if value is not None else None
        except UNREADABLE:
            return
        on_change(key, entry)

    watch = bus.watch(TYPES, on_value)
    for key, value in watch.snapshot().items():
        on_value(key, value)
    return watch


def announce(bus: Bus, key: str, value: bytes | None) -> None:
    """Best effort: who joins by id needs no directory."""
    try:
        bus.announce(key, value)
    except TxLayerError as exc:
        _logger.warning("%s was not announced: %s", key, exc)


def _open_key(tx: TxId) -> str:
    return f"{OPEN}/{tx.coordinator}/{tx.incarnation}-{tx.number}-{tx.nonce}"


def _type_key(site: str, event_type: str) -> str:
    return f"{TYPES}/{site}/{event_type.encode().hex()}"
