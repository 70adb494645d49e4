"""How units are named in PostgreSQL.

A prepared transaction has one name in the whole server, of at most 199 bytes, and nothing else that recovery could
read. So the name says all: site, resource, transaction, the log under which it was prepared, of how many branches of
the member it is one, and how the list of members calls the site: a decision to commit holds for those on its list
alone, and without the log nothing else tells who that is. The marker of a unit has the first half of it as its key, so
it is the same whatever log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote

from txlayer.errors import ResourceError
from txlayer.messages import TxId
from txlayer.resources.port import Member, nobody

LONGEST = 199
SHORTENED = 8
"""So many bytes of a member's hash tell it from the others of one transaction."""
OURS_TO_FINISH = (
    "database = current_database() "
    "AND (owner = current_user OR (SELECT rolsuper FROM pg_roles WHERE rolname = current_user))"
)
"""Of pg_prepared_xacts: what this connection can finish. To be a member of the owner's role is not enough."""
_FIRST = "txlayer1"
_HEX = re.compile("([0-9a-f]{2})*")


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one resource at one site."""

    site: str
    resource: str
    incarnation: str
    member: Member = nobody

    @property
    def prefix(self) -> str:
        """What every name of this resource at this site starts with."""
        return f"{_FIRST}:{quoted(self.site)}:{quoted(self.resource)}:"

    def marker(self, tx: TxId) -> str:
        """The key of the marker, and, with a colon, what the gid starts with."""
        return f"{self.prefix}{quoted(tx.coordinator)}:{quoted(tx.incarnation)}:{tx.number}:{quoted(tx.nonce)}"

    def gid(self, tx: TxId, of: int) -> str:
        """The name of the prepared transaction."""
        gid = f"{self.marker(tx)}:{quoted(self.incarnation)}:{of}:{self.member(tx)[:SHORTENED].hex()}"
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
    member: bytes = b""

    def on(self, final: tuple[bytes, ...]) -> bool:
        """Whether the site is on the list of a decision."""
        return self.member in [member[:SHORTENED] for member in final]


def read_name(text: str) -> ReadName | None:
    """Take a name of ours apart; None for anybody else's."""
    first, *parts = text.split(":")
    if first != _FIRST or len(parts) not in (6, 9) or not parts[4].isdecimal():
        return None
    site, resource, coordinator, incarnation = (unquote(part) for part in parts[:4])
    tx = TxId(coordinator, incarnation, int(parts[4]), unquote(parts[5]))
    if len(parts) == 6:
        return ReadName(site, resource, tx)
    log, of, member = unquote(parts[6]), parts[7], parts[8]
    if not of.isdecimal() or not _HEX.fullmatch(member):
        return None
    return ReadName(site, resource, tx, log, int(of), bytes.fromhex(member))


def quoted(text: str) -> str:
    """Without colons, quotes and backslashes, in ASCII."""
    return text if text.isalnum() and text.isascii() else _quoted(text)


@lru_cache(maxsize=256)  # sites are the same in transaction after transaction
def _quoted(text: str) -> str:
    return quote(text, safe="~@+=,")
