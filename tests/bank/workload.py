"""Transfers by several callers at a time, what each of them was told, and whether that is true."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.bank.banks import ACCOUNTS, QUICK, START, TRANSFERS, Bank
from tests.bank.faults import Faults
from txlayer import Bounds, Site, Status, named
from txlayer.errors import BusError, OutcomeUnknown, TransactionAborted, TransactionError
from txlayer.testing.mosquitto import Mosquitto

BANKS = 3
CALLERS = 8
HEALING_SECONDS = 120.0


@dataclass
class Told:
    """What callers were told, by the key of the transfer."""

    committed: set[str] = field(default_factory=set)
    aborted: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    reasons: Counter[str] = field(default_factory=Counter)

    def count(self) -> int:
        return len(self.committed) + len(self.aborted) + len(self.unknown)


def run(transfers: int, faults: int, seed: int) -> dict[str, Any]:
    """Until there were so many transfers and so many faults. `violations` is what was wrong."""
    start = time.monotonic()
    with ExitStack() as stack:
        broker = stack.enter_context(Mosquitto(persistence=True))
        port = urlsplit(broker.url).port or 0
        banks = [Bank(number, broker.url, port, stack) for number in range(BANKS)]
        bounds = Bounds(unconfirmed=1_000_000)  # whoever was left in doubt can ask at the end
        head = stack.enter_context(Site("head", bus=broker.url, log="memory://", patience=QUICK, bounds=bounds))
        _wait(lambda: len(head.subscribed(TRANSFERS)) == BANKS, 60.0)
        told, disturbed = Told(), Faults(banks, broker, seed)
        violations = _drive(head, banks, told, disturbed, transfers, faults, seed)
        violations += _settle(head, banks, told)
        violations += _verify(banks, told)
        return {
            "transfers": told.count(), "committed": len(told.committed), "aborted": len(told.aborted),
            "faults": sum(disturbed.done.values()), "by_kind": dict(disturbed.done),
            "reasons": dict(told.reasons.most_common(5)),
            "violations": violations, "seconds": round(time.monotonic() - start, 1),
        }  # fmt: skip


def _drive(
    head: Site, banks: list[Bank], told: Told, disturbed: Faults, transfers: int, faults: int, seed: int
) -> list[str]:
    over = threading.Event()
    violations: list[str] = []
    died: list[str] = []

    def call(n: int) -> None:
        try:
            _call(head, told, over, seed * 100 + n, n)
        except Exception as exc:  # a thread that dies tells nobody
            died.append(f"caller {n} died of {type(exc).__name__}: {exc}")

    callers = [threading.Thread(target=call, args=(n,)) for n in range(CALLERS)]
    for caller in callers:
        caller.start()
    try:
        while not died and (told.count() < transfers or sum(disturbed.done.values()) < faults):
            if sum(disturbed.done.values()) < faults:
                disturbed.one()
            else:
                over.wait(0.2)
            violations += [wrong for bank in banks if (wrong := bank.audit())]
    finally:
        over.set()
        for caller in callers:
            caller.join()
    return violations + died


def _call(head: Site, told: Told, over: threading.Event, seed: int, caller: int) -> None:
    draw = random.Random(seed)
    everyone = named(*(f"bank-{number}" for number in range(BANKS)))
    for number in range(1_000_000):
        if over.is_set():
            return
        key = f"{caller}-{number}"
        source, target = draw.sample(range(BANKS), 2)
        transfer = {
            "key": key, "from": (source, draw.randint(1, ACCOUNTS)), "to": (target, draw.randint(1, ACCOUNTS)),
            "amount": draw.randint(1, 50),
        }  # fmt: skip
        try:
            head.send(TRANSFERS, [transfer], key=key, require=everyone, census_within=3.0, vote_within=3.0, within=10.0)
            told.committed.add(key)
        except OutcomeUnknown:
            told.unknown.add(key)
        except (TransactionAborted, TransactionError) as exc:
            told.aborted.add(key)
            told.reasons[str(exc)[:80]] += 1
            over.wait(0.05)
        except BusError as exc:
            told.aborted.add(key)
            told.reasons[type(exc).__name__] += 1
            over.wait(0.2)


def _settle(head: Site, banks: list[Bank], told: Told) -> list[str]:
    """Everything heals; whoever was left in doubt asks again."""
    end = time.monotonic() + HEALING_SECONDS
    while told.unknown and time.monotonic() < end:
        key = min(told.unknown)
        try:
            outcome = head.outcome(key=key, within=5.0)
        except OutcomeUnknown:
            continue
        told.unknown.remove(key)
        (told.committed if outcome.status is Status.COMMITTED else told.aborted).add(key)
    left = [f"{key} was never decided" for key in told.unknown]
    if not _wait(lambda: all(bank.prepared() == 0 for bank in banks), HEALING_SECONDS):
        left += [f"bank {bank.number} has {bank.prepared()} prepared" for bank in banks if bank.prepared()]
    return left


def _verify(banks: list[Bank], told: Told) -> list[str]:
    wrong = [text for bank in banks if (text := bank.audit())]
    total = sum(bank.total() for bank in banks)
    if total != BANKS * ACCOUNTS * START:
        wrong.append(f"the sum is {total}")
    for bank in banks:
        found = Counter(bank.transfers())
        wrong += [f"{key} twice in bank {bank.number}" for key, count in found.items() if count > 1]
        wrong += [f"{key} committed and not in bank {bank.number}" for key in told.committed if key not in found]
        wrong += [f"{key} aborted and in bank {bank.number}" for key in told.aborted if key in found]
    return wrong


def _wait(condition: Any, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
