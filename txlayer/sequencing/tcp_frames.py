"""Frames on a socket: a length of four bytes, then one of three things. Bounded on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from txlayer.errors import DecodeError, UsageError
from txlayer.sequencing.claims import Claim
from txlayer.sequencing.exchange import Letter

LONGEST = 16 * 1024 * 1024
MOST_UNSENT = 8 * 1024 * 1024
"""Bytes that wait for a slow peer; letters beyond that are dropped."""
_HEAD = 4


class Names(Struct, frozen=True, tag=True, array_like=True):
    """Client to host: for whom it takes letters."""

    names: tuple[str, ...]


class Chain(Struct, frozen=True, tag=True, array_like=True):
    """Host to client: the claims that it knows."""

    claims: tuple[Claim, ...]


class Packet(Struct, frozen=True, tag=True, array_like=True):
    """Either way."""

    letters: tuple[Letter, ...]


Frame: TypeAlias = Names | Chain | Packet
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


def write(writer: asyncio.StreamWriter, frame: Frame) -> bool:
    """Hand a frame to the socket; False if too much waits there, or it is too long."""
    body = _encode(frame)
    if len(body) > LONGEST or writer.is_closing() or writer.transport.get_write_buffer_size() > MOST_UNSENT:
        return False
    writer.write(len(body).to_bytes(_HEAD) + body)
    return True


async def read(reader: asyncio.StreamReader) -> Frame:
    """The next frame. `DecodeError` for what is none, `IncompleteReadError` at the end."""
    length = int.from_bytes(await reader.readexactly(_HEAD))
    if length > LONGEST:
        raise DecodeError(f"a frame of {length} bytes: at most {LONGEST}")
    body = await reader.readexactly(length)
    try:
        frame: Frame = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise DecodeError(f"not a frame of the ordering layer: {exc}") from exc
    return frame


def addresses(url: str) -> list[tuple[str, int]]:
    """`tcp://host:port,host:port`."""
    found = []
    for part in url.removeprefix("tcp://").rstrip("/").split(","):
        host, _, port = part.rpartition(":")
        if not url.startswith("tcp://") or not host or not port.isdigit() or int(port) > 65_535:
            raise UsageError(f"{url!r}: the address of a sequencer host is tcp://host:port")
        found.append((host.strip("[]"), int(port)))
    return found


def packets(letters: Sequence[Letter], largest: int = 256) -> list[Packet]:
    """Letters in packets that are not too large."""
    return [Packet(tuple(letters[at : at + largest])) for at in range(0, len(letters), largest)]
