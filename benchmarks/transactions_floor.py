"""The floor: a request to all members, a reply from each, over the same bus without txlayer."""

from __future__ import annotations

import importlib
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Protocol

from benchmarks.transactions_load import AT_ONCE, Load, Measured

PAYLOAD_BYTES = 200
START_SECONDS = 60.0


class Floor(Protocol):
    """A bus on which requests can be made."""

    def load(self, rounds: int) -> Load: ...


@dataclass(slots=True)
class Requests:
    """Rounds of requests. `send` publishes a request; whoever receives a reply calls `on_reply` with its bytes."""

    members: int
    send: Callable[[bytes], None]
    _missing: dict[int, int] = field(default_factory=dict)
    _done: SimpleQueue[int] = field(default_factory=SimpleQueue)
    _number: int = 0

    def request(self) -> int:
        """Ask all members; the number comes out of `done` when all have replied."""
        self._number += 1
        self._missing[self._number] = self.members
        self.send(self._number.to_bytes(8, "big").ljust(PAYLOAD_BYTES, b"x"))
        return self._number

    def done(self) -> int:
        """Wait for the next request that all have replied to."""
        return self._done.get(timeout=START_SECONDS)

    def on_reply(self, payload: bytes) -> None:
        """A member has replied."""
        number = int.from_bytes(payload[:8], "big")
        self._missing[number] -= 1
        if not self._missing[number]:
            del self._missing[number]
            self._done.put(number)

    def load(self, rounds: int) -> Load:
        """So many rounds, one after the other, count as one."""
        return Rounds(self, rounds)


@dataclass(frozen=True, slots=True)
class Rounds:
    """A load of requests."""

    requests: Requests
    rounds: int

    def sequential(self, seconds: float) -> Measured:
        return self._run(seconds, 1)

    def at_once(self, seconds: float) -> Measured:
        return self._run(seconds, AT_ONCE)

    def _run(self, seconds: float, at_once: int) -> Measured:
        """One thread keeps so many going: each that is through makes room for the next."""
        requests, now = self.requests, time.perf_counter
        began: dict[int, tuple[float, int]] = {}
        times: list[float] = []
        started = now()
        for _ in range(at_once):
            began[requests.request()] = (now(), 1)
        while began:
            at, done = began.pop(requests.done())
            if done < self.rounds:
                began[requests.request()] = (at, done + 1)
                continue
            ended = now()
            times.append(ended - at)
            if ended - started < seconds:
                began[requests.request()] = (now(), 1)
        return Measured(times, now() - started)


@contextmanager
def open_floor(bus: str, url: str, members: int) -> Iterator[Floor]:
    """Members in processes of their own, or threads for the memory bus."""
    with ExitStack() as stack:
        if bus == "memory":
            yield stack.enter_context(_threads(members))
            return
        module = importlib.import_module(f"benchmarks.transactions_floor_{bus}")
        topic = f"floor-{time.monotonic_ns()}"
        module.prepare(url, topic)
        for _ in range(members):
            _start(stack, module.reply, url, topic)
        yield stack.enter_context(module.requests(url, topic, members))


def _start(stack: ExitStack, reply: Callable[[str, str, Connection], None], url: str, topic: str) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=reply, args=(url, topic, theirs), daemon=True)
    process.start()
    theirs.close()
    stack.callback(process.join, START_SECONDS)
    stack.callback(ours.close)
    if not ours.poll(START_SECONDS):
        raise RuntimeError(f"a member of the floor did not start within {START_SECONDS} s")
    ours.recv()


@contextmanager
def _threads(members: int) -> Iterator[Requests]:
    """Queues between threads."""
    inboxes: list[SimpleQueue[bytes | None]] = [SimpleQueue() for _ in range(members)]
    replies: SimpleQueue[bytes | None] = SimpleQueue()

    def send(payload: bytes) -> None:
        for inbox in inboxes:
            inbox.put(payload)

    def pass_on(source: SimpleQueue[bytes | None], sink: Callable[[bytes], None]) -> None:
        while (payload := source.get()) is not None:
            sink(payload)

    requests = Requests(members, send)
    jobs = [(inbox, replies.put) for inbox in inboxes]
    threads = [threading.Thread(target=pass_on, args=job) for job in [*jobs, (replies, requests.on_reply)]]
    for thread in threads:
        thread.start()
    yield requests
    for queue in [*inboxes, replies]:
        queue.put(None)
    for thread in threads:
        thread.join()
