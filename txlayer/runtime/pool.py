"""Threads for application code: a bounded number, and a bounded number of replacements for those that hang.

Python cannot end a thread. A job that is given up keeps its thread until the application returns; it is counted as
stuck and replaced, up to a cap. Beyond the cap the pool grows no more: when all threads are stuck, jobs are refused,
those that wait as well as new ones.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
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
    """Runs jobs on daemon threads, which are started as they are needed."""

    def __init__(self, name: str, size: int, spare: int) -> None:
        self._name = name
        self._size = size
        self._spare = spare
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self.stuck = 0
        """Threads whose job was given up and has not returned."""

    @property
    def threads(self) -> int:
        """How many there are, stuck ones included: never more than size and spare together."""
        return self._threads

    @property
    def crowded(self) -> bool:
        """Jobs wait for a thread."""
        return not self._jobs.empty()

    def submit(self, job: Job) -> bool:
        """Run it when a thread is free; False when all threads are stuck and no more may be started."""
        with self._lock:
            if self.stuck >= self._size + self._spare:
                return False
            if self._idle > 0:
                self._idle -= 1
            elif self._may_grow():
                self._start()
        self._jobs.put(job)
        return True

    def give_up(self, job: Job) -> bool:
        """Stop waiting for a job that runs too long; False if it has finished meanwhile."""
        with self._lock:
            if job.finished or job.given_up:
                return False
            job.given_up = True
            self.stuck += 1
            if not self._jobs.empty() and self._may_grow():
                self._start()
            refused = self._waiting() if self.stuck >= self._size + self._spare else []
        for one in refused:
            one.refused = True
            one.done(one)
        return True

    def _waiting(self) -> list[Job]:
        """Take back what no thread has begun; the ends that `close` put there stay."""
        taken: list[Job | None] = []
        try:
            while True:
                taken.append(self._jobs.get_nowait())
        except Empty:
            jobs = [job for job in taken if job is not None]
        for _ in range(len(taken) - len(jobs)):
            self._jobs.put(None)
        return jobs

    def close(self) -> None:
        """Idle threads end; busy ones end when their job does."""
        for _ in range(self._threads):
            self._jobs.put(None)

    def _may_grow(self) -> bool:
        return self._threads - min(self.stuck, self._spare) < self._size

    def _start(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name=f"txlayer-{self._name}-{self._threads}", daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.started = time.monotonic()
            try:
                job.result = job.run()
            except Exception:  # the thread is for all jobs
                _logger.exception("a job of %s failed", self._name)
            with self._lock:
                job.finished = True
                given_up = job.given_up
                if given_up:
                    self.stuck -= 1
                if self._threads - min(self.stuck, self._spare) > self._size:  # its replacement is there
                    self._threads -= 1
                    leave = True
                else:
                    self._idle += self._jobs.empty()
                    leave = False
            if not given_up:
                job.done(job)
            if leave:
                return
