"""The write-ahead rule, in one place: no output of a role leaves while an append of that role is not durable.

Answers to questions that arrive in the meantime are outputs too. Roles know nothing of it: they return appends and
outputs in one list, this module holds the outputs back. An append with `barrier` holds every role. Timers are not
outputs. What is let go goes in the order in which each role asked for it.

Not every append is in a hurry. `urgent`: an output waits that somebody else waits for. `soon`: something was appended
whose outputs can wait a little, so that the next sync takes it along. Neither: forgetting. A record that is dropped and
comes back after a crash is dropped again, and a coordinator says its mark again, so nobody waits for that at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from txlayer.effects import Append, AwaitLog, CancelTimer, Drop, Effect, ForgetMarker, Role, SetTimer
from txlayer.logs.record_log import RecordLog
from txlayer.records import PeerMark, Retired

_TIMERS = (SetTimer, CancelTimer)
_FORGETTING = (PeerMark, Retired)


@dataclass(slots=True)
class WriteAhead:
    """Between the roles of a site and the world."""

    log: RecordLog
    pending: dict[Role, int] = field(default_factory=dict)
    held: deque[tuple[int, Effect]] = field(default_factory=deque)
    barrier: int = 0
    patient: Callable[[Effect], bool] = lambda effect: isinstance(effect, ForgetMarker)
    """Whether nobody is kept waiting by this output."""
    urgent: bool = False
    soon: bool = False

    def admit(self, role: Role, effects: list[Effect]) -> list[Effect]:
        """Take what a role asked for; return what may be performed now."""
        free: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Append):
                self._append(role, effect)
            elif isinstance(effect, _TIMERS):
                free.append(effect)
            elif isinstance(effect, Drop):
                self.log.drop(effect.key)
            elif isinstance(effect, AwaitLog):
                self._wait_for(role, self.log.position)
            else:
                position = self._position(role)
                if position <= self.log.durable:
                    free.append(effect)
                else:
                    self.held.append((position, effect))
                    self.urgent = self.urgent or not self.patient(effect)
        return free

    def synced(self) -> list[Effect]:
        """The log has become durable further: what may be performed now, in order."""
        durable = self.log.durable
        self.urgent = self.soon = self.log.position > durable
        for role in [role for role, position in self.pending.items() if position <= durable]:
            del self.pending[role]
        free: list[Effect] = []
        kept: deque[tuple[int, Effect]] = deque()
        for position, effect in self.held:
            if position <= durable:
                free.append(effect)
            else:
                kept.append((position, effect))
        self.held = kept
        return free

    def dirty(self) -> bool:
        """Whether there is anything to write."""
        return self.log.position > self.log.durable

    def _append(self, role: Role, effect: Append) -> None:
        position = self.log.append(effect.key, effect.record)
        self.soon = self.soon or not isinstance(effect.record, _FORGETTING)
        if effect.barrier:
            self.barrier = position
        self._wait_for(role, position)

    def _wait_for(self, role: Role, position: int) -> None:
        if position > self.log.durable:
            self.pending[role] = position

    def _position(self, role: Role) -> int:
        return max(self.pending.get(role, 0), self.barrier)
