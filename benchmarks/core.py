"""Figures of the transaction core: roles alone, one-shot transactions in one process, memory, security levels.

python -m benchmarks core --json
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.core_bus import BusHub
from txlayer.effects import BeginCall, CommitCall, Input, PresenceChanged
from txlayer.errors import MissingExtra
from txlayer.logs.memory import MemoryDisk
from txlayer.logs.port import Disk
from txlayer.logs.sqlite import SqliteDisk
from txlayer.messages import Conditions, Item, Join, Limit, Outcome, Scope, Status, Terms
from txlayer.security import BrokerSeal, Seal, SecretSeal, SignedSeal
from txlayer.simulation.direct import Hub
from txlayer.tokens import Keyring
from txlayer.transactions.participant import Participant
from txlayer.transactions.seat import Seat

MEMBERS = ("m0", "m1", "m2")
ONE_SHOT = Terms("orders", limit=Limit.DISTRIBUTED, one_shot=True, require=Conditions(only=MEMBERS))
OPEN = Terms("orders", limit=Limit.DISTRIBUTED)
ITEM = (Item("orders", b"x" * 200),)
Seals = Callable[[str], Seal]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("--json", action="store_true", help="print one JSON line, last")
    parser.add_argument("--transactions", type=int, default=2000, help="one-shot transactions per figure")
    parser.add_argument("--open", type=int, default=10_000, help="transactions open at once")


def run(args: argparse.Namespace) -> int:
    """Measure everything."""
    result: dict[str, object] = {"machine": sys.platform, "python": sys.version.split()[0]}
    result.update(roles_alone(args.transactions))
    result.update(one_shot_sqlite(args.transactions))
    result.update(one_shot_on_the_bus(args.transactions))
    result.update(security_levels(max(args.transactions // 4, 50)))
    result.update(open_at_once(args.open))
    result.update(beside_open_ones(args.open))
    if args.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:45} {value}")
    return 0


def hub(disk: Callable[[str], Disk], seals: Seals, made: Hub | None = None) -> Hub:
    """A publisher that coordinates, and three members."""
    made = made if made is not None else Hub()
    made.add("p", disk("p"), seals("p"), Scope.NONE)
    for name in MEMBERS:
        made.add(name, disk(name), seals(name), Scope.DISTRIBUTED, identity=True)
    return made


def drive(made: Hub, transactions: int, at_once: int) -> float:
    """So many one-shot transactions, so many at a time; seconds."""
    committed = 0

    def count(_call: str, outcome: Outcome) -> None:
        nonlocal committed
        committed += outcome.status is Status.COMMITTED

    made.on_outcome = count
    started = time.perf_counter()
    for first in range(0, transactions, at_once):
        for number in range(first, min(first + at_once, transactions)):
            made.queue.append(("p", BeginCall(f"k{made.count}/{number}", ONE_SHOT, "p", ITEM), b""))
        made.run()
        made.advance(0.01)
    seconds = time.perf_counter() - started
    assert committed == transactions, f"{committed} of {transactions} committed"
    return seconds


class Timed:
    """The roles of a site, and the time that their steps take: no frame is opened in it, no record encoded."""

    def __init__(self, roles: Participant) -> None:
        self._roles = roles
        self.seconds = 0.0

    @property
    def seat(self) -> Seat:
        """As the roles have it."""
        return self._roles.seat

    def step(self, event: Input) -> list[Any]:
        """One event in, effects out."""
        started = time.perf_counter()
        batches = self._roles.step(event)
        self.seconds += time.perf_counter() - started
        return batches


def roles_alone(transactions: int) -> dict[str, object]:
    """Steps per second of the roles by themselves; and transactions with frames and log, but no disk."""
    made = hub(lambda _: MemoryDisk(), lambda _: BrokerSeal())
    drive(made, 200, 32)
    seconds = drive(made, transactions, 32)
    timed = [Timed(site.participant) for site in made.sites.values()]
    for site, roles in zip(made.sites.values(), timed, strict=True):
        site.participant = roles  # type: ignore[assignment]
    steps = made.steps
    drive(made, transactions, 32)
    return {
        "steps_per_second": round((made.steps - steps) / sum(roles.seconds for roles in timed)),
        "steps_per_transaction": round((made.steps - steps) / transactions, 1),
        "one_shot_per_second_memory_log": round(transactions / seconds),
    }


def one_shot_sqlite(transactions: int) -> dict[str, object]:
    """The figure that counts: three members, every site its own SQLite log, group commit."""
    result: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        made = hub(lambda name: SqliteDisk(Path(folder) / f"{name}.log"), lambda _: BrokerSeal())
        drive(made, 200, 32)
        for at_once in (1, 16, 64):
            syncs = made.syncs
            count = transactions if at_once > 1 else transactions // 4
            seconds = drive(made, count, at_once)
            result[f"one_shot_per_second_sqlite_{at_once}_at_once"] = round(count / seconds)
            result[f"syncs_per_transaction_{at_once}_at_once"] = round((made.syncs - syncs) / count, 2)
        for site in made.sites.values():
            site.ahead.log.close()
    return result


def one_shot_on_the_bus(transactions: int) -> dict[str, object]:
    """The same with every frame through the memory bus: publish, subscription, handler thread."""
    bus = BusHub()
    with tempfile.TemporaryDirectory() as folder:
        made = hub(lambda name: SqliteDisk(Path(folder) / f"{name}.log"), lambda _: BrokerSeal(), bus)
        drive(made, 200, 32)
        started = time.process_time()
        rates = [transactions / 5 / drive(made, transactions // 5, 64) for _ in range(5)]
        cpu = time.process_time() - started
        for site in made.sites.values():
            site.ahead.log.close()
    bus.close()
    return {
        "one_shot_per_second_sqlite_memory_bus_64_at_once": round(median(rates)),
        "one_shot_per_second_sqlite_memory_bus_worst_and_best_of_5": [round(min(rates)), round(max(rates))],
        "cpu_us_per_transaction_sqlite_memory_bus": round(cpu / transactions * 1e6),
    }


def security_levels(transactions: int) -> dict[str, object]:
    """Microseconds of CPU for a transaction of three members at each level."""
    result: dict[str, object] = {}
    for name, seals in (("broker", lambda _: BrokerSeal()), ("secret", _secret), ("signed", _signed())):
        made = hub(lambda _: MemoryDisk(), seals)
        drive(made, 50, 16)
        started = time.process_time()
        drive(made, transactions, 16)
        result[f"cpu_us_per_transaction_{name}"] = round((time.process_time() - started) / transactions * 1e6)
    return result


def open_at_once(transactions: int) -> dict[str, object]:
    """Bytes of an open transaction at its coordinator and at a member; whether steps slow down with their number."""
    alone, slowdown = bytes_at_coordinator(transactions)
    both = hub(lambda _: MemoryDisk(), lambda _: BrokerSeal())
    whole, slowdown_of_all = _bytes_each(transactions, lambda number: _open_all(both, number))
    return {
        "open_transactions": transactions,
        "bytes_per_open_transaction_coordinator": alone,
        "bytes_per_open_transaction_member": round((whole - alone) / len(MEMBERS)),
        "slowdown_last_quarter_to_first_coordinator": slowdown,
        "slowdown_last_quarter_to_first_all_sites": slowdown_of_all,
    }


def bytes_at_coordinator(transactions: int) -> tuple[int, float]:
    """Bytes of an open transaction with three members, and how much longer the last quarter takes than the first."""
    coordinator = Hub()
    coordinator.add("p", MemoryDisk(), BrokerSeal(), Scope.NONE)
    for name in MEMBERS:
        coordinator.sites["p"].take(PresenceChanged(name, 1, True, ("orders",)))
    found = _bytes_each(transactions, lambda number: _open_alone(coordinator, number))
    assert len(coordinator.sites["p"].participant.coordinator.transactions) == transactions
    return found


def beside_open_ones(transactions: int) -> dict[str, object]:
    """What so many open transactions cost others, after marks have listed them all; and what it takes to close them."""
    made = hub(lambda _: MemoryDisk(), lambda _: BrokerSeal())
    drive(made, 100, 1)
    alone = _cpu_us(lambda: drive(made, 200, 1)) / 200
    for number in range(transactions):
        _open_all(made, number)
    drive(made, 100, 1)
    made.advance(2.5)  # members with something to forget ask for marks
    beside = _cpu_us(lambda: drive(made, 200, 1)) / 200
    quarter = transactions // 4
    times = [_cpu_us(lambda part=part: _close(made, part * quarter, quarter)) for part in range(4)]  # type: ignore[misc]
    return {
        "cpu_us_per_one_shot_with_none_open": round(alone),
        f"cpu_us_per_one_shot_beside_{transactions}_open": round(beside),
        "slowdown_last_quarter_to_first_closing": round(times[-1] / times[0], 2),
    }


def _cpu_us(act: Callable[[], object]) -> float:
    started = time.process_time()
    act()
    return (time.process_time() - started) * 1e6


def _close(made: Hub, first: int, count: int) -> None:
    for number in range(first, first + count):
        made.queue.append(("p", CommitCall(f"open{number}"), b""))
        made.run()


def _bytes_each(transactions: int, open_one: Callable[[int], None]) -> tuple[int, float]:
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    times = []
    for quarter in range(4):
        started = time.process_time()
        for number in range(quarter * transactions // 4, (quarter + 1) * transactions // 4):
            open_one(number)
        times.append(time.process_time() - started)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return round((after - before) / transactions), round(times[-1] / times[0], 2)


def _open_alone(made: Hub, number: int) -> None:
    """A coordinator whose three members answer by hand."""
    site = made.sites["p"]
    made.queue.append(("p", BeginCall(f"open{number}", OPEN, "p"), b""))
    made.run()
    tx = next(reversed(site.participant.coordinator.transactions))
    hashes = site.participant.seat.keyring.hashes(tx)
    for name in MEMBERS:
        made.send("p", site.seal.close(Join(tx, Keyring(name.encode() * 8).pseudonym(tx), hashes, name)))
    made.run()


def _open_all(made: Hub, number: int) -> None:
    made.queue.append(("p", BeginCall(f"open{number}", OPEN, "p"), b""))
    made.run()


def _secret(_name: str) -> Seal:
    return SecretSeal([b"an enrolment secret"])


def _signed() -> Seals:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as exc:
        raise MissingExtra("signed", "cryptography") from exc
    keys = {name: Ed25519PrivateKey.generate() for name in ("p", *MEMBERS)}
    public = {name: key.public_key() for name, key in keys.items()}
    return lambda name: SignedSeal(name, keys[name], public)


def main() -> int:
    """Run without the other benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    return run(parser.parse_args())


if __name__ == "__main__":
    raise SystemExit(main())
