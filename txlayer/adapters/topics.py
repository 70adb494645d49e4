"""Topic names and patterns: levels, `+` for one level, `#` for the rest. The separator is the bus's own."""

from __future__ import annotations

import re

from txlayer.errors import TopicForbidden

# Control characters, surrogates and what Unicode calls noncharacters: a broker may break the connection over them
# (MQTT 5, section 1.5.4), and over every attempt to send the event again.
UNFIT = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | low) for plane in range(17) for low in (0xFFFE, 0xFFFF))
    + "]"
)


def is_pattern(topic: str) -> bool:
    return "+" in topic or "#" in topic


def matches(pattern: str, topic: str, separator: str = "/") -> bool:
    """Whether a topic name falls under a pattern. Names that begin with `$` only match where the pattern says so."""
    if pattern == topic:
        return True
    if not is_pattern(pattern) or (topic.startswith("$") and pattern[0] in "+#"):
        return False
    wanted, levels = pattern.split(separator), topic.split(separator)
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place >= len(levels) or level not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


def overlap(one: str, other: str, separator: str = "/") -> bool:
    """Whether some topic can match both patterns."""
    ones, others = one.split(separator), other.split(separator)
    for place in range(max(len(ones), len(others))):
        left = ones[place] if place < len(ones) else None
        right = others[place] if place < len(others) else None
        if left == "#" or right == "#":
            return True
        if left is None or right is None or (left != right and "+" not in (left, right)):
            return False
    return True


def check_name(topic: str, max_bytes: int = 65_535) -> None:
    """Refuse what no MQTT-like bus can publish to."""
    if not topic or is_pattern(topic) or UNFIT.search(topic):
        raise TopicForbidden(
            f"cannot publish to {topic[:200]!r}: a topic is not empty and has no '+', '#' or control character"
        )
    _check_length(topic, max_bytes)


def check_pattern(pattern: str, separator: str = "/", max_bytes: int = 65_535) -> None:
    """Refuse a malformed pattern."""
    levels = pattern.split(separator)
    if not pattern or UNFIT.search(pattern) or "#" in "".join(levels[:-1]):
        raise TopicForbidden(
            f"cannot subscribe to {pattern[:200]!r}: a pattern is not empty, '#' comes last, no control characters"
        )
    if any(("+" in level or "#" in level) and len(level) > 1 for level in levels):
        raise TopicForbidden(f"cannot subscribe to {pattern[:200]!r}: '+' and '#' stand alone between {separator!r}")
    _check_length(pattern, max_bytes)


def _check_length(topic: str, max_bytes: int) -> None:
    length = len(topic.encode())
    if length > max_bytes:
        raise TopicForbidden(f"topic of {length} bytes: at most {max_bytes}")


def escape(level: str, allowed: frozenset[str]) -> str:
    """Write any text as one level: what is not allowed becomes `_xx` for each byte, as does `_` itself."""
    return "".join(
        char if char in allowed and char != "_" else "".join(f"_{byte:02x}" for byte in char.encode()) for char in level
    )
