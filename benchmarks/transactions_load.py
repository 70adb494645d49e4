"""One after the other, or so many at a time, for so many seconds: how many were done and how long each took."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Measured:
    """One turn."""

    per_second: float
    p50: float
    p99: float

    @classmethod
    def of(cls, times: list[float], seconds: float) -> Measured:
        """From the seconds that each one took."""
        cuts = statistics.quantiles(times, n=100) if len(times) > 1 else times * 99
        return cls(len(times) / seconds, cuts[49], cuts[98])


class Load(Protocol):
    """Something that is done over and over."""

    def sequential(self, seconds: float) -> Measured: ...

    def at_once(self, seconds: float) -> Measured: ...


@dataclass(frozen=True, slots=True)
class Calls:
    """A call that waits: at once means on so many threads."""

    call: Callable[[], object]

    def sequential(self, seconds: float) -> Measured:
        """On this thread."""
        times: list[float] = []
        began = time.perf_counter()
        self._repeat(began + seconds, times)
        return Measured.of(times, time.perf_counter() - began)

    def at_once(self, seconds: float) -> Measured:
        """On threads of their own."""
        times: list[float] = []
        began = time.perf_counter()
        threads = [threading.Thread(target=self._repeat, args=(began + seconds, times)) for _ in range(AT_ONCE)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return Measured.of(times, time.perf_counter() - began)

    def _repeat(self, until: float, times: list[float]) -> None:
        began = time.perf_counter()
        while began < until:
            self.call()
            ended = time.perf_counter()
            times.append(ended - began)
            began = ended
