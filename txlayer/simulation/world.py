"""The world on one seed: sites, bus, time, faults, applications; first faults, then healing, then the checkers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from random import Random

from txlayer import messages as m
from txlayer.effects import (
    AskCall,
    FollowCall,
    Input,
    PresenceChanged,
)
from txlayer.logs.memory import MemoryDisk
from txlayer.logs.record_log import Identity
from txlayer.logs.register import MemoryRegister, Register
from txlayer.messages import ChainKind, TxId
from txlayer.simulation.bus import SimulatedBus, seals
from txlayer.simulation.checkers import check, lost_log_checker
from txlayer.simulation.clock import Clock
from txlayer.simulation.edges import Edges
from txlayer.simulation.history import History
from txlayer.simulation.node import Node
from txlayer.simulation.observer import Observer
from txlayer.simulation.plan import Plan
from txlayer.simulation.rows import rows_hit
from txlayer.simulation.workload import LATER, TYPES, Script
from txlayer.transactions.seat import Patience


class World:
    """Runs one plan."""

    def __init__(self, seed: int, plan: Plan, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.plan = plan
        self.rng = Random(f"world {seed}")
        self.clock = Clock()
        self.history = History()
        self.faults = plan.faults
        self.register: Register = MemoryRegister()
        self.hash = sha256()
        self.scripts: dict[str, Script] = {}
        self.nodes: dict[str, Node] = {}
        self._trace = trace
        self._points: dict[str, int] = {}
        self._healed = False
        self._make_nodes()
        self.edges = Edges(self)
        self.observer = Observer(self.history, self.clock, self.nodes)
        self.bus = self.make_bus()
        self.network = self.bus.network

    def make_bus(self) -> SimulatedBus:
        """What carries frames in this world."""
        return SimulatedBus(self, seals(self.plan.level))

    def _make_nodes(self) -> None:
        patience = Patience(retry=0.2, in_doubt=0.6, gap=0.1, linger=2.0, mark=1.0, longest=5.0)
        plan = self.plan
        for number in range(plan.sites):
            name = f"s{number}"
            incarnation = sha256(f"{self.seed} {name}".encode()).hexdigest()[:8]
            identity = Identity(incarnation, sha256(f"secret {name}".encode()).digest())
            finishers = (f"s{(number + 1) % plan.sites}",) if plan.finishers else ()
            self.nodes[name] = Node(name, self, patience, plan.bounds, identity, finishers)

    # Running

    def run(self) -> History:
        """Faults, healing, checks."""
        if self.plan.drop is not None or self.plan.late is not None:
            self.network.drop_next = self._directed
        if self.plan.wipe:
            self.network.drop_next = self._lose_decision
        for name in self.nodes:
            self._start(name)
        for at, call, items, abort, helpers in self.plan.scripts:
            script = Script(self, call, items, abort, helpers)
            self.scripts[call.key] = script
            self.history.calls[call.key] = call
            self.clock.after(at, script.begin)
        self._plan_disturbances()
        directed = self.plan.crash is not None
        while self.clock.run(self.plan.span + 15.0, most=1 if directed else 1000):
            if directed and self._at_rest():
                break
        self._heal()
        end = self.clock.now + self.plan.heal_for
        while self.clock.run(end, most=200):
            if self._at_rest():
                break
        if self.plan.wipe:
            lost_log_checker(self)
        else:
            check(self)
        return self.history

    def trace_hash(self) -> str:
        """The same for the same seed, everywhere."""
        return self.hash.hexdigest()

    def node(self, name: str) -> Node:
        """A site by name."""
        return self.nodes[name]

    def _heal(self) -> None:
        self._healed = True
        self.faults.heal()
        self.network.cut.clear()
        for name, node in self.nodes.items():
            node.paused_until = self.clock.now
            if not node.up:
                self._start(name)
            else:
                self._announce(name, True)
        for script in self.scripts.values():
            self.clock.after(self.plan.heal_for / 4, partial(self._ask_again, script))
            if script.call.done and script.call.outcomes[-1].tx is not None:
                script.ask_later()

    def _ask_again(self, script: Script) -> None:
        """A caller that has heard nothing asks once more, when everything works."""
        call = script.call
        for helper in script.helpers:
            for node in self.nodes.values():
                if node.participant is not None and helper in node.participant.publishers:
                    node.take(AskCall(helper, call.coordinator, script.tx))
        if not call.done and script.started:
            script.ask()

    def _at_rest(self) -> bool:
        """Nothing is open anywhere."""
        if not all(script.call.done for script in self.scripts.values()) or self._later_calls():
            return False
        return not any(self.unfinished(node) for node in self.nodes.values())

    def _later_calls(self) -> bool:
        open_calls = (node.participant.publishers for node in self.nodes.values() if node.participant is not None)
        return any(call.endswith(LATER) for calls in open_calls for call in calls)

    def unfinished(self, node: Node) -> list[str]:
        """What a site still has to do; empty at rest."""
        if node.participant is None or node.ahead is None:
            return ["down"]
        desk = node.participant.coordinator
        left = [f"coordinates {tx} ({c.phase.value})" for tx, c in desk.transactions.items() if not c.settled()]
        for kind, chain in desk.chains.items():
            left += [f"has {len(chain.entries)} entries for readers of {kind.value}"] if chain.entries else []
        for members in node.participant.subscriber.members.values():
            left += [f"remembers {tx}" for tx in members if not self._may_remember(node.name, tx)]
        left += [f"has prepared {tx}" for tx in node.resource.prepared]
        left += [f"has open {tx}" for tx in node.resource.units]
        left += [f"holds {len(node.ahead.held)} outputs"] if node.ahead.held else []
        return left

    def _may_remember(self, site: str, tx: TxId) -> bool:
        """Parked work stays; so do tombstones of what a dead caller never confirmed."""
        node = self.nodes.get(tx.coordinator)  # none if the name was altered on the way
        coordinator = node.participant if node is not None else None
        unconfirmed = coordinator is not None and tx in coordinator.coordinator.settled
        return unconfirmed or (site, tx) in self.history.parked

    # Disturbances

    def _plan_disturbances(self) -> None:
        if self.plan.crash is not None:
            return
        faults, rng = self.faults, self.rng
        for name in self.nodes:
            at = 0.0
            while at < self.plan.span:
                at += 1.0
                if rng.random() < faults.crash:
                    self.clock.after(at + rng.random(), partial(self.crash, name, "at random"))
                if rng.random() < faults.pause:
                    self.clock.after(at + rng.random(), partial(self._pause, name))
                if rng.random() < faults.partition:
                    self.clock.after(at + rng.random(), partial(self._cut, name, both=True))
                if rng.random() < faults.one_way:
                    self.clock.after(at + rng.random(), partial(self._cut, name, both=False))
                if rng.random() < faults.presence_flap:
                    self.clock.after(at + rng.random(), partial(self._announce, name, False))
                if rng.random() < faults.full_disk:
                    self.clock.after(at + rng.random(), partial(self._fill_disk, name))
                if rng.random() < faults.old_log:
                    self.clock.after(at + rng.random(), partial(self._copy_log, name))

    def crash(self, name: str, why: str) -> None:
        """A site dies; it comes back unless the world ends first."""
        node = self.nodes[name]
        if not node.up or self._healed:
            return
        self.history.crashes += 1
        self.history.crashed[name] = None
        self.history.faults.update(rows_hit(node))
        self.note(name, f"crashes {why}")
        node.crash(kept=self.rng.choice([0, 1]))
        if self.plan.wipe:  # its log is lost; the secret, kept elsewhere, is not
            node.disk, node.remembered = MemoryDisk(), None
            node.identity = Identity(f"{node.identity.incarnation}-again", node.identity.secret)
        self.clock.after(0.2 + 0.3 * self.rng.random(), lambda: self._announce(name, False))
        pause = self.plan.restart_after * (0.5 + 4 * self.rng.random())
        self.clock.after(pause, lambda: self._start(name))
        if self.plan.replay:
            self.clock.after(pause + 0.01, lambda: self._redeliver(name))

    def _redeliver(self, name: str) -> None:
        """The bus delivers again what the dead site never acknowledged, in order: everything, at worst."""
        for number, frame in enumerate(self.bus.delivered.pop(name, [])):
            self.clock.after(0.02 * number, partial(self.bus.deliver, name, frame))

    def _start(self, name: str) -> None:
        node = self.nodes[name]
        if node.up:
            return
        self.history.blocked += [(o, tx) for o in self.nodes for tx in self._waiting_for(name, o)]
        node.start()
        self.note(name, f"starts life {node.life()}")
        for other, peer in self.nodes.items():
            if peer.up:
                self._tell(name, PresenceChanged(other, peer.life(), True, TYPES, peer.identity.incarnation))
        self._announce(name, True)
        self.follow(node)
        for script in self.scripts.values():
            if script.site == name:
                self.clock.after(0.05, script.on_restart)

    def _waiting_for(self, coordinator: str, site: str) -> list[TxId]:
        prepared = self.nodes[site].resource.prepared
        return [tx for tx in prepared if tx.coordinator == coordinator and site != coordinator]

    def follow(self, node: Node) -> None:
        """Sites that follow, or are durable local members, read every coordinator, themselves from their first own."""
        for kind in ChainKind:
            types = tuple(t for t in TYPES if kind in self.plan.tastes[node.name, t].chains())
            for other, peer in self.nodes.items():
                anew = (node.name, other, kind.value) in self.history.stale
                if types and (other != node.name or anew):
                    node.take(FollowCall(other, peer.identity.incarnation, kind, types, anew))

    def _announce(self, name: str, alive: bool) -> None:
        node = self.nodes[name]
        if not alive and node.up and self._healed:
            return
        life = node.last_life
        for other in self.nodes:
            change = PresenceChanged(name, life, alive, TYPES, node.identity.incarnation)
            self.clock.after(0.001 + 0.01 * self.rng.random(), partial(self._tell, other, change))
        if not alive and node.up:
            self.clock.after(0.5, lambda: self._announce(name, True))

    def _tell(self, name: str, event: Input) -> None:
        self.nodes[name].take(event)

    def _pause(self, name: str) -> None:
        self.history.faults["M6"] += 1
        self.nodes[name].paused_until = self.clock.now + 6.0 * self.rng.random()

    def _cut(self, name: str, both: bool) -> None:
        for other in self.nodes:
            if other != name and self.rng.random() < 0.6:
                pair = (name, other) if self.rng.random() < 0.5 else (other, name)
                self.network.cut[pair] = None
                if both:
                    self.network.cut[pair[1], pair[0]] = None
        self.clock.after(4.0 * self.rng.random(), self.network.cut.clear)

    def _fill_disk(self, name: str) -> None:
        """Someone else's files take the room; a while later they are gone."""
        self.history.faults["D4"] += 1
        self.nodes[name].disk.full = True
        self.clock.after(4.0 * self.rng.random(), partial(self._free_disk, name))

    def _free_disk(self, name: str) -> None:
        self.nodes[name].disk.full = False
        self.nodes[name].watch_room()

    def _copy_log(self, name: str) -> None:
        """An operator copies the log, and at the next crash puts the copy in its place."""
        disk = self.nodes[name].disk
        self.nodes[name].backup = MemoryDisk(disk.header, dict(disk.rows))

    def old_log_refused(self, site: str) -> None:
        """A site did not start from a log that is older than the bus remembers."""
        self.history.faults["D3"] += 1
        self.note(site, "refuses an old copy of its log")

    def crash_point(self, site: str, point: str) -> None:
        """A place where a crash is interesting."""
        count = self._points[site] = self._points.get(site, 0) + 1
        if self.plan.crash is not None:
            if self.plan.crash == (site, count):
                self.crash(site, point)
        elif self.faults.crash_at_point and self.rng.random() < self.faults.crash_at_point:
            self.crash(site, point)

    def points(self) -> dict[str, int]:
        """How many crash points each site passed."""
        return dict(self._points)

    def _directed(self, source: str, target: str, frame: bytes) -> bool:
        if self.network.carried == self.plan.late:
            self.clock.after(8.0, lambda: self.bus.deliver(target, frame))
            return True
        return self.network.carried == self.plan.drop

    def _lose_decision(self, source: str, target: str, frame: bytes) -> bool:
        """Until the crash the last site hears no decision: it is the one that will have to ask."""
        event = self.bus.open(source, frame)
        decided = event is not None and isinstance(event.message, m.Decision)
        return decided and self.history.crashes == 0 and target == list(self.nodes)[-1]

    # The bus

    def send(self, source: str, target: str, message: m.AnyMessage) -> None:
        """To one inbox."""
        self.bus.send(source, target, message)

    def broadcast(self, source: str, event_type: str, message: m.AnyMessage) -> None:
        """To everyone who listens to the type."""
        self.bus.broadcast(source, message)

    def observe(self, source: str, message: m.AnyMessage) -> None:
        """A message leaves a role, for the bus or for a role beside it."""
        self.observer.observe(source, message)

    def note(self, site: str, text: str) -> None:
        """A line of the trace."""
        self.hash.update(f"{self.clock.now:.6f} {site} {text}".encode())
        self.trace(site, text)

    def trace(self, site: str, text: object) -> None:
        """For the reader only."""
        if self._trace is not None:
            self._trace(f"{self.clock.now:9.4f} {site} {text}")
