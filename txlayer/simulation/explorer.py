"""Every interleaving of the real step functions, for a few members and a few faults.

A state is all sites with what they have written and prepared, and the messages in flight. From each state every
message may be delivered, lost or doubled, every site may crash, at rest or in the middle of a step, as far as the
budget of faults goes. Timers run out only when no message is in flight, but for `early` of them.

Three things keep the number of states and the time for each small. What one event makes of one site depends on that
site alone (independence), so it is computed once and then looked up: a state of the search is a row of small numbers.
Members are alike (symmetry): of all states that differ only in which member is which, one is walked. And what does not
matter is not part of a state: the order of answers, the count of repetitions beyond two.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from txlayer.messages import Conditions, Limit, Terms
from txlayer.simulation.explored_site import Crash, Deliver, Fact, Timeout
from txlayer.simulation.site_table import SiteTable

Sites = tuple[int, ...]
Flying = tuple[int, ...]
# Sites, messages in flight, crashes, losses, duplicates and early timers left, facts.
Situation = tuple[Sites, Flying, int, int, int, int, int]


@dataclass(slots=True)
class Explored:
    """What a search found."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    closed: bool = True
    site_states: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


class Explorer:
    """Walks the states."""

    def __init__(
        self, members: int, crashes: int, losses: int, duplicates: int = 0, one_shot: bool = False, early: int = 0
    ) -> None:
        names = tuple(f"m{number}" for number in range(members))
        require = Conditions(at_least=1, only=names)
        self.table = SiteTable(names, Terms("t", limit=Limit.DISTRIBUTED, require=require, one_shot=one_shot))
        sites, flying = self.table.first()
        self._facts: list[frozenset[Fact]] = [frozenset()]
        self._fact_ids: dict[frozenset[Fact], int] = {frozenset(): 0}
        self.first: Situation = (sites, flying, crashes, losses, duplicates, early, 0)
        self.explored = Explored()

    def walk(self, limit: int) -> Explored:
        """Breadth first, until everything is seen or `limit` states are."""
        explored = self.explored
        numbers = {_digest(self.first): 0}
        edges = array("L")
        resting = bytearray([self._rests(self.first)])
        layer = [(0, self.first)]
        while layer and not explored.violations:
            explored.depth += 1
            following: list[tuple[int, Situation]] = []
            for number, state in layer:
                explored.states += 1
                for reached in self._next(state):
                    explored.transitions += 1
                    canonical = self._canonical(reached)
                    digest = _digest(canonical)
                    known = numbers.get(digest)
                    if known is None:
                        known = numbers[digest] = len(numbers)
                        following.append((known, canonical))
                        resting.append(self._rests(canonical))
                    edges.append(number)
                    edges.append(known)
            explored.closed = not following
            if explored.states + len(following) > limit and following:
                break
            layer = following
        explored.site_states = len(self.table.sites)
        if explored.closed and not explored.violations:
            self._check_that_all_come_to_rest(edges, resting)
        return explored

    # Transitions

    def _next(self, state: Situation) -> Iterator[Situation]:
        sites, flying, crashes, losses, duplicates, early, facts = state
        before = -1
        for index, message in enumerate(flying):
            if message == before:
                continue
            before = message
            rest = flying[:index] + flying[index + 1 :]
            body, target = self.table.messages[message]
            yield self._stepped(state, rest, target, Deliver(body))
            if losses:
                yield (sites, rest, crashes, losses - 1, duplicates, early, facts)
            if duplicates:
                doubled = (sites, flying, crashes, losses, duplicates - 1, early, facts)
                yield self._stepped(doubled, flying, target, Deliver(body))
            if crashes:
                crashed = (sites, flying, crashes - 1, losses, duplicates, early, facts)
                yield self._stepped(crashed, rest, target, Deliver(body, False))
                yield self._stepped(crashed, rest, target, Deliver(body, True))
        if crashes:
            crashed = (sites, flying, crashes - 1, losses, duplicates, early, facts)
            for target in range(len(sites)):
                yield self._stepped(crashed, flying, target, Crash())
        if not flying or early:
            hasty = (sites, flying, crashes, losses, duplicates, early - 1 if flying else early, facts)
            for target, site in enumerate(sites):
                for key in self.table.sites[site].timers:
                    yield self._stepped(hasty, flying, target, Timeout(key))
                    if crashes:
                        crashed = (sites, flying, crashes - 1, losses, duplicates, hasty[5], facts)
                        yield self._stepped(crashed, flying, target, Timeout(key, False))
                        yield self._stepped(crashed, flying, target, Timeout(key, True))

    def _stepped(
        self, state: Situation, flying: Flying, target: int, happening: Deliver | Timeout | Crash
    ) -> Situation:
        sites, _, crashes, losses, duplicates, early, facts = state
        result = self.table.step(sites[target], happening)
        new_sites = (*sites[:target], result.site, *sites[target + 1 :])
        new_flying = tuple(sorted(flying + result.sent)) if result.sent else flying
        if result.facts:
            facts = self._learn(facts, result.facts)
        reached = (new_sites, new_flying, crashes, losses, duplicates, early, facts)
        if result.facts:
            self._check(reached)
        return reached

    def _learn(self, facts: int, news: tuple[Fact, ...]) -> int:
        known = self._facts[facts]
        for fact in news:
            if fact.what == "impossible":
                self._violation(f"impossible work at {fact.names[0]}")
            if fact.what == "applied" and fact in known:
                self._violation(f"applied twice by {fact.names[0]}")
        return self._fact_id(known | frozenset(news))

    def _fact_id(self, facts: frozenset[Fact]) -> int:
        if facts not in self._fact_ids:
            self._fact_ids[facts] = len(self._facts)
            self._facts.append(facts)
        return self._fact_ids[facts]

    # Symmetry

    def _canonical(self, state: Situation) -> Situation:
        """The least of all states that differ from this one only in which member is which."""
        table = self.table
        sites, flying, facts = state[0], state[1], state[6]
        best, least = 0, (sites, flying)
        for number in range(1, len(table.exchanges)):
            images = [0] * len(sites)
            for position, site in enumerate(sites):
                images[table.moved(number, position)] = table.site_images[site][number]
            if (other := tuple(images)) > least[0]:
                continue
            candidate = (other, tuple(sorted([table.message_image(message, number) for message in flying])))
            if candidate < least:
                best, least = number, candidate
        if best:
            facts = self._fact_id(frozenset(self._image_of(fact, best) for fact in self._facts[facts]))
        return (*least, *state[2:6], facts)

    def _image_of(self, fact: Fact, exchange: int) -> Fact:
        if fact.what == "outcome":
            return fact
        return Fact(fact.what, tuple(sorted(self.table.exchanges[exchange][name] for name in fact.names)))

    # Invariants

    def _check(self, state: Situation) -> None:
        facts = self._facts[state[6]]
        commits = [fact.names for fact in facts if fact.what == "commit"]
        applied = [fact.names[0] for fact in facts if fact.what == "applied"]
        if len(commits) > 1:
            self._violation(f"two final lists: {commits}")
        if applied and not commits:
            self._violation(f"applied before any commit: {applied}")
        astray = [name for name in applied if commits and name not in commits[0]]
        if astray:
            self._violation(f"applied by who is not named: {astray}")
        if commits and Fact("abort") in facts:
            for name in commits[0]:
                if self.table.sites[state[0][self.table.names.index(name)]].prepared:
                    self._violation(f"an abort was sent while {name}, which the commit names, is prepared")

    def _rests(self, state: Situation) -> bool:
        """Nothing is in flight and nothing is left to do; and then everything must be as decided."""
        sites, flying, facts = state[0], state[1], self._facts[state[6]]
        if flying or not all(self.table.sites[site].rests for site in sites):
            return False
        applied = {fact.names[0] for fact in facts if fact.what == "applied"}
        outcomes = {fact.names[0] for fact in facts if fact.what == "outcome"}
        if any(set(fact.names) - applied for fact in facts if fact.what == "commit"):
            return False
        if self.table.sites[sites[0]].life > 1:  # the caller is gone with its coordinator
            self.explored.outcomes.update(outcomes or {"nobody is left to ask"})
            return True
        self.explored.outcomes.update(outcomes)
        if applied and outcomes and outcomes != {"committed"}:
            self._violation(f"applied, and the caller heard {sorted(outcomes)}")
        return bool(outcomes)

    def _check_that_all_come_to_rest(self, edges: array[int], resting: bytearray) -> None:
        """From every state that was walked there is a way to rest: nothing is stuck, nobody waits for ever."""
        before: list[list[int]] = [[] for _ in resting]
        for position in range(0, len(edges), 2):
            before[edges[position + 1]].append(edges[position])
        waiting = [number for number, rests in enumerate(resting) if rests]
        while waiting:
            for number in before[waiting.pop()]:
                if not resting[number]:
                    resting[number] = 1
                    waiting.append(number)
        stuck = len(resting) - sum(resting)
        if stuck:
            self._violation(f"{stuck} states never come to rest, the first is {resting.index(0)}")

    def _violation(self, text: str) -> None:
        if len(self.explored.violations) < 10:
            self.explored.violations.append(text)


def _digest(state: Situation) -> bytes:
    sites, flying, *rest = state
    return blake2b(array("L", (*sites, *rest, *flying)).tobytes(), digest_size=16).digest()


def explore(
    members: int,
    crashes: int,
    losses: int,
    duplicates: int = 0,
    one_shot: bool = False,
    limit: int = 100_000,
    early: int = 0,
) -> Explored:
    """Walk every interleaving, or the first `limit` states of it."""
    return Explorer(members, crashes, losses, duplicates, one_shot, early).walk(limit)
