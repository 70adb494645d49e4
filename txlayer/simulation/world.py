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
    Notify,
    Opened,
    PresenceChanged,
    Received,
    Resolve,
    RunHandler,
    ScopeChosen,
    Surface,
)
from txlayer.errors import DecodeError
from txlayer.logs.memory import MemoryDisk
from txlayer.logs.record_log import Identity
from txlayer.messages import ChainKind, Numbered, Scope, Terms, TxId
from txlayer.runtime.inbox import received
from txlayer.runtime.unit_work import Work
from txlayer.security import BrokerSeal, Seal, SecretSeal
from txlayer.simulation.checkers import check, lost_log_checker
from txlayer.simulation.clock import Clock
from txlayer.simulation.history import Applied, History
from txlayer.simulation.network import Network
from txlayer.simulation.node import Node
from txlayer.simulation.plan import Plan
from txlayer.simulation.rows import rows_hit
from txlayer.simulation.workload import TYPES, Script, confirm_helpers
from txlayer.tokens import Keyring, reveals
from txlayer.transactions.seat import Bounds, Patience


class World:
    """Runs one plan."""

    def __init__(self, seed: int, plan: Plan, trace: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.plan = plan
        self.rng = Random(f"world {seed}")
        self.clock = Clock()
        self.history = History()
        self.faults = plan.faults
        self.network = Network(self.clock, self.rng, self.faults, self.history, self._deliver)
        self.seal: Seal = SecretSeal([b"enrolled together"]) if plan.secret else BrokerSeal()
        self.hash = sha256()
        self._trace = trace
        self._received: dict[bytes, Received | None] = {}
        self._points: dict[str, int] = {}
        self._stolen: list[bytes] = []
        self._delivered: dict[str, list[bytes]] = {}
        self._healed = False
        self.scripts: dict[str, Script] = {}
        self.nodes: dict[str, Node] = {}
        patience = Patience(retry=0.2, in_doubt=0.6, gap=0.1, linger=2.0, mark=1.0, longest=5.0)
        for number in range(plan.sites):
            name = f"s{number}"
            incarnation = sha256(f"{seed} {name}".encode()).hexdigest()[:8]
            identity = Identity(incarnation, sha256(f"secret {name}".encode()).digest())
            self.nodes[name] = Node(name, self, patience, Bounds(), identity)
        self._sites_of: dict[tuple[TxId, bytes], str] = {}

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
        while (following := self.clock.next_time()) is not None and following < self.plan.span + 15.0:
            self.clock.advance()
            if self.plan.crash is not None and self._at_rest():
                break
        self._heal()
        end = self.clock.now + self.plan.heal_for
        rounds = 0
        while (following := self.clock.next_time()) is not None and following < end:
            self.clock.advance()
            rounds += 1
            if rounds % 200 == 0 and self._at_rest():
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

    def _ask_again(self, script: Script) -> None:
        """A caller that has heard nothing asks once more, when everything works."""
        call = script.call
        for helper in script.helpers:
            for node in self.nodes.values():
                if node.participant is not None and helper in node.participant.publishers:
                    node.take(AskCall(helper, call.coordinator, script.tx, within=20.0))
        if not call.done and script.started:
            script.ask()

    def _at_rest(self) -> bool:
        """Nothing is open anywhere."""
        if not all(script.call.done for script in self.scripts.values()):
            return False
        return not any(self.unfinished(node) for node in self.nodes.values())

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
        coordinator = self.nodes[tx.coordinator].participant
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

    def crash(self, name: str, why: str) -> None:
        """A site dies; it comes back unless the world ends first."""
        node = self.nodes[name]
        if not node.up or self._healed:
            return
        self.history.crashes += 1
        self.history.faults.update(rows_hit(node))
        self.note(name, f"crashes {why}")
        node.crash(kept=self.rng.choice([0, 1]))
        if self.plan.wipe:  # its log is lost; the secret, kept elsewhere, is not
            node.disk = MemoryDisk()
            node.identity = Identity(f"{node.identity.incarnation}-again", node.identity.secret)
        self.clock.after(0.2 + 0.3 * self.rng.random(), lambda: self._announce(name, False))
        pause = self.plan.restart_after * (0.5 + 4 * self.rng.random())
        self.clock.after(pause, lambda: self._start(name))
        if self.plan.replay:
            self.clock.after(pause + 0.01, lambda: self._redeliver(name))

    def _redeliver(self, name: str) -> None:
        """The bus delivers again what the dead site never acknowledged, in order: everything, at worst."""
        for number, frame in enumerate(self._delivered.pop(name, [])):
            self.clock.after(0.02 * number, partial(self._deliver, name, frame))

    def _start(self, name: str) -> None:
        node = self.nodes[name]
        if node.up:
            return
        node.start()
        self.note(name, f"starts life {node.life()}")
        for other, peer in self.nodes.items():
            if peer.up:
                self._tell(name, PresenceChanged(other, peer.life(), True, TYPES))
        self._announce(name, True)
        self._follow(node)
        for script in self.scripts.values():
            if script.site == name:
                self.clock.after(0.05, script.on_restart)

    def _follow(self, node: Node) -> None:
        """Sites that follow, or are durable local members, read every coordinator."""
        for kind in ChainKind:
            types = tuple(t for t in TYPES if self.plan.tastes[node.name, t].reads() is kind)
            for other, peer in self.nodes.items():
                if types and other != node.name:
                    node.take(FollowCall(other, peer.identity.incarnation, kind, types))

    def _announce(self, name: str, alive: bool) -> None:
        node = self.nodes[name]
        if not alive and node.up and self._healed:
            return
        life = node.last_life
        for other in self.nodes:
            change = PresenceChanged(name, life, alive, TYPES)
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
            self.clock.after(8.0, lambda: self._deliver(target, frame))
            return True
        return self.network.carried == self.plan.drop

    def _lose_decision(self, source: str, target: str, frame: bytes) -> bool:
        """Until the crash the last site hears no decision: it is the one that will have to ask."""
        event = self._received.get(frame)
        decided = event is not None and isinstance(event.message, m.Decision)
        return decided and self.history.crashes == 0 and target == list(self.nodes)[-1]

    # The bus

    def send(self, source: str, target: str, message: m.AnyMessage) -> None:
        """To one inbox."""
        self.observe(source, message)
        if isinstance(message, m.Followed) and target in self.nodes:
            self.history.registered.setdefault((target, source, message.kind.value), self.clock.now)
        if target in self.nodes:
            self.network.carry(source, target, self._frame(message))

    def broadcast(self, source: str, event_type: str, message: m.AnyMessage) -> None:
        """To everyone who listens to the type."""
        self.observe(source, message)
        frame = self._frame(message)
        for name in self.nodes:
            self.network.carry(source, name, frame)
        if self.faults.forged and self.rng.random() < self.faults.forged:
            self._forge(message, frame)

    def _frame(self, message: m.AnyMessage) -> bytes:
        frame = self.seal.close(message)
        if frame not in self._received:
            if len(self._received) > 5000:
                self._received.clear()
            self._received[frame] = self._open(frame)
        return frame

    def _open(self, frame: bytes) -> Received | None:
        try:
            return received(self.seal, frame)
        except DecodeError:
            self.history.faults["M8"] += 1
            return None

    def _deliver(self, target: str, frame: bytes) -> None:
        node = self.nodes[target]
        if not node.up:
            return
        if self.clock.now < node.paused_until:
            self.clock.after(node.paused_until - self.clock.now, lambda: self._deliver(target, frame))
            return
        if self.faults.corrupt and self.rng.random() < self.faults.corrupt:
            spot = self.rng.randrange(len(frame))
            flipped = frame[:spot] + bytes([frame[spot] ^ 1]) + frame[spot + 1 :]
            frame = flipped if self.plan.secret else frame[:spot]
        event = self._received[frame] if frame in self._received else self._open(frame)
        if event is None:
            return
        self.history.events += 1
        if self.plan.replay:
            self._delivered.setdefault(target, []).append(frame)
        line = f"{self.clock.now:.6f} {target} {type(event.message).__name__}"
        self.hash.update(line.encode())
        self.hash.update(frame)
        if self._trace is not None:
            self._trace(f"{self.clock.now:9.4f} {target} <- {event.message}")
        node.take(event)

    def _forge(self, message: m.AnyMessage, frame: bytes) -> None:
        """An outsider repeats frames and makes up votes and decisions with tokens that it does not have."""
        self.history.faults["M7"] += 1
        self._stolen = [*self._stolen[-20:], frame]
        target = self.rng.choice(list(self.nodes))
        old = self.rng.choice(self._stolen)
        self.clock.after(2.0 * self.rng.random(), lambda: self._deliver(target, old))
        tx = getattr(message, "tx", None)
        if tx is None or self.plan.secret:
            return
        fake = bytes(self.rng.randrange(256) for _ in range(32))
        if self.rng.random() < 0.5:
            keyring = self._keyring(self.rng.choice(list(self.nodes)))
            forged: m.AnyMessage = m.Vote(tx, keyring.member(tx), fake, 0, b"")
            target = tx.coordinator
        else:
            forged = m.Decision(tx, fake, tuple(self._keyring(name).member(tx) for name in self.nodes))
        forged_frame = self._frame(forged)
        self.clock.after(0.01 * self.rng.random(), lambda: self._deliver(target, forged_frame))

    # What is seen on the wire

    def observe(self, source: str, message: m.AnyMessage) -> None:
        """A message leaves a role, for the bus or for a role beside it."""
        history = self.history
        if isinstance(message, m.Decision):
            self._observe_decision(message)
        elif isinstance(message, m.Begin):
            history.begun.setdefault(message.tx, tuple(self._site_of(message.tx, member) for member in message.members))
        elif isinstance(message, m.Join) or (isinstance(message, m.Vote) and message.join is not None):
            history.joined.setdefault(message.tx, {})[source] = None
        elif isinstance(message, m.Created):
            call = history.calls.get(message.key)
            if call is not None:
                history.by_tx.setdefault(message.tx, call)
        elif isinstance(message, m.Census) and message.terms.one_shot:
            self._observe_one_shot(message)

    def _observe_one_shot(self, census: m.Census) -> None:
        key = census.events[0].item.payload.decode().split(".")[0] if census.events else ""
        if key in self.history.calls:
            self.history.by_tx.setdefault(census.tx, self.history.calls[key])

    def _observe_decision(self, decision: m.Decision) -> None:
        hashes = self._keyring(decision.tx.coordinator).hashes(decision.tx)
        commit = reveals(decision.token, hashes.commit)
        final = tuple(sorted(self._site_of(decision.tx, member) for member in decision.final)) if commit else ()
        seen = self.history.decisions.setdefault(decision.tx, {})
        if (commit, final) in seen:
            return
        seen[commit, final] = self.clock.now
        for site in final:
            node = self.nodes.get(site)
            if commit and node is not None and node.resource.state(decision.tx) == "none":
                gone = any(a.site == site and a.tx == decision.tx for a in self.history.applied)
                if not gone:
                    self.history.violation(f"unjustified commit: {decision.tx} names {site}, which is not prepared")

    def _site_of(self, tx: TxId, member: bytes) -> str:
        if (tx, member) not in self._sites_of:
            for name in self.nodes:
                self._sites_of[tx, self._keyring(name).member(tx)] = name
        return self._sites_of.get((tx, member), member.hex())

    def _keyring(self, name: str) -> Keyring:
        return Keyring(self.nodes[name].identity.secret)

    # What applications do and see

    def choose_scope(self, site: str, tx: TxId, terms: Terms) -> ScopeChosen:
        """The application's answer to a census."""
        taste = self.plan.tastes.get((site, terms.type))
        if taste is None:  # a type that nobody here subscribed to: made up
            return ScopeChosen(tx, Scope.NONE)
        choice = taste.choose(tx, terms.tx_type)
        self.history.scopes[site, tx] = choice.scope
        return choice

    def work_time(self, site: str, work: Work) -> float:
        """How long work takes."""
        seconds = 0.0005 * self.rng.random()
        if isinstance(work, RunHandler) and self.rng.random() < self.faults.slow_handler:
            self.history.faults["O4"] += 1
            seconds += 3.0 * self.rng.random()
        return seconds

    def handler_fails(self, site: str, tx: TxId, event: Numbered) -> bool:
        """Whether a handler is drawn to fail."""
        first = (site, tx) not in self.history.delivered
        self.history.delivered[site, tx] = None
        if first and site == self.plan.refuser:
            return True
        return self.faults.failing_handler > 0 and self.rng.random() < self.faults.failing_handler

    def compensation_fails(self, site: str, tx: TxId) -> bool:
        """Whether an undo is drawn to fail."""
        return self.faults.failing_compensation > 0 and self.rng.random() < self.faults.failing_compensation

    def prepare_fails(self, site: str, tx: TxId) -> bool:
        """Whether a resource is drawn to refuse."""
        return self.faults.failing_prepare > 0 and self.rng.random() < self.faults.failing_prepare

    def sync_time(self, site: str) -> tuple[float, float]:
        """How long appends wait for company, and how long a sync takes."""
        slow = self.rng.random() < self.faults.slow_disk
        return 0.0002, 0.0004 + self.plan.sync_seconds + (0.3 * self.rng.random() if slow else 0.0)

    def committed(self, site: str, tx: TxId, values: list[tuple[str, object]]) -> None:
        """A resource committed a unit, or the unit that undoes it."""
        texts = tuple(str(value) for _, value in values)
        self.note(site, f"commits {tx} {texts}")
        if not tx.nonce.endswith("~undo"):
            self.history.applied.append(Applied(site, tx, self.clock.now, texts))
            return
        for applied in reversed(self.history.applied):
            if applied.site == site and f"{applied.tx}~undo" == str(tx):
                if applied.undone is not None:
                    self.history.violation(f"compensated twice: {tx} at {site}")
                applied.undone = texts
                return
        self.history.violation(f"compensated without a commit: {tx} at {site}")

    def opened(self, site: str, effect: Opened) -> None:
        """A caller's transaction is open."""
        script = self.scripts.get(effect.call)
        if script is not None:
            script.on_opened(effect)

    def resolved(self, site: str, effect: Resolve) -> None:
        """A caller hears an outcome."""
        self.note(site, f"call {effect.call} resolves to {effect.outcome}")
        script = self.scripts.get(effect.call)
        if script is not None:
            script.on_resolved(effect.outcome)
        elif effect.outcome.final:
            self.clock.after(0.01, lambda: confirm_helpers(self, effect, site))

    def surfaced(self, site: str, effect: Surface) -> None:
        """Something an operator or a caller should see."""
        self.note(site, f"surfaces {effect}")
        if effect.what == "parked" and effect.tx is not None:
            self.history.parked[site, effect.tx] = None
            self.history.faults["K3"] += 1
        script = self.scripts.get(effect.detail)
        if script is not None:
            script.on_surface(effect)

    def notified(self, site: str, effect: Notify) -> None:
        """A plain notification."""
        self.history.notified.append((site, effect.tx, effect.event.number))

    def broken(self, site: str, text: str) -> None:
        """A resource was asked for what it cannot do."""
        self.history.violation(f"impossible work at {site}: {text}")

    def note(self, site: str, text: str) -> None:
        """A line of the trace."""
        line = f"{self.clock.now:.6f} {site} {text}"
        self.hash.update(line.encode())
        if self._trace is not None:
            self._trace(f"{self.clock.now:9.4f} {site} {text}")
