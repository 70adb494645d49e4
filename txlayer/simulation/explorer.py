"""Every interleaving of the real step functions, for a few members and a few faults.

A state is all sites with what they have written and prepared, and the messages in flight. From each state every
message may be delivered, lost or doubled, every site may crash, at rest or in the middle of a step (before or after
its records became durable, before anything of the step was sent), as far as the budget of faults goes. Timers run out
only when no message is in flight. States that were seen before are not walked again; as members are alike, the first
one to act is always the first; a site without a part in the transaction is given nothing.
"""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256

import msgspec

from txlayer import messages as m
from txlayer.effects import (
    Append,
    AskScope,
    BeginCall,
    Broadcast,
    CancelTimer,
    CommitCall,
    ConfirmCall,
    Drop,
    Effect,
    Input,
    Opened,
    PublishCall,
    Received,
    Resolve,
    ScopeChosen,
    Send,
    SetTimer,
    TimerFired,
    TimerKey,
)
from txlayer.messages import Conditions, Item, Limit, Numbered, Scope, Terms, TxId
from txlayer.records import AnyRecord
from txlayer.resources.memory import MemoryResource
from txlayer.runtime.unit_work import WORK, UnitWork, Work
from txlayer.tokens import Keyring
from txlayer.transactions.executor import Executor, State
from txlayer.transactions.participant import Participant
from txlayer.transactions.seat import Seat


class Writes:
    """Handlers that write the event down."""

    def handle(self, tx: TxId, event: Numbered, work: object) -> None:
        work.put(str(event.number), event.item.payload)  # type: ignore[attr-defined]

    def compensate(self, tx: TxId, event: Numbered, work: object) -> None:
        raise AssertionError("nobody compensates here")


@dataclass(slots=True)
class SmallSite:
    """A site whose log is written and synced within the step."""

    name: str
    scope: Scope
    life: int = 0
    records: dict[str, AnyRecord] = field(default_factory=dict)
    resource: MemoryResource = field(default_factory=MemoryResource)
    timers: dict[TimerKey, None] = field(default_factory=dict)
    participant: Participant = field(init=False)

    def start(self) -> list[tuple[object, list[Effect]]]:
        """A new life."""
        self.life += 1
        self.timers = {}
        self.resource.crash()
        self.participant = Participant(Seat(self.name, f"log-{self.name}", self.life, Keyring(self.name.encode() * 8)))
        return list(self.participant.recover(list(self.records.values())))


@dataclass(slots=True)
class Situation:
    """One state of the search. Sites are packed and shared between states; only the one that acts is opened."""

    sites: dict[str, bytes]
    flying: tuple[tuple[str, bytes], ...]
    crashes: int
    losses: int
    duplicates: int
    touched: bool = False
    commits: bool = False
    final: tuple[str, ...] = ()
    aborts: bool = False
    outcomes: tuple[str, ...] = ()
    applied: tuple[str, ...] = ()
    opened: dict[str, SmallSite] = field(default_factory=dict)

    def site(self, name: str) -> SmallSite:
        """A site of its own for this state."""
        if name not in self.opened:
            self.opened[name] = pickle.loads(self.sites[name])
        return self.opened[name]

    def close(self) -> None:
        """Pack what was opened."""
        for site in self.opened.values():
            _count_no_further(site)
        self.sites = {**self.sites, **{name: _pack(site) for name, site in self.opened.items()}}
        self.opened = {}
        self.flying = tuple(sorted(self.flying))

    def copy(self) -> Situation:
        """The same state, to be changed."""
        return replace(self, opened={})

    def digest(self) -> bytes:
        """Equal for equal states."""
        parts = (self.flying, self.crashes, self.losses, self.duplicates, self.touched, self.commits, self.aborts)
        text = repr((parts, self.final, self.outcomes, self.applied))
        return sha256(b"".join([text.encode(), *(sha256(packed).digest() for packed in self.sites.values())])).digest()


def _count_no_further(site: SmallSite) -> None:
    """Repetitions only make pauses longer, and there is no time here: two are as good as many."""
    for coordinator in site.participant.coordinator.transactions.values():
        coordinator.attempt = min(coordinator.attempt, 2)
    for publisher in site.participant.publishers.values():
        publisher.attempt = min(publisher.attempt, 2)
    for members in site.participant.subscriber.members.values():
        for member in members.values():
            if isinstance(member, Executor):
                member.doubts, member.gaps = min(member.doubts, 2), min(member.gaps, 2)
    site.timers = dict(sorted(site.timers.items(), key=repr))


