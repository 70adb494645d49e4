"""Stamps per second of one host in process, by group size, without log and with one.

A stamp is the whole cycle: a request, its answer, the confirmation and its acknowledgement, with tickets, idempotence
and changes against the confirmed base; making the client's messages is part of it. All ways are measured in turn, and
the best round counts: on a machine that others use too, two figures that were taken one after the other do not compare.
For the same reason there are figures per second of processor time; those of a log leave out the wait for the disk.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from txlayer.logs.sqlite import SqliteDisk
from txlayer.ordering import effects as fx
from txlayer.ordering.host import Host
from txlayer.ordering.host_state import HostConfig
from txlayer.ordering.messages import Create, Locate, Published, Register, Stamped
from txlayer.runtime.host_log import HostLog, open_host_log

GROUPS = (1, 5, 20, 50, 500)
_BUSY = 8


@dataclass(frozen=True, slots=True)
class Way:
    """`busy`: the topics that are published on, in turn; the others only lengthen the group."""

    log: bool = False
    tickets: bool = False
    batch: int = 1
    busy: int = _BUSY


WAYS = {
    "no_log": Way(),
    "no_log_every_topic_busy": Way(busy=max(GROUPS)),
    "no_log_batch_64": Way(batch=64),
    "log_blocks": Way(log=True),
    "log_blocks_batch_64": Way(log=True, batch=64),
    "log_tickets_batch_64": Way(log=True, tickets=True, batch=64),
}


class Rate(NamedTuple):
    """Of one run."""

    per_second: float
    per_cpu_second: float


Table = dict[str, dict[str, int]]


def stamps(seconds: float, repetitions: int) -> dict[str, Table]:
    """Figure 1: by way and group size, by the clock and by processor time."""
    rates: dict[tuple[str, int], list[Rate]] = {(name, size): [] for name in WAYS for size in GROUPS}
    for _ in range(repetitions):
        for (name, size), found in rates.items():
            found.append(run(WAYS[name], size, seconds))
    wall: Table = {name: {} for name in WAYS}
    cpu: Table = {name: {} for name in WAYS}
    for (name, size), found in rates.items():
        wall[name][str(size)] = round(max(rate.per_second for rate in found))
        cpu[name][str(size)] = round(max(rate.per_cpu_second for rate in found))
    return {"stamps_per_second": wall, "stamps_per_cpu_second": cpu}


def run(way: Way, size: int, seconds: float) -> Rate:
    """One host, one group of so many topics."""
    with tempfile.TemporaryDirectory() as folder:
        disk = SqliteDisk(Path(folder) / "log.db") if way.log else None
        load = _Load(way, size, open_host_log(disk, "a", 0, "log-a") if disk else None)
        started, cpu, now = time.perf_counter(), time.process_time(), 0.0
        while now < seconds:
            load.round(now)
            now = time.perf_counter() - started
        cpu = time.process_time() - cpu
        if disk:
            disk.close()
    assert len(load.host.group_of("t0")) == size
    return Rate(load.done / now, load.done / cpu)


class _Load:
    """A publisher takes turns over the topics, so that entries change between two stamps of a topic."""

    def __init__(self, way: Way, size: int, log: HostLog | None) -> None:
        self.batch = way.batch
        self.busy = min(size, way.busy)
        self.log = log
        self.done = self.turn = 0
        self.topics = tuple(f"t{n}" for n in range(size))
        self.seqs = [1] * size
        self.host = Host("a", 0, ("*",), "log-a", HostConfig(durable_tickets=way.tickets, lease=0.2, retention=0.2))
        effects = self.host.start([], fx.Neighbours(None, None), 0.0)
        effects += self.host.step(Locate("s", self.topics), 0.0)
        effects += self.host.step(Register("s", 1, tuple(range(size)), ()), 0.0)
        self._pending = _kept(effects)

    def round(self, now: float) -> None:
        """Some stamps, the host's upkeep, and one write for all of them: then their answers may leave."""
        step, topics, seqs, batch, log = self.host.step, self.topics, self.seqs, self.batch, self.log
        for turn in range(self.turn, self.turn + (256 if batch == 1 else 16)):
            at = turn % self.busy
            effects = step(Create("p", topics[at], 1, seqs[at], batch, seqs[at]), now)
            answer = effects[-1]
            assert isinstance(answer, fx.Send)
            assert isinstance(answer.message, Stamped)
            effects += step(Published("p", topics[at], seqs[at], answer.message.stamp.number, batch), now)
            seqs[at] += batch
            self.done += batch
            if log:
                self._pending += _kept(effects)
        self.turn = turn + 1
        effects = step(fx.Tick(), now)
        if log:
            self._pending += _kept(effects)
            if self._pending:
                log.write(self._pending)
                self._pending = []


def _kept(effects: list[fx.Effect]) -> list[fx.Persist | fx.Erase]:
    return [effect for effect in effects if isinstance(effect, fx.Persist | fx.Erase)]
