"""What has come from the bus and cannot be looked at yet: each list is bounded, what is dropped is asked for again."""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer.ordering.effects import Effect, Report
from txlayer.ordering.messages import Event, Void


@dataclass(slots=True)
class Deferred:
    """`early`: of an epoch that the directory has not shown. `parked`: came while delivery is stopped."""

    early: list[Event | Void] = field(default_factory=list)
    parked: list[Event | Void] = field(default_factory=list)

    def keep_early(self, message: Event | Void, most: int) -> list[Effect]:
        """Until a claim comes."""
        if len(self.early) >= most:
            return [Report("too many events of an epoch that is not known here: dropped, to be asked for again")]
        self.early.append(message)
        return []

    def park(self, message: Event | Void, most: int) -> None:
        """Until delivery goes on."""
        self.parked.append(message)
        if len(self.parked) > most:
            self.parked.clear()

    def take_early(self) -> list[Event | Void]:
        """Look at them again."""
        early, self.early = self.early, []
        return early

    def take_parked(self) -> list[Event | Void]:
        """Look at them again."""
        parked, self.parked = self.parked, []
        return parked
