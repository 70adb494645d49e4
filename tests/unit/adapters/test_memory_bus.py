"""The memory bus's own buffer and numbers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from tests.inbox import Inbox
from txlayer import Gap, connect, errors
from txlayer.adapters.memory import MemoryBus

_numbers = itertools.count(1)


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    made = connect(f"memory://unit-{next(_numbers)}", buffer_bytes=1 << 20)
    assert isinstance(made, MemoryBus)
    yield made
    made.close()


@pytest.mark.parametrize("beside", [{"key": bytes(60_000)}, {"headers": {"h": "y" * 60_000}}])
def test_key_and_headers_fill_the_buffer_too(bus: MemoryBus, beside: dict[str, Any]) -> None:
    bus.native.stop()
    for _ in range((1 << 20) // 60_256):
        bus.publish("t", b"", **beside)
    with pytest.raises(errors.Backpressure):
        bus.publish("t", b"", **beside)


def test_an_event_that_is_refused_takes_no_number(bus: MemoryBus) -> None:
    inbox, gaps = Inbox(), list[Gap]()
    bus.subscribe("t", inbox, on_gap=gaps.append)
    bus.publish("t", b"1")
    with pytest.raises(errors.UsageError, match="type"):
        bus.publish("t", b"2", type="y" * 300)
    bus.publish("t", b"3")
    inbox.wait(2)
    assert [delivery.metadata.number for delivery in inbox if delivery.metadata] == [1, 2]
    assert gaps == []
