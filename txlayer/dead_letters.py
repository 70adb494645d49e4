"""Events that a handler kept failing on: put aside with the reason, listed, replayed, removed.

A letter is a latest value under `dead/<subscription>/<id>`: on MQTT a retained message, on Kafka a record of a
compacted topic, so it stays until somebody removes it, whether or not anyone listens.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping

import msgspec

from txlayer import metadata
from txlayer.delivery import REPLAY_FOR, Delivery
from txlayer.errors import PayloadTooLarge, UsageError
from txlayer.ports import Bus
from txlayer.presence import LatestValues
from txlayer.receipt import Receipt

_logger = logging.getLogger(__name__)
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


def write(delivery: Delivery, subscription: str, reason: Exception, attempts: int) -> DeadLetter:
    """Make a letter of an event."""
    known = delivery.metadata
    return DeadLetter(
        id=f"{time.time_ns():x}-{os.urandom(4).hex()}",
        subscription=subscription,
        topic=delivery.topic,
        payload=delivery.payload,
        reason=_text(reason),
        attempts=attempts,
        time=time.time(),
        headers=_kept_headers(delivery.headers),
        key=delivery.key,
        type=known.type if known else "",
        position=(known.stream, known.number) if known and known.stream and known.number else None,
    )


def store(bus: LatestValues, letter: DeadLetter) -> Receipt:
    """Put a letter onto the bus; doing it again leaves one letter."""
    short = msgspec.structs.replace(letter, payload=None, headers={}, key=None, reason=letter.reason[:1000])
    try:
        return bus.announce(_key(letter), msgspec.msgpack.encode(letter))
    except PayloadTooLarge:
        return bus.announce(_key(letter), msgspec.msgpack.encode(short))


def burial(bus: LatestValues) -> Callable[[Delivery, str, Exception, int], Callable[[], Receipt]]:
    """How a lane makes dead letters on this bus."""

    def bury(delivery: Delivery, subscription: str, reason: Exception, attempts: int) -> Callable[[], Receipt]:
        letter = write(delivery, subscription, reason, attempts)
        return lambda: store(bus, letter)

    return bury


def _text(reason: Exception) -> str:
    try:
        text = str(reason)
    except Exception as exc:
        text = f"(its text cannot be had: {type(exc).__name__})"
    return f"{type(reason).__name__}: {text}".encode(errors="backslashreplace").decode()


def _kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Without what belongs to this one publication: replayed, the event gets a number of its own."""
    dropped = {REPLAY_FOR}
    for prefix in ("", "ce_"):
        if metadata.cloud_position(headers, prefix) is not None:
            dropped |= {f"{prefix}txstream", f"{prefix}sequence"}
    return {name: value for name, value in headers.items() if name not in dropped}


def letters(bus: LatestValues, subscription: str | None = None) -> list[DeadLetter]:
    """All letters, or those of one durable name (`""`: of subscriptions without a name), oldest first."""
    prefix = KIND if subscription is None else f"{KIND}/{subscription or _ANONYMOUS}"
    watch = bus.watch(prefix)
    try:
        found = [letter for key, value in watch.snapshot().items() if (letter := _read(key, value)) is not None]
    finally:
        watch.close()
    return sorted(found, key=lambda letter: (letter.time, letter.id))


def _read(key: str, value: bytes) -> DeadLetter | None:
    try:
        return msgspec.msgpack.decode(value, type=DeadLetter)
    except msgspec.DecodeError as exc:
        _logger.warning("%s holds no dead letter: %s", key, exc)
        return None


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
