"""Metadata and headers as MQTT 5 properties of a PUBLISH.

paho builds properties attribute by attribute, which costs more than the rest of a publish; it only ever packs them, so
we hand it the packed bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from paho.mqtt.properties import Properties

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
    return PreparedProperties(content + _pairs(headers) if headers else content)


def cloud_event(attributes: Mapping[str, str], headers: Mapping[str, str] | None) -> PreparedProperties:
    """The CloudEvents binding: attributes are user properties of the same name, the content type has its own place."""
    properties = {**attributes, **(headers or {})}
    content_type = properties.pop("content-type", None)
    content = _pairs(properties)
    if content_type is not None:
        content = _CONTENT_TYPE + _string(content_type) + content
    return PreparedProperties(content)


def _pairs(headers: Mapping[str, str]) -> bytes:
    return b"".join(_USER_PROPERTY + _string(name) + _string(value) for name, value in headers.items())


def _string(text: str) -> bytes:
    try:
        data = text.encode()
        return _LENGTH.pack(len(data)) + data
    except (UnicodeEncodeError, struct.error) as exc:
        raise UsageError(f"a header must be text of at most 65535 bytes in UTF-8: {exc}") from None


def varint(number: int) -> bytes:
    if number < 128:
        return bytes((number,))
    digits = bytearray()
    while True:
        number, digit = divmod(number, 128)
        digits.append(digit | 0x80 if number else digit)
        if not number:
            return bytes(digits)
