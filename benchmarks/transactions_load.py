"""One after the other, or so many at a time, for so many seconds: how many were done and how long each took."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from txlayer.errors import TxLayerError

AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Measured:
    """One turn: the seconds that each one took. Those that failed count neither as done nor as fast."""

    times: list[float]
    seconds: float
    failed: int = 0

    def __post_init__(self) -> None:
        if not self.times:
            raise RuntimeError(f"none succeeded, {self.failed} failed")

    @property
    def per_second(self) -> float:
        """How many were done."""
        return len(self.times) / self.seconds

    @property
    def p50(self) -> float:
        """The median."""
        return statistics.median(self.times)


def percentile(times: list[float], percent: int) -> float:
    """Never more than the slowest of them, however few they are."""
    return statistics.quantiles(times, n=100, method="inclusive")[percent - 1] if len(times) > 1 else times[0]


class Load(Protocol):
    """Something that is done over and over."""

    def sequential(self, seconds: float) -> Measured: ...

    def at_once(self, seconds: float) -> Measured: ...


@dataclass(frozen=True, slots=True)
class Calls:
    """A call that waits: at once means on so many threads."""

    call: Callable[[], object]

    def sequential(self, seconds: float) -> Measured:
        """On one thread."""
        return self._on_threads(1, seconds)

    def at_once(self, seconds: float) -> Measured:
        """On threads of their own."""
        return self._on_threads(AT_ONCE, seconds)

    def _on_threads(self, count: int, seconds: float) -> Measured:
        times, errors = list[float](), list[TxLayerError]()
        began = time.perf_counter()
        arguments = (began + seconds, times, errors)
        threads = [threading.Thread(target=self._repeat, args=arguments) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return Measured(times, time.perf_counter() - began, len(errors))

    def _repeat(self, until: float, times: list[float], errors: list[TxLayerError]) -> None:
        """At least once, however late the thread begins."""
        while True:
            began = time.perf_counter()
            try:
                self.call()
                times.append(time.perf_counter() - began)
            except TxLayerError as exc:  # on a machine that is too slow votes come too late
                errors.append(exc)
            if time.perf_counter() >= until:
                return
