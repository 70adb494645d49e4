"""Total order: stamps per second of one host, end to end over Mosquitto, the published study, cost of subscribers.

A stamp is the whole cycle: a request, its answer, the confirmation and its acknowledgement, with tickets, idempotence
and changes against the confirmed base. Subscribers are measured per event, waiting included.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import ordering_end_to_end, ordering_plots, ordering_study
from txlayer.logs.sqlite import SqliteDisk
from txlayer.ordering import effects as fx
from txlayer.ordering.delivery_buffer import DeliveryBuffer
from txlayer.ordering.host import Host
from txlayer.ordering.host_state import HostConfig
from txlayer.ordering.messages import Create, Event, Locate, Published, Register, Stamped
from txlayer.ordering.timestamp import Stamp
from txlayer.runtime.host_log import open_host_log

GROUPS = (1, 5, 20, 50, 500)
PARTS = ("stamps", "end-to-end", "study", "subscriber")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=1.0, help="how long each figure is measured")
    parser.add_argument("--repetitions", type=int, default=3, help="the best of so many runs counts")
    parser.add_argument("--events", type=int, default=20_000, help="of each run end to end")
    parser.add_argument("--only", choices=PARTS, action="append", help="a part of it (default: all)")
    parser.add_argument("--docs", type=Path, metavar="FOLDER", help="write plots and table of the study there")
    parser.add_argument("--json", action="store_true", help="only the JSON line")


def run(args: argparse.Namespace) -> int:
    parts = args.only or PARTS
    result: dict[str, Any] = {
        "benchmark": "ordering",
        "python": platform.python_version(),
        "repetitions": args.repetitions,
    }
    if "stamps" in parts:
        result["stamps_per_second"] = stamps(args.seconds, args.repetitions)
        result["stamps_per_cpu_second"] = {str(size): _cpu(args.repetitions, size, args.seconds) for size in GROUPS}
    if "end-to-end" in parts:
        result["end_to_end"] = ordering_end_to_end.end_to_end(args.events, args.repetitions)
        result["ratio"] = result["end_to_end"]["ratio"]
    if "study" in parts:
        result["study"] = ordering_study.study(lambda text: None if args.json else print(text, flush=True))
        if args.docs is not None:
            ordering_plots.write(result["study"], args.docs)
    if "subscriber" in parts:
        result["subscriber"] = {"topics": by_topics(args.repetitions), "buffered": by_buffered(args.repetitions)}
    if not args.json:
        _tell(result)
    print(json.dumps(result))
    return 0


def stamps(seconds: float, repetitions: int) -> dict[str, dict[str, int]]:
    """Figure 1."""
    return {
        "no_log": {str(size): _best(repetitions, size, seconds, None, 1, False) for size in GROUPS},
        "no_log_batch_64": {str(size): _best(repetitions, size, seconds, None, 64, False) for size in GROUPS},
        "log_blocks": {str(size): _best(repetitions, size, seconds, "blocks", 1, False) for size in GROUPS},
        "log_blocks_batch_64": {str(size): _best(repetitions, size, seconds, "blocks", 64, False) for size in GROUPS},
        "log_tickets_batch_64": {str(size): _best(repetitions, size, seconds, "tickets", 64, True) for size in GROUPS},
    }


def _cpu(repetitions: int, size: int, seconds: float) -> int:
    """Without log and batching, per second of processor time: what a core gives when nobody shares it."""
    rates = []
    for _ in range(repetitions):
        started = time.process_time()
        rate = _stamps(size, seconds, None, 1, False)
        rates.append(rate * seconds / (time.process_time() - started))
    return round(max(rates))


def _best(repetitions: int, size: int, seconds: float, log: str | None, batch: int, tickets: bool) -> int:
    return max(_stamps(size, seconds, log, batch, tickets) for _ in range(repetitions))


def _stamps(size: int, seconds: float, log: str | None, batch: int, tickets: bool) -> int:
    """Publishers take turns over the topics of one group, so that entries change between two stamps of a topic."""
    topics = tuple(f"t{n}" for n in range(size))
    host = Host("a", 0, ("*",), "log-a", HostConfig(durable_tickets=tickets, lease=0.2, retention=0.2))
    with tempfile.TemporaryDirectory() as folder:
        disk = SqliteDisk(Path(folder) / "log.db") if log else None
        host_log = open_host_log(disk, "a", 0, "log-a") if disk else None
        effects = host.start([], fx.Neighbours(None, None), 0.0)
        effects += host.step(Locate("s", topics), 0.0)
        effects += host.step(Register("s", 1, tuple(range(size)), ()), 0.0)
        pending: list[fx.Persist | fx.Erase] = [effect for effect in effects if isinstance(effect, fx.Persist)]
        step, done, turn, seqs = host.step, 0, 0, [1] * size
        busy = min(size, 8)  # the topics that are published on; the others only lengthen the group
        started, now = time.perf_counter(), 0.0
        while now < seconds:
            for _ in range(256 if batch == 1 else 16):
                at = turn % busy
                turn += 1
                effects = step(Create("p", topics[at], 1, seqs[at], batch, seqs[at]), now)
                answer = effects[-1]
                assert isinstance(answer, fx.Send)
                assert isinstance(answer.message, Stamped)
                confirmed = Published("p", topics[at], seqs[at], answer.message.stamp.number, batch)
                effects += step(confirmed, now)
                seqs[at] += batch
                done += batch
                if host_log:
                    pending += [effect for effect in effects if isinstance(effect, fx.Persist | fx.Erase)]
            effects = step(fx.Tick(), now)
            if host_log:
                pending += [effect for effect in effects if isinstance(effect, fx.Persist | fx.Erase)]
                if pending:  # group commit: the answers of this round leave now
                    host_log.write(pending)
                    pending = []
            now = time.perf_counter() - started
        assert len(host.group_of(topics[0])) == size
        if disk:
            disk.close()
    return round(done / now)


def by_topics(repetitions: int) -> dict[str, float]:
    """Figure 4, first half: microseconds per event of a subscriber with so many topics, ten entries in each stamp."""
    return {str(n): min(_over_topics(n) for _ in range(repetitions)) for n in (10, 100, 1_000, 10_000)}


def _over_topics(topics: int, events: int = 20_000) -> float:
    buffer = DeliveryBuffer()
    for rank in range(topics):
        buffer.add(f"t{rank}", rank, 0)
    clocks, made = [0] * topics, []
    for n in range(events):
        rank = n * 7 % topics
        clocks[rank] += 1
        others = sorted({(rank + 1 + step * 3) % topics for step in range(10)} - {rank})
        stamp = Stamp(rank, clocks[rank], 1, 0, tuple(others), tuple(clocks[other] for other in others))
        made.append(Event("p", clocks[rank], stamp, b""))
    arrivals = [event for at in range(0, events, 8) for event in reversed(made[at : at + 8])]
    started = time.perf_counter()
    for event in arrivals:
        buffer.take(event, 0.0)
    elapsed = time.perf_counter() - started
    assert buffer.size == 0
    return round(elapsed / events * 1e6, 2)


def by_buffered(repetitions: int) -> dict[str, float]:
    """Figure 4, second half: microseconds per event with so many in the buffer, all of which wait for the first."""
    return {str(n): min(_over_buffered(n) for _ in range(repetitions)) for n in (10, 100, 1_000, 10_000, 100_000)}


def _over_buffered(buffered: int, topics: int = 10) -> float:
    rounds = max(1, 20_000 // buffered)
    elapsed = 0.0
    for _ in range(rounds):
        buffer = DeliveryBuffer()
        for rank in range(topics):
            buffer.add(f"t{rank}", rank, 0)
        clocks, made = [0] * topics, []
        for n in range(buffered + 1):
            rank = n % topics
            clocks[rank] += 1
            others = tuple(other for other in range(topics) if other != rank)
            stamp = Stamp(rank, clocks[rank], 1, 0, others, tuple(clocks[other] for other in others))
            made.append(Event("p", clocks[rank], stamp, b""))
        started = time.perf_counter()
        for event in made[1:]:
            buffer.take(event, 0.0)
        assert buffer.size == buffered
        buffer.take(made[0], 0.0)
        elapsed += time.perf_counter() - started
        assert buffer.size == 0
    return round(elapsed / rounds / (buffered + 1) * 1e6, 2)


def _tell(result: dict[str, Any]) -> None:
    print("stamps per second of one host, by group size")
    for way, figures in result.get("stamps_per_second", {}).items():
        print(f"  {way:22}" + "".join(f"{size:>6}: {rate:>9,}" for size, rate in figures.items()))
    print("end to end, against the plain bus")
    for way, figures in result.get("end_to_end", {}).items():
        print(f"  {way:22} {figures}")
    print("microseconds per event of a subscriber")
    for way, figures in result.get("subscriber", {}).items():
        print(f"  by {way:19}" + "".join(f"{size:>8}: {cost:>6}" for size, cost in figures.items()))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks ordering", description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
