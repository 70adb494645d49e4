"""The subscriptions that concern a host: sets, versions, and when they were last heard of.

A subscriber sends its whole set with a version and waits for the answer before it changes it again; the newest version
counts, an older one is refused. Counters are read, never raised. A subscriber that is silent for longer than the
expiry is removed, so that groups do not grow with the dead; it has by then stopped delivering of its own accord.
"""

from __future__ import annotations

from itertools import pairwise

from txlayer.ordering.deadlines import Deadlines
from txlayer.ordering.effects import Effect, Erase, Persist, Report
from txlayer.ordering.host_state import HostState
from txlayer.ordering.messages import Register
from txlayer.ordering.records import SubscriptionRecord
from txlayer.ordering.topic_manager import TopicManager


def ascending(ranks: tuple[int, ...]) -> bool:
    """Whether each topic is named once, the highest first."""
    return all(one < other for one, other in pairwise(ranks))


class Registry:
    """Who subscribes to what, as far as it concerns this host."""

    __slots__ = ("_heard", "known", "state")

    def __init__(self, state: HostState) -> None:
        self.state = state
        self.known: dict[str, SubscriptionRecord] = {}
        self._heard: Deadlines[str] = Deadlines()

    def concerned(self, message: Register) -> list[TopicManager | None]:
        """Our topics in the old or the new set; None stands for one of ours that does not exist."""
        ranks = sorted({*message.new, *message.old})
        return [self.state.manager(rank) for rank in ranks if self.state.owns(rank)]

    def fault_in(self, message: Register) -> str | None:
        """Why the message cannot be taken; None if it can."""
        known = self.known.get(message.subscriber)
        if not (ascending(message.new) and ascending(message.old)):
            return "topics of a subscription that are not in the order of their ranks"
        if any(manager is None for manager in self.concerned(message)):
            return "a topic of this host that does not exist"
        if known is not None and self.outdated(known, message):
            return f"version {message.version} is older than {known.version}"
        live = known is not None and bool(known.ranks)
        if message.refresh and message.old:
            return "a sign of life that changes the subscription"
        kept = {*message.new} if message.refresh else {*message.new} & {*message.old}
        anew = message.anew and not message.refresh
        if not live and not anew and any(self.state.owns(rank) for rank in kept):
            return "the subscription was removed here: subscribe anew"
        if message.refresh and live and known is not None and (known.version, known.ranks) != (
            message.version, message.new,
        ):  # fmt: skip
            return f"version {message.version} is not what is registered here ({known.version})"
        return None

    def is_full(self, message: Register) -> bool:
        """Whether it would be one subscriber too many."""
        new = message.subscriber not in self.known and any(self.state.owns(rank) for rank in message.new)
        return new and len(self.known) >= self.state.config.subscribers

    def version_of(self, subscriber: str) -> int:
        """The version in force; 0 if there is none."""
        known = self.known.get(subscriber)
        return known.version if known is not None and known.ranks else 0

    def outdated(self, known: SubscriptionRecord, message: Register) -> bool:
        """Whether a newer version has passed here."""
        return message.version < known.version

    def store(self, message: Register, now: float) -> list[Effect]:
        """Take a version in."""
        touched = [manager for manager in self.concerned(message) if manager is not None]
        if not touched:
            return []
        self._hear(message, now)
        if message.refresh:
            return []
        mine = message.new if any(self.state.owns(rank) for rank in message.new) else ()
        record = SubscriptionRecord(
            message.subscriber, message.version, mine, message.related, message.whole, message.lasting
        )
        before = self.known.get(message.subscriber)
        effects: list[Effect] = []
        if record != before:
            self._replace(before, record)
            effects.append(Persist(f"subscription/{message.subscriber}", record))
        for manager in touched:
            # Also for a repetition: its answer carries later baselines.
            manager.mark = self.state.given(manager)
        return effects

    def _hear(self, who: Register | SubscriptionRecord, now: float) -> None:
        config = self.state.config
        self._heard.set(who.subscriber, now + (config.durable_expiry if who.lasting else config.expiry))

    def subscribers_of(self, rank: int) -> list[str]:
        """Whose set has this topic."""
        return [name for name, record in self.known.items() if rank in record.ranks]

    def _replace(self, before: SubscriptionRecord | None, after: SubscriptionRecord) -> None:
        if before is not None:
            for manager in self._managers(before):
                manager.leave(before.ranks, before.related, before.whole)
                manager.mark = self.state.given(manager)
        for manager in self._managers(after):
            manager.join(after.ranks, after.related, after.whole)
        self.known[after.subscriber] = after

    def _managers(self, record: SubscriptionRecord) -> list[TopicManager]:
        managers = [self.state.manager(rank) for rank in record.ranks]
        return [manager for manager in managers if manager is not None]

    def restore(self, record: SubscriptionRecord, now: float) -> None:
        """A subscription from the log."""
        self._replace(None, record)
        self._hear(record, now)

    def expire(self, now: float) -> list[Effect]:
        """Remove subscribers that have been silent for too long."""
        effects: list[Effect] = []
        for subscriber in self._heard.due(now):
            record = self.known.get(subscriber)
            if record is None:
                continue
            if not record.ranks:
                del self.known[subscriber]
                effects.append(Erase(f"subscription/{subscriber}"))
                continue
            # The version stays for as long again, so that a late message of it brings nothing back.
            empty = SubscriptionRecord(subscriber, record.version + 1, (), record.related, record.whole)
            self._replace(record, empty)
            self._heard.set(subscriber, now + self.state.config.expiry)
            effects.append(Persist(f"subscription/{subscriber}", empty))
            effects.append(Report(f"subscriber {subscriber} was silent for too long: removed"))
        return effects

    def next_deadline(self) -> float | None:
        """When the next one is due."""
        return self._heard.next()
