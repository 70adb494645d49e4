"""A host of topic managers at work: one thread, one log, letters in and out.

Each round takes what has come, steps the role, makes everything that it wants kept durable with one sync (group
commit), and only then sends. So nothing leaves before what it rests on is on disk.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import TypeAlias

from txlayer.errors import LogError, LogForeign, NameTaken, TxLayerError
from txlayer.logs.port import Disk
from txlayer.ordering import effects as fx
from txlayer.ordering.host import Host
from txlayer.ordering.host_state import HostConfig
from txlayer.ordering.messages import AnyMessage, Beat, Void
from txlayer.ports import Bus
from txlayer.runtime.host_log import HostLog, open_host_log
from txlayer.sequencing import claims
from txlayer.sequencing.claims import Claim
from txlayer.sequencing.exchange import Exchange, Letter
from txlayer.sequencing.host_clock import HostClock
from txlayer.sequencing.inbox import Inbox

_logger = logging.getLogger(__name__)
_TICK = 0.02
_ROUND = 2048
_MOST_WAITING = 200_000
"""Letters. Roles repeat what is not answered, so a host that stands still has more and more of them."""
_STARTED = 10.0
_REMIND = 5.0
_GOODBYE = 2.0

Item: TypeAlias = AnyMessage | fx.Claimed


class Sequencer:
    """Runs until it is closed, fenced, or its log fails; `error` tells."""

    def __init__(
        self,
        bus: Bus,
        exchange: Exchange,
        disk: Disk,
        *,
        name: str,
        rank: int,
        patterns: Sequence[str],
        chain: str = claims.CHAIN,
        config: HostConfig | None = None,
        address: str = "",
        know: claims.Found | None = None,
        passing: bool = False,
    ) -> None:
        """`know` hears of every claim. `passing`: the log ends with the process; the rank is free after that."""
        self.name = name
        self.rank = rank
        self.error: TxLayerError | None = None
        self.ended = threading.Event()
        self._bus = bus
        self._exchange = exchange
        self._chain = chain
        self._address = address
        self._know = know
        self._passing = passing
        self._disk = disk
        self._clock = HostClock()
        self._inbox: Inbox[Item] = Inbox(_MOST_WAITING)
        self._log: HostLog = open_host_log(disk, name, rank, os.urandom(8).hex())
        self._host = Host(name, rank, tuple(patterns), self._log.header.incarnation, config or HostConfig())
        self._neighbours = fx.Neighbours(None, None)
        """As the role was told last."""
        exchange.listen(name, self._inbox.take)
        self._claims: dict[int, Claim] = {}
        self._remind_at = _REMIND
        self._standing = False
        self._watch = claims.watch(bus, chain, self._found)
        self._begin(list(self._claims.values()))
        self._thread = threading.Thread(target=self._run, name=f"txlayer-sequencer-{name}", daemon=True)
        self._thread.start()

    @property
    def epoch(self) -> int:
        """Of this life."""
        return self._host.state.epoch

    @property
    def claim(self) -> Claim:
        """What the directory shows of it."""
        event = self._host.claim()
        return Claim(
            event.host, event.name, event.epoch, event.incarnation, event.patterns, self._address,
            first=event.first, passing=self._passing,
        )  # fmt: skip

    def close(self) -> None:
        """Stop serving. The claim stays: the topics are this host's, also while it is away; unless the log ends too."""
        self._inbox.end()
        if threading.current_thread() is not self._thread:
            self._thread.join(10.0)

    def _found(self, claim: Claim) -> None:
        self._claims[claim.host] = claim
        if claim.retired:
            return
        if self._know is not None:
            self._know(claim)
        self._inbox.put(claim.event())

    def _begin(self, found: list[Claim]) -> None:
        known_epoch = max((claim.epoch for claim in found if claim.host == self.rank), default=0)
        retired = frozenset(claim.host for claim in found if claim.retired)
        found = [claim for claim in found if not claim.retired]
        for claim in found:
            if claim.host == self.rank:
                self._check_log(claim)
        for claim in found:
            if claim.host != self.rank:
                self._host.directory.see(claim.event())
        shown = self._host.directory.neighbours(self.rank)
        effects = self._host.start(self._log.records.values(), shown, self._clock.now(), known_epoch, retired)
        self._neighbours = self._host.directory.neighbours(self.rank)
        self._perform(effects)
        claims.announce(self._bus, self._chain, self.claim).wait(_STARTED)

    def _check_log(self, held: Claim) -> None:
        """Whose log ended with its process is gone: whoever starts this one has made sure of that."""
        if held.incarnation == self._log.header.incarnation or (self._passing and held.passing):
            return
        self._watch.close()
        self._exchange.silence(self.name, self._inbox.take)
        self._disk.close()
        raise LogForeign(
            f"rank {self.rank} is held by host {held.name} with log {held.incarnation}, this one is "
            f"{self._log.header.incarnation}: find that log, take another rank, or give it up for good with "
            f"`txlayer sequencer retire --rank {self.rank}`"
        )

    # The thread

    def _run(self) -> None:
        try:
            while self._round():
                pass
        except LogError as exc:
            self._fail(exc)
        except Exception as exc:
            _logger.exception("sequencer host %s failed", self.name)
            self._fail(TxLayerError(f"sequencer host {self.name} failed: {exc!r}"))
        finally:
            if self._passing and self._host.fenced is None:
                self._give_up_rank()
            self._watch.close()
            self._exchange.silence(self.name, self._inbox.take)
            self._disk.close()
            self.ended.set()

    def _give_up_rank(self) -> None:
        try:
            claims.announce(self._bus, self._chain, claims.retired(self.claim)).wait(_GOODBYE)
        except TxLayerError as exc:
            _logger.info("host %s: its rank was not given up: %s", self.name, exc)

    def _fail(self, error: TxLayerError) -> None:
        self.error = error
        _logger.error("%s", error)

    def _round(self) -> bool:
        items = self._inbox.collect(_TICK, _ROUND)
        if items is None:
            return False
        now = self._clock.now()
        effects: list[fx.Effect] = []
        for item in items:
            effects.extend(self._step(item, now))
        due = self._host.next_deadline()
        if due is not None and due <= now:
            effects.extend(self._host.step(fx.Tick(), now))
        self._perform(effects)
        if self._clock.beat_due():
            self._exchange.send([(self.name, Beat())])
            self._tell_standing()
            self._tell_dropped()
        if self._remind_at <= now:
            self._remind(now)
        if self._host.fenced is not None:
            self._fail(NameTaken(self._host.fenced))
            return False
        return True

    def _tell_standing(self) -> None:
        if self._clock.stands != self._standing:
            self._standing = self._clock.stands
            state = "gives nothing back: time stands still" if self._standing else "works again"
            _logger.warning("host %s: the bus %s", self.name, state)

    def _tell_dropped(self) -> None:
        dropped = self._inbox.dropped()
        if dropped:
            _logger.warning("host %s: %d letters dropped, more than %d waited", self.name, dropped, self._inbox.most)

    def _remind(self, now: float) -> None:
        """Say the claim again: a broker that was killed may have forgotten it, a former holder may have hidden it."""
        self._remind_at = now + _REMIND
        try:
            claims.announce(self._bus, self._chain, self.claim)
        except TxLayerError as exc:
            _logger.info("host %s: its claim was not repeated: %s", self.name, exc)

    def _step(self, item: Item, now: float) -> list[fx.Effect]:
        if isinstance(item, Beat):
            self._clock.hear()
            return []
        if not self._host.takes(item):
            _logger.warning("host %s: a %s is not for a host", self.name, type(item).__name__)
            return []
        effects = self._host.step(item, now)  # type: ignore[arg-type]
        if isinstance(item, fx.Claimed):
            if item.host == self.rank and item.epoch < self.epoch:
                self._remind_at = now
            neighbours = self._host.directory.neighbours(self.rank)
            if neighbours != self._neighbours:
                self._neighbours = neighbours
                effects.extend(self._host.step(neighbours, now))
        return effects

    def _perform(self, effects: Sequence[fx.Effect]) -> None:
        kept = [effect for effect in effects if isinstance(effect, fx.Persist | fx.Erase)]
        if kept:
            self._log.write(kept)
        letters: list[Letter] = []
        for effect in effects:
            match effect:
                case fx.Send():
                    letters.append((effect.to, effect.message))
                case fx.Publish(_, Void() as void):
                    letters.extend((name, void) for name in self._host.registry.subscribers_of(void.rank))
                case fx.Report():
                    _logger.warning("host %s: %s", self.name, effect.reason)
                case fx.Persist() | fx.Erase():
                    pass
                case _:
                    raise AssertionError(effect)
        if letters:
            self._exchange.send(letters)
