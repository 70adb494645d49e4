"""The applications of a site: they write down each event, are slow or fail by chance, and undo."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from random import Random
from typing import Any

from tests.stress_sites import lines
from tests.stress_sites.database import Database, insert
from tests.stress_sites.lines import Pen
from tests.stress_sites.tastes import SiteTaste
from txlayer import Event, MemberTransaction, Participant, Scope, Site
from txlayer.errors import ResourceError

HANDLER_WITHIN = 3.0
"""Seconds after which a site gives a handler up."""
_PATIENCE = 0.5


class Faults:
    """How often handlers fail or are slow, until the world is healed."""

    def __init__(self, seed: str, failing: float, slow: float) -> None:
        self._random = Random(seed)
        self._lock = threading.Lock()
        self.failing = failing
        self.slow = slow

    def strike(self, what: str, share: float = 1.0) -> None:
        """Be slow, or raise, or neither."""
        with self._lock:
            slow, fails, pause = self._random.random(), self._random.random(), self._random.random()
        if slow < self.slow * 0.05:
            time.sleep(HANDLER_WITHIN + 2.0 * pause)  # given up by its site, it goes on and must not do harm
        elif slow < self.slow:
            time.sleep(pause * 0.5)
        if fails < self.failing * share:
            raise ValueError(f"{what} was drawn to fail")

    def heal(self) -> None:
        """No more."""
        self.failing = self.slow = 0.0


def value_of(event: Event) -> str:
    """An event as the checkers read it."""
    return f"{event.number}:{event.publisher}:{event.payload.decode()}"


def _unit(tx: MemberTransaction, database: Database) -> Any:
    """The database serves one transaction at a time: wait a while for it."""
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return tx[database]
        except ResourceError:
            if time.monotonic() > end:
                raise
        time.sleep(0.01)


def join(site: Site, event_type: str, liking: SiteTaste, folder: Path, pen: Pen, faults: Faults) -> list[Database]:
    """Subscribe as the taste says."""
    taste = liking.taste
    databases = [Database(folder / f"{site.name}-{event_type}-{number}.db") for number in range(liking.resources)]

    class Member(Participant):
        def on_join(self, tx: MemberTransaction) -> Scope:
            assert tx.terms is not None
            return taste.answer(tx.terms.tx_type)

        def on_event(self, tx: MemberTransaction, event: Event) -> None:
            pen.write(lines.Delivered(tx.id))
            if taste.scope is Scope.NON_TRANSACTIONAL:
                return
            faults.strike("a handler")
            for database in databases:
                insert(_unit(tx, database), tx.id, value_of(event), undo=False)
            if not databases:
                pen.write(lines.Handled(tx.id, value_of(event)))

        def on_prepare(self, tx: MemberTransaction) -> None:
            faults.strike("a prepare", 0.5)

        def on_commit(self, tx: MemberTransaction) -> None:
            if not databases:
                pen.write(lines.Committed(tx.id, time.monotonic()))

    class Undoing(Member):
        def on_compensate(self, tx: MemberTransaction, event: Event) -> None:
            for database in databases:
                insert(tx[database], tx.id, value_of(event), undo=True)

    site.subscribe(
        event_type,
        Undoing if taste.compensatable else Member,
        scope=taste.scope,
        resources=databases,
        attempts=taste.attempts,
        anonymous=not taste.identity,
        durable=taste.durable,
    )
    return databases
