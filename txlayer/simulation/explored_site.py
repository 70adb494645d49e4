"""One site of an exhaustive search: its whole state as bytes, and what one event makes of it.

The roles and the work of members are the real ones. The log is written and synced within the step, unless the step is
cut short by a crash: before its records became durable or after, before anything of it was sent.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

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
from txlayer.errors import ResourceError
from txlayer.messages import Item, Numbered, Scope, Terms, TxId
from txlayer.records import AnyRecord
from txlayer.resources.memory import MemoryResource
from txlayer.runtime.unit_work import WORK, UnitWork, Work
from txlayer.tokens import Keyring
from txlayer.transactions.executor import Executor, State
from txlayer.transactions.participant import Participant
from txlayer.transactions.seat import Seat

COORDINATOR = "c"
ITEM = Item("t", b"x")
EVERYONE = ""
_encode = msgspec.msgpack.Encoder().encode
_decode: msgspec.msgpack.Decoder[m.AnyMessage] = msgspec.msgpack.Decoder(m.AnyMessage)


class Deliver(NamedTuple):
    """A message arrives. `cut`: the site dies in this step; True: after its records became durable."""

    body: bytes
    cut: bool | None = None


class Timeout(NamedTuple):
    """A timer runs out. `cut` as for `Deliver`."""

    key: TimerKey
    cut: bool | None = None


class Crash(NamedTuple):
    """The site dies between two steps, and starts again."""


Happening = Deliver | Timeout | Crash


class Fact(NamedTuple):
    """Something that was seen at the edge: a commit with its list, an abort, an outcome, work applied or impossible."""

    what: str
    names: tuple[str, ...] = ()


class Stepped(NamedTuple):
    """What an event made of a site: its new state, what it sent (to one site or everyone), what was seen."""

    packed: bytes
    sent: tuple[tuple[str, bytes], ...]
    facts: tuple[Fact, ...]


class Writes:
    """Handlers that write the event down."""

    def handle(self, tx: TxId, event: Numbered, work: object) -> None:
        work.put(str(event.number), event.item.payload)  # type: ignore[attr-defined]

    def compensate(self, tx: TxId, event: Numbered, work: object) -> None:
        raise AssertionError("nobody compensates here")


@dataclass(slots=True)
class ExploredSite:
    """A site whose log is written and synced within the step."""

    name: str
    scope: Scope
    life: int = 0
    records: dict[str, AnyRecord] = field(default_factory=dict)
    resource: MemoryResource = field(default_factory=MemoryResource)
    timers: dict[TimerKey, None] = field(default_factory=dict)
    participant: Participant = field(init=False)

    def start(self) -> list[list[Effect]]:
        """A new life."""
        self.life += 1
        self.timers = {}
        self.resource.crash()
        self.participant = Participant(Seat(self.name, f"log-{self.name}", self.life, Keyring(self.name.encode() * 8)))
        return [effects for _, effects in self.participant.recover(list(self.records.values()))]

    def write(self, effects: Iterable[Effect]) -> None:
        """Records of a step become durable."""
        for effect in effects:
            if isinstance(effect, Append):
                self.records.pop(effect.key, None)
                self.records[effect.key] = effect.record
            elif isinstance(effect, Drop):
                self.records.pop(effect.key, None)

    def at_rest(self) -> bool:
        """Whether no work is left here."""
        if self.resource.prepared or self.resource.units:
            return False
        members = [member for txs in self.participant.subscriber.members.values() for member in txs.values()]
        return all(getattr(member, "state", State.DONE) in (State.DONE, State.REFUSED) for member in members)


class Stepping:
    """One step of one site, with everything that follows from it at the same site."""

    def __init__(self, site: ExploredSite, names: tuple[str, ...]) -> None:
        self.site = site
        self._names = names
        self._sent: list[tuple[str, bytes]] = []
        self._facts: list[Fact] = []

    def begin(self, terms: Terms) -> Stepped:
        """The caller opens its transaction, and will publish one event and commit."""
        self._run([BeginCall("k", terms, COORDINATOR, (ITEM,) if terms.one_shot else ())])
        return self._result()

    def step(self, happening: Happening) -> Stepped:
        """What an event makes of the site."""
        match happening:
            case Deliver():
                self._take(Received(_decode.decode(happening.body), b"frame"), happening.cut)
            case Timeout():
                del self.site.timers[happening.key]
                self._take(TimerFired(happening.key), happening.cut)
            case Crash():
                self._restart()
        return self._result()

    def _take(self, event: Input, cut: bool | None) -> None:
        if cut is None:
            self._run([event])
            return
        for _, effects in self.site.participant.step(event):
            if cut:
                self.site.write(effects)
        self._restart()

    def _restart(self) -> None:
        pending: list[Input] = []
        for effects in self.site.start():
            pending += self._perform(effects)
        self._run(pending)

    def _run(self, pending: list[Input]) -> None:
        while pending:
            for _, effects in self.site.participant.step(pending.pop(0)):
                pending += self._perform(effects)

    def _result(self) -> Stepped:
        _normalise(self.site)
        return Stepped(_pack(self.site), tuple(self._sent), tuple(self._facts))

    def _perform(self, effects: list[Effect]) -> list[Input]:
        site = self.site
        site.write(effects)
        results: list[Input] = []
        for effect in effects:
            match effect:
                case Send() if effect.site == site.name:
                    results.append(Received(effect.message))
                case Send():
                    self._send(effect.site, effect.message)
                case Broadcast():
                    self._broadcast(effect.message)
                case SetTimer():
                    site.timers[effect.key] = None
                case CancelTimer():
                    site.timers.pop(effect.key, None)
                case AskScope():
                    results.append(ScopeChosen(effect.tx, site.scope, identity=True))
                case Opened():
                    results += [PublishCall("k", ITEM), CommitCall("k")]
                case Resolve() if effect.outcome.final:
                    self._facts.append(Fact("outcome", (effect.outcome.status.value,)))
                    results.append(ConfirmCall("k"))
                case _ if isinstance(effect, WORK):
                    results += self._work(effect)
                case _:
                    pass
        return results

    def _work(self, work: Work) -> list[Input]:
        resource = self.site.resource
        before = len(resource.marked)
        try:
            result = UnitWork(resource, Writes()).perform(work)
        except ResourceError:
            self._facts.append(Fact("impossible", (self.site.name,)))
            return []
        if len(resource.marked) > before:
            self._facts.append(Fact("applied", (self.site.name,)))
        return [result] if result is not None else []

    def _broadcast(self, message: m.AnyMessage) -> None:
        if isinstance(message, m.Decision):
            if message.token == Keyring(COORDINATOR.encode() * 8).token(message.tx, "commit"):
                named = (n for n in self._names if Keyring(n.encode() * 8).member(message.tx) in message.final)
                self._facts.append(Fact("commit", tuple(sorted(named))))
            else:
                self._facts.append(Fact("abort"))
        self._send(EVERYONE, message)

    def _send(self, target: str, message: m.AnyMessage) -> None:
        """Marks only forget, and there is nothing here to forget; the order of names in a list means nothing."""
        if isinstance(message, m.AskMark | m.Mark):
            return
        if isinstance(message, m.Begin | m.Prepare):
            message = msgspec.structs.replace(message, members=tuple(sorted(message.members)))
        elif isinstance(message, m.Decision):
            message = msgspec.structs.replace(message, final=tuple(sorted(message.final)))
        self._sent.append((target, _encode(message)))


def _normalise(site: ExploredSite) -> None:
    """States that differ in nothing that matters become equal.

    Repetitions only make pauses longer, and there is no time here: two are as good as many. The order in which
    answers came in is forgotten.
    """
    for tx in site.participant.coordinator.transactions.values():
        tx.attempt = min(tx.attempt, 2)
        tx.census.joined = dict(sorted(tx.census.joined.items()))
        tx.census.others = dict(sorted(tx.census.others.items()))
        if tx.census.present is not None:
            tx.census.present = dict(sorted(tx.census.present.items()))
        tx.ballot.members = dict(sorted(tx.ballot.members.items()))
        tx.ballot.votes = dict(sorted(tx.ballot.votes.items()))
        tx.unacknowledged = dict(sorted(tx.unacknowledged.items()))
        if tx.decision is not None:
            tx.decision = msgspec.structs.replace(tx.decision, final=tuple(sorted(tx.decision.final)))
    for publisher in site.participant.publishers.values():
        publisher.attempt = min(publisher.attempt, 2)
    for members in site.participant.subscriber.members.values():
        for member in members.values():
            if isinstance(member, Executor):
                member.doubts, member.gaps = min(member.doubts, 2), min(member.gaps, 2)
    site.timers = dict(sorted(site.timers.items(), key=repr))
    site.records = dict(sorted(site.records.items()))


def _pack(site: ExploredSite) -> bytes:
    """Bytes that depend on values only, not on which objects happen to be shared."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer)
    pickler.fast = True
    pickler.dump(site)
    return buffer.getvalue()


def unpack(packed: bytes) -> ExploredSite:
    """A site of one's own, to be changed."""
    site: ExploredSite = pickle.loads(packed)
    return site
