"""What an application should hear of beside its calls, and its code that belongs to no transaction here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from txlayer.effects import AbortCall, Input, Surface, WaitLonger
from txlayer.messages import TxId
from txlayer.runtime.calls import Calls
from txlayer.runtime.pool import Job, Pool
from txlayer.transactions.participant import Participant

_logger = logging.getLogger(__name__)

Patience = Callable[[TxId | None], float | None]
"""Asked when votes are missing: how many seconds more to wait; nothing to give up."""


class Surfacing:
    """Takes what surfaces at a site, in the turn, and tells those who want to know, on threads for handlers."""

    def __init__(self, site: str, calls: Calls) -> None:
        self.hearers: list[Callable[[Surface], object]] = []
        self.on_votes_missing: dict[str, Patience] = {}
        """By call."""
        self._site = site
        self._calls = calls

    def start(self, participant: Participant, handlers: Pool, post: Callable[[Input], None]) -> None:
        """The site is put together."""
        self._participant = participant
        self._handlers = handlers
        self._post = post

    def take(self, surface: Surface) -> None:
        """Something has surfaced."""
        _logger.info("%s: %s %s %s", self._site, surface.what, surface.tx or "", surface.detail)
        call = self._calls.open.get(surface.detail)
        if surface.what == "votes missing":
            self._on_votes_missing(surface)
        elif surface.what == "distributed part aborted" and call is not None:
            publisher = self._participant.publishers.get(surface.detail)  # its call may be another by now
            call.aborting = publisher.outcome if publisher is not None else None
        for hear in self.hearers:
            self._run(partial(hear, surface))

    def _on_votes_missing(self, surface: Surface) -> None:
        patience = self.on_votes_missing.get(surface.detail)
        abort = AbortCall(surface.detail, "votes are missing")
        if patience is None:
            self._post(abort)
        else:
            self._run(partial(self._ask, patience, surface), otherwise=partial(self._post, abort))

    def _ask(self, patience: Patience, surface: Surface) -> None:
        seconds = 0.0
        try:
            seconds = patience(surface.tx) or 0.0
        finally:
            longer = WaitLonger(surface.detail, seconds)
            self._post(longer if seconds > 0 else AbortCall(surface.detail, "votes are missing"))

    def _run(self, act: Callable[[], object], otherwise: Callable[[], object] = lambda: None) -> None:
        """On a thread for handlers, if not all of them hang."""

        def run() -> None:
            try:
                act()
            except Exception:
                _logger.exception("site %s: a callback failed", self._site)

        def done(job: Job) -> None:
            if job.refused:
                _logger.error("site %s: a callback is not called, all threads for handlers hang", self._site)
                otherwise()

        job = Job(run, done)
        if not self._handlers.submit(job):
            job.refused = True
            done(job)
