"""Before a topic is created: whether it has a rank at another host that claims it too.

A topic's rank is for ever, so a topic exists at one host only. Claims may overlap (`*` here, `orders*` there) and
change; so a host asks all others that claim a topic before it gives it a rank, and creates it when all have said no. A
host that has it says so, and from then on gets what is meant for the topic handed on. If two ask each other at the same
time, the higher-ranked one goes first for a while; the other promises to leave the topic alone for as long. If one does
not answer for that long, whoever wants the topic is told. All of this supposes that claims are heard of within a lease.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from txlayer.ordering.directory import Directory
from txlayer.ordering.effects import Effect, Report, Send
from txlayer.ordering.host_state import HostState
from txlayer.ordering.messages import Seek, Sought
from txlayer.ordering.timestamp import host_of

_NOT_HERE, _MINE = -1, -2
"""In place of a rank: the topic does not exist; it is about to."""


@dataclass(slots=True)
class Founding:
    """Of one host."""

    state: HostState
    directory: Directory
    _asked: dict[str, dict[int, None]] = field(default_factory=dict)
    _since: dict[str, float] = field(default_factory=dict)
    _promised: dict[str, float] = field(default_factory=dict)

    def stuck(self, topic: str, now: float) -> str | None:
        """Why the topic cannot be created, if that is so for long; the next one who wants it begins anew."""
        if topic not in self._asked:
            return self._too_many(topic, now)
        if now - self._since[topic] < self.state.config.lease:
            return None
        names = [self.directory.claims[host].name for host in self._asked[topic]]
        self._drop(topic)
        return f"topic {topic!r} is claimed by host {', '.join(names)} too, which does not say whether it has it"

    def _too_many(self, topic: str, now: float) -> str | None:
        """Why nothing more is asked for. Whoever wanted a topic may have gone: its question stays for a lease."""
        most = self.state.config.founding
        if len(self._asked) >= most:
            for old in [name for name in self._asked if not self._waits(name, now)]:
                self._drop(old)
        exists = topic in self.state.topics
        if len(self._asked) < most or exists or not self.directory.others(topic, self.state.rank):
            return None
        return f"host {self.state.name} asks others about {most} topics, its limit"

    def ask(self, topic: str, now: float) -> list[Effect] | None:
        """None: the topic may be created. Otherwise what to send; whoever wants the topic repeats it."""
        if self._promised.get(topic, now) > now:
            return []  # also to a host whose claim to the topic has not come yet
        self._promised.pop(topic, None)
        others = self.directory.others(topic, self.state.rank)
        if not others:
            return None
        self._since.setdefault(topic, now)
        open_hosts = self._asked.setdefault(topic, dict.fromkeys(claim.host for claim in others))
        question = Seek(self.state.rank, self.state.epoch, topic)
        return [Send(claim.name, question) for claim in others if claim.host in open_hosts]

    def answer(self, message: Seek, now: float) -> list[Effect]:
        """Another host is about to create a topic."""
        asker = self.directory.claims.get(message.host)
        if asker is None or message.epoch < asker.epoch or message.host == self.state.rank:
            return []
        manager = self.state.topics.get(message.topic)
        if manager is not None:
            rank = manager.rank
        elif self.state.rank < message.host and self._waits(message.topic, now):
            rank = _MINE
        else:
            rank = _NOT_HERE
            self._leave(message.topic, now)
        return [Send(asker.name, Sought(self.state.rank, self.state.epoch, message.topic, rank))]

    def _waits(self, topic: str, now: float) -> bool:
        """Whether it was asked for here and the answers may still come: whoever wanted it may have gone elsewhere."""
        return now - self._since.get(topic, -inf) < self.state.config.lease

    def answered(self, message: Sought, now: float) -> tuple[bool, list[Effect]]:
        """Whether the topic may be created now, and what to do besides."""
        asked = self._asked.get(message.topic)
        known = self.directory.claims.get(message.host)
        if asked is None or message.host not in asked or known is None or message.epoch < known.epoch:
            return False, []
        if message.rank >= 0 and host_of(message.rank) == message.host:
            self._drop(message.topic)
            self.directory.homes[message.topic] = message.host
            return False, [Report(f"topic {message.topic} lives on host {known.name}, and stays there")]
        if message.rank != _NOT_HERE:
            self._leave(message.topic, now)
            return False, []
        del asked[message.host]
        if asked:
            return False, []
        self._drop(message.topic)
        return True, []

    def _drop(self, topic: str) -> None:
        self._asked.pop(topic, None)
        self._since.pop(topic, None)

    def _leave(self, topic: str, now: float) -> None:
        self._drop(topic)
        for old in [name for name, until in self._promised.items() if until <= now]:
            del self._promised[old]
        self._promised[topic] = now + self.state.config.lease
