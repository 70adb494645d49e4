"""Which events of each publisher have been delivered, by serial: the highest, and the holes below it.

Only an event that is published again is known by its serial, and that is soon after the first time: when there are too
many publishers, those that were silent for longest are forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice

_HOLES = 1024
_TRACKS = 65_536


@dataclass(slots=True)
class _Track:
    first: int
    high: int
    holes: dict[int, None] = field(default_factory=dict)


@dataclass(slots=True)
class Seen:
    """One per subscriber. Serials count per publisher and topic, in the order of publication."""

    tracks: dict[tuple[str, int], _Track] = field(default_factory=dict)

    def knows(self, publisher: str, rank: int, serial: int) -> bool:
        """Whether this event was delivered before."""
        track = self.tracks.get((publisher, rank))
        if track is None or serial > track.high or serial < track.first:
            return False
        return serial not in track.holes

    def add(self, publisher: str, rank: int, serial: int) -> None:
        """The event is being delivered."""
        track = self.tracks.pop((publisher, rank), None)
        self.tracks[publisher, rank] = track or _Track(serial, serial)  # the last used is the last
        if track is None:
            if len(self.tracks) > _TRACKS:
                del self.tracks[next(iter(self.tracks))]
        elif serial > track.high:
            for hole in range(max(track.high + 1, serial - _HOLES), serial):
                track.holes[hole] = None
            while len(track.holes) > _HOLES:
                del track.holes[next(iter(track.holes))]
            track.high = serial
        else:
            if serial < track.first:
                for hole in range(serial + 1, min(track.first, serial + _HOLES)):
                    track.holes[hole] = None
                track.first = serial
            track.holes.pop(serial, None)

    def forget(self, rank: int) -> None:
        """The topic was unsubscribed."""
        for key in [key for key in self.tracks if key[1] == rank]:
            del self.tracks[key]

    def dump(self, most: int = _TRACKS) -> tuple[tuple[str, int, int, int, tuple[int, ...]], ...]:
        """For a durable subscriber's cursor: those that were used last, the very last at the end."""
        last = list(islice(reversed(self.tracks.items()), most))
        return tuple((*key, t.first, t.high, tuple(t.holes)) for key, t in reversed(last))

    def load(self, tracks: tuple[tuple[str, int, int, int, tuple[int, ...]], ...]) -> None:
        """From a durable subscriber's cursor."""
        for publisher, rank, first, high, holes in tracks:
            self.tracks[publisher, rank] = _Track(first, high, dict.fromkeys(holes))
