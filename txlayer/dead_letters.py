"""Events that a handler kept failing on: put aside with the reason, listed, replayed, removed.

A letter is a latest value under `dead/<subscription>/<id>`: on MQTT a retained message, on Kafka a record of a
compacted topic, so it stays until somebody removes it, whether or not anyone listens.
"""

from __future__ import annotations

import os
import time

import msgspec

from txlayer.delivery import REPLAY_FOR, Delivery
from txlayer.errors import PayloadTooLarge, UsageError
from txlayer.ports import Bus
from txlayer.presence import LatestValues

KIND = "dead"
_ANONYMOUS = "-"
_STORE_SECONDS = 10.0


class DeadLetter(msgspec.Struct, frozen=True):
    """One event that was put aside."""

    id: str
    subscription: str
    topic: str
    payload: bytes | None
    """None when the event was so large that only its position could be kept."""
    reason: str
    attempts: int
    time: float
    headers: dict[str, str] = {}
    key: bytes | None = None
    type: str = ""
    position: tuple[str, int] | None = None


def bury(bus: LatestValues, delivery: Delivery, subscription: str, reason: Exception, attempts: int) -> None:
    """Store a letter durably; raises if the broker does not acknowledge it."""
    metadata = delivery.metadata
    letter = DeadLetter(
        id=f"{time.time_ns():x}-{os.urandom(4).hex()}",
        subscription=subscription,
        topic=delivery.topic,
        payload=delivery.payload,
        reason=f"{type(reason).__name__}: {reason}",
        attempts=attempts,
        time=time.time(),
        headers={name: value for name, value in delivery.headers.items() if name != REPLAY_FOR},
        key=delivery.key,
        type=metadata.type if metadata else "",
        position=(metadata.stream, metadata.number) if metadata and metadata.stream and metadata.number else None,
    )
    key = _key(letter)
    try:
        receipt = bus.announce(key, msgspec.msgpack.encode(letter))
    except PayloadTooLarge:
        receipt = bus.announce(key, msgspec.msgpack.encode(msgspec.structs.replace(letter, payload=None)))
    receipt.wait(_STORE_SECONDS)


def letters(bus: LatestValues, subscription: str | None = None) -> list[DeadLetter]:
    """All letters, or those of one durable name (`""`: of subscriptions without a name), oldest first."""
    prefix = KIND if subscription is None else f"{KIND}/{subscription or _ANONYMOUS}"
    watch = bus.watch(prefix)
    try:
        found = [msgspec.msgpack.decode(value, type=DeadLetter) for value in watch.snapshot().values()]
    finally:
        watch.close()
    return sorted(found, key=lambda letter: (letter.time, letter.id))


def replay(bus: Bus, letter: DeadLetter) -> None:
    """Publish the event again for the subscription that failed on it (others skip it), then remove the letter."""
    if letter.payload is None:
        raise UsageError(f"dead letter {letter.id} has no payload: the event was too large to be kept")
    headers = {**letter.headers, REPLAY_FOR: letter.subscription}
    bus.publish(letter.topic, letter.payload, headers=headers, key=letter.key, type=letter.type).wait(_STORE_SECONDS)
    remove(bus, letter)


def remove(bus: LatestValues, letter: DeadLetter) -> None:
    """Delete a letter for good."""
    bus.announce(_key(letter), None).wait(_STORE_SECONDS)


def _key(letter: DeadLetter) -> str:
    return f"{KIND}/{letter.subscription or _ANONYMOUS}/{letter.id}"
