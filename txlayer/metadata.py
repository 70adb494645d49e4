"""What travels beside the payload, which stays untouched.

Every event belongs to a *stream*: the events of one publisher on one topic (and partition), numbered from 1 without a
gap. (stream, number) is the event's identity: it shows what a broker dropped and what a reconnect delivered twice.

Three forms, all understood on receipt:

- compact, the default: one binary value, about 30 bytes. One Kafka header, one MQTT 5 user property (base64url there:
  a property must be UTF-8);
- the CloudEvents 1.0 binary binding, on request: `ce_*` Kafka headers, MQTT 5 user properties;
- the CloudEvents 1.0 JSON format, around the payload, where the bus has no headers (MQTT 3.1.1).
"""

from __future__ import annotations

import base64
import binascii
import datetime
import struct
from collections.abc import Mapping
from typing import Any

import msgspec

from txlayer.errors import DecodeError, UsageError

HEADER = "tx"
"""Name of the one header or property that holds the compact form."""

_HEAD = struct.Struct(">B12sQQB")  # form, stream, number, microseconds since 1970, length of the type that follows
_COMPACT, _COMPACT_WITH_KEY = 1, 2
pack_head = _HEAD.pack
"""`pack` for an event without type and key, (1, stream, number, microseconds, 0): for the path of every event."""
read_position = struct.Struct(">x12sQ").unpack_from
"""`position` of what is known to be a compact form."""
_NO_TYPE = "event"  # CloudEvents need one
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_CLOUD_ATTRIBUTES = frozenset(
    {"specversion", "id", "source", "type", "time", "subject", "datacontenttype", "dataschema", "txstream", "sequence"}
)

Position = tuple[bytes, int]
"""(stream, number) of an event."""


class Metadata(msgspec.Struct, frozen=True):
    """What is known of an event beside its payload and headers."""

    id: str
    source: str
    type: str
    time: datetime.datetime | None = None
    number: int | None = None
    """Its place among the events of its publisher and topic; None where the publisher does not number them."""
    stream: str | None = None
    subject: str | None = None
    content_type: str | None = None
    extensions: dict[str, str] = {}


def pack(stream: bytes, number: int, time_us: int, type: bytes, key: bytes | None = None) -> bytes:
    """The compact form. `key` only where the bus has no place of its own for it."""
    form = _COMPACT if key is None else _COMPACT_WITH_KEY
    try:
        packed = _HEAD.pack(form, stream, number, time_us, len(type)) + type
    except struct.error:
        raise UsageError(f"event type of {len(type)} bytes: at most 255 in UTF-8") from None
    return packed if key is None else packed + key


def position(packed: bytes) -> Position | None:
    """Stream and number of a compact form; None when it is none of ours. On the path of every event: no decoding."""
    if len(packed) < _HEAD.size or packed[0] not in (_COMPACT, _COMPACT_WITH_KEY):
        return None
    return packed[1:13], int.from_bytes(packed[13:21])


def unpack(packed: bytes) -> tuple[Metadata, bytes | None]:
    """Metadata and, if it travelled inside, the key."""
    try:
        form, stream, number, time_us, type_length = _HEAD.unpack_from(packed)
        type = packed[_HEAD.size : _HEAD.size + type_length].decode()
        time = _EPOCH + datetime.timedelta(microseconds=time_us)
    except (struct.error, UnicodeDecodeError, OverflowError) as exc:
        raise DecodeError(f"not a compact metadata value: {exc}") from exc
    if form not in (_COMPACT, _COMPACT_WITH_KEY) or len(packed) < _HEAD.size + type_length:
        raise DecodeError(f"not a compact metadata value: form {form}, {len(packed)} bytes")
    key = packed[_HEAD.size + type_length :] if form == _COMPACT_WITH_KEY else None
    name = stream.hex()
    metadata = Metadata(
        id=f"{name}-{number}", source=source_of(stream), type=type, time=time, number=number, stream=name
    )
    return metadata, key


def packed_key(packed: bytes) -> bytes | None:
    """The key inside a compact form, if there is one."""
    if len(packed) < _HEAD.size or packed[0] != _COMPACT_WITH_KEY:
        return None
    start = _HEAD.size + packed[_HEAD.size - 1]
    return packed[start:] if start <= len(packed) else None


def repack(attributes: Mapping[str, str]) -> bytes:
    """The compact form of a CloudEvent that one of us wrote; `DecodeError` for anyone else's."""
    position, time = cloud_position(attributes, ""), _parse_time(attributes.get("time"))
    if position is None or time is None:
        raise DecodeError("not numbered by txlayer")
    time_us = (time - _EPOCH) // datetime.timedelta(microseconds=1)
    type = attributes.get("type", "").encode()
    if not 0 <= time_us < 1 << 64 or len(type) > 255:
        raise DecodeError("time or type do not fit the compact form")
    return pack(*position, time_us, type)


