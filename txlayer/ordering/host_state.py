"""What the parts of a host share: who it is, its topics and its counters."""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer.ordering.counters import Counters
from txlayer.ordering.effects import Effect, Persist, Send
from txlayer.ordering.messages import Refused
from txlayer.ordering.records import TopicRecord
from txlayer.ordering.timestamp import host_of, log_of, log_since, place_of, rank_at
from txlayer.ordering.topic_manager import TopicManager


@dataclass(frozen=True, slots=True)
class HostConfig:
    """Times and sizes of a host.

    `lease` must be longer than the publishers' guard time and the longest time that an event is on the bus.
    `founding`: topics at a time about which other hosts are asked. `unsure_ranges`: what one answer to a subscriber may
    tell of numbers in doubt, beside one range for each of its topics.
    """

    lease: float = 10.0
    retention: float = 60.0
    retained: int = 100_000
    voids: int = 100_000
    block: int = 4096
    durable_tickets: bool = False
    deltas: bool = True
    expiry: float = 60.0
    durable_expiry: float = 7 * 86_400.0
    search: float = 2.0
    searches: int = 3
    repeat: float = 0.5
    largest_batch: int = 65_536
    topics: int = 1_000_000
    subscribers: int = 1_000_000
    founding: int = 4096
    unsure_ranges: int = 1024


@dataclass(slots=True)
class HostState:
    """One host of topic managers: a whole range of ranks."""

    name: str
    rank: int
    config: HostConfig
    epoch: int = 0
    first_epoch: int = 1
    counters: Counters = field(default_factory=Counters)
    topics: dict[str, TopicManager] = field(default_factory=dict)
    places: list[TopicManager] = field(default_factory=list)

    def owns(self, rank: int) -> bool:
        """Whether the topic is one of ours."""
        return host_of(rank) == self.rank

    @property
    def log(self) -> int:
        """Which log of this host it is."""
        return log_since(self.first_epoch)

    def manager(self, rank: int) -> TopicManager | None:
        """The manager of one of our topics."""
        place = place_of(rank)
        known = self.owns(rank) and log_of(rank) == self.log and place < len(self.places)
        return self.places[place] if known else None

    def add_topic(self, name: str) -> TopicManager:
        """Give a new topic the next place."""
        rank = rank_at(self.rank, len(self.places), self.log)
        manager = TopicManager(name, rank, self.counters.slot_of(rank))
        self.topics[name] = manager
        self.places.append(manager)
        return manager

    def given(self, manager: TopicManager) -> int:
        """The last number that the topic has given out."""
        return self.counters.values[manager.slot]

    def regroup(self, manager: TopicManager) -> None:
        """Bring a topic's group up to date."""
        manager.regroup(self.counters, rank_at(self.rank, 0))

    def persist(self, manager: TopicManager) -> Persist:
        """The topic's record as it is now."""
        record = TopicRecord(manager.rank, manager.name, manager.reserved, manager.close_prefix(), manager.floor)
        return Persist(f"topic/{place_of(manager.rank)}", record)

    def refuse(
        self, to: str, about: str, topic: str, reason: str, version: int = 0, current: int = 0, number: int = 0
    ) -> list[Effect]:
        """Say no, and why."""
        return [Send(to, Refused(about, topic, version, self.rank, self.epoch, reason, current, number))]
