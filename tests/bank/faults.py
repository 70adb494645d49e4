"""What happens to the banks, one fault after the other."""

from __future__ import annotations

import random
import threading
from collections import Counter

from tests.bank.banks import Bank
from tests.proxy import Proxy
from txlayer.testing.native import NativeServer

KINDS = (
    "database",
    "broker",
    "cut database",
    "cut bus",
    "delay database",
    "delay bus",
    "freeze database",
    "freeze bus",
    "lose database",
    "lose bus",
)
LONGER_THAN_PATIENCE = (2.5, 4.0)
"""Seconds after which nobody waits for an answer any more: see `Bank`."""


class Faults:
    """Draws faults from a seed; everything is healed after each."""

    def __init__(self, banks: list[Bank], broker: NativeServer, seed: int) -> None:
        self._banks = banks
        self._broker = broker
        self._random = random.Random(seed)
        self._rest = threading.Event()
        self.done: Counter[str] = Counter()

    def one(self) -> None:
        """The next fault, its time, and the way back."""
        kind = KINDS[sum(self.done.values()) % len(KINDS)]
        bank = self._random.choice(self._banks)
        seconds = self._random.uniform(0.1, 1.0)
        line = bank.database_line if kind.endswith("database") else bank.bus_line
        if kind == "database":
            bank.server.stop("immediate")
            self._rest.wait(seconds)
            bank.server.start()
        elif kind == "broker":
            self._broker.kill()
            self._rest.wait(seconds)
            self._broker.restart()
        elif kind.startswith("cut"):
            line.cut_after(self._random.randrange(1, 5000))
        else:
            self._disturb(kind, line, seconds)
        self.done[kind] += 1
        self._rest.wait(self._random.uniform(0.1, 0.6))

    def _disturb(self, kind: str, line: Proxy, seconds: float) -> None:
        if kind.startswith("delay"):
            line.delay = self._random.uniform(0.01, 0.1)
            self._rest.wait(seconds)
            line.delay = 0.0
        else:
            line.freeze()
            self._rest.wait(self._random.uniform(*LONGER_THAN_PATIENCE) if kind.startswith("lose") else seconds)
            if kind.startswith("lose"):
                line.cut()  # half-open, then gone: what was on its way never arrives
            line.thaw()
