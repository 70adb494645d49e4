"""From what an application publishes to bytes and back.

JSON by default. An event in another codec says so in its header `content-type`, so that every subscriber reads it
whatever its own default is; a codec of the user's own must be known to both sides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from txlayer.errors import DecodeError, UsageError

CONTENT_TYPE = "content-type"


class Codec(Protocol):
    """One way to write values. `decode` gets the declared class of the event type, or `Any`."""

    content_type: str

    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes, type: Any) -> Any: ...


class JsonCodec:
    """JSON by msgspec: what dicts, lists, dataclasses and Structs become by default."""

    content_type = "application/json"

    def encode(self, value: Any) -> bytes:
        return msgspec.json.encode(value)

    def decode(self, data: bytes, type: Any) -> Any:
        return msgspec.json.decode(data, type=type)


class MsgpackCodec:
    """MessagePack by msgspec: smaller, and bytes need no base64."""

    content_type = "application/msgpack"

    def encode(self, value: Any) -> bytes:
        return msgspec.msgpack.encode(value)

    def decode(self, data: bytes, type: Any) -> Any:
        return msgspec.msgpack.decode(data, type=type)


class RawCodec:
    """Bytes as they are."""

    content_type = "application/octet-stream"

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise TypeError(f"the raw codec takes bytes, not {type(value).__name__}")
        return bytes(value)

    def decode(self, data: bytes, type: Any) -> Any:
        return data


JSON: Codec = JsonCodec()
MSGPACK: Codec = MsgpackCodec()
RAW: Codec = RawCodec()
BUILT_IN = (JSON, MSGPACK, RAW)


@dataclass(slots=True)
class Payloads:
    """The codecs that one site knows, and the one that it writes with."""

    default: Codec = JSON
    known: dict[str, Codec] = field(default_factory=dict)

    @classmethod
    def of(cls, default: Codec, others: Iterable[Codec] = ()) -> Payloads:
        """The built-in ones are always understood."""
        return cls(default, {codec.content_type: codec for codec in (*BUILT_IN, *others, default)})

    def encode(self, value: Any) -> tuple[bytes, dict[str, str]]:
        """Bytes, and the header that tells how they were written (none for JSON)."""
        try:
            data = self.default.encode(value)
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError, OverflowError) as exc:
            raise UsageError(f"the event cannot be written as {self.default.content_type}: {exc}") from exc
        named = self.default.content_type
        return data, {} if named == JSON.content_type else {CONTENT_TYPE: named}

    def decode(self, data: bytes, content_type: str | None, type: Any = Any) -> Any:
        """The value, of the class that was declared for its event type; `DecodeError` if it is none."""
        codec = self.known.get(content_type or JSON.content_type)
        if codec is None:
            known = ", ".join(sorted(self.known))
            raise DecodeError(f"no codec for {content_type}; this site knows {known}: Site(codecs=[...])")
        try:
            return codec.decode(data, type)
        except (TypeError, ValueError, msgspec.MsgspecError, RecursionError, OverflowError) as exc:
            raise DecodeError(f"the event is no {codec.content_type}: {exc}") from exc
