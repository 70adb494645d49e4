"""Which host owns a topic: claims by pattern, the most specific first.

A pattern is a topic's name or a prefix that ends in `*`. Of two claims with the same pattern the newer epoch counts,
then the higher rank: everybody who has seen the same claims comes to the same answer. Where views differ for a while
the host itself refuses what it does not own. A topic that has a rank stays where it has it, whoever claims it later.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer.errors import TopicForbidden
from txlayer.ordering.effects import Claimed, Neighbours


def is_topic(topic: str) -> bool:
    """Whether the ordered bus takes the name."""
    return bool(topic) and not any(sign in topic for sign in "*#+")


def check_topic(topic: str) -> None:
    """Refuse names that the ordered bus does not take."""
    if not is_topic(topic):
        raise TopicForbidden(f"{topic[:200]!r}: the ordered bus takes no wildcards; name each topic")


def covers(pattern: str, topic: str) -> bool:
    """Whether the pattern claims the topic."""
    return topic.startswith(pattern[:-1]) if pattern.endswith("*") else topic == pattern


@dataclass(slots=True)
class Directory:
    """The claims seen so far, by rank, and the members of the chain: some are known only by name.

    `homes`: the hosts of topics whose rank is known.
    """

    claims: dict[int, Claimed] = field(default_factory=dict)
    members: dict[int, str] = field(default_factory=dict)
    homes: dict[str, int] = field(default_factory=dict)

    def see(self, claim: Claimed) -> str | None:
        """Take a claim in. Returns why it is refused, if it is."""
        known = self.claims.get(claim.host)
        if known is not None and claim.epoch < known.epoch:
            return f"host {claim.name} (rank {claim.host}) is of epoch {claim.epoch}, {known.name} of {known.epoch}"
        if known is not None and claim.epoch == known.epoch and claim.name != known.name:
            return f"rank {claim.host} is claimed by {claim.name} and by {known.name} in epoch {claim.epoch}"
        if known is not None and claim.incarnation != known.incarnation:
            return f"rank {claim.host}: {claim.name} comes with another log ({claim.incarnation})"
        self.claims[claim.host] = claim
        self.members[claim.host] = claim.name
        return None

    def follow(self, claim: Claimed) -> tuple[str | None, bool]:
        """As `see`, for clients: a newer holder may come with another log. True if it does: its ranks are others."""
        known = self.claims.get(claim.host)
        replaced = known is not None and claim.epoch > known.epoch and claim.incarnation != known.incarnation
        if replaced:
            del self.claims[claim.host]
            self.homes = {topic: host for topic, host in self.homes.items() if host != claim.host}
        return self.see(claim), replaced

    def learn(self, other: Directory) -> None:
        """Take in what another has seen."""
        for claim in other.claims.values():
            self.see(claim)

    def is_gone(self, host: int, epoch: int) -> bool:
        """Whether the log in which the host was in this epoch is gone."""
        claim = self.claims.get(host)
        return claim is not None and epoch < claim.first

    def home(self, topic: str) -> Claimed | None:
        """Who owns the topic; None: nobody does."""
        return self.claims.get(self.homes.get(topic, -1)) or self.claimant(topic)

    def claimant(self, topic: str) -> Claimed | None:
        """Whose claim counts for a topic that has no rank yet."""
        best: tuple[int, int, int, int] | None = None
        owner = None
        for claim in self.claims.values():
            for pattern in claim.patterns:
                if covers(pattern, topic):
                    key = (not pattern.endswith("*"), len(pattern), claim.epoch, -claim.host)
                    if best is None or key > best:
                        best, owner = key, claim
        return owner

    def others(self, topic: str, host: int) -> list[Claimed]:
        """Who claims the topic besides this host: it may have a rank there."""
        claims = (self.claims[rank] for rank in sorted(self.claims) if rank != host)
        return [claim for claim in claims if any(covers(pattern, topic) for pattern in claim.patterns)]

    def name_of(self, host: int) -> str | None:
        """How to reach the host of this rank."""
        return self.members.get(host)

    def neighbours(self, host: int) -> Neighbours:
        """The chain around a host."""
        ranks = sorted(self.members)
        lower = next((rank for rank in ranks if rank > host), None)
        upper = next((rank for rank in reversed(ranks) if rank < host), None)
        return Neighbours(
            None if lower is None else (lower, self.members[lower]),
            None if upper is None else (upper, self.members[upper]),
        )
