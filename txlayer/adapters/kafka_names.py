"""Names on Kafka: topics, patterns, and which partition a key belongs to."""

from __future__ import annotations

import hashlib
import re
import string
from zlib import crc32

from txlayer.adapters.topics import check_pattern, escape, is_pattern, matches
from txlayer.errors import TopicForbidden

SEPARATOR = "."
OWN = "txlayer.v1."
"""Topics of the layer itself. Like the broker's own, which begin with `__`, they only match a pattern that says so."""

_MAX = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_LEVEL = frozenset(string.ascii_letters + string.digits + "-")


def make_topic(*levels: str) -> str:
    """A legal name from any levels; one that is too long ends with its hash instead."""
    name = SEPARATOR.join(escape(level, _LEVEL) for level in levels)
    if len(name) <= _MAX:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:32]
    return f"{name[: _MAX - 33]}_{digest}"


def check_topic(topic: str) -> None:
    """Refuse what Kafka does not allow as a name."""
    if not _LEGAL.fullmatch(topic) or topic in (".", ".."):
        shown = topic if len(topic) < 100 else f"{topic[:100]}..."
        raise TopicForbidden(
            f"Kafka does not allow topic {shown!r}: 1 to 249 letters, digits, '.', '_' or '-'; "
            "bus.topic(...) makes a legal name from any levels"
        )


def check_subscription(topic: str) -> None:
    """Refuse a malformed topic or pattern."""
    if not is_pattern(topic):
        check_topic(topic)
        return
    check_pattern(topic, SEPARATOR)
    check_topic(topic.replace("+", "x").replace("#", "x"))


def wanted(pattern: str, topic: str) -> bool:
    """Whether a topic falls under a name or pattern."""
    if pattern == topic:
        return True
    if topic.startswith(("__", OWN)) and pattern[0] in "+#":
        return False
    return matches(pattern, topic, SEPARATOR)


def directory_topic(kind: str) -> str:
    """Where the latest values of one kind are."""
    return f"{OWN}dir.{make_topic(kind)}"


def partition_of(key: bytes, partitions: int) -> int:
    """As librdkafka's `consistent` partitioner does, so that others who use it put a key in the same place."""
    return crc32(key) % partitions
