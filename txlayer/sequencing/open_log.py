"""The disk of a host's log, by URL."""

from __future__ import annotations

from txlayer.errors import UsageError
from txlayer.logs.memory import MemoryDisk
from txlayer.logs.port import Disk
from txlayer.logs.sqlite import SqliteDisk

_SQLITE = "sqlite:///"


def open_disk(url: str) -> Disk:
    """`sqlite:///file.db` (relative), `sqlite:////var/lib/file.db` (absolute), `memory:` (lost with the process)."""
    if url.startswith(_SQLITE) and len(url) > len(_SQLITE):
        return SqliteDisk(url.removeprefix(_SQLITE))
    if url == "memory:":
        return MemoryDisk()
    raise UsageError(f"log {url!r}: sqlite:///file.db, or memory: for one that ends with the process")
