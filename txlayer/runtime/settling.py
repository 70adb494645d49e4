"""Performs what roles ask of the shared register of decisions."""

from __future__ import annotations

from txlayer.effects import ForgetSettlements, Settle, Settled
from txlayer.logs.register import Register
from txlayer.records import decode_settlement, encode_settlement
from txlayer.transactions.seat import Seat


def leave_keys(register: Register, seat: Seat) -> None:
    """At the start of a site, before its first census: what its finishers will need."""
    for finisher in seat.finishers:
        register.leave_key(seat.site, seat.incarnation, finisher, seat.keyring.key_for(finisher))


def settle(register: Register, seat: Seat, effect: Settle) -> Settled:
    """Write a decision unless one stands there; what stands there."""
    body = register.settle(effect.tx, encode_settlement(effect.settlement))
    key = b"" if seat.owns(effect.tx) else register.key(effect.tx.coordinator, effect.tx.incarnation, seat.site)
    return Settled(effect.tx, effect.type, decode_settlement(body), key)


def forget(register: Register, seat: Seat, effect: ForgetSettlements) -> None:
    """Take out what is finished."""
    register.forget(seat.site, seat.incarnation, effect.below, effect.number)
