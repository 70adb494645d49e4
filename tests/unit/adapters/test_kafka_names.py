"""Topic names, patterns and partitions on Kafka."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlayer.adapters.kafka_names import (
    check_subscription,
    check_topic,
    directory_topic,
    make_topic,
    partition_of,
    wanted,
)
from txlayer.errors import TopicForbidden


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_any_levels_make_a_legal_name(levels: list[str]) -> None:
    name = make_topic(*(level.encode("utf-8", "replace").decode() for level in levels))
    check_topic(name)


def test_different_levels_make_different_names() -> None:
    long = "x" * 300
    names = [make_topic("a", "b"), make_topic("a.b"), make_topic("a_b"), make_topic(long), make_topic(long + "x")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a+", "ä", "a b", "x" * 250])
def test_names_that_kafka_forbids_are_refused_with_what_to_do(name: str) -> None:
    with pytest.raises(TopicForbidden, match=re.escape("bus.topic(...)")):
        check_topic(name)


@pytest.mark.parametrize("pattern", ["#.a", "a.#b", "a.x+", "a/+", ""])
def test_malformed_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(TopicForbidden):
        check_subscription(pattern)


def test_patterns_match_levels_between_dots() -> None:
    assert wanted("a.+.c", "a.b.c")
    assert wanted("a.#", "a.b.c")
    assert not wanted("a.+", "a.b.c")


def test_topics_of_broker_and_layer_match_only_what_names_them() -> None:
    assert not wanted("#", "__consumer_offsets")
    assert not wanted("+.v1.#", "txlayer.v1.dir.sites")
    assert wanted("txlayer.v1.ctl.#", "txlayer.v1.ctl.meeting")


def test_latest_values_of_any_kind_have_a_legal_topic() -> None:
    check_topic(directory_topic("a kind/of"))


def test_partition_of_a_key_is_that_of_the_consistent_partitioner() -> None:
    assert partition_of(b"123456789", 1 << 32) == 0xCBF43926  # the check value of CRC-32
