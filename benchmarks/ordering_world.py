"""Sites far from each other in virtual time: real hosts and publishers, links with delays, hosts that take time.

As in the published study (TNO 5.1): clients reach the host of their own site over a near link, all other ways are far.
A host handles one message after the other, each for `service` seconds.
"""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random

from benchmarks.ordering_law import draw_distinct, weights
from txlayer.ordering import effects as fx
from txlayer.ordering.host import Host
from txlayer.ordering.host_state import HostConfig
from txlayer.ordering.messages import AnyMessage, Chained, Complete, Event, Fill, Locate, Register, Stamped
from txlayer.ordering.publisher import Publisher, PublisherConfig
from txlayer.ordering.timestamp import host_of

NEAR, FAR = (0.010, 0.002), (0.100, 0.010)
SERVICE = 400e-6
"""Seconds of a host for a message: the one free parameter. Chosen so that five hosts have enough at about 5,000
requests a second, as the prototype of the study had: each stamp is a request, a confirmation, and what is forwarded."""
_BUS = 0.020
"""Seconds until the bus acknowledges an event."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One experiment."""

    shape: float
    rate: int
    hosts: int = 5
    sites: int = 5
    topics: int = 1000
    clients: int = 1000
    per_client: int = 10
    seconds: float = 2.0
    warm_up: float = 1.0
    service: float = SERVICE
    batch: int = 64
    local: bool = False
    """Nothing is wanted from elsewhere."""


@dataclass(slots=True)
class Figures:
    """What came of it."""

    latency_ms: float
    throughput: int
    forwarded: list[float] = field(default_factory=list)
    """Per host: share of the entries of stamps that went on to another host, of those that it handled."""


