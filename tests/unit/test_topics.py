"""Topic names and patterns, against a brute-force model."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlayer.adapters.topics import check_name, check_pattern, escape, matches, overlap
from txlayer.errors import TopicForbidden

LEVELS = ["a", "b", ""]
TOPICS = ["/".join(levels) for depth in (1, 2, 3, 4) for levels in itertools.product(LEVELS, repeat=depth)]
patterns = st.lists(st.sampled_from(["a", "b", "", "+"]), min_size=1, max_size=3).flatmap(
    lambda levels: st.sampled_from(["/".join(levels), "/".join([*levels, "#"]), "#"])
)


def model(pattern: str, topic: str) -> bool:
    """By a regular expression, with the rule that `a/#` also means `a`."""
    text = "/".join("[^/]*" if level == "+" else re.escape(level) for level in pattern.removesuffix("#").split("/"))
    if pattern == "#":
        return True
    if pattern.endswith("/#"):
        return re.fullmatch(text.removesuffix("/") + "(/.*)?", topic) is not None
    return re.fullmatch(text, topic) is not None


@given(patterns, st.sampled_from(TOPICS))
def test_matches_agrees_with_the_model(pattern: str, topic: str) -> None:
    assert matches(pattern, topic) is model(pattern, topic)


@given(patterns, patterns)
def test_overlap_means_that_some_topic_falls_under_both(one: str, other: str) -> None:
    assert overlap(one, other) is any(model(one, topic) and model(other, topic) for topic in TOPICS)
    assert overlap(one, other) is overlap(other, one)


def test_names_that_begin_with_a_dollar_are_not_matched_by_leading_wildcards() -> None:
    assert not matches("#", "$SYS/uptime")
    assert not matches("+/uptime", "$SYS/uptime")
    assert matches("$SYS/#", "$SYS/uptime")


def test_the_separator_is_the_bus_s_own() -> None:
    assert matches("a.+.#", "a.b.c.d", ".")
    assert not matches("a.+", "a.b.c", ".")
    assert overlap("a.#", "+.b", ".")


@pytest.mark.parametrize(
    "topic", ["", "a/+", "#", "a\0b", "a\nb", "\x7f", "\ud800", "\uffff", "\U0001ffff", "ä" * 40_000]
)
def test_names_that_no_broker_takes_are_refused(topic: str) -> None:
    with pytest.raises(TopicForbidden) as caught:
        check_name(topic)
    assert not caught.value.retriable
    str(caught.value).encode()


@pytest.mark.parametrize("pattern", ["", "a/#/b", "a+", "+a/b", "a#", "a\0", "\ud800/#", "x" * 65_536])
def test_malformed_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(TopicForbidden):
        check_pattern(pattern)


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
def test_escaped_levels_are_allowed_and_differ(one: str, other: str) -> None:
    allowed = frozenset("abcdefghijklmnopqrstuvwxyz_")
    written = escape(one, allowed)
    assert set(written) <= set("abcdefghijklmnopqrstuvwxyz_0123456789")
    assert (written == escape(other, allowed)) is (one == other)
