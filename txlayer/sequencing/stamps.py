"""How an ordered event travels: the payload untouched, its place in one header beside it.

Who does not use the ordered bus reads the event as any other.
"""

from __future__ import annotations

import base64
import binascii

import msgspec
from msgspec import Struct

from txlayer.delivery import REPLAY_FOR
from txlayer.errors import DecodeError
from txlayer.ordering.messages import Event
from txlayer.ordering.timestamp import Stamp

HEADER = "txo"
_REPLAY_FOR = "txo-replay-for"
"""What `REPLAY_FOR` is called on the way: the bus below would keep the event from those whom it is not for, and they
would wait for its number."""


class Place(Struct, frozen=True, array_like=True, gc=False):
    """All of an event but its payload and what the application sent beside it."""

    publisher: str
    serial: int
    stamp: Stamp
    again: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Place).decode


def headers(event: Event) -> dict[str, str]:
    """The headers on the bus below: the application's, and the place."""
    place = Place(event.publisher, event.serial, event.stamp, event.again)
    text = base64.b64encode(_encode(place)).decode("ascii")
    if event.beside is None or not event.beside.headers:
        return {HEADER: text}
    beside = {_REPLAY_FOR if name == REPLAY_FOR else name: value for name, value in event.beside.headers.items()}
    return {**beside, HEADER: text}


def read(headers: dict[str, str], payload: bytes) -> Event | None:
    """The event of these headers, which are the application's own from then on; None if it has no place.

    Raises `DecodeError` if the place cannot be read.
    """
    header = headers.pop(HEADER, None)
    if header is None:
        return None
    if _REPLAY_FOR in headers:
        headers[REPLAY_FOR] = headers.pop(_REPLAY_FOR)
    try:
        place = _decode(binascii.a2b_base64(header))
    except (msgspec.MsgspecError, ValueError) as exc:
        raise DecodeError(f"not a place in the order: {exc}") from exc
    return Event(place.publisher, place.serial, place.stamp, payload, place.again)
