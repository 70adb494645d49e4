"""How units are named in PostgreSQL.

A prepared transaction has one name in the whole server, of at most 199 bytes, and nothing else that recovery could
read. So the name says all: site, resource, transaction, the log under which it was prepared, and of how many branches
of the member it is one. The marker of a unit has the first half of it as its key, so it is the same whatever log.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

from txlayer.errors import ResourceError
from txlayer.messages import TxId

LONGEST = 199
_FIRST = "txlayer1"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one resource at one site."""

    site: str
    resource: str
    incarnation: str

    @property
    def prefix(self) -> str:
        """What every name of this resource at this site starts with."""
        return f"{_FIRST}:{_quoted(self.site)}:{_quoted(self.resource)}:"

    def marker(self, tx: TxId) -> str:
        """The key of the marker, and, with a colon, what the gid starts with."""
        return f"{self.prefix}{_quoted(tx.coordinator)}:{_quoted(tx.incarnation)}:{tx.number}:{_quoted(tx.nonce)}"

    def gid(self, tx: TxId, of: int) -> str:
        """The name of the prepared transaction."""
        gid = f"{self.marker(tx)}:{_quoted(self.incarnation)}:{of}"
        if len(gid) > LONGEST:
            raise ResourceError(
                f"the name of a branch has {len(gid)} bytes, PostgreSQL takes {LONGEST}: "
                f"shorten the names of the sites {self.site!r} and {tx.coordinator!r} or of the resource "
                f"{self.resource!r}"
            )
        return gid


@dataclass(frozen=True, slots=True)
class ReadName:
    """A gid or the key of a marker, taken apart."""

    site: str
    resource: str
    tx: TxId
    incarnation: str = ""
    of: int = 1


def read_name(text: str) -> ReadName | None:
    """Take a name of ours apart; None for anybody else's."""
    first, *parts = text.split(":")
    if first != _FIRST or len(parts) not in (6, 8) or not parts[4].isdecimal():
        return None
    site, resource, coordinator, incarnation = (unquote(part) for part in parts[:4])
    tx = TxId(coordinator, incarnation, int(parts[4]), unquote(parts[5]))
    if len(parts) == 6:
        return ReadName(site, resource, tx)
    return ReadName(site, resource, tx, unquote(parts[6]), int(parts[7])) if parts[7].isdecimal() else None


def _quoted(text: str) -> str:
    """Without colons, quotes and backslashes, in ASCII."""
    return quote(text, safe="~@+=,")
