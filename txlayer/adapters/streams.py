"""The numbers of events: given by the publisher's side, followed by the subscriber's."""

from __future__ import annotations

import itertools
import os
import struct
from collections import deque
from dataclasses import dataclass

from txlayer import metadata
from txlayer.metadata import Position


@dataclass(slots=True)
class Stream:
    """The events of this publisher on one topic (and partition). `number` is the last one given."""

    id: bytes
    number: int = 0


_MOST_TOPICS = 65_536
_MOST_STREAMS = 1 << 32


class Streams:
    """Makes the streams of one publisher: eight random bytes for the publisher, four that count its streams."""

    def __init__(self) -> None:
        self.publisher = os.urandom(8)
        self._prefix = self.publisher
        self._count = itertools.count(1)

    def open(self) -> Stream:
        number = next(self._count) % _MOST_STREAMS
        if number == 0:  # no stream is ever called as another was
            self._prefix = os.urandom(8)
        return Stream(self._prefix + number.to_bytes(4))

    def open_in(self, table: dict[str, Stream], topic: str) -> Stream:
        """Open one for a topic. Of a full table the oldest stream is forgotten, and its topic starts a new one."""
        if len(table) >= _MOST_TOPICS:
            del table[next(iter(table))]
        stream = table[topic] = self.open()
        return stream


class StreamTracker:
    """Follows the numbers of every stream that a subscription receives: what is missing, what came twice.

    The first event of a stream sets its baseline: nothing below it is missed, but what comes from there is new, once.
    Bounded: beyond `max_streams` the stream that was first seen longest ago is forgotten, and starts again with a new
    baseline; below a baseline the last `max_holes` numbers are remembered.
    """

    def __init__(self, max_streams: int = 65_536, max_holes: int = 256) -> None:
        self._next: dict[bytes, int] = {}
        self._holes: dict[bytes, list[tuple[int, int]]] = {}
        self._first: dict[bytes, int] = {}
        self._early: dict[bytes, deque[int]] = {}
        """Numbers below the first one, seen after it."""
        self._max_streams = max_streams
        self._max_holes = max_holes

    def see_packed(self, packed: bytes) -> tuple[int, int] | bool:
        """`see` for the compact metadata of an event; in one call, because it is made for every event."""
        try:
            stream, number = metadata.read_position(packed)
        except struct.error:
            return False
        if self._next.get(stream) == number:
            self._next[stream] = number + 1
            return False
        position = metadata.position(packed)
        return False if position is None else self.see(position)

    def see(self, position: Position) -> tuple[int, int] | bool:
        """Enter an event. False: new, in its place. True: a duplicate. A pair: new, and these numbers are missing."""
        stream, number = position
        expected = self._next.get(stream)
        if number == expected:
            self._next[stream] = number + 1
            return False
        if expected is None:
            self._start(stream, number)
            return False
        if number < self._first[stream]:
            return not self._enter_early(stream, number)
        if number < expected:
            return not self._fill(stream, number)
        self._next[stream] = number + 1
        holes = self._holes.setdefault(stream, [])
        holes.append((expected, number - 1))
        del holes[: -self._max_holes]
        return expected, number - 1

    def _start(self, stream: bytes, number: int) -> None:
        if len(self._next) >= self._max_streams:
            oldest = next(iter(self._next))
            del self._next[oldest], self._first[oldest]
            self._holes.pop(oldest, None)
            self._early.pop(oldest, None)
        self._first[stream] = number
        self._next[stream] = number + 1

    def _enter_early(self, stream: bytes, number: int) -> bool:
        """Remember a number below the baseline; False if it was there already."""
        early = self._early.setdefault(stream, deque(maxlen=self._max_holes))
        if number in early:
            return False
        early.append(number)
        return True

    def _fill(self, stream: bytes, number: int) -> bool:
        """Take a late number out of its hole; False if it is in none."""
        holes = self._holes.get(stream, [])
        for place, (first, last) in enumerate(holes):
            if first <= number <= last:
                rest = [(first, number - 1), (number + 1, last)]
                holes[place : place + 1] = [hole for hole in rest if hole[0] <= hole[1]]
                if not holes:
                    del self._holes[stream]
                return True
        return False
