"""Bundles: frames that go the same way, as one message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlayer.codec import MAX_FRAME_BYTES, encode_bundle, frames_of
from txlayer.errors import DecodeError
from txlayer.messages import Decline, TxId
from txlayer.security import BrokerSeal

FRAME = BrokerSeal().close(Decline(TxId("a", "i", 1, "x"), b"answer"))


@given(st.lists(st.binary(max_size=300).map(lambda more: FRAME + more), min_size=1, max_size=20))
def test_a_bundle_gives_its_frames_back(frames: list[bytes]) -> None:
    assert frames_of(encode_bundle(frames)) == frames


def test_a_frame_alone_is_no_bundle() -> None:
    assert encode_bundle([FRAME]) == FRAME


@given(st.binary(max_size=300), st.integers(0, 300), st.integers(0, 255))
def test_of_garbage_comes_a_decode_error_or_frames(garbage: bytes, place: int, value: int) -> None:
    bundle = bytearray(encode_bundle([FRAME, FRAME, garbage]))
    bundle[place % len(bundle)] = value
    for data in (bytes(bundle), b"\xc1" + garbage, bytes(bundle)[: place % len(bundle)]):
        try:
            assert all(isinstance(frame, bytes) for frame in frames_of(data))
        except DecodeError:
            continue


def test_a_bundle_over_the_limit_is_refused() -> None:
    with pytest.raises(DecodeError, match="over the limit"):
        frames_of(b"\xc1" + bytes(MAX_FRAME_BYTES))
