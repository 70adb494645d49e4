"""Our packed properties are byte for byte what paho itself packs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from txlayer.adapters.mqtt_properties import cloud_event, compact, user_pairs, varint
from txlayer.adapters.topics import UNFIT
from txlayer.errors import UsageError

texts = st.text(st.characters(codec="utf-8"), max_size=200).filter(lambda text: not UNFIT.search(text))
headers = st.dictionaries(texts.filter(lambda name: name not in ("tx", "content-type")), texts, max_size=6)


def by_paho(pairs: list[tuple[str, str]], content_type: str | None = None) -> bytes:
    properties = Properties(PacketTypes.PUBLISH)
    if content_type is not None:
        properties.ContentType = content_type
    if pairs:
        properties.UserProperty = pairs
    packed: bytes = properties.pack()
    return packed


@given(st.binary(max_size=300).map(bytes.hex), headers)
def test_compact_form(text: str, headers: dict[str, str]) -> None:
    assert compact(text.encode(), headers).pack() == by_paho([("tx", text), *headers.items()])


@given(headers, headers, st.none() | texts)
def test_cloud_event(attributes: dict[str, str], headers: dict[str, str], content_type: str | None) -> None:
    extra = {} if content_type is None else {"content-type": content_type}
    packed = cloud_event(attributes, {**headers, **extra}).pack()
    assert packed == by_paho(list({**attributes, **headers, **attributes}.items()), content_type)


@pytest.mark.parametrize("value", ["a\0", "a\n", "\ud800", "\x85", "\ufffe", "x" * 65_536, 7])
def test_a_header_that_would_break_the_connection_is_refused(value: str) -> None:
    for pair in ({"name": value}, {value: "value"}):
        with pytest.raises(UsageError, match="header"):
            compact(b"", pair)


def test_the_layer_s_own_name_is_refused() -> None:
    with pytest.raises(UsageError, match="'tx'"):
        compact(b"", {"tx": "mine"})
    with pytest.raises(UsageError, match="'tx'"):
        cloud_event({}, {"tx": "mine"})


@given(headers)
def test_user_properties_are_read_as_paho_reads_them(headers: dict[str, str]) -> None:
    packed = by_paho(list(headers.items()))
    content = packed[len(varint(len(packed) - 1)) :] if headers else b""
    assert user_pairs(content) == list(headers.items())


def test_properties_that_are_not_only_pairs_are_left_to_paho() -> None:
    packed = by_paho([("a", "b")], "text/plain")
    assert user_pairs(packed[1:]) is None
    assert user_pairs(by_paho([("a", "b")])[1:-1]) is None
    assert user_pairs(b"\x26\x00\x01\xff\x00\x00") is None
