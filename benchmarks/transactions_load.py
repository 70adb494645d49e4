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
    """One turn."""

    per_second: float
    p50: float
    p99: float
    failed: int = 0

    @classmethod
    def of(cls, times: list[float], seconds: float, failed: int = 0) -> Measured:
        """From the seconds that each one took. Those that failed count neither as done nor as fast."""
        if not times:
            raise RuntimeError(f"none succeeded, {failed} failed")
        cuts = statistics.quantiles(times, n=100) if len(times) > 1 else times * 99
        return cls(len(times) / seconds, cuts[49], cuts[98], failed)


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
        return Measured.of(times, time.perf_counter() - began, len(errors))

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
