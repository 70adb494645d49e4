"""Messages on the bus that no host and no publisher has made: each must be refused, and nothing else may happen."""

from __future__ import annotations

from random import Random

from txlayer.ordering.messages import Event, Void
from txlayer.ordering.timestamp import Stamp, place_of, rank_at

FORGER = "forger"


def forge(body: Event | Void, rng: Random) -> Event | Void:
    """Something like `body` that cannot be true."""
    if isinstance(body, Void):
        return Void(body.rank, body.last + 2, body.first, body.epoch)
    stamp = body.stamp
    rank, number, epoch = stamp.rank, stamp.number, stamp.epoch
    forged = rng.choice(
        (
            Stamp(rank, 0, epoch),
            Stamp(rank, number, 0),
            Stamp(rank, number, epoch + 50),
            Stamp(rank, number, epoch, number),
            Stamp(rank, number, epoch, 0, (rank,), (3,)),
            Stamp(rank, number, epoch, 0, (rank + 2, rank + 1), (3, 3)),
            Stamp(rank, number, epoch, 0, (rank + 1,), (3, 3)),
            Stamp(rank, number, epoch, 0, (rank + 1,), (-1,)),
            Stamp(rank_at(77, place_of(rank)), number, epoch),
            Stamp(-1, number, epoch),
        )
    )
    return Event(FORGER, body.serial, forged, b"forged")
