"""A load of publishers and subscribers in processes of their own, and the history that they write.

`python -m tests.integration.ordered_load publisher|subscriber ...` is one of them. Each writes one JSON list per line.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from txlayer import Bus, Delivery, Gap, Receipt, Subscription, connect, errors, ordered
from txlayer.ports import Handler
from txlayer.simulation.ordering.history import History, Id, Offered, Seen, SubscriberHistory

TOPICS = 20
PATIENCE = 300.0
"""Seconds that anything may take beside a broker that comes up on a busy machine."""
_UNDER_WAY = 20
_STARTS = 20


def topics_of(bus_url: str) -> list[str]:
    """Twenty topics, owned by three hosts: a, b and c."""
    return [f"{'abc'[number % 3]}-{number}" for number in range(TOPICS)]


class Diary:
    """Lines of a process's history; each is in the file when the call returns."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "a", buffering=1)  # noqa: SIM115
        self._lock = threading.Lock()

    def write(self, *line: object) -> None:
        with self._lock:
            self._file.write(json.dumps(line) + "\n")


def open_bus(url: str, chain: str) -> Bus:
    """Ordered if a chain is named."""
    if not chain:
        return connect(url, connect_timeout=PATIENCE)
    return ordered(url, f"{url}/{chain}", deadline=PATIENCE, connect_timeout=PATIENCE)


def publisher(url: str, chain: str, name: str, path: str, events: str, pause: str) -> None:
    """Publish on random topics, until all is accepted; stay until the input ends, for who has not got everything."""
    diary, rng = Diary(path), random.Random(name)
    serials: dict[str, int] = {}
    receipts: deque[tuple[str, int, Receipt]] = deque()

    def accept() -> None:
        topic, serial, receipt = receipts.popleft()
        receipt.wait(PATIENCE)
        diary.write("accepted", topic, serial)

    with open_bus(url, chain) as bus:
        for _ in range(int(events)):
            topic = rng.choice(topics_of(url))
            serial = serials[topic] = serials.get(topic, 0) + 1
            diary.write("offer", topic, serial, time.monotonic())
            body = json.dumps([name, topic, serial]).encode()
            receipts.append((topic, serial, bus.publish(topic, body)))
            if len(receipts) > _UNDER_WAY:
                accept()
            time.sleep(float(pause) * rng.random() * 2)
        while receipts:
            accept()
        diary.write("ready")
        sys.stdin.read()


