"""A delivery's headers where it has none: one shared object that behaves as a dict and cannot be changed."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from txlayer import Delivery


def test_no_headers_can_be_written_down_like_any_others() -> None:
    headers = Delivery("t", b"").headers
    assert json.dumps(headers) == "{}"
    assert msgspec.json.encode(headers) == b"{}"
    for copied in (pickle.loads(pickle.dumps(headers)), copy.copy(headers), copy.deepcopy(headers), dict(headers)):
        assert type(copied) is dict
        assert copied == headers == {}


def test_no_headers_are_shared() -> None:
    assert Delivery("t", b"1").headers is Delivery("t", b"2").headers


@pytest.mark.parametrize(
    "change",
    [
        lambda headers: headers.__setitem__("a", "b"),
        lambda headers: headers.update(a="b"),
        lambda headers: headers.setdefault("a", "b"),
        lambda headers: headers.__ior__({"a": "b"}),
    ],
)
def test_no_headers_cannot_be_changed(change: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match="take a copy"):
        change(Delivery("t", b"").headers)
    assert Delivery("t", b"").headers == {}
