"""Hosts, publishers, subscribers and a bus on one seed.

Faults strike first; then they stop, and everything must come to rest: every event that was accepted is with every
subscriber that was there, and nothing is left in a buffer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from random import Random

from txlayer.ordering import effects as fx
from txlayer.ordering.directory import Directory
from txlayer.ordering.host import Host
from txlayer.ordering.host_state import HostConfig
from txlayer.ordering.messages import AnyMessage, Chained, Event, Registered, Void, decode, encode
from txlayer.ordering.publisher import Publisher, PublisherConfig
from txlayer.ordering.subscriber import Subscriber
from txlayer.ordering.subscriber_config import Cursor, Mode, SubscriberConfig
from txlayer.simulation.clock import Clock
from txlayer.simulation.ordering import checkers, forgery
from txlayer.simulation.ordering.bus import Bus
from txlayer.simulation.ordering.faults import Faults
from txlayer.simulation.ordering.history import History, Id, Offered, Seen, SubscriberHistory
from txlayer.simulation.ordering.nodes import Disk, HostNode, Node
from txlayer.simulation.ordering.plan import Plan, draw

GUARD, LEASE, EXPIRY = 0.4, 0.8, 4.0
SETTLE = 6.0
REPEAT = 0.1


class World:
    """Build it, `run` it, read its history."""

    def __init__(self, scenario: str, seed: int, tell: Callable[[str], None] | None = None) -> None:
        self.rng = Random(f"{scenario}/{seed}")
        self.plan: Plan = draw(scenario, self.rng)
        self.clock = Clock()
        self.history = History()
        self.bus = Bus(self.clock, self.rng, self.plan, self.history, self._from_bus)
        self.nodes: dict[str, Node] = {}
        self.faults = Faults(self)
        self.disks: dict[str, Disk] = {}
        self.directory = Directory()
        self._baselines: dict[str, dict[int, int]] = {}
        """Of each subscriber, by rank: what the last answer says."""
        self.cursors: dict[str, tuple[Cursor, int]] = {}
        self.heard: dict[str, dict[Id, None]] = {}
        self.faulty = True
        self._tell = tell
        self._hash = hashlib.sha256()
        self._fifo: dict[tuple[str, str], float] = {}
        self._lives = 0
        self._serials: dict[tuple[str, str], int] = {}
        self._wishes: dict[str, tuple[str, ...]] = {}
        self.topics: list[str] = []

    def run(self) -> History:
        """From the first start to rest."""
        self._build()
        self._schedule()
        plan = self.plan
        self.clock.after(plan.length, self.faults.heal)
        end = plan.length + (plan.settle or (2 * SETTLE if plan.bus_loss else SETTLE))
        while True:
            upcoming = self.clock.next_time()
            if upcoming is None or upcoming > end:
                break
            self.clock.advance()
        checkers.check(self)
        return self.history

    def trace_hash(self) -> str:
        """The same for the same seed, in any process."""
        return self._hash.hexdigest()

    # Building

    def _build(self) -> None:
        plan = self.plan
        for number in range(plan.hosts):
            self.disks[f"h{number}"] = Disk()
        self.topics = [f"t{n % plan.hosts}.{n}" for n in range(plan.topics)]
        for number in range(plan.hosts):
            self.start_host(number)
        for number in range(plan.publishers):
            self.start_publisher(f"p{number}")
        for number in range(plan.subscribers):
            self.history.subscribers[f"s{number}"] = SubscriberHistory()
            if plan.subscriber_crashes:
                self.bus.stored[f"s{number}"] = []
            self.start_subscriber(f"s{number}")

    def _host_config(self) -> HostConfig:
        return HostConfig(
            lease=LEASE, retention=self.plan.retention, block=self.plan.block,
            durable_tickets=self.plan.durable_tickets, deltas=self.plan.mode is not Mode.UNRELIABLE, expiry=EXPIRY,
            search=0.4, searches=3, repeat=0.1,
        )  # fmt: skip

    def _patterns(self, number: int) -> tuple[str, ...]:
        """What a host claims. Overlapping: host 0 everything, so that every topic has a claimant."""
        own = f"t{number}.*"
        if not self.plan.overlapping:
            return (own,)
        pinned = tuple(self.rng.sample(self.topics, self.rng.randint(0, 2)))
        return (*self.rng.choice((("*",), (own,), (own, "t*"))), *pinned) if number else ("*", *pinned)

    def start_host(self, number: int, known_epoch: int = 0) -> None:
        """Begin a life of a host, from its disk."""
        name = f"h{number}"
        disk = self.disks[name]
        log = f"log-{number}" if not disk.log else f"log-{number}-{disk.log}"
        host = Host(name, number, self._patterns(number), log, self._host_config())
        node = HostNode(
            name, host, self.clock, self._perform, self._trace, disk=disk, sync_time=lambda: 0.004 * self.rng.random()
        )
        disk.holder = node
        self.nodes[name] = node
        node.take(host.start(disk.records(), self._shown(node, number), self.clock.now, known_epoch))
        node.plan()
        self._log_of(host)
        claim = host.claim()
        self.directory.follow(claim)
        for other in list(self.nodes.values()):
            if other is not node:
                self.clock.after(self.plan.claim_delay * self.rng.random(), partial(other.step, claim))

    def _log_of(self, host: Host) -> None:
        logs = self.history.logs.setdefault(host.state.rank, [])
        if host.state.log not in logs:
            logs.append(host.state.log)

    def _shown(self, node: HostNode, number: int) -> fx.Neighbours:
        """What the directory shows a host that starts; the rest comes later."""
        others = [claim for claim in self.directory.claims.values() if claim.host != number]
        late = [claim for claim in others if self.plan.forgetful and node.disk.rows and self.rng.random() < 0.6]
        for claim in others:
            if claim not in late:
                node.host.directory.see(claim)
        for claim in late:
            self.at(0.1 + 0.5 * self.rng.random(), node.step, claim)
        if late:
            return node.host.directory.neighbours(number)
        lower = (number + 1, f"h{number + 1}") if number + 1 < self.plan.hosts else None
        upper = (number - 1, f"h{number - 1}") if number else None
        return fx.Neighbours(lower, upper)

    def start_publisher(self, base: str) -> None:
        """Begin a life of a publisher, under a name of its own."""
        self._lives += 1
        name = f"{base}#{self._lives}"
        config = PublisherConfig(
            guard=GUARD, repeat=REPEAT, batch=self.plan.batch, window=3, retention=30.0, causal=self.plan.causal
        )
        publisher = Publisher(name, config)
        publisher.directory.learn(self.directory)
        node = Node(name, publisher, self.clock, self._perform, self._trace)
        self.nodes[base] = node
        self.nodes[name] = node

    def start_subscriber(self, name: str) -> Node:
        """Begin a life of a subscriber."""
        plan = self.plan
        config = SubscriberConfig(
            mode=plan.mode, repeat=0.1, resend=0.5, refresh=1.5, expiry=EXPIRY * 0.9, capacity=plan.capacity,
            time_to_live=0.2,
        )  # fmt: skip
        subscriber = Subscriber(name, config)
        subscriber.directory.learn(self.directory)
        node = self.nodes[name] = Node(name, subscriber, self.clock, self._perform, self._trace)
        return node

    # What happens

    def _schedule(self) -> None:
        plan, rng = self.plan, self.rng
        for name in self.history.subscribers:
            count = len(self.topics) if plan.toggles else rng.randint(1, len(self.topics))
            self.at(plan.arrival * rng.random(), self._want, name, tuple(rng.sample(self.topics, count)))
        start = 0.0 if rng.random() < 0.3 else 0.3
        span = 0.3 if plan.burst else plan.length - start
        for _ in range(plan.events):
            at = start + span * rng.random()
            self.at(at, self._offer, f"p{rng.randrange(plan.publishers)}")
        for _ in range(plan.changes):
            self.at(0.2 + plan.length * rng.random(), self._change)
        for _ in range(plan.new_topics):
            self.at(plan.length * rng.random(), self._new_topic)
        for happening, times in (
            (self.faults.crash_publisher, plan.publisher_crashes),
            (self.faults.crash_host, plan.host_crashes),
            (self.faults.crash_subscriber, plan.subscriber_crashes),
            (self.faults.usurp, plan.zombies),
            (self.faults.replace_log, plan.replaced_logs),
            (self.faults.mute, plan.mutes),
            (self.faults.freeze, plan.freezes),
            (self.faults.cut_off, plan.cut_offs),
        ):
            for _ in range(times):
                self.at(0.2 + plan.length * rng.random(), happening)
        for _ in range(plan.silences):
            self.at(0.5 + 2.0 * rng.random(), self.faults.silence)

    def at(self, seconds: float, action: Callable[..., None], *arguments: object) -> None:
        """Let something happen later."""
        self.clock.after(seconds, partial(action, *arguments))

    def _want(self, name: str, topics: tuple[str, ...]) -> None:
        seen = self.history.subscribers[name]
        for topic in [topic for topic in seen.since if topic not in topics]:
            del seen.since[topic]
        self._wishes[name] = topics
        self.nodes[name].step(fx.Want(topics))

    def _offer(self, base: str, topic: str | None = None) -> None:
        node = self.nodes[base]
        publisher = node.role
        assert isinstance(publisher, Publisher)
        topic = topic or self.rng.choice(self.topics)
        serial = self._serials[node.name, topic] = self._serials.get((node.name, topic), 0) + 1
        id = Id(node.name, topic, serial)
        heard = frozenset(self.heard.get(node.name, ()))
        deadline = self.clock.now + 0.2 + self.rng.random() if self.plan.deadlines else None
        self.history.offered[id] = Offered(id, self.clock.now, deadline, after=heard)
        self.heard.setdefault(node.name, {})[id] = None
        self.history.events += 1
        node.step(fx.Offer(topic, b"%d" % serial, deadline))

    def _change(self) -> None:
        name = "s1" if self.plan.toggles else self.rng.choice(sorted(self.history.subscribers))
        now = list(self.subscriber(name)._wanted)
        if self.plan.toggles:
            whole = len(now) == len(self.topics)
            topics = self.rng.sample(self.topics, len(self.topics) - whole)
        elif self.plan.removals_only:
            topics = [topic for topic in now if self.rng.random() < 0.6]
        else:
            topics = self.rng.sample(self.topics, self.rng.randint(0, len(self.topics)))
        self._want(name, tuple(topics))

    def subscriber(self, name: str) -> Subscriber:
        """A subscriber's role."""
        role = self.nodes[name].role
        assert isinstance(role, Subscriber)
        return role

    def _new_topic(self) -> None:
        topic = f"t{self.rng.randrange(self.plan.hosts)}.{len(self.topics)}"
        self.topics.append(topic)
        for name in sorted(self.history.subscribers):
            if self.rng.random() < 0.6:
                self._want(name, (*self.subscriber(name)._wanted, topic))
        for _ in range(5):
            self.at(0.6 * self.rng.random(), self._offer, f"p{self.rng.randrange(self.plan.publishers)}", topic)

    # Effects

    def _perform(self, node: Node, effect: fx.Effect) -> None:
        match effect:
            case fx.Send():
                self._send(node, effect.to, effect.message)
            case fx.Publish():
                self.publish(node, effect)
            case fx.Deliver():
                self._delivered(node, effect)
            case fx.Gap():
                self._gap(node, effect)
            case fx.Checkpoint():
                if node.name in self.bus.stored:
                    self._save(node)
            case fx.Changed():
                self._changed(node, effect)
            case fx.BusSubscribe():
                self.at(0.03 * self.rng.random(), self._bus_subscribe, node, effect.topic)
            case fx.BusUnsubscribe():
                self.bus.subscribers.get(effect.topic, {}).pop(node.name, None)
            case fx.Failed() if isinstance(node.role, Subscriber):
                self._unsubscribed(node, effect)
            case fx.Accepted() | fx.Failed():
                self._ended(node, effect)
            case fx.Report():
                self._reported(node, effect)
            case _:
                raise AssertionError(effect)

    def _unsubscribed(self, node: Node, effect: fx.Failed) -> None:
        """A subscription was refused. Where hosts do not agree yet on whose a topic is, its application tries again."""
        if not self.plan.overlapping:
            self.history.violation(f"{node.name}: {effect}")
        wanted = self._wishes[node.name]
        self.at(0.2, self._want, node.name, wanted)

    def _ended(self, node: Node, effect: fx.Accepted | fx.Failed) -> None:
        """An application learns what became of its event."""
        offered = self.history.offered.get(Id(node.name, effect.topic, effect.serial))
        if offered is None:
            self.history.violation(f"{node.name} has {effect}, which it did not publish")
        elif isinstance(effect, fx.Accepted):
            late = offered.deadline is not None and self.clock.now > offered.deadline + 2 * REPEAT
            if late and not self.plan.freezes:
                self.history.violation(f"{node.name}: {effect} came long after its deadline")
            offered.accepted = True
        else:
            early = offered.deadline is None or offered.deadline > self.clock.now
            expected = self.plan.replaced_logs if effect.unknown else self.plan.overlapping
            if (early and not expected) or offered.failed or offered.in_doubt:
                self.history.violation(f"{node.name}: {effect}")
            offered.in_doubt, offered.failed = effect.unknown, not effect.unknown
        if offered is not None and offered.accepted and (offered.failed or offered.in_doubt):
            self.history.violation(f"{node.name}: {effect} is the second word about it")

    def _gap(self, node: Node, effect: fx.Gap) -> None:
        self.history.faults["B3"] += 1
        self.history.subscribers[node.name].gaps.append((effect.topic, effect.first, effect.last, effect.certain))
        doubts_allowed = self.plan.host_crashes + self.plan.zombies > 0 and not self.plan.durable_tickets
        doubts_allowed = doubts_allowed or self.plan.replaced_logs > 0
        if not (self.plan.gaps_allowed if effect.certain else doubts_allowed):
            self.history.violation(f"{node.name} has a gap {effect}")
        if self.plan.placed_gaps:
            rank = self.subscriber(node.name).ranks[effect.topic]
            for number in range(effect.first, effect.last + 1):
                if (rank, number) in self.history.subscribers[node.name].arrived:
                    self.history.violation(f"{node.name} has a gap {effect}, but it had got {number}")

    def _reported(self, node: Node, effect: fx.Report) -> None:
        """Run-time assertions of the roles count as violations, where no fault of the plan explains them."""
        if self.faults.is_former(node):
            return  # it does not know what its successor has given
        if self.plan.replaced_logs:
            return  # the word of another log may come before its claim
        forgetful = self.plan.subscriber_crashes + self.plan.zombies + self.plan.replaced_logs
        if "is not what is registered here" in effect.reason and not forgetful:
            self.history.violation(f"{node.name}: {effect.reason}")
        if any(words in effect.reason for words in ("went back", "never given", "is bound to", "changed its rank")):
            self.history.violation(f"{node.name}: {effect.reason}")
        if (
            isinstance(node.role, Publisher)
            and effect.reason.startswith("stamp ")
            and "is of epoch" not in effect.reason
        ):
            self.history.violation(f"{node.name}: {effect.reason}")

    def _send(self, node: Node, to: str, message: AnyMessage) -> None:
        plan, rng, faults = self.plan, self.rng, self.history.faults
        chained = isinstance(message, Chained)
        if node.name in self.faults.cut or to in self.faults.cut or node.name in self.faults.muted:
            return
        if self.faulty and rng.random() < (plan.chain_loss if chained else plan.client_loss):
            faults["M1"] += 1
            return
        if plan.answers_lost and isinstance(message, Registered) and self.faulty and rng.random() < plan.answers_lost:
            faults["M1"] += 1
            return
        if plan.wire:
            message = decode(encode(message))
        delay = 0.001 + (plan.chain_delay if chained else 0.02) * rng.random()
        if chained and not plan.chain_reorder:
            delay = self._in_turn(node.name, to, delay)
        elif chained:
            faults["M3"] += 1
        self.at(delay, self._arrive, node, to, message)
        if self.faulty and plan.duplicate and rng.random() < plan.duplicate:
            faults["M2"] += 1
            self.at(delay + 0.1 * rng.random(), self._arrive, node, to, message)

    def _in_turn(self, source: str, target: str, delay: float) -> float:
        at = max(self._fifo.get((source, target), 0.0) + 1e-6, self.clock.now + delay)
        self._fifo[source, target] = at
        return at - self.clock.now

    def _arrive(self, source: Node, to: str, message: AnyMessage) -> None:
        zombie = self.faults.zombies.get(to)
        if zombie is not None and zombie.alive and zombie.host.fenced is None and self._goes_to_former(source):
            zombie.step(message)
            return
        node = self.nodes.get(to)
        if isinstance(message, Registered):
            self._baselines[to] = dict(zip(message.ranks, message.values, strict=False))
        if node is not None:
            node.step(message)

    def _goes_to_former(self, source: Node) -> bool:
        """Two hosts have one name. Where all do, former ones hear the new ones and the other way round."""
        if self.plan.zombies_at_once and isinstance(source, HostNode):
            return not self.faults.is_former(source)
        if self.plan.apart and not isinstance(source, HostNode):
            return isinstance(source.role, Publisher)
        return self.rng.random() < 0.5

    def publish(self, node: Node, effect: fx.Publish) -> None:
        """On the bus, or in the queue of a client that has lost its broker."""
        body = effect.body
        if node.name in self.faults.queued:
            self.faults.queued[node.name].append(effect)
            return
        if isinstance(body, Event):
            id = Id(body.publisher, effect.topic, body.serial)
            number = (body.stamp.rank, body.stamp.number)
            if self.history.numbers.setdefault(number, id) != id:
                self.history.violation(f"number {number} was given to {self.history.numbers[number]} and to {id}")
            self.history.numbers_of.setdefault(id, []).append(body.stamp.number)
            self.at(0.02 * self.rng.random(), node.step, fx.Handed(effect.topic, body.stamp.number))
        else:
            self.history.faults["S2"] += 1
        self.bus.publish(effect.topic, body)
        if self.plan.forged and self.rng.random() < self.plan.forged:
            self.history.faults["M8"] += 1
            self.bus.publish(effect.topic, forgery.forge(body, self.rng))

    def _bus_subscribe(self, node: Node, topic: str) -> None:
        if node.alive:
            self.bus.subscribers.setdefault(topic, {})[node.name] = None
            node.step(fx.BusSubscribed(topic))

    def _from_bus(self, name: str, body: Event | Void) -> None:
        if isinstance(body, Event) and body.publisher != forgery.FORGER:
            self.history.subscribers[name].arrived.add((body.stamp.rank, body.stamp.number))
        self.nodes[name].step(body)

    def _changed(self, node: Node, effect: fx.Changed) -> None:
        seen, subscriber = self.history.subscribers[node.name], self.subscriber(node.name)
        for topic in effect.topics:
            if topic in subscriber._wanted and topic not in seen.since:
                seen.since[topic] = self.clock.now
                seen.starts[topic] = len(seen.delivered)
                seen.baselines[topic] = self._baselines.get(node.name, {}).get(subscriber.ranks[topic], 0)
        if node.name in self.bus.stored:
            self.at(0.0, self._save, node)

    def _delivered(self, node: Node, effect: fx.Deliver) -> None:
        event = effect.event
        id = Id(event.publisher, effect.topic, event.serial)
        seen = self.history.subscribers[node.name]
        seen.delivered.append(Seen(id, event.stamp.number, effect.out_of_order, self.clock.now))
        self._hash.update(f"{node.name}{id}{effect.out_of_order}".encode())
        if self.plan.causal:
            # Each subscriber is the same process as a publisher: what it has seen, its later events follow.
            base = f"p{int(node.name[1:]) % self.plan.publishers}"
            heard = self.heard.setdefault(self.nodes[base].name, {})
            heard[id] = None
            heard.update(dict.fromkeys(self.history.offered[id].after))
        if node.name in self.bus.stored and self.rng.random() < 0.3:
            self.at(0.0, self._save, node)

    def _save(self, node: Node) -> None:
        """A durable subscriber's application commits its work, the cursor and the consumed position together."""
        subscriber = node.role
        assert isinstance(subscriber, Subscriber)
        if not node.alive:
            return
        cursor = subscriber.cursor()
        self.cursors[node.name] = (cursor, len(self.history.subscribers[node.name].delivered))
        clocks = {rank: clock for _, rank, clock in cursor.topics}
        self.bus.stored[node.name] = [
            (topic, body)
            for topic, body in self.bus.stored[node.name]
            if (body.stamp.number if isinstance(body, Event) else body.last)
            > clocks.get(body.stamp.rank if isinstance(body, Event) else body.rank, 0)
        ]

    def _trace(self, name: str, event: object) -> None:
        self.history.steps += 1
        self._hash.update(f"{self.clock.now:.9f}{name}{type(event).__name__}".encode())
        if self._tell is not None:
            self._tell(f"{self.clock.now:9.4f} {name:6} {event}")