def subscriber(url: str, chain: str, name: str, path: str) -> None:
    """Subscribe to a random half of the topics and change it again and again, until the input ends."""
    diary, rng, topics = Diary(path), random.Random(name), topics_of(url)

    def got(delivery: Delivery) -> None:
        publisher, topic, serial = json.loads(delivery.payload)
        diary.write("got", publisher, topic, serial, delivery.place, delivery.out_of_order, time.monotonic())

    def gap(gap: Gap) -> None:
        diary.write("gap", gap.topic, gap.first, gap.last, gap.certain)

    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    with open_bus(url, chain) as bus:
        mine = rng.sample(topics, TOPICS // 2)
        subscription = bus.subscribe(mine, got, on_gap=gap) if chain else Each(bus, got, mine)
        for topic in mine:
            diary.write("since", topic, time.monotonic())
        diary.write("ready")
        while not ended.wait(0.5 + rng.random()):
            change(subscription, rng.choice(topics), diary)
        ended.wait()


class Each:
    """Without the ordered bus: a subscription for each topic, as for each kind of event in a program."""

    def __init__(self, bus: Bus, handler: Handler, topics: Sequence[str]) -> None:
        self._bus = bus
        self._handler = handler
        self._by_topic: dict[str, Subscription] = {}
        self.add(*topics)

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(self._by_topic)

    def add(self, *topics: str) -> None:
        for topic in topics:
            self._by_topic[topic] = self._bus.subscribe(topic, self._handler)

    def remove(self, *topics: str) -> None:
        for topic in topics:
            self._by_topic.pop(topic).unsubscribe()


def change(subscription: Subscription | Each, topic: str, diary: Diary) -> None:
    """Unsubscribe from a topic, or subscribe to it."""
    try:
        if topic in subscription.topics:
            diary.write("until", topic)
            subscription.remove(topic)
        else:
            diary.write("adding", topic)
            subscription.add(topic)
            diary.write("since", topic, time.monotonic())
    except errors.BusError as exc:
        diary.write("error", str(exc))


class Load:
    """Publishers and subscribers of one test."""

    def __init__(self, folder: Path, url: str, chain: str) -> None:
        self._folder = folder
        self._url = url
        self._chain = chain
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, kind: str, name: str, *arguments: object) -> None:
        command = [sys.executable, "-m", "tests.integration.ordered_load", kind, self._url, self._chain, name]
        command += [str(self.path(name)), *map(str, arguments)]
        self._processes[name] = subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2])

    def path(self, name: str) -> Path:
        return self._folder / f"{name}.jsonl"

    def lines(self, name: str) -> list[Any]:
        return [json.loads(line) for line in self._written(name).splitlines()]

    def _written(self, name: str) -> str:
        """Whole lines of a diary."""
        return self.path(name).read_text().rpartition("\n")[0] if self.path(name).exists() else ""

    def ready(self, name: str) -> bool:
        return '["ready"]' in self._written(name)

    def offered(self) -> int:
        """How many events were published so far. Asked often, beside everything that it waits for."""
        return sum(self._written(name).count('["offer",') for name in self._processes if name.startswith("p"))

    def size(self) -> int:
        """How much was written so far."""
        return sum(self.path(name).stat().st_size for name in self._processes if self.path(name).exists())

    def ended(self, kind: str) -> list[str]:
        """Which processes of a kind run no more."""
        return [name for name, one in self._processes.items() if name.startswith(kind) and one.poll() is not None]

    def end(self, kind: str) -> list[int]:
        """Let the processes of a kind end; their exit statuses."""
        statuses = []
        for name, process in self._processes.items():
            if name.startswith(kind):
                assert process.stdin is not None
                process.stdin.close()
                statuses.append(process.wait(PATIENCE))
        return statuses

    def kill(self) -> None:
        """Whatever a failed test has left."""
        for process in self._processes.values():
            with process:
                process.kill()

    def history(self) -> History:
        """What all of them have written, for the checkers of the simulation."""
        history = History()
        for name in self._processes:
            if name.startswith("p"):
                _read_publisher(history, name, self.lines(name))
        for name in self._processes:
            if name.startswith("s"):
                _read_subscriber(history, name, self.lines(name))
        return history


def _read_publisher(history: History, name: str, lines: list[Any]) -> None:
    for kind, *rest in lines:
        if kind == "ready":
            continue
        id = Id(name, *rest[:2])
        if kind == "offer":
            history.offered[id] = Offered(id, rest[2])
            history.events += 1
        else:
            history.offered[id].accepted = True


def _read_subscriber(history: History, name: str, lines: list[Any]) -> None:
    seen = history.subscribers[name] = SubscriberHistory()
    for kind, *rest in lines:
        if kind == "got":
            publisher, topic, serial, place, out_of_order, at = rest
            id = Id(publisher, topic, serial)
            seen.delivered.append(Seen(id, place or 0, out_of_order, at))
            history.numbers_of.setdefault(id, []).append(place or 0)
        elif kind == "since":
            seen.since[rest[0]] = rest[1]
        elif kind == "adding":
            seen.starts[rest[0]] = len(seen.delivered)
        elif kind == "until":
            seen.since.pop(rest[0], None)
        elif kind == "gap":
            seen.gaps.append(tuple(rest))


def start_host(folder: Path, url: str, chain: str, name: str, *more: str) -> subprocess.Popen[str]:
    """A sequencer host by command, serving when this returns.

    One that ends at its start is started again, as whoever supervises it would: beside a broker that is just coming up
    librdkafka 2.x may abort the process (an assertion in its admin client).
    """
    command = [sys.executable, "-m", "txlayer.cli", "sequencer", "serve", "--name", name, "--bus", f"{url}/{chain}"]
    command += ["--rank", str("abc".index(name)), "--topics", f"{name}-*", "--log", f"sqlite:///{folder}/{name}.db"]
    for _ in range(_STARTS):
        process = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        if "serves chain" in process.stdout.readline():
            return process
        with process:
            status = process.wait(PATIENCE)
    raise AssertionError(f"host {name} did not come up; it ended with {status}")


if __name__ == "__main__":
    {"publisher": publisher, "subscriber": subscriber}[sys.argv[1]](*sys.argv[2:])
