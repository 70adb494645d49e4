"""Topic names and patterns: levels, `+` for one level, `#` for the rest. The separator is the bus's own."""

from __future__ import annotations

from txlayer.errors import TopicForbidden


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
    if not topic or "\0" in topic or is_pattern(topic):
        raise TopicForbidden(f"cannot publish to {topic!r}: a topic is not empty and has no '+', '#' or NUL")
    if len(topic.encode()) > max_bytes:
        raise TopicForbidden(f"topic of {len(topic.encode())} bytes: at most {max_bytes}")


def check_pattern(pattern: str, separator: str = "/") -> None:
    """Refuse a malformed pattern."""
    levels = pattern.split(separator)
    if not pattern or "\0" in pattern or "#" in "".join(levels[:-1]):
        raise TopicForbidden(f"cannot subscribe to {pattern!r}: '#' stands alone and last, and nothing is empty")
    if any(("+" in level or "#" in level) and len(level) > 1 for level in levels):
        raise TopicForbidden(f"cannot subscribe to {pattern!r}: '+' and '#' stand alone between {separator!r}")


def escape(level: str, allowed: frozenset[str]) -> str:
    """Write any text as one level: what is not allowed becomes `_xx` for each byte, as does `_` itself."""
    return "".join(
        char if char in allowed and char != "_" else "".join(f"_{byte:02x}" for byte in char.encode()) for char in level
    )