def _pack(site: SmallSite) -> bytes:
    """Bytes that depend on values only, not on which objects happen to be shared."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer)
    pickler.fast = True
    pickler.dump(site)
    return buffer.getvalue()


@dataclass(slots=True)
class Explored:
    """What a search found."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    closed: bool = True
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


COORDINATOR = "c"
ITEM = Item("t", b"x")
_encode = msgspec.msgpack.Encoder().encode
_decode: msgspec.msgpack.Decoder[m.AnyMessage] = msgspec.msgpack.Decoder(m.AnyMessage)


class Explorer:
    """Walks the states."""

    def __init__(self, members: int, crashes: int, losses: int, duplicates: int, one_shot: bool) -> None:
        names = [f"m{number}" for number in range(members)]
        require = Conditions(at_least=1, only=tuple(names))
        terms = Terms("t", limit=Limit.DISTRIBUTED, require=require, one_shot=one_shot)
        sites = {COORDINATOR: SmallSite(COORDINATOR, Scope.NONE)}
        sites.update({name: SmallSite(name, Scope.DISTRIBUTED) for name in names})
        for site in sites.values():
            site.start()
        self.first = Situation({}, (), crashes, losses, duplicates, opened=sites)
        self._names = list(sites)
        self.step(self.first, COORDINATOR, BeginCall("k", terms, COORDINATOR, (ITEM,) if one_shot else ()))
        self.first.close()

    def walk(self, limit: int) -> Explored:
        """Breadth first, until everything is seen or `limit` states are."""
        explored = Explored()
        seen = {self.first.digest()}
        layer = [self.first]
        while layer and not explored.violations:
            explored.depth += 1
            following: list[Situation] = []
            for state in layer:
                explored.states += 1
                if explored.states > limit:
                    explored.closed = False
                    return explored
                ended = True
                for reached in self._next(state):
                    ended = False
                    explored.transitions += 1
                    self._check(reached, explored)
                    reached.close()
                    digest = reached.digest()
                    if digest not in seen:
                        seen.add(digest)
                        following.append(reached)
                if ended:
                    self._check_end(state, explored)
            layer = following
        return explored

    # Transitions

    def _next(self, state: Situation) -> Iterator[Situation]:
        for index, (target, packed) in enumerate(state.flying):
            if (index and state.flying[index - 1] == (target, packed)) or not self._may_act(state, target):
                continue
            yield from self._deliveries(state, index)
            if state.losses:
                lost = self._without(state, index)
                lost.losses -= 1
                lost.touched = True
                yield lost
        if state.crashes:
            for name in self._names:
                if self._may_act(state, name):
                    yield self._crashed(state.copy(), name)
        if not state.flying:
            yield from self._timeouts(state)

    def _without(self, state: Situation, index: int) -> Situation:
        copy = state.copy()
        copy.flying = state.flying[:index] + state.flying[index + 1 :]
        return copy

    def _deliveries(self, state: Situation, index: int) -> Iterator[Situation]:
        target, packed = state.flying[index]
        event = Received(_decode.decode(packed), b"frame")
        delivered = self._without(state, index)
        self.step(delivered, target, event)
        yield delivered
        if state.duplicates:
            doubled = state.copy()
            doubled.duplicates -= 1
            self.step(doubled, target, event)
            yield doubled
        if state.crashes:
            for durable in (False, True):
                cut = self._without(state, index)
                self.step(cut, target, event, cut_short=durable)
                yield self._crashed(cut, target)

    def _timeouts(self, state: Situation) -> Iterator[Situation]:
        for name in self._names:
            for key in state.copy().site(name).timers:
                if key[0] == "marks" or not self._may_act(state, name):
                    continue
                fired = state.copy()
                del fired.site(name).timers[key]
                self.step(fired, name, TimerFired(key))
                yield fired

    def _crashed(self, state: Situation, name: str) -> Situation:
        state.crashes -= 1
        state.touched = True
        site = state.site(name)
        pending: list[Input] = []
        for _, effects in site.start():
            pending += self._perform(state, site, effects)
        for event in pending:
            self.step(state, name, event)
        return state

    def _may_act(self, state: Situation, name: str) -> bool:
        """Members are alike: as long as none has done anything, only the first may."""
        return name == COORDINATOR or state.touched or name == "m0"

    def step(self, state: Situation, name: str, event: Input, cut_short: bool | None = None) -> None:
        """One event at one site. `cut_short`: it dies before anything is sent; True: its records are durable."""
        site = state.site(name)
        state.touched = state.touched or name != COORDINATOR
        pending: list[Input] = [event]
        while pending:
            for _, effects in site.participant.step(pending.pop(0)):
                if cut_short is None:
                    pending += self._perform(state, site, effects)
                elif cut_short:
                    self._write(site, effects)
            if cut_short is not None:
                return

    def _perform(self, state: Situation, site: SmallSite, effects: list[Effect]) -> list[Input]:
        results: list[Input] = []
        self._write(site, effects)
        for effect in effects:
            match effect:
                case Send():
                    if effect.site == site.name:
                        results.append(Received(effect.message))
                    else:
                        self._fly(state, effect.site, effect.message)
                case Broadcast():
                    self._broadcast(state, effect.message)
                case SetTimer():
                    site.timers[effect.key] = None
                case CancelTimer():
                    site.timers.pop(effect.key, None)
                case AskScope():
                    results.append(ScopeChosen(effect.tx, site.scope, identity=True))
                case Opened():
                    results += [PublishCall("k", ITEM), CommitCall("k")]
                case Resolve() if effect.outcome.final:
                    state.outcomes = tuple(sorted({*state.outcomes, effect.outcome.status.value}))
                    results.append(ConfirmCall("k"))
                case _ if isinstance(effect, WORK):
                    results += self._work(state, site, effect)
                case _:
                    pass
        return results

    def _work(self, state: Situation, site: SmallSite, effect: Work) -> list[Input]:
        before = dict(site.resource.marked)
        result = UnitWork(site.resource, Writes()).perform(effect)
        new = [f"{site.name} {tx}" for tx in site.resource.marked if tx not in before]
        state.applied = tuple(sorted([*state.applied, *new]))
        return [result] if result is not None else []

    def _broadcast(self, state: Situation, message: m.AnyMessage) -> None:
        if isinstance(message, m.Decision):
            keyring = Keyring(COORDINATOR.encode() * 8)
            commit = message.token == keyring.token(message.tx, "commit")
            state.commits, state.aborts = state.commits or commit, state.aborts or not commit
            if commit:
                state.final = tuple(
                    n for n in self._names if Keyring(n.encode() * 8).member(message.tx) in message.final
                )
        for name in self._names:
            if name != COORDINATOR:
                self._fly(state, name, message)

    def _fly(self, state: Situation, target: str, message: m.AnyMessage) -> None:
        if isinstance(message, m.AskMark | m.Mark):
            return
        state.flying = (*state.flying, (target, _encode(message)))

    def _write(self, site: SmallSite, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                site.records.pop(effect.key, None)
                site.records[effect.key] = effect.record
            elif isinstance(effect, Drop):
                site.records.pop(effect.key, None)

    # Invariants

    def _check(self, state: Situation, explored: Explored) -> None:
        if state.applied and not state.commits:
            explored.violations.append(f"applied before any commit: {state.applied}")
        if len(set(state.applied)) != len(state.applied):
            explored.violations.append(f"applied twice: {state.applied}")
        bound = [name for name in state.final if name in state.opened and state.opened[name].resource.prepared]
        if state.aborts and bound:
            explored.violations.append(f"an abort was sent while {bound[0]}, which the commit names, is prepared")
        astray = [what for what in state.applied if what.split()[0] not in state.final]
        if state.commits and astray:
            explored.violations.append(f"applied by who is not named: {astray}")

    def _check_end(self, state: Situation, explored: Explored) -> None:
        """Nothing can happen any more: then everything must be over."""
        explored.outcomes.update(state.outcomes)
        if not state.outcomes and state.site(COORDINATOR).life == 1:
            explored.violations.append("the caller never heard an outcome")
        if state.applied and "committed" not in state.outcomes and state.site(COORDINATOR).life == 1:
            explored.violations.append(f"applied, and the caller heard {state.outcomes}")
        missing = [name for name in state.final if not any(what.split()[0] == name for what in state.applied)]
        if missing:
            explored.violations.append(f"committed, and {missing[0]} never applied it")
        for name in self._names:
            site = state.site(name)
            if site.resource.prepared or site.resource.units:
                explored.violations.append(f"{name} is left with unfinished work")
            for members in site.participant.subscriber.members.values():
                for tx, member in members.items():
                    state_of = getattr(member, "state", State.DONE)
                    if state_of not in (State.DONE, State.REFUSED):
                        explored.violations.append(f"{name} is left in {state_of.value}: {tx}")


def explore(
    members: int, crashes: int, losses: int, duplicates: int = 0, one_shot: bool = False, limit: int = 100_000
) -> Explored:
    """Walk every interleaving, or the first `limit` states of it."""
    return Explorer(members, crashes, losses, duplicates, one_shot).walk(limit)
