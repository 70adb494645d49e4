"""From the URL of a log to its disk: `sqlite:///file.db`, `postgresql://...`, `memory://`."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

from txlayer.errors import UsageError
from txlayer.logs.memory import MemoryDisk
from txlayer.logs.port import Disk
from txlayer.logs.register import Register
from txlayer.logs.sqlite import SqliteDisk

_FORM = "a log is sqlite:///file.db (sqlite:////absolute/file.db), postgresql://host/database, or memory://"


def open_disk(log: str | Disk, site: str) -> Disk:
    """The disk of a site's log."""
    if not isinstance(log, str):
        return log
    parts = urlsplit(log)
    if parts.scheme == "memory":
        return MemoryDisk()
    if parts.scheme == "sqlite":
        if parts.netloc or len(parts.path) < 2:
            raise UsageError(f"{log!r}: {_FORM}")
        return SqliteDisk(unquote(parts.path[1:]))
    if parts.scheme in ("postgresql", "postgres"):
        from txlayer.logs.postgres import PostgresDisk

        return PostgresDisk(log, site)
    raise UsageError(f"{log.partition(':')[0]!r} is no kind of log: {_FORM}")


def open_register(register: str | Register) -> Register:
    """The shared register of decisions."""
    if not isinstance(register, str):
        return register
    if urlsplit(register).scheme not in ("postgresql", "postgres"):
        raise UsageError("the register of decisions is a PostgreSQL database: register='postgresql://host/database'")
    from txlayer.logs.postgres_register import PostgresRegister

    return PostgresRegister(register)