def source_of(stream: bytes) -> str:
    """The publisher, as a CloudEvents source. The last four bytes of a stream only tell its topics apart."""
    return f"/txlayer/{stream[:8].hex()}"


def to_text(packed: bytes) -> bytes:
    """ASCII, for an MQTT user property."""
    return base64.urlsafe_b64encode(packed)


def from_text(text: str | bytes) -> bytes:
    """The reverse of `to_text`; empty for a foreign property of the same name, which then does no harm."""
    try:
        return base64.urlsafe_b64decode(text)
    except (binascii.Error, ValueError):
        return b""


def cloud_attributes(stream: bytes, number: int, time_us: int, type: str) -> dict[str, str]:
    """The CloudEvents attributes of an event of ours."""
    time = _EPOCH + datetime.timedelta(microseconds=time_us)
    return {
        "specversion": "1.0",
        "id": f"{stream.hex()}-{number}",
        "source": source_of(stream),
        "type": type or _NO_TYPE,
        "time": time.isoformat().replace("+00:00", "Z"),
        "txstream": stream.hex(),
        "sequence": str(number),
    }


def is_cloud_event(headers: Mapping[str, str], prefix: str) -> bool:
    """Whether these headers are the binary binding of a CloudEvent."""
    return f"{prefix}specversion" in headers and f"{prefix}id" in headers


def cloud_position(headers: Mapping[str, str], prefix: str) -> Position | None:
    """Stream and number that a CloudEvent of ours carries."""
    try:
        stream, number = bytes.fromhex(headers[f"{prefix}txstream"]), int(headers[f"{prefix}sequence"])
    except (KeyError, ValueError):
        return None
    return (stream, number) if len(stream) == 12 and 0 < number < 1 << 64 else None


def from_cloud_headers(headers: Mapping[str, str], prefix: str) -> Metadata:
    """Metadata out of the binary binding, whoever wrote it."""
    attributes = {name.removeprefix(prefix): value for name, value in headers.items() if name.startswith(prefix)}
    position = cloud_position(headers, prefix)
    extensions = {name: value for name, value in attributes.items() if name not in _CLOUD_ATTRIBUTES} if prefix else {}
    return Metadata(
        id=attributes["id"],
        source=attributes.get("source", ""),
        type=attributes.get("type", ""),
        time=_parse_time(attributes.get("time")),
        number=position[1] if position else None,
        stream=position[0].hex() if position else None,
        subject=attributes.get("subject"),
        content_type=attributes.get("datacontenttype") or headers.get("content-type"),
        extensions=extensions,
    )


def _parse_time(text: str | None) -> datetime.datetime | None:
    try:
        time = datetime.datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return time if time is None or time.tzinfo else time.replace(tzinfo=datetime.UTC)


def wrap(attributes: Mapping[str, str], payload: bytes, headers: Mapping[str, str], key: bytes | None) -> bytes:
    """The CloudEvents JSON format, for a bus without headers."""
    envelope: dict[str, Any] = {**attributes, "data_base64": base64.b64encode(payload).decode()}
    if headers:
        envelope["txheaders"] = msgspec.json.encode(headers).decode()
    if key is not None:
        envelope["txkey"] = base64.b64encode(key).decode()
    return msgspec.json.encode(envelope)


def unwrap(data: bytes) -> tuple[dict[str, str], bytes, dict[str, str], bytes | None] | None:
    """(attributes, payload, headers, key) of an envelope; None when the data are a plain payload."""
    if not data.startswith(b"{") or b'"specversion"' not in data:
        return None
    try:
        envelope = msgspec.json.decode(data, type=dict[str, Any])
        headers = msgspec.json.decode(envelope.pop("txheaders", "{}"), type=dict[str, str])
        key = base64.b64decode(envelope.pop("txkey")) if "txkey" in envelope else None
        payload = _envelope_data(envelope)
    except (msgspec.MsgspecError, binascii.Error, TypeError, ValueError, OverflowError, RecursionError):
        return None
    attributes = {name: value for name, value in envelope.items() if isinstance(value, str)}
    return (attributes, payload, headers, key) if is_cloud_event(attributes, "") else None


def _envelope_data(envelope: dict[str, Any]) -> bytes:
    if "data_base64" in envelope:
        return base64.b64decode(envelope.pop("data_base64"))
    data = envelope.pop("data", b"")
    if isinstance(data, str):
        return data.encode()
    return data if isinstance(data, bytes) else msgspec.json.encode(data)
