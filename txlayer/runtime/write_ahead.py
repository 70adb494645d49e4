"""The write-ahead rule, in one place: no output of a role leaves while an append of that role is not durable.

Answers to questions that arrive in the meantime are outputs too. Roles know nothing of it: they return appends and
outputs in one list, this module holds the outputs back. An append with `barrier` holds every role. Timers are not
outputs. What is let go goes in the order in which each role asked for it.

Not every append is in a hurry. `urgent`: an output waits that somebody else waits for, or will wait once a resource has
prepared. `soon`: something was appended
whose outputs can wait a little, so that the next sync takes it along. Neither: forgetting. A record that is dropped and
comes back after a crash is dropped again, and a coordinator says its mark again, so nobody waits for that at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from txlayer.effects import Append, AwaitLog, CancelTimer, Drop, Effect, ForgetMarker, Role, SetTimer
from txlayer.logs.record_log import RecordLog
from txlayer.records import ForgottenKey, Intent, PeerMark, Retired

_FORGETTING = (PeerMark, Retired, ForgottenKey)
_BEFORE_A_VOTE = Intent


@dataclass(slots=True)
class WriteAhead:
    """Between the roles of a site and the world."""

    log: RecordLog
    pending: dict[Role, int] = field(default_factory=dict)
    held: deque[tuple[int, Role, Effect]] = field(default_factory=deque)
    barrier: int = 0
    patient: Callable[[Effect], bool] = lambda effect: isinstance(effect, ForgetMarker)
    """Whether nobody is kept waiting by this output."""
    urgent: bool = False
    hurried: set[Role] = field(default_factory=set)
    """Roles whose outputs somebody waits for."""
    soon: bool = False

    def admit(self, role: Role, effects: list[Effect]) -> list[Effect]:
        """Take what a role asked for; return what may be performed now."""
        free: list[Effect] = []
        log = self.log
        for effect in effects:
            if type(effect) is Append:
                self._append(role, effect)
            elif type(effect) is SetTimer or type(effect) is CancelTimer:
                free.append(effect)
            elif type(effect) is Drop:
                log.drop(effect.key)
            elif type(effect) is AwaitLog:
                self._wait_for(role, log.position)
            else:
                position = self.pending.get(role, 0)
                if position < self.barrier:
                    position = self.barrier
                if position <= log.durable:
                    free.append(effect)
                else:
                    self.held.append((position, role, effect))
                    if not self.patient(effect):
                        self.urgent = True
                        self.hurried.add(role)
        return free

    def synced(self) -> tuple[list[Effect], list[Effect]]:
        """The log has become durable further: what may be performed now, first that of roles that are waited for."""
        durable = self.log.durable
        self.urgent = self.soon = self.log.position > durable
        for role in [role for role, position in self.pending.items() if position <= durable]:
            del self.pending[role]
        first: list[Effect] = []
        then: list[Effect] = []
        kept: deque[tuple[int, Role, Effect]] = deque()
        for position, role, effect in self.held:
            if position > durable:
                kept.append((position, role, effect))
            else:
                (first if role in self.hurried else then).append(effect)
        self.held = kept
        self.hurried.intersection_update(role for _, role, _ in kept)
        return first, then

    def dirty(self) -> bool:
        """Whether there is anything to write."""
        return self.log.position > self.log.durable

    def _append(self, role: Role, effect: Append) -> None:
        position = self.log.append(effect.key, effect.record)
        self.soon = self.soon or not isinstance(effect.record, _FORGETTING)
        self.urgent = self.urgent or isinstance(effect.record, _BEFORE_A_VOTE)
        if effect.barrier:
            self.barrier = position
        self._wait_for(role, position)

    def _wait_for(self, role: Role, position: int) -> None:
        if position > self.log.durable:
            self.pending[role] = position
