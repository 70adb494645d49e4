"""Metadata and headers as MQTT 5 properties of a PUBLISH.

paho builds properties attribute by attribute, which costs more than the rest of a publish; it only ever packs them, so
we hand it the packed bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from paho.mqtt.properties import Properties

from txlayer.adapters.topics import UNFIT
from txlayer.errors import UsageError
from txlayer.metadata import HEADER

_USER_PROPERTY = b"\x26"
_CONTENT_TYPE = b"\x03"
_LENGTH = struct.Struct(">H")
METADATA_PREFIX = _USER_PROPERTY + _LENGTH.pack(len(HEADER)) + HEADER.encode()


class PreparedProperties(Properties):
    """Properties to send, packed already."""

    def __init__(self, content: bytes) -> None:
        object.__setattr__(self, "packed", varint(len(content)) + content)

    def pack(self) -> bytes:
        packed: bytes = object.__getattribute__(self, "packed")
        return packed

    def __str__(self) -> str:
        return "[packed]"


def compact(text: bytes, headers: Mapping[str, str] | None) -> PreparedProperties:
    """One property with the metadata, then the application's headers."""
    content = METADATA_PREFIX + _LENGTH.pack(len(text)) + text
    return PreparedProperties(content + _pairs(_given(headers)) if headers else content)


def cloud_event(attributes: Mapping[str, str], headers: Mapping[str, str] | None) -> PreparedProperties:
    """The CloudEvents binding: attributes are user properties of the same name, the content type has its own place.

    The headers of another event may be passed on: where they name the same attribute, this event's own counts.
    """
    properties = {**attributes, **_given(headers or {}), **attributes}
    content_type = properties.pop("content-type", None)
    content = _pairs(properties)
    if content_type is not None:
        content = _CONTENT_TYPE + _string(content_type) + content
    return PreparedProperties(content)


def _given(headers: Mapping[str, str]) -> Mapping[str, str]:
    if HEADER in headers:
        raise UsageError(f"a header named {HEADER!r} is the layer's own: take another name")
    return headers


def _pairs(headers: Mapping[str, str]) -> bytes:
    return b"".join(_USER_PROPERTY + _string(name) + _string(value) for name, value in headers.items())


def _string(text: str) -> bytes:
    plain = isinstance(text, str) and text.isascii() and text.isprintable()  # quicker than the pattern
    if not plain and (not isinstance(text, str) or UNFIT.search(text)):
        raise UsageError("an MQTT header is text without control characters: encode anything else, as base64 say")
    data = text.encode()
    if len(data) > 65_535:
        raise UsageError(f"a header of {len(data)} bytes: at most 65535 in UTF-8")
    return _LENGTH.pack(len(data)) + data


def user_pairs(content: bytes) -> list[tuple[str, str]] | None:
    """The user properties of a PUBLISH that has nothing else; None if it has, or they cannot be read."""
    pairs: list[tuple[str, str]] = []
    place, end = 0, len(content)
    try:
        while place < end:
            middle = place + 3 + int.from_bytes(content[place + 1 : place + 3])
            last = middle + 2 + int.from_bytes(content[middle : middle + 2])
            if content[place] != _USER_PROPERTY[0] or last > end:
                return None
            pairs.append((content[place + 3 : middle].decode(), content[middle + 2 : last].decode()))
            place = last
    except UnicodeDecodeError:
        return None
    return pairs


def varint(number: int) -> bytes:
    if number < 128:
        return bytes((number,))
    digits = bytearray()
    while True:
        number, digit = divmod(number, 128)
        digits.append(digit | 0x80 if number else digit)
        if not number:
            return bytes(digits)
