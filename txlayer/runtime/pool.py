"""Threads for application code: a bounded number, and a bounded number of replacements for those that hang.

Python cannot end a thread. A job that is given up keeps its thread until the application returns; it is counted as
stuck and replaced, up to a cap. Beyond the cap the pool grows no more: when all threads are stuck, jobs are refused,
those that wait as well as new ones.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Job:
    """Something to be run once. `result` is what it returned, None if it failed: who wants to know why catches it."""

    run: Callable[[], Any]
    done: Callable[[Job], None]
    started: float | None = None
    finished: bool = False
    given_up: bool = False
    refused: bool = False
    """Done without having run: it waited while the last thread got stuck."""
    result: Any = None


class Pool:
    """Runs jobs on daemon threads, which are started as they are needed.

    Of the threads that rest, the one that worked last is woken: what it needs is still in the processor's caches.
    """

    def __init__(self, name: str, size: int, spare: int) -> None:
        self._name = name
        self._size = size
        self._spare = spare
        self._lock = threading.Lock()
        self._jobs: deque[Job] = deque()
        """Those that no thread has begun."""
        self._resting: list[threading.Lock] = []
        self._coming = 0
        """Threads that are about to look for a job."""
        self._closed = False
        self._threads = 0
        self.stuck = 0
        """Threads whose job was given up and has not returned."""

    @property
    def threads(self) -> int:
        """How many there are, stuck ones included: never more than size and spare together."""
        return self._threads

    @property
    def crowded(self) -> bool:
        """Jobs wait for a thread."""
        return bool(self._jobs)

    def submit(self, job: Job) -> bool:
        """Run it when a thread is free; False when all threads are stuck and no more may be started."""
        with self._lock:
            if self.stuck >= self._size + self._spare:
                return False
            self._jobs.append(job)
            self._call_threads()
        return True

    def give_up(self, job: Job) -> bool:
        """Stop waiting for a job that runs too long; False if it has finished meanwhile."""
        refused: list[Job] = []
        with self._lock:
            if job.finished or job.given_up:
                return False
            job.given_up = True
            self.stuck += 1
            if self.stuck >= self._size + self._spare:
                refused = list(self._jobs)
                self._jobs.clear()
            else:
                self._call_threads()
        for one in refused:
            one.refused = True
            one.done(one)
        return True

    def close(self) -> None:
        """Idle threads end; busy ones end when their job does."""
        with self._lock:
            self._closed = True
            while self._resting:
                self._wake()

    def _call_threads(self) -> None:
        """As many as there are jobs, as far as there are threads."""
        while len(self._jobs) > self._coming:
            if self._resting:
                self._wake()
            elif self._threads - min(self.stuck, self._spare) < self._size:
                self._start()
            else:
                return

    def _wake(self) -> None:
        self._coming += 1
        self._resting.pop().release()

    def _start(self) -> None:
        threading.Thread(target=self._work, name=f"txlayer-{self._name}-{self._threads + 1}", daemon=True).start()
        self._coming += 1
        self._threads += 1

    def _work(self) -> None:
        rest = threading.Lock()
        rest.acquire()
        while (job := self._next(rest)) is not None:
            job.started = time.monotonic()
            try:
                job.result = job.run()
            except Exception:  # the thread is for all jobs
                _logger.exception("a job of %s failed", self._name)
            leave = self._finish(job)
            if not job.given_up:
                self._hand_in(job)
            if leave:
                return

    def _hand_in(self, job: Job) -> None:
        try:
            job.done(job)
        except Exception:  # the thread is counted on
            _logger.exception("the end of a job of %s failed", self._name)

    def _next(self, rest: threading.Lock) -> Job | None:
        """The next job, whenever it comes; None if there will be none."""
        while True:
            with self._lock:
                self._coming -= 1
                if self._jobs:
                    return self._jobs.popleft()
                if self._closed:
                    return None
                self._resting.append(rest)
            rest.acquire()

    def _finish(self, job: Job) -> bool:
        """Whether its thread is one too many: the job was given up, and the replacement is there."""
        with self._lock:
            job.finished = True
            if job.given_up:
                self.stuck -= 1
            leave = self._threads - min(self.stuck, self._spare) > self._size
            if leave:
                self._threads -= 1
            else:
                self._coming += 1
            return leave
