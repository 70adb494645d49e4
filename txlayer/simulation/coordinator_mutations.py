"""Slips of a coordinator: rules on delegation, numbers, publishers and readers, each left out alone."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from txlayer import messages as m
from txlayer.effects import Append, Broadcast, Effect, PresenceChanged
from txlayer.transactions.chain import Chain
from txlayer.transactions.coordinated import UNDECIDED, Phase
from txlayer.transactions.coordinator_desk import CoordinatorDesk
from txlayer.transactions.scope import has_locals
from txlayer.transactions.tx_coordinator import TxCoordinator


def presence_decides(self: TxCoordinator, lost: PresenceChanged, back: bool) -> list[Effect]:
    if self.phase is Phase.DELEGATED and self.ballot.member_called(lost.site) is not None:
        return self._abort("gone", lost.site)
    return _PRESENCE_LOST(self, lost, back)


def publisher_death_decides(self: TxCoordinator, lost: PresenceChanged, back: bool) -> list[Effect]:
    if self.phase is Phase.DELEGATED and lost.site == self.publisher and lost.site != self.seat.site:
        return self._abort("its publisher is gone", lost.site)
    return _PRESENCE_LOST(self, lost, back)


_PRESENCE_LOST = TxCoordinator.on_presence_lost


def publisher_abort_decides(self: TxCoordinator, abort: m.Abort) -> list[Effect]:
    if self.phase is Phase.DELEGATED and self.events.may_end(abort.publisher):
        return self._abort("aborted by its publisher")
    return _ON_ABORT(self, abort)


_ON_ABORT = TxCoordinator.on_abort


def abort_after_call_reaches_locals(self: TxCoordinator, reason: str, by: str) -> list[Effect]:
    effects = _WITHDRAW(self, reason, by) if self.phase in UNDECIDED or not self.called else []
    if not self.called or not has_locals(self.terms):
        return effects
    token = self.seat.keyring.token(self.tx, "withdrawn")
    return [Broadcast(self.terms.type, m.Withdrawn(self.tx, token)), *effects]


_WITHDRAW = TxCoordinator._withdraw


def failed_census_not_called(self: TxCoordinator, reason: str) -> list[Effect]:
    self.called = False
    return _FAIL_CENSUS(self, reason)


_FAIL_CENSUS = TxCoordinator._fail_census


def block_without_barrier(self: CoordinatorDesk, *args: Any) -> list[Any]:
    """Only the transaction that reserved the block waits for it, not the next ones."""
    return [(role, [_patient(effect) for effect in effects]) for role, effects in _OPEN(self, *args)]


def census_before_block(self: CoordinatorDesk, *args: Any) -> list[Any]:
    batches = block_without_barrier(self, *args)
    return [(role, sorted(effects, key=lambda effect: isinstance(effect, Append))) for role, effects in batches]


def _patient(effect: Effect) -> Effect:
    return replace(effect, barrier=False) if isinstance(effect, Append) else effect


_OPEN = CoordinatorDesk._open


def any_life(self: CoordinatorDesk, create: m.Create) -> list[Any]:
    return _ON_CREATE(self, replace(create, coordinator_life=self.seat.life))


_ON_CREATE = CoordinatorDesk.on_create


def confirmed_by_anyone(self: TxCoordinator, confirm: m.Confirm) -> list[Effect]:
    return _ON_CONFIRM(self, m.Confirm(confirm.tx, self.publisher))


_ON_CONFIRM = TxCoordinator.on_confirm


def forgotten_at_the_fastest(self: Chain) -> list[Effect]:
    current = [reading.upto for reading in self.readers.values() if not reading.stale]
    return self._drop_below(max(current, default=self.next - 1) + 1)
