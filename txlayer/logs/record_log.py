"""The log of one site: one live record per key, group commit, and a header that knows what must be there.

The header names the site, the incarnation (the identity of this log, made with it), the life (how often it was
opened) and the secret, and holds the number of rows and the sum of their checksums. So a log that lost, gained or
changed a row is noticed at opening; so is one of another site, one that is older than what the bus remembers of it,
and one of a later release. All of these refuse to open. An older format is migrated.

Changes collect until `write`; all of them become durable in one `sync`, however many transactions they belong to.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from txlayer.errors import LogCorrupt, LogFailed, LogForeign, LogRolledBack, LogTooNew
from txlayer.logs.port import Batch, Disk, Stored
from txlayer.records import AnyRecord, decode_record, encode_record

VERSION = 2
_SUM = 1 << 64


class Header(Struct, frozen=True, array_like=True):
    """The first thing that is read. Version 1 ended before `count`."""

    version: int
    site: str
    incarnation: str
    secret: bytes
    life: int
    head: int
    count: int = 0
    total: int = 0


class Row(Struct, frozen=True, array_like=True):
    """One record as it is stored."""

    key: str
    record: bytes
    time: float = 0.0
    """When it was appended, by the wall clock: for people who ask how long something has been open."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a new log is made with: random, and never made again."""

    incarnation: str
    secret: bytes


@dataclass(frozen=True, slots=True)
class Head:
    """How far a log has come, as others remember it."""

    incarnation: str
    number: int


_encode = msgspec.msgpack.Encoder().encode
_decode_header = msgspec.msgpack.Decoder(Header).decode
_decode_row = msgspec.msgpack.Decoder(Row).decode


@dataclass(slots=True)
class RecordLog:
    """An open log. Use `open_log`."""

    disk: Disk
    header: Header
    index: dict[str, tuple[int, int]] = field(default_factory=dict)
    records: dict[str, AnyRecord] = field(default_factory=dict)
    position: int = 0
    written: int = 0
    durable: int = 0
    failed: bool = False
    clock: Callable[[], float] = time.time
    times: dict[str, float] = field(default_factory=dict)
    """When the records were appended that were there at the opening."""
    _rows: dict[int, bytes] = field(default_factory=dict)
    _removed: list[int] = field(default_factory=list)
    _count: int = 0
    _total: int = 0
    _number: int = 0

    def append(self, key: str, record: AnyRecord) -> int:
        """Put a record in place of the last one of this key; the position to wait for."""
        self._remove(key)
        self._number += 1
        stored = _checked(self._number, self.header.incarnation, _encode(Row(key, encode_record(record), self.clock())))
        check = int.from_bytes(stored[:4], "big")
        self._rows[self._number] = stored
        self.index[key] = (self._number, check)
        self._count += 1
        self._total = (self._total + check) % _SUM
        self.position += 1
        return self.position

    def drop(self, key: str) -> int:
        """Remove the record of this key, if there is one."""
        if key in self.index:
            self._remove(key)
            self._number += 1  # every change counts, or a copy from before it would look the same
            self.position += 1
        return self.position

    def touch(self) -> None:
        """Let the next sync write though nothing has changed: it fails if the log is a later life's by now."""
        self._number += 1
        self.position += 1

    def write(self) -> int:
        """Hand everything to the disk as one batch; the position that the next `sync` makes durable."""
        if self.written == self.position:
            return self.written
        self.header = msgspec.structs.replace(self.header, head=self._number, count=self._count, total=self._total)
        batch = Batch(tuple(self._rows.items()), tuple(self._removed), seal_header(self.header))
        self._rows, self._removed = {}, []
        self._guard(lambda: self.disk.write(batch))
        self.written = self.position
        return self.written

    def sync(self) -> int:
        """Make what was written durable; the position from which outputs may leave."""
        written = self.written
        self._guard(self.disk.sync)
        self.durable = written
        return written

    def head(self) -> Head:
        """What others should remember of this log."""
        return Head(self.header.incarnation, self.header.head)

    def low(self) -> bool:
        """Whether the disk is almost full: what was begun can be finished, nothing new should begin."""
        return self.disk.low()

    def size(self) -> int:
        """How many records are live."""
        return self._count

    def close(self) -> None:
        """Let go of the disk; what was not synced may be lost."""
        self.disk.close()

    def _remove(self, key: str) -> None:
        found = self.index.pop(key, None)
        if found is None:
            return
        number, check = found
        if self._rows.pop(number, None) is None:
            self._removed.append(number)
        self._count -= 1
        self._total = (self._total - check) % _SUM

    def _guard(self, act: object) -> None:
        if self.failed:
            raise LogFailed("the log failed before; start again and recover")
        assert callable(act)
        try:
            act()
        except OSError as exc:
            self.failed = True
            raise LogFailed(f"the log could not be written: {exc}") from exc
        except LogFailed:
            self.failed = True
            raise


