"""A sequencer host inside the process of an ordered bus: rank 0, for all topics.

Without a log of its own it counts from 1 in every life. So it takes the rank only from a host of the same kind that is
gone: two of them beside each other would give the same numbers to different events.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from txlayer.errors import NameTaken
from txlayer.logs.memory import MemoryDisk
from txlayer.ordering.host_state import HostConfig
from txlayer.ordering.messages import AnyMessage, Locate
from txlayer.ports import Bus
from txlayer.sequencing import claims
from txlayer.sequencing.claims import Claim
from txlayer.sequencing.exchange import Exchange
from txlayer.sequencing.open_log import open_disk
from txlayer.sequencing.sequencer import Sequencer

EMBEDDED = "embedded"
_RANK = 0
_ANSWER = 5.0
"""Seconds within which a host that is there answers."""
_REPEAT = 0.5


def start(bus: Bus, exchange: Exchange, chain: str, log: str | None) -> Sequencer:
    """Serve the chain from here. `NameTaken` if somebody else does."""
    if log is None:
        held = claims.at_rank(bus, chain, _RANK)
        if held is not None and held.passing and not held.retired and _answers(exchange, held):
            raise NameTaken(
                f"host {held.name} of another process serves chain {chain} on this bus: "
                f"leave sequencer={EMBEDDED!r} out to use it, or take another bus"
            )
    disk = MemoryDisk() if log is None else open_disk(log)
    return Sequencer(
        bus, exchange, disk, name=EMBEDDED, rank=_RANK, patterns=("*",), chain=chain, passing=log is None,
        config=HostConfig(durable_tickets=log is not None),
    )  # fmt: skip


def _answers(exchange: Exchange, held: Claim) -> bool:
    answered = threading.Event()
    name = f"{os.urandom(8).hex()}/q"

    def receive(messages: Sequence[AnyMessage]) -> None:
        answered.set()

    exchange.listen(name, receive)
    deadline = time.monotonic() + _ANSWER
    try:
        while not answered.is_set() and time.monotonic() < deadline:
            exchange.send([(held.name, Locate(name, ()))])
            answered.wait(_REPEAT)
    finally:
        exchange.silence(name, receive)
    return answered.is_set()
