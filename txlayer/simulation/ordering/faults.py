"""What strikes in an ordering world, until it is healed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txlayer.ordering.effects import Publish
from txlayer.ordering.subscriber_config import Cursor
from txlayer.simulation.ordering.nodes import Disk, HostNode, Node

if TYPE_CHECKING:
    from txlayer.simulation.ordering.world import World


class Faults:
    """Each is called at times that the world draws."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cut: set[str] = set()
        self.muted: set[str] = set()
        self.queued: dict[str, list[Publish]] = {}
        self.zombies: dict[str, HostNode] = {}

    def is_former(self, node: Node) -> bool:
        """Whether another holds its rank by now."""
        return any(node is zombie for zombie in self.zombies.values())

    def heal(self) -> None:
        """From now on nothing fails any more."""
        self.world.faulty = False
        self.world.bus.lossless = True

    def crash_publisher(self) -> None:
        """A publisher dies; another life begins."""
        if not self.world.faulty:
            return
        base = f"p{self.world.rng.randrange(self.world.plan.publishers)}"
        node = self.world.nodes[base]
        self.world.history.faults["S2"] += 1
        self.world.history.crashes += 1
        node.alive = False
        self.world.history.dead[node.name] = None
        self.world.start_publisher(base)

    def crash_host(self) -> None:
        """A host dies and restarts; several, where the directory is forgetful."""
        numbers = [self.world.rng.randrange(self.world.plan.hosts)]
        if self.world.plan.forgetful:
            numbers = [number for number in range(self.world.plan.hosts) if self.world.rng.random() < 0.6]
        for number in numbers:
            node = self.world.nodes[f"h{number}"]
            if self.world.faulty and node.alive:
                self.world.history.faults["S1" if self.world.plan.durable_tickets else "S4"] += 1
                self.world.history.crashes += 1
                node.alive = False
                self.world.at(0.01 + 0.3 * self.world.rng.random(), self.world.start_host, number)

    def usurp(self) -> None:
        """A second holder of a rank begins while the first still runs."""
        plan = self.world.plan
        for number in range(plan.hosts) if plan.zombies_at_once else [self.world.rng.randrange(plan.hosts)]:
            self._usurp(number)

    def _usurp(self, number: int) -> None:
        old = self.world.nodes[f"h{number}"]
        if not self.world.faulty or not isinstance(old, HostNode) or old.name in self.zombies:
            return
        self.world.history.faults["M6"] += 1
        self.zombies[old.name] = old
        self.world.start_host(number)
        new = self.world.nodes[f"h{number}"]
        assert isinstance(new, HostNode)
        self.world.at(0.05 + 0.4 * self.world.rng.random(), old.step, new.host.claim())
        for _ in range(self.world.plan.orphans):
            self.world.at(0.4 * self.world.rng.random(), self.crash_publisher)

    def replace_log(self) -> None:
        """A host's log is given up, and the rank goes to another one; the former holder may still run."""
        world = self.world
        number = world.rng.randrange(world.plan.hosts)
        old = world.nodes[f"h{number}"]
        if not world.faulty or not old.alive or not isinstance(old, HostNode) or old.name in self.zombies:
            return
        world.history.faults["S4"] += 1
        world.history.crashes += 1
        world.disks[old.name] = Disk(log=world.disks[old.name].log + 1)
        if world.rng.random() < 0.4:
            world.history.faults["M6"] += 1
            self.zombies[old.name] = old
            self._succeed(number, old)
        else:
            old.alive = False
            world.at(0.01 + 0.3 * world.rng.random(), self._succeed, number, old)

    def _succeed(self, number: int, old: HostNode) -> None:
        self.world.start_host(number, known_epoch=old.host.state.epoch + 1)
        new = self.world.nodes[old.name]
        assert isinstance(new, HostNode)
        self.world.at(0.05 + 0.4 * self.world.rng.random(), old.step, new.host.claim())

    def crash_subscriber(self) -> None:
        """A durable subscriber dies and resumes."""
        name = self.world.rng.choice(sorted(self.world.history.subscribers))
        node, seen = self.world.nodes[name], self.world.history.subscribers[name]
        if not self.world.faulty or not node.alive or name not in self.world.cursors:
            return
        self.world.history.faults["B2" if seen.delivered else "B1"] += 1
        self.world.history.crashes += 1
        node.alive = False
        cursor, delivered = self.world.cursors[name]
        del seen.delivered[delivered:]  # what the application did since is rolled back with it
        self.world.at(0.02 + 0.3 * self.world.rng.random(), self.restart_subscriber, name, cursor)

    def restart_subscriber(self, name: str, cursor: Cursor) -> None:
        """It goes on from its cursor."""
        seen = self.world.history.subscribers[name]
        topics = {topic: rank for topic, rank, _ in cursor.topics}
        for topic in [topic for topic in seen.since if topic not in topics]:
            del seen.since[topic]
        for topic, there in self.world.bus.subscribers.items():
            if name in there and topic not in topics:
                del there[name]
        node = self.world.start_subscriber(name)
        node.take(self.world.subscriber(name).resume(cursor, self.world.clock.now))
        node.plan()
        self.world.bus.again(name)

    def freeze(self) -> None:
        """A publisher stands still for a while."""
        node = self.world.nodes[f"p{self.world.rng.randrange(self.world.plan.publishers)}"]
        if self.world.faulty and not node.frozen:
            self.world.history.faults["M4"] += 1
            node.frozen = True
            self.world.at(0.3 + 0.8 * self.world.rng.random(), node.thaw)

    def mute(self) -> None:
        """A publisher is heard by the bus alone."""
        if not self.world.faulty:
            return
        self.world.history.faults["M5"] += 1
        name = self.world.nodes[f"p{self.world.rng.randrange(self.world.plan.publishers)}"].name
        self.muted.add(name)
        self.world.at(0.9 + 0.6 * self.world.rng.random(), self.muted.discard, name)

    def cut_off(self) -> None:
        """A publisher has lost its broker for longer than a lease; its client queues what it publishes."""
        node = self.world.nodes[f"p{self.world.rng.randrange(self.world.plan.publishers)}"]
        if not self.world.faulty or node.name in self.queued:
            return
        self.world.history.faults["M5"] += 1
        self.cut.add(node.name)
        self.queued[node.name] = []
        self.world.at(0.9 + 0.6 * self.world.rng.random(), self.reconnect, node)

    def reconnect(self, node: Node) -> None:
        """The client publishes what it has queued, if its process still lives."""
        self.cut.discard(node.name)
        for effect in self.queued.pop(node.name):
            if node.alive:
                self.world.publish(node, effect)

    def silence(self) -> None:
        """A subscriber and the hosts do not hear each other."""
        names = sorted(self.world.history.subscribers)
        if not self.world.faulty:
            return
        # Not the process stands still but its way to the hosts.
        self.world.history.faults["M5"] += 1
        chosen = names if self.world.plan.silence_all else [self.world.rng.choice(names)]
        seconds = self.world.rng.choice((1.0, 4.2, 5.0))
        for name in chosen:
            self.cut.add(name)
            self.world.at(seconds, self.cut.discard, name)