def open_log(disk: Disk, site: str, identity: Identity, remembered: Head | None = None) -> RecordLog:
    """Open a log, or make it. The new life is durable when this returns.

    `identity` is used only if the log is new; `remembered` is what the bus knows of the site's log.
    """
    stored = disk.load()
    if stored.header is None:
        if stored.rows:
            raise LogCorrupt("there are records but no header")
        if remembered is not None:
            raise LogForeign(f"{site} had a log {remembered.incarnation}, this one is new: find it, or retire the name")
        log = RecordLog(disk, Header(VERSION, site, identity.incarnation, identity.secret, 0, 0))
    else:
        log = _read(disk, site, stored, remembered)
    log.header = msgspec.structs.replace(log.header, version=VERSION, life=log.header.life + 1)
    log.position += 1
    log._number += 1
    log.write()
    log.sync()
    return log


def _read(disk: Disk, site: str, stored: Stored, remembered: Head | None) -> RecordLog:
    assert stored.header is not None
    header = _unseal_header(stored.header)
    if header.site != site:
        raise LogForeign(f"this is the log of {header.site!r}, not of {site!r}")
    if remembered is not None and remembered.incarnation != header.incarnation:
        raise LogForeign(f"the bus remembers log {remembered.incarnation} of {site}, this is {header.incarnation}")
    if remembered is not None and remembered.number > header.head:
        raise LogRolledBack(f"the bus remembers entry {remembered.number}, this log ends at {header.head}: a copy?")
    log = RecordLog(disk, header)
    log._number = header.head
    for number, data in sorted(stored.rows):
        _take(log, number, data)
    if header.version < 2:
        return log
    if (log._count, log._total) != (header.count, header.total):
        raise LogCorrupt(f"{log._count} records where {header.count} were written, or others than those")
    return log


def _take(log: RecordLog, number: int, data: bytes) -> None:
    if number > log.header.head or data != _checked(number, log.header.incarnation, data[4:]):
        raise LogCorrupt(f"record {number} is damaged or of another log")
    try:
        row = _decode_row(data[4:])
    except (msgspec.DecodeError, ValueError) as exc:
        raise LogCorrupt(f"record {number} cannot be read: {exc}") from exc
    check = int.from_bytes(data[:4], "big")
    if row.key in log.index:
        raise LogCorrupt(f"two records have the key {row.key!r}")
    log.index[row.key] = (number, check)
    log.records[row.key] = decode_record(row.record)
    log.times[row.key] = row.time
    log._count += 1
    log._total = (log._total + check) % _SUM


def _checked(number: int, incarnation: str, body: bytes) -> bytes:
    return zlib.crc32(b"%d %s " % (number, incarnation.encode()) + body).to_bytes(4, "big") + body


def seal_header(header: Header) -> bytes:
    """A header with its checksum."""
    body = _encode(header)
    return zlib.crc32(body).to_bytes(4, "big") + body


def _unseal_header(data: bytes) -> Header:
    body = data[4:]
    if data[:4] != zlib.crc32(body).to_bytes(4, "big"):
        raise LogCorrupt("the header is damaged")
    try:
        version = msgspec.msgpack.decode(body)[0]
        if isinstance(version, int) and version > VERSION:
            raise LogTooNew(f"this log has format {version}; this release reads up to {VERSION}")
        return _decode_header(body)
    except (msgspec.DecodeError, ValueError, IndexError, TypeError) as exc:
        raise LogCorrupt(f"the header cannot be read: {exc}") from exc