class GeoWorld:
    """Build it, `run` it."""

    def __init__(self, setting: Setting, seed: int = 1) -> None:
        self.setting = setting
        # One draw of subscriptions for all rates, host counts and service times, so that a curve shows one effect.
        law = f"{seed}/{setting.shape}/{setting.topics}/{setting.clients}/{setting.per_client}/{setting.local}"
        self._subscriptions = Random(f"subscriptions/{law}")
        self.rng = Random(f"load/{law}")
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._fifo: dict[tuple[str, str], float] = {}
        self._busy = [0.0] * setting.hosts
        self._stamps = [0] * setting.hosts
        self._forwarded = [0] * setting.hosts
        self._asked: dict[tuple[str, str, int], float] = {}
        self._latencies: list[float] = []
        self._done = 0
        self.hosts = [self._host(number) for number in range(setting.hosts)]
        self.publishers = [self._publisher(number) for number in range(setting.clients)]
        self._ticking = [False] * setting.clients
        self._cumulative = list(accumulate(weights(setting.shape, setting.topics)))
        self._introduce()
        self._subscribe()

    def run(self) -> Figures:
        """Load for a while; latency and throughput after the warm-up."""
        setting = self.setting
        end = setting.warm_up + setting.seconds
        self._after(self.rng.expovariate(setting.rate), self._offer)
        while self._heap and self._heap[0][0] <= end:
            self.now, _, act = heapq.heappop(self._heap)
            act()
        shares = [
            round(forwarded / all_bytes, 3) if all_bytes else 0.0
            for forwarded, all_bytes in zip(self._forwarded, self._stamps, strict=True)
        ]
        latency = statistics.mean(self._latencies) * 1000 if self._latencies else 0.0
        return Figures(round(latency, 1), round(self._done / setting.seconds), shares)

    # Building

    def _host(self, number: int) -> Host:
        config = HostConfig(lease=60.0, retention=60.0)
        return Host(f"h{number}", number, (f"t{number}.*",), f"log{number}", config)

    def _publisher(self, number: int) -> Publisher:
        config = PublisherConfig(guard=30.0, repeat=5.0, retained=0, batch=self.setting.batch)
        return Publisher(f"c{number}/p", config)

    def topic(self, number: int) -> str:
        """Hosts own the topics in pieces of the same size, by popularity at their own site."""
        return f"t{number * self.setting.hosts // self.setting.topics}.{number}"

    def _introduce(self) -> None:
        for host in self.hosts:
            self._at_once(host.start([], fx.Neighbours(None, None), 0.0))
        claims = [host.claim() for host in self.hosts]
        for host in self.hosts:
            for claim in claims:
                host.step(claim, 0.0)
        for host in self.hosts:
            self._at_once(host.step(host.directory.neighbours(host.state.rank), 0.0))
        for number in range(self.setting.topics):
            topic = self.topic(number)
            self.hosts[int(topic[1 : topic.index(".")])].step(Locate("all/x", (topic,)), 0.0)
        for publisher in self.publishers:
            for claim in claims:
                publisher.step(claim, 0.0)

    def _subscribe(self) -> None:
        likely = weights(self.setting.shape, self.setting.topics)
        ranks = [self._rank(number) for number in range(self.setting.topics)]
        for client in range(self.setting.clients):
            drawn = draw_distinct(likely, self.setting.per_client, self._subscriptions)
            mine = tuple(sorted({ranks[self._local(client, place)] for place in drawn}))
            lowest = self.hosts[host_of(mine[-1])]
            self._at_once(lowest.step(Register(f"c{client}/s", 1, mine, ()), 0.0))

    def _rank(self, number: int) -> int:
        topic = self.topic(number)
        return self.hosts[int(topic[1 : topic.index(".")])].state.topics[topic].rank

    def _local(self, client: int, place: int) -> int:
        """The topic at this place of the popularity at the client's site.

        A site's own topics come first; then those of the next sites in turn, the least popular of each first: little
        is wanted from elsewhere, and that is not what is popular there.
        """
        own = self.setting.topics // self.setting.sites
        block, index = divmod(place, own)
        if self.setting.local:
            block = 0
        if block:
            index = own - 1 - index
        return (client % self.setting.sites + block) % self.setting.sites * own + index

    def _at_once(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, fx.Send) and effect.to.startswith("h"):
                self._at_once(self.hosts[int(effect.to[1:])].step(effect.message, 0.0))  # type: ignore[arg-type]

    # Running

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + seconds, self._count, act))

    def _offer(self) -> None:
        self._after(self.rng.expovariate(self.setting.rate), self._offer)
        client = self.rng.randrange(self.setting.clients)
        place = min(self._bisect(self.rng.random()), self.setting.topics - 1)
        topic = self.topic(self._local(client, place))
        publisher = self.publishers[client]
        effects = publisher.step(fx.Offer(topic, b""), self.now)
        self._asked[publisher.name, topic, publisher.last_serial(topic)] = self.now
        self._client(client, effects)

    def _bisect(self, value: float) -> int:
        low, high = 0, len(self._cumulative)
        while low < high:
            middle = (low + high) // 2
            if self._cumulative[middle] < value:
                low = middle + 1
            else:
                high = middle
        return low

    def _client(self, client: int, effects: list[fx.Effect]) -> None:
        for effect in effects:
            if isinstance(effect, fx.Send):
                host = int(effect.to[1:])
                self._send(f"c{client}", effect.to, self._near(client, host), self._arrive(host, effect.message))
            elif isinstance(effect, fx.Publish) and isinstance(effect.body, Event):
                self._stamped(client, effect.topic, effect.body)

    def _near(self, client: int, host: int) -> bool:
        return client % self.setting.sites == host * self.setting.sites // self.setting.hosts

    def _stamped(self, client: int, topic: str, event: Event) -> None:
        asked = self._asked.pop((event.publisher, topic, event.serial))
        if self.now > self.setting.warm_up:
            self._latencies.append(self.now - asked)
            self._done += 1
        publisher, handed = self.publishers[client], fx.Handed(topic, event.stamp.number)
        self._after(_BUS, lambda: self._client(client, publisher.step(handed, self.now)))

    def _arrive(self, host: int, message: AnyMessage) -> Callable[[], None]:
        def arrive() -> None:
            self._busy[host] = max(self._busy[host], self.now) + self.setting.service
            self._after(self._busy[host] - self.now, lambda: self._handle(host, message))

        return arrive

    def _handle(self, number: int, message: AnyMessage) -> None:
        for effect in self.hosts[number].step(message, self.now):  # type: ignore[arg-type]
            if not isinstance(effect, fx.Send):
                continue
            self._count_stamp(number, effect.message)
            if effect.to.startswith("h"):
                to = int(effect.to[1:])
                self._send(f"h{number}", effect.to, False, self._arrive(to, effect.message))
            elif effect.to.endswith("/p"):
                client = int(effect.to[1:-2])
                self._send(f"h{number}", effect.to, self._near(client, number), self._answer(client, effect.message))

    def _answer(self, client: int, message: AnyMessage) -> Callable[[], None]:
        publisher = self.publishers[client]
        return lambda: self._client(client, publisher.step(message, self.now))

    def _count_stamp(self, host: int, message: AnyMessage) -> None:
        """Whole stamps, as the study counts them: forwarded, completed for another host, or handed to the publisher."""
        if isinstance(message, Chained) and isinstance(message.body, Fill):
            self._forwarded[host] += len(message.body.ranks)
            self._stamps[host] += len(message.body.ranks)
        elif isinstance(message, Complete):
            self._stamps[host] += len(message.values)
        elif isinstance(message, Stamped):
            manager = self.hosts[host].state.topics[message.topic]
            self._stamps[host] += 0 if manager.needs_up else 1 + len(manager.ranks)

    def _send(self, source: str, target: str, near: bool, arrive: Callable[[], None]) -> None:
        mean, deviation = NEAR if near else FAR
        at = max(self._fifo.get((source, target), 0.0), self.now + max(0.0, self.rng.gauss(mean, deviation)))
        self._fifo[source, target] = at
        self._after(at - self.now, arrive)
