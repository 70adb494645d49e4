"""The chain as its bus shows it: one latest value per rank, `order/<chain>/<rank>`.

A claim is the holder's word: name, epoch, log and patterns, and where it listens if not on the bus.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec
from msgspec import Struct

from txlayer.errors import UsageError
from txlayer.ordering.effects import Claimed
from txlayer.ordering.timestamp import LOWEST_HOST
from txlayer.ports import Bus, Watch
from txlayer.receipt import Receipt
from txlayer.sequencing.exchange import is_client

_logger = logging.getLogger(__name__)
KIND = "order"
CHAIN = "seq"
"""The chain that is meant when a URL names none."""


class Claim(Struct, frozen=True):
    """A latest value. `address`: a socket of the host, empty where the bus is the only way to it.

    `retired`: nobody holds the rank any more, which is an epoch of its own, without log and patterns.
    `first`: the epoch in which the log began. `passing`: the log ends with the process that holds the rank.
    """

    host: int
    name: str
    epoch: int
    incarnation: str
    patterns: tuple[str, ...]
    address: str = ""
    retired: bool = False
    first: int = 1
    passing: bool = False

    def event(self) -> Claimed:
        """For the roles."""
        return Claimed(self.host, self.name, self.epoch, self.incarnation, self.patterns, self.first)


Found = Callable[[Claim], None]


def fault_in(claim: Claim) -> str | None:
    """Why this cannot be a claim; None if it can. Hosts would wait for the holder of a rank that is none."""
    if not 0 <= claim.host <= LOWEST_HOST:
        return f"rank {claim.host}: 0 is the highest, {LOWEST_HOST} the lowest"
    if not 1 <= claim.first <= claim.epoch:
        return f"rank {claim.host}: epoch {claim.epoch} of a log that began in epoch {claim.first}"
    if not claim.retired and (not claim.name or is_client(claim.name)):
        return f"rank {claim.host}: {claim.name[:200]!r} is no name of a host"
    return None


def split_chain(url: str) -> tuple[str, str]:
    """The URL of a bus without the path, and the chain that the path names."""
    head, mark, query = url.partition("?")
    scheme, found, rest = head.partition("://")
    address, _, chain = rest.partition("/")
    if not found or "/" in chain:
        raise UsageError(f"{url!r}: a sequencer is named by the URL of its bus and a chain, mqtt://host:1883/seq")
    return f"{scheme}://{address}{mark}{query}", chain or CHAIN


def announce(bus: Bus, chain: str, claim: Claim) -> Receipt:
    """Make it the word on its rank."""
    return bus.announce(f"{KIND}/{chain}/{claim.host}", msgspec.json.encode(claim))


def retire(bus: Bus, chain: str, rank: int) -> Receipt:
    """Give a rank up. Hosts that run follow its next holder; if there is none, they notice it at their next start."""
    return announce(bus, chain, retired(at_rank(bus, chain, rank) or Claim(rank, "", 0, "", ())))


def retired(held: Claim) -> Claim:
    """What follows on a claim that is given up."""
    epoch = held.epoch + 1
    return Claim(held.host, held.name, epoch, "", (), retired=True, first=epoch)


def at_rank(bus: Bus, chain: str, rank: int) -> Claim | None:
    """What is announced of a rank; the holder may be away."""
    found: dict[int, Claim] = {}
    watch(bus, chain, lambda claim: found.__setitem__(claim.host, claim)).close()
    return found.get(rank)


def watch(bus: Bus, chain: str, found: Found) -> Watch:
    """Follow the claims; those announced before the call have been found when it returns."""
    early: list[tuple[str, bytes | None]] = []
    ready = False

    def changed(key: str, value: bytes | None) -> None:
        if not ready:
            early.append((key, value))
        elif value is not None:
            _found(key, value, found)

    following = bus.watch(f"{KIND}/{chain}", changed)
    for key, value in following.snapshot().items():
        _found(key, value, found)
    ready = True
    for key, late in early:
        if late is not None:
            _found(key, late, found)
    return following


def _found(key: str, value: bytes, found: Found) -> None:
    try:
        claim = msgspec.json.decode(value, type=Claim)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        _logger.warning("%s holds no claim of a sequencer host: %s", key, exc)
        return
    fault = fault_in(claim)
    if fault is None and key.rpartition("/")[2] != str(claim.host):
        fault = f"the claim of rank {claim.host}"
    if fault is not None:
        _logger.warning("%s holds no claim of a sequencer host: %s", key, fault)
        return
    found(claim)
