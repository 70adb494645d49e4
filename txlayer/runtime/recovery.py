"""Looks for prepared branches of this site that nobody will finish, at the start and from time to time.

Every branch has an intent in the log before the vote, and stays in it until it is finished. So a branch that was
prepared under this log and that no role stands behind was given up: a prepare that a crash overtook, one whose answer
came after the vote of no, or from a connection of a former process. It is rolled back. A branch that was prepared under
another log is an orphan: that log may hold a yes. It is left alone, and shown; so is what a compensatable member
committed under another log.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from txlayer.effects import BranchesFound
from txlayer.messages import TxId
from txlayer.resources.port import Branch
from txlayer.runtime.inspection import TransactionView
from txlayer.runtime.pool import Job
from txlayer.units import undone_by

if TYPE_CHECKING:
    from txlayer.runtime.engine import Engine

_logger = logging.getLogger(__name__)
EVERY_SECONDS = 10.0


class Recovery:
    """The periodic look of one site."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.orphans: dict[TxId, Branch] = {}
        """Prepared under a log of this site that is gone."""
        self._committed: tuple[TxId, ...] = ()
        self._looked = self._started = time.monotonic()

    def keep(self, committed: tuple[TxId, ...]) -> None:
        """What was committed under a log that is gone, and may have to be undone."""
        self._committed, self._started = committed, time.monotonic()
        for tx in committed:
            _logger.error("committed under a log that is gone, and perhaps to be undone: %s; `txlayer recover`", tx)

    def views(self) -> list[TransactionView]:
        """Orphans as an operator sees them."""
        now = time.monotonic()
        prepared = {tx: branch.age + now - self._looked for tx, branch in self.orphans.items()}
        committed = dict.fromkeys(self._committed, now - self._started)
        return [
            TransactionView(tx, "", "member", state, True, seconds, (tx.coordinator,))
            for state, found in (("orphan", prepared), ("committed orphan", committed))
            for tx, seconds in found.items()
        ]

    def first_look(self) -> tuple[TxId, ...]:
        """What is prepared under this log, before anything arrives that could be prepared under the same name."""
        ours = self._engine.log.header.incarnation
        branches = self._branches() if self._engine.resources is not None else ()
        return tuple(dict.fromkeys(branch.tx for branch in branches if branch.incarnation in ("", ours)))

    def start(self) -> None:
        """Look now, and then again and again."""
        self._engine.loop.post(self._look)

    def _look(self) -> None:
        if self._engine.resources is not None:
            self._engine.workshop.finishers.submit(Job(self._branches, self._found))
        self._engine.loop.later(EVERY_SECONDS, self._look)

    def _branches(self) -> tuple[Branch, ...]:
        """On a worker."""
        resources = self._engine.resources
        assert resources is not None
        try:
            self._committed = tuple(tx for tx in self._committed if resources.undo_record(tx))
            return resources.branches()
        except Exception as exc:  # of any kind: a site that is being closed has closed its resources
            if not self._engine.closed:
                _logger.warning("site %s cannot look for prepared branches: %s", self._engine.settings.name, exc)
            return ()

    def _found(self, job: Job) -> None:
        self._engine.loop.post(lambda: self._judge(job.result))

    def _judge(self, branches: tuple[Branch, ...]) -> None:
        """In the turn, where it is known who works on what."""
        ours = self._engine.log.header.incarnation
        orphans = {branch.tx: branch for branch in branches if branch.incarnation not in ("", ours)}
        for tx in orphans.keys() - self.orphans.keys():
            _logger.error("prepared under a log that is gone: %s in %s; `txlayer recover`", tx, orphans[tx].name)
        self.orphans, self._looked = orphans, time.monotonic()
        busy = self._engine.workshop.busy()
        idle = [branch.tx for branch in branches if branch.tx not in orphans and undone_by(branch.tx) not in busy]
        if idle:
            self._engine.log.touch()  # a site that was replaced and has not noticed must not touch its successor's
            self._engine.loop.post(BranchesFound(tuple(dict.fromkeys(idle))))
