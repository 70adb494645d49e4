"""Starts sites, gives them transactions, kills them and their broker, waits until everything is at rest."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from tests.stress_sites import lines, orders
from tests.stress_sites.handle import Handle
from tests.stress_sites.remains import Remains
from tests.stress_sites.tastes import Config, draw_tastes
from txlayer.errors import UsageError
from txlayer.messages import Access, Item, Status, Terms
from txlayer.simulation.history import CallSeen
from txlayer.simulation.workload import TYPES, draw_terms
from txlayer.testing.server import Server
from txlayer.transactions.constraints import check_terms

SLOWEST = 300.0
"""Seconds that a site may take to start, to end or to answer on a busy machine."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a run is made of."""

    transactions: int = 300
    kills: int = 20
    broker_kills: int = 0
    pauses: int = 0
    sites: int = 4
    at_once: int = 6
    seed: int = 1
    mutant: str = ""
    """A planted bug, by name."""
    rest_within: float = 120.0
    """Seconds after the last fault within which everything must have come to rest."""


@dataclass(slots=True)
class Driver:
    """One run."""

    wishes: Wishes
    server: Server
    folder: Path
    rng: Random = field(init=False)
    sites: dict[str, Handle] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    """Calls that are not over, and the site of each."""
    helpers: dict[str, str] = field(default_factory=dict)
    voters: dict[str, list[str]] = field(default_factory=dict)
    """Who votes under its own name, for each type."""
    kills: int = 0
    broker_kills: int = 0
    complaints: list[str] = field(default_factory=list)
    _killers: dict[str, threading.Thread] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = Random(f"driver {self.wishes.seed}")

    def run(self) -> dict[str, Any]:
        """Faults, healing, closing, checks: what came out."""
        started = time.monotonic()
        names = [f"s{number}" for number in range(self.wishes.sites)]
        tastes = draw_tastes(self.rng, names)
        self.voters = {kind: [name for name in names if tastes[name, kind].taste.votes_by_name()] for kind in TYPES}
        bus = f"{self.server.url}?connect_timeout={SLOWEST}"  # nobody starts a site again that gave up on the broker
        for name in names:
            own = {event_type: tastes[name, event_type] for event_type in TYPES}
            config = Config(name, bus, str(self.folder), own, self.wishes.seed, mutant=self.wishes.mutant)
            self.sites[name] = Handle(config, self._on_answer)
        try:
            for site in self.sites.values():
                site.start()
            self._await_ready()
            self._disturb(names)
            faults_ended = time.monotonic()
            self._heal()
            healed = time.monotonic()
            left = {name: site.left for name, site in self.sites.items() if site.left is not None}
            self._close()
        finally:
            for site in self.sites.values():
                site.kill()
        remains = Remains(self.folder, tastes, left, self.kills)
        history = remains.check()
        outcomes = Counter(o.status.value for call in history.calls.values() for o in call.outcomes[-1:])
        return {
            "bus": self.server.url.partition(":")[0],
            "seed": self.wishes.seed,
            "transactions": len(history.calls),
            "committed": outcomes[Status.COMMITTED.value],
            "outcomes": dict(outcomes),
            "applied": len(history.applied) + len(history.followed),
            "undone": sum(applied.undone is not None for applied in history.applied),
            "kills": self.kills,
            "broker_kills": self.broker_kills,
            "seconds": round(healed - started, 1),
            "seconds_to_heal": round(healed - faults_ended, 1),
            "violations": [*self.complaints, *history.violations],
        }

    # Faults

    def _disturb(self, names: list[str]) -> None:
        wishes, rng = self.wishes, self.rng
        moments = range(wishes.transactions)
        kills = Counter(rng.choices(moments, k=wishes.kills))
        pauses = Counter(rng.choices(moments, k=wishes.pauses))
        breaks = Counter(
            rng.sample(range(wishes.transactions // 4, 1 + 3 * wishes.transactions // 4), wishes.broker_kills)
        )
        for number in moments:
            self._await_room()
            self._begin(number, names)
            for _ in range(kills[number]):
                self._kill(rng.choice(names))
            for _ in range(pauses[number]):
                self._pause(rng.choice(names))
            for _ in range(breaks[number]):
                self._break_broker()
        for name in names:
            self._kill(name) if kills and rng.random() < 0.5 else None

    def _begin(self, number: int, names: list[str]) -> None:
        rng = self.rng
        terms = self._draw_terms(names)
        publisher = rng.choice(names)
        hosted = terms.access is Access.MULTI or rng.random() < 0.4
        coordinator = rng.choice(names) if hosted else publisher
        key = f"t{number}"
        kinds = (terms.type, terms.type, "other")
        items = [Item(rng.choice(kinds), f"{key}.{event}".encode()) for event in range(rng.choice([1, 1, 2, 3]))]
        call = CallSeen(key, publisher, coordinator, terms)
        helper = rng.choice(names)
        if helper != publisher and not terms.one_shot and rng.random() < (0.8 if hosted else 0.1):
            self.helpers[key] = helper
        keyed = rng.random() < 0.6
        order = orders.Run(key, call.coordinator, terms, tuple(items), rng.random() < 0.07, keyed)
        end = time.monotonic() + SLOWEST
        while not self._tell(publisher, order):
            if time.monotonic() > end:
                self.complaints.append(f"{publisher} does not start")
                return
            time.sleep(0.05)

    def _draw_terms(self, names: list[str]) -> Terms:
        """Such as a site takes: what nobody could meet it refuses to its caller at once."""
        while True:
            terms = replace(draw_terms(self.rng, names, self.voters), committers=())  # here only who began commits
            try:
                check_terms(terms)
            except UsageError:
                continue
            return terms

    def _tell(self, publisher: str, order: orders.Run) -> bool:
        self.running[order.call] = publisher
        told = self.sites[publisher].tell(order)
        if not told:
            self.running.pop(order.call, None)
        return told

    def _kill(self, name: str) -> None:
        """End a site at once or some steps later; it comes back after a while, and may end while it recovers."""
        self.kills += 1
        at_once, again = self.rng.random() < 0.3, self.rng.random() < 0.25
        delay, away = self.rng.random() * 0.1, self.rng.random() * 1.5
        steps, recovering = self.rng.randint(1, 150), self.rng.randint(1, 40)

        def act() -> None:
            time.sleep(delay)
            site = self.sites[name]
            if not at_once and site.tell(orders.Die(steps)):
                site.wait(3.0)
            site.kill()
            time.sleep(away)
            if again:
                site.start(dies_after=recovering)
                site.wait(5.0)
                site.kill()
            site.start()

        self._join_kill(name)
        thread = self._killers[name] = threading.Thread(target=act, daemon=True)
        thread.start()

    def _pause(self, name: str) -> None:
        """A site stands still for longer than others wait for it, and then goes on as if nothing had been."""
        away = self.rng.random() * 5.0

        def act() -> None:
            self.sites[name].signal(signal.SIGSTOP)
            time.sleep(away)
            self.sites[name].signal(signal.SIGCONT)

        self._join_kill(name)
        thread = self._killers[name] = threading.Thread(target=act, daemon=True)
        thread.start()

    def _join_kill(self, name: str) -> None:
        killer = self._killers.pop(name, None)
        if killer is not None:
            killer.join()

    def _break_broker(self) -> None:
        self.broker_kills += 1
        self.server.kill()
        time.sleep(self.rng.random() * 2.0)
        self.server.restart()

    def _on_answer(self, name: str, answer: orders.AnyAnswer) -> None:
        if isinstance(answer, orders.Ready):
            self._on_restart(name)
        elif isinstance(answer, orders.Finished):
            self.running.pop(answer.call, None)
        elif isinstance(answer, orders.Open) and answer.call in self.helpers:
            self.sites[self.helpers[answer.call]].tell(orders.Help(f"{answer.call}/0", answer.tx))

    def _on_restart(self, name: str) -> None:
        """Some orders never reached the killed site, and some of its answers never left."""
        written = list(lines.read(self.folder / f"{name}.history"))
        asked = {line.call for line in written if isinstance(line, lines.Asked)}
        done = {line.call for line in written if isinstance(line, lines.Done)}
        for call in [call for call, site in list(self.running.items()) if site == name]:
            if call not in asked or call in done:
                self.running.pop(call, None)

    # Waiting

    def _await_room(self) -> None:
        end = time.monotonic() + SLOWEST
        while len(self.running) >= self.wishes.at_once and time.monotonic() < end:
            time.sleep(0.01)

    def _await_ready(self) -> None:
        for name, site in self.sites.items():
            if not site.ready.wait(SLOWEST):
                raise AssertionError(f"{name} does not start: see {self.folder}/{name}.stderr")

    def _heal(self) -> None:
        for name in list(self._killers):
            self._join_kill(name)
        for site in self.sites.values():
            if not site.alive:
                site.start()
        self._await_ready()
        for site in self.sites.values():
            site.tell(orders.Heal())
        end = time.monotonic() + self.wishes.rest_within
        while not self._at_rest():
            if time.monotonic() > end:
                self.complaints.append(f"not at rest after {self.wishes.rest_within} s: {self._restless()}")
                return
            time.sleep(0.2)

    def _restless(self) -> str:
        """Who still does something."""
        calls = [f"call {call} of {name}" for call, name in self.running.items()]
        silent = [f"{name} does not answer" for name, site in self.sites.items() if site.left is None]
        work = [f"{name} {work}" for name, site in self.sites.items() if site.left for work in site.left.work]
        return ", ".join([*calls, *silent, *work]) or "members remember what their coordinators have forgotten"

    def _at_rest(self) -> bool:
        if self.running:
            return False
        for site in self.sites.values():
            site.left = None
            site.tell(orders.Rest())
        end = time.monotonic() + 10.0
        while time.monotonic() < end and any(site.left is None for site in self.sites.values()):
            time.sleep(0.01)
        lefts = {name: site.left for name, site in self.sites.items() if site.left is not None}
        settled = {tx for left in lefts.values() for tx in left.settled}
        return len(lefts) == len(self.sites) and not any(
            left.work or any(tx not in settled for tx in left.remembered) for left in lefts.values()
        )

    def _close(self) -> None:
        for site in self.sites.values():
            site.tell(orders.Close())
        for name, site in self.sites.items():
            code = site.wait(SLOWEST)
            if code != 0:
                self.complaints.append(f"{name} ended with {code} instead of closing")
            elif site.closed is None or site.closed.threads:
                self.complaints.append(f"{name} left threads: {site.closed.threads if site.closed else 'unknown'}")
