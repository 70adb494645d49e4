"""What a site says: bundled by topic, in order, and handed back where the bus refuses its size."""

from __future__ import annotations

from typing import Any

from txlayer.codec import frames_of
from txlayer.errors import Backpressure, PayloadTooLarge
from txlayer.messages import Decline, TxId
from txlayer.runtime.wires import Wires

WORD = Decline(TxId("a", "i", 1, "x"), b"answer")


class Ears:
    """A bus that hears, up to a size."""

    def __init__(self, most: int = 10**9) -> None:
        self.most = most
        self.heard: list[tuple[str, bytes]] = []
        self.flushed = 0
        self.full = False

    def say(self, topic: str, payload: bytes) -> None:
        if self.full:
            raise Backpressure("full")
        if len(payload) > self.most:
            raise PayloadTooLarge(f"{self.most} is the most")
        self.heard.append((topic, payload))

    def flush(self) -> None:
        self.flushed += 1

    def frames(self, topic: str) -> list[bytes]:
        return [frame for to, payload in self.heard if to == topic for frame in frames_of(payload)]


def wires(ears: Any) -> Wires:
    return Wires(ears, "a")


def test_small_frames_of_a_topic_leave_as_one_message_with_the_flush() -> None:
    ears = Ears()
    site = wires(ears)
    for number in range(5):
        assert site.say("t", WORD, b"t%d" % number) == []
        assert site.say("u", WORD, b"u%d" % number) == []
    assert ears.heard == []
    assert site.flush() == []
    assert len(ears.heard) == 2
    assert ears.frames("t") == [b"t%d" % number for number in range(5)]
    assert ears.frames("u") == [b"u%d" % number for number in range(5)]
    assert (site.flush(), ears.flushed) == ([], 1)


def test_a_large_frame_leaves_at_once_behind_what_was_said_before() -> None:
    ears = Ears()
    site = wires(ears)
    site.say("t", WORD, b"first")
    site.say("t", WORD, bytes(5000))
    assert ears.frames("t") == [b"first", bytes(5000)]
    assert site.hurry, "the bus has it and has not let it go"
    site.flush()
    assert ears.flushed == 1
    assert len(ears.frames("t")) == 2


def test_what_nobody_waits_for_is_let_go_all_the_same_once_the_bus_has_it() -> None:
    ears = Ears()
    site = wires(ears)
    site.say("t", WORD, b"small", patient=True)
    assert not site.hurry
    site.say("t", WORD, bytes(5000), patient=True)
    assert site.hurry
    for _ in range(64):
        site.say("u", WORD, b"small", patient=True)
    site.flush()
    assert (ears.flushed, site.hurry) == (1, False)


def test_what_is_too_large_comes_back_and_the_rest_of_its_bundle_leaves() -> None:
    ears = Ears(most=3000)
    site = wires(ears)
    site.say("t", WORD, b"first")
    assert site.say("t", WORD, bytes(5000)) == [(WORD, "3000 is the most")]
    ears.most = 100
    site.say("t", WORD, b"second")
    site.say("t", WORD, bytes(200))
    assert site.flush() == [(WORD, "100 is the most")]
    assert ears.frames("t") == [b"first", b"second"]
    assert site.lost == 2


def test_what_the_bus_does_not_take_is_counted_and_not_kept() -> None:
    ears = Ears()
    site = wires(ears)
    ears.full = True
    site.say("t", WORD, b"first")
    assert site.flush() == []
    ears.full = False
    site.flush()
    assert (ears.heard, site.lost) == ([], 1)
