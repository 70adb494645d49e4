"""The logs on which a subscriber's ranks and numbers rest, and where its topics stood under those that are gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from txlayer.ordering.delivery_buffer import Lane
from txlayer.ordering.directory import Directory
from txlayer.ordering.effects import Claimed, Effect, Gap
from txlayer.ordering.timestamp import host_of


@dataclass(frozen=True, slots=True)
class Passed:
    """Where a topic stood under a log that is gone."""

    rank: int
    clock: int
    known: int
    log: str


@dataclass(slots=True)
class FormerLogs:
    """`current`: of each host the log that counts here. `passed`: topics that were subscribed and shall be again."""

    current: dict[int, str] = field(default_factory=dict)
    passed: dict[str, Passed] = field(default_factory=dict)

    def differs(self, claim: Claimed) -> bool:
        """Whether what is known here of the host rests on another log."""
        return self.current.get(claim.host, claim.incarnation) != claim.incarnation

    def leave(self, host: int) -> str:
        """Its log is gone; which one it was."""
        return self.current.pop(host, "")

    def pass_by(self, lane: Lane, log: str) -> None:
        """Remember where a topic stood."""
        self.passed[lane.topic] = Passed(lane.rank, lane.clock, lane.known, log)

    def keep_only(self, wanted: tuple[str, ...]) -> None:
        """Of topics that are no longer wanted nothing is reported."""
        self.passed = {topic: passed for topic, passed in self.passed.items() if topic in wanted}

    def gaps(self, topic: str, baseline: int) -> list[Effect]:
        """What may have been missed of a topic that is subscribed again."""
        passed = self.passed.pop(topic, None)
        if passed is None:
            return []
        first = passed.clock + 1
        before: list[Effect] = [Gap(topic, first, max(first, passed.known), certain=False)]
        return [*before, Gap(topic, 1, baseline, certain=False)] if baseline else before

    def rest_on(self, ranks: Iterable[int], directory: Directory) -> None:
        """These ranks are of the logs that the directory shows."""
        for rank in ranks:
            claim = directory.claims.get(host_of(rank))
            if claim is not None:
                self.current[claim.host] = claim.incarnation

    def in_cursor(self) -> tuple[tuple[int, str], ...]:
        """The logs of what a cursor holds: until a gap is reported it says what it said."""
        logs = {**self.current, **{host_of(one.rank): one.log for one in self.passed.values()}}
        return tuple(sorted(logs.items()))
