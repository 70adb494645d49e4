"""The three forms of metadata: what is written is read, and nothing but a DecodeError comes of anything else."""

from __future__ import annotations

import contextlib
import datetime
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from txlayer import metadata
from txlayer.delivery import Delivery
from txlayer.errors import DecodeError, UsageError

streams = st.binary(min_size=12, max_size=12)
numbers = st.integers(1, (1 << 64) - 1)
times = st.integers(0, 4_000_000_000_000_000)
texts = st.text(st.characters(codec="utf-8"), max_size=60)
keys = st.none() | st.binary(max_size=40)
header_maps = st.dictionaries(texts, texts, max_size=5)


def moment(time_us: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=time_us)


@given(streams, numbers, times, texts, keys)
def test_compact_round_trip(stream: bytes, number: int, time_us: int, type: str, key: bytes | None) -> None:
    packed = metadata.pack(stream, number, time_us, type.encode(), key)
    read, read_key = metadata.unpack(packed)
    assert (read.stream, read.number, read.type, read.time) == (stream.hex(), number, type, moment(time_us))
    assert read_key == metadata.packed_key(packed) == key
    assert metadata.position(packed) == (stream, number)
    assert metadata.from_text(metadata.to_text(packed).decode()) == packed


@given(streams, numbers, times, texts, st.sampled_from(["", "ce_"]))
def test_cloudevents_round_trip(stream: bytes, number: int, time_us: int, type: str, prefix: str) -> None:
    attributes = metadata.cloud_attributes(stream, number, time_us, type)
    headers = {prefix + name: value for name, value in attributes.items()}
    assert metadata.is_cloud_event(headers, prefix)
    assert metadata.cloud_position(headers, prefix) == (stream, number)
    read = metadata.from_cloud_headers(headers, prefix)
    assert (read.stream, read.number, read.type) == (stream.hex(), number, type or "event")
    assert read.time == moment(time_us)
    assert Delivery("t", b"", None, headers, None, prefix).metadata == read


@given(streams, numbers, times, texts, st.binary(max_size=200), header_maps, keys)
def test_envelope_round_trip(
    stream: bytes, number: int, time_us: int, type: str, payload: bytes, headers: dict[str, str], key: bytes | None
) -> None:
    attributes = metadata.cloud_attributes(stream, number, time_us, type)
    data = metadata.wrap(attributes, payload, headers, key)
    assert json.loads(data)["specversion"] == "1.0"
    assert metadata.unwrap(data) == (attributes, payload, headers, key)
    assert metadata.unpack(metadata.repack(attributes))[0].number == number


def consume(data: bytes) -> None:
    """Everything that an adapter does with bytes from the wire."""
    delivery = Delivery("t", b"", None, {}, data)
    assert delivery.metadata is None or delivery.metadata.id
    assert delivery.position is None or len(delivery.position[0]) == 12
    if data:
        metadata.packed_key(data)
    with contextlib.suppress(DecodeError):
        metadata.unpack(data)
    opened = metadata.unwrap(data)
    if opened is not None:
        consume_attributes(opened[0])


def consume_attributes(attributes: dict[str, str]) -> None:
    with contextlib.suppress(DecodeError):
        metadata.unpack(metadata.repack(attributes))
    assert Delivery("t", b"", None, attributes).metadata is not None


@given(st.binary(max_size=100))
@example(b"")
@example(b"\x01")
@example(b"\x02" + bytes(28) + b"\xff")
def test_random_bytes_are_no_metadata_and_do_no_harm(data: bytes) -> None:
    consume(data)
    metadata.from_text(data.decode("latin-1"))


@given(streams, numbers, times, texts, keys, st.data())
def test_mutated_compact_forms_do_no_harm(
    stream: bytes, number: int, time_us: int, type: str, key: bytes | None, data: st.DataObject
) -> None:
    consume(mutate(metadata.pack(stream, number, time_us, type.encode(), key), data))


@given(streams, numbers, texts, header_maps, keys, st.data())
def test_mutated_envelopes_do_no_harm(
    stream: bytes, number: int, type: str, headers: dict[str, str], key: bytes | None, data: st.DataObject
) -> None:
    attributes = metadata.cloud_attributes(stream, number, 1, type)
    consume(mutate(metadata.wrap(attributes, b"payload", headers, key), data))


def mutate(value: bytes, data: st.DataObject) -> bytes:
    mutated = bytearray(value)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, max(0, len(mutated) - 1)))
        match data.draw(st.sampled_from(["flip", "cut", "insert", "repeat"])):
            case "flip" if mutated:
                mutated[place] = data.draw(st.integers(0, 255))
            case "cut":
                del mutated[place : place + data.draw(st.integers(1, 10))]
            case "insert":
                mutated[place:place] = data.draw(st.binary(max_size=5))
            case _:
                mutated[place:place] = mutated[: data.draw(st.integers(0, 20))]
    return bytes(mutated)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(
    ["id", "source", "type", "time", "txstream", "sequence", "txheaders", "txkey", "data", "data_base64", "subject"]
)


@given(st.dictionaries(names, json_values, max_size=8))
@example({"id": "1", "data": 10**40})
@example({"id": "1", "txheaders": "[]"})
@example({"id": "1", "txkey": 7})
@example({"id": "1", "time": "1969-01-01T00:00:00Z", "txstream": "00" * 12, "sequence": "1"})
@example({"id": "1", "time": "2026-01-01T00:00:00Z", "txstream": "00" * 12, "sequence": "1", "type": "x" * 256})
@example({"id": "1", "time": "0001-01-01T00:00:00+14:00", "txstream": "00" * 12, "sequence": "9" * 5000})
def test_foreign_cloud_events_do_no_harm(envelope: dict[str, object]) -> None:
    consume(json.dumps({"specversion": "1.0", **envelope}).encode())


def test_deep_nesting_is_a_plain_payload() -> None:
    assert metadata.unwrap(b'{"specversion":"1.0","id":"1","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}") is None


@given(st.dictionaries(st.sampled_from(["specversion", "id", "time", "txstream", "sequence", "type"]), st.text()))
def test_foreign_headers_do_no_harm(headers: dict[str, str]) -> None:
    delivery = Delivery("t", b"", None, headers)
    assert (delivery.metadata is None) is not ("specversion" in headers and "id" in headers)
    assert delivery.position is None or delivery.position[1] > 0


def test_the_spec_s_own_example_is_understood() -> None:
    read = metadata.from_cloud_headers(
        {
            "ce_specversion": "1.0",
            "ce_type": "com.example.someevent",
            "ce_source": "/mycontext",
            "ce_id": "A234-1234-1234",
            "ce_time": "2018-04-05T17:31:00Z",
            "ce_comexampleextension1": "value",
            "content-type": "application/json",
        },
        "ce_",
    )
    assert (read.id, read.source, read.type) == ("A234-1234-1234", "/mycontext", "com.example.someevent")
    assert read.time == datetime.datetime(2018, 4, 5, 17, 31, tzinfo=datetime.UTC)
    assert (read.content_type, read.extensions, read.number) == (
        "application/json",
        {"comexampleextension1": "value"},
        None,
    )


def test_a_type_that_does_not_fit_is_the_caller_s_error() -> None:
    with pytest.raises(UsageError, match="255"):
        metadata.pack(bytes(12), 1, 0, b"x" * 256)
