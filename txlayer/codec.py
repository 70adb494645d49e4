"""One encoder and one decoder for everything that crosses the bus.

A frame is (version, sender, body, seal): the body is the tagged message, the seal what the security level asks for.
Only `DecodeError` comes out of `open_frame`, whatever bytes go in. A kind that this release does not know is told
apart from garbage, so that it can be counted and ignored; a newer version of a known kind is refused by name.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec
from msgspec import Struct

from txlayer import messages
from txlayer.errors import DecodeError, NewerVersion, UnknownKind

VERSION = 1
MAX_FRAME_BYTES = 16 * 1024 * 1024

KINDS: dict[str, type[messages.Message]] = {kind.__name__: kind for kind in get_args(messages.AnyMessage)}


class Frame(Struct, frozen=True, array_like=True):
    """What a bus carries. `sender` is empty unless the security level names sites."""

    version: int
    sender: str
    body: bytes
    seal: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_BUNDLE = b"\xc1"
"""What MessagePack never begins with."""
_bundle_decoder = msgspec.msgpack.Decoder(list[bytes])
_frame_decoder = msgspec.msgpack.Decoder(Frame)
_body_decoder: msgspec.msgpack.Decoder[messages.AnyMessage] = msgspec.msgpack.Decoder(messages.AnyMessage)


def encode_body(message: messages.AnyMessage) -> bytes:
    """The bytes that a seal covers."""
    return _encoder.encode(message)


def encode_frame(frame: Frame) -> bytes:
    """A frame as the bus carries it."""
    return _encoder.encode(frame)


def encode_bundle(frames: list[bytes]) -> bytes:
    """Frames that go the same way, as one message of the bus."""
    return frames[0] if len(frames) == 1 else _BUNDLE + _encoder.encode(frames)


def frames_of(data: bytes) -> list[bytes]:
    """The frames in a message of the bus."""
    if not data.startswith(_BUNDLE):
        return [data]
    if len(data) > MAX_FRAME_BYTES:
        raise DecodeError(f"a bundle of {len(data)} bytes is over the limit of {MAX_FRAME_BYTES}")
    frames: list[bytes] = _decode(_bundle_decoder, data[1:])
    return frames


def decode_frame(data: bytes) -> Frame:
    """Read the outer frame only; the seal is not checked here."""
    if len(data) > MAX_FRAME_BYTES:
        raise DecodeError(f"a frame of {len(data)} bytes is over the limit of {MAX_FRAME_BYTES}")
    frame: Frame = _decode(_frame_decoder, data)
    return frame


def decode_body(frame: Frame) -> messages.AnyMessage:
    """Read the message inside a frame."""
    try:
        message: messages.AnyMessage = _decode(_body_decoder, frame.body)
    except DecodeError as exc:
        kind = _kind_of(frame.body)
        if kind is None:
            raise
        if frame.version > VERSION and kind in KINDS:
            raise NewerVersion(f"{kind} of version {frame.version}; this release reads up to {VERSION}") from exc
        if kind not in KINDS:
            raise UnknownKind(f"no message kind {kind[:40]!r}") from exc
        raise
    if frame.version > VERSION:
        kind = type(message).__name__
        raise NewerVersion(f"{kind} of version {frame.version}; this release reads up to {VERSION}")
    return message


def _decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError) as exc:
        raise DecodeError(str(exc)) from exc


def _kind_of(body: bytes) -> str | None:
    try:
        parts = msgspec.msgpack.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError):
        return None
    if isinstance(parts, list) and parts and isinstance(parts[0], str):
        return parts[0]
    return None
