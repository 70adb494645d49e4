"""Performs what roles ask of the shared register of decisions."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from txlayer.effects import ForgetSettlements, Settle, Settled
from txlayer.errors import LogError
from txlayer.logs.register import Register
from txlayer.records import decode_settlement, encode_settlement
from txlayer.runtime.pool import Job, Pool
from txlayer.transactions.seat import Seat

_logger = logging.getLogger(__name__)
_AGAIN_SECONDS = 1.0


def leave_keys(register: Register, seat: Seat) -> None:
    """At the start of a site, before its first census: what its finishers will need."""
    for finisher in seat.finishers:
        register.leave_key(seat.site, seat.incarnation, finisher, seat.keyring.key_for(finisher))


def settle(register: Register, seat: Seat, effect: Settle) -> Settled:
    """Write a decision unless one stands there; what stands there."""
    body = register.settle(effect.tx, encode_settlement(effect.settlement))
    key = b"" if seat.owns(effect.tx) else register.key(effect.tx.coordinator, effect.tx.incarnation, seat.site)
    return Settled(effect.tx, effect.type, decode_settlement(body), key)


def forget(register: Register, seat: Seat, effect: ForgetSettlements) -> None:
    """Take out what is finished."""
    register.forget(seat.site, seat.incarnation, effect.below, effect.number)


@dataclass(slots=True)
class Registrar:
    """Asks the register on a worker, again and again while it is away: what stands there decides, nothing else."""

    open: Callable[[], Register]
    seat: Seat
    pool: Pool
    post: Callable[[object], None]
    later: Callable[[float, Callable[[], None]], object]
    register: Register | None = None

    def start(self) -> None:
        """Leave what the finishers of this site will need."""
        self.register = self.open()
        try:
            leave_keys(self.register, self.seat)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of it."""
        if self.register is not None:
            self.register.close()

    def take(self, effect: Settle | ForgetSettlements) -> None:
        """In the turn."""

        def done(job: Job) -> None:
            if isinstance(job.result, LogError):
                _logger.warning("the register of decisions is away: %s", job.result)
                self.post(lambda: self.later(_AGAIN_SECONDS, lambda: self.take(effect)))
            elif job.result is not None:
                self.post(job.result)

        self.pool.submit(Job(lambda: self._perform(effect), done))

    def _perform(self, effect: Settle | ForgetSettlements) -> Settled | LogError | None:
        try:
            register = self.register = self.register or self.open()
            if isinstance(effect, Settle):
                return settle(register, self.seat, effect)
            forget(register, self.seat, effect)
        except LogError as exc:
            self.register = None  # its connection may be broken: the next attempt opens another one
            return exc
        return None
