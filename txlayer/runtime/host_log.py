"""The log of a sequencer host: its records under their keys, in a disk of `txlayer.logs`, with group commit.

The header names the host, its rank and the incarnation of the log: the log of another host does not open. It joins the
records of `txlayer.ordering` to the port of the logs; the roles know nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from txlayer.errors import LogCorrupt, LogForeign, LogTooNew
from txlayer.logs.port import Batch, Disk
from txlayer.ordering.effects import Erase, Persist
from txlayer.ordering.records import AnyRecord, decode_record, encode_record

VERSION = 1


class Header(Struct, frozen=True, array_like=True):
    """The first thing that is read."""

    version: int
    host: str
    rank: int
    incarnation: str
    rows: int = 0


class _Row(Struct, frozen=True, array_like=True):
    key: str
    record: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(Header).decode
_decode_row = msgspec.msgpack.Decoder(_Row).decode


@dataclass(slots=True)
class HostLog:
    """An open log. Use `open_host_log`."""

    disk: Disk
    header: Header
    records: dict[str, AnyRecord] = field(default_factory=dict)
    _rows: dict[str, int] = field(default_factory=dict)
    _next: int = 1

    def write(self, effects: Iterable[Persist | Erase]) -> None:
        """Make these durable, all of them with one sync."""
        last: dict[str, Persist | Erase] = {}
        for effect in effects:
            last.pop(effect.key, None)
            last[effect.key] = effect
        rows: list[tuple[int, bytes]] = []
        removed: list[int] = []
        for key, effect in last.items():
            before = self._rows.pop(key, None)
            if before is not None:
                removed.append(before)
            if isinstance(effect, Persist):
                rows.append((self._next, _encode(_Row(key, encode_record(effect.record)))))
                self._rows[key] = self._next
                self._next += 1
        old = self.header
        self.header = Header(old.version, old.host, old.rank, old.incarnation, len(self._rows))
        self.disk.write(Batch(tuple(rows), tuple(removed), _encode(self.header)))
        self.disk.sync()


def open_host_log(disk: Disk, host: str, rank: int, new_incarnation: str) -> HostLog:
    """Open the log of this host; a new disk becomes its log under `new_incarnation`."""
    stored = disk.load()
    if stored.header is None:
        if stored.rows:
            raise LogCorrupt(f"the log of host {host} has records and no header")
        log = HostLog(disk, Header(VERSION, host, rank, new_incarnation))
        log.write(())
        return log
    try:
        header = _decode_header(stored.header)
        rows = [(number, _decode_row(body)) for number, body in stored.rows]
    except msgspec.MsgspecError as exc:
        raise LogCorrupt(f"not the log of a sequencer host: {exc}") from exc
    if header.version > VERSION:
        raise LogTooNew(f"the log of host {header.host} was written by a later release (version {header.version})")
    if (header.host, header.rank) != (host, rank):
        raise LogForeign(f"this is the log of host {header.host}, rank {header.rank}: not of {host}, rank {rank}")
    if header.rows != len(rows):
        raise LogCorrupt(f"the log of host {host} has {len(rows)} records, its header says {header.rows}")
    log = HostLog(disk, header)
    for number, row in rows:
        log.records[row.key] = decode_record(row.record)
        log._rows[row.key] = number
        log._next = max(log._next, number + 1)
    return log
