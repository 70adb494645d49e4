"""Who of the application takes part in which transaction at this site.

A site has one vote in a transaction, whatever runs inside: all its subscribers that match take part in one unit of
work, under the strongest scope that one of them chose. Only followers and durable local members are on their own: what
they read from a chain they apply in a unit of that chain, whatever the others of their site do.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txlayer.effects import MemberAborts, ScopeChosen, Surface
from txlayer.errors import DecodeError, ResourceError, UsageError
from txlayer.event_types import EventTypes
from txlayer.filters import text
from txlayer.messages import ChainKind, Numbered, Scope, Terms, TxId, TxType
from txlayer.participant import Answer, Event, Participant, Subscriber
from txlayer.payloads import CONTENT_TYPE, Payloads
from txlayer.resources.port import Resource
from txlayer.runtime.unit_work import HandlerFailed
from txlayer.transactions.scope import chain_for, granted
from txlayer.units import entry_of, undo_of

_logger = logging.getLogger(__name__)
_STRENGTH = {Scope.NONE: 0, Scope.NON_TRANSACTIONAL: 1, Scope.LOCAL: 2, Scope.DISTRIBUTED: 3}


@dataclass(slots=True)
class Application:
    """What a site's application has declared."""

    payloads: Payloads
    types: EventTypes
    subscribers: list[Subscriber] = field(default_factory=list)
    retired: list[Subscriber] = field(default_factory=list)
    """Those among them that take part in nothing new: what they have begun they finish."""
    give_up: Callable[[MemberAborts], None] = lambda _: None
    surface: Callable[[Surface], None] = lambda _: None
    loop: asyncio.AbstractEventLoop | None = None

    def active(self) -> list[Subscriber]:
        """Subscribers that take part in what comes."""
        if not self.retired:
            return self.subscribers
        return [s for s in self.subscribers if not any(s is gone for gone in self.retired)]

    def subscribes(self, event_type: str) -> bool:
        """Whether anyone takes part in what comes of the type."""
        names = set(self.types.ancestors(event_type))
        return any(s.type in names for s in self.active())

    def matching(self, event_type: str, attributes: Mapping[str, str]) -> list[Subscriber]:
        """Subscribers of the type, or of a parent of it, whose filter lets the transaction through."""
        names = set(self.types.ancestors(event_type))
        return [s for s in self.active() if s.type in names and s.filter.matches(attributes)]

    def of_type(self, event_type: str) -> list[Subscriber]:
        """Subscribers of the type, or of a parent of it; also retired ones, whose work may be unfinished."""
        names = set(self.types.ancestors(event_type))
        return [s for s in self.subscribers if s.type in names]

    def resources(self) -> tuple[Resource, ...]:
        """Every resource of the site."""
        return _distinct(self.subscribers)

    def event(self, tx: TxId, numbered: Numbered) -> Event:
        """An event as a handler gets it; `DecodeError` if its payload cannot be read."""
        item = numbered.item
        attributes = dict(item.headers)
        data = self.payloads.decode(item.payload, attributes.get(CONTENT_TYPE), self.types.class_of(item.type))
        return Event(item.type, data, attributes, numbered.publisher, numbered.number, tx, item.payload)

    def run(self, result: Any) -> Any:
        """What a handler returned; a coroutine is run on the application's loop."""
        if not inspect.isawaitable(result):
            return result
        if self.loop is None:
            if inspect.iscoroutine(result):
                result.close()
            raise UsageError("a coroutine handler needs an AsyncSite")
        return asyncio.run_coroutine_threadsafe(_await(result), self.loop).result()


def _distinct(subscribers: Iterable[Subscriber]) -> tuple[Resource, ...]:
    return tuple({id(resource): resource for s in subscribers for resource in s.resources}.values())


async def _await(awaitable: Any) -> Any:
    return await awaitable


@dataclass(slots=True, eq=False)
class Part:
    """What one subscriber does in one transaction. Its participant is made by the first thread that calls it."""

    subscriber: Subscriber
    unasked: bool = False
    """Its `on_join` has yet to say whether this is for it."""
    _made: Participant | None = None

    def participant(self) -> Participant:
        """Runs the constructor of an application's class: on its threads alone."""
        self._made = self._made or self.subscriber.make()
        return self._made


@dataclass(slots=True, eq=False)
class Membership:
    """One transaction at this site: what its handlers hold, and the handlers."""

    id: TxId
    type: str
    attributes: Mapping[str, str]
    terms: Terms | None
    application: Application
    subscribers: list[Subscriber]
    participants: list[Part] = field(default_factory=list)
    listeners: list[Part] = field(default_factory=list)
    chain: ChainKind | None = None
    """Where it is an entry of a chain: which."""
    readers: dict[ChainKind, list[Part]] = field(default_factory=dict)
    """Who chose to get the transaction by a chain."""
    chosen: bool = False
    """Everyone was asked."""
    since: float = field(default_factory=time.monotonic)
    consented: bool = False
    """The application was asked for its last word."""
    taking_part: dict[TxId, list[Resource]] = field(default_factory=dict)
    """Which of its resources its units are made of, once they are prepared."""
    handed: dict[TxId, list[Resource]] = field(default_factory=dict)
    """Which of them its handlers were given."""
    unanswered: dict[TxId, None] = field(default_factory=dict)
    """Commits that were sent and may have happened."""
    lost: bool = False
    """A handler did not come back in time: whatever it still tries is refused."""
    leaving: bool = False
    """Nobody here subscribes to the type any more."""

    def __getitem__(self, resource: Resource) -> Any:
        if self.lost:
            raise ResourceError(f"{self.id}: the handler did not return in time, its transaction is rolled back")
        self._check(resource)
        known = self._handed(resource)
        unit = resource.work(self._unit)
        self._hand(resource, known)
        return unit

    def _handed(self, resource: Resource) -> bool:
        """Whether a handler had it before. What that one did must not be missing beneath what the next one does."""
        known = any(resource is one for one in self.handed.get(self._unit, ()))
        if known and not resource.has_work(self._unit):
            raise ResourceError(f"the work of {self._unit} in {resource.name} was lost before it was prepared")
        return known

    def _hand(self, resource: Resource, known: bool) -> None:
        if not known:
            self.handed.setdefault(self._unit, []).append(resource)

    def _check(self, resource: Resource) -> None:
        if not any(resource is known for subscriber in self.subscribers for known in subscriber.resources):
            raise UsageError(
                "this resource takes no part in the transaction here: give it by resources=[...] to a subscriber "
                "that is local, follows or is distributed"
            )

    def abort(self, reason: str = "") -> None:
        """Give the transaction up as a member."""
        self.application.give_up(MemberAborts(self.unit, reason))

    unit: TxId = field(init=False)
    _unit: TxId = field(init=False)
    resources: tuple[Resource, ...] = field(init=False)
    """Those of all subscribers, each once."""
    quiet: bool = field(init=False)
    """Whether finishing runs no application code."""

    def __post_init__(self) -> None:
        self._unit = self.unit = entry_of(self.id, self.chain) if self.chain is not None else self.id
        self._take_part(self.subscribers)

    def _take_part(self, subscribers: list[Subscriber]) -> None:
        self.subscribers = subscribers
        self.resources = _distinct(subscribers)
        self.quiet = all(s.quiet for s in subscribers)

    def asks(self) -> bool:
        """Whether the application wants to choose its scope itself."""
        return any(s.asks for s in self.subscribers)

    def choose(self) -> ScopeChosen:
        """Ask the application how to take part."""
        chosen: list[tuple[Scope, Part]] = []
        attributes: dict[str, str] = {}
        for subscriber in self.subscribers:
            part = Part(subscriber)
            answer = self._ask(subscriber, part)
            if isinstance(answer, tuple):
                attributes.update({name: text(value) for name, value in answer[1].items()})
            scope = self._granted(answer)
            kind = chain_for(scope, subscriber.durable)
            if kind is None:
                chosen.append((scope, part))
            else:
                self.readers.setdefault(kind, []).append(part)
        strongest = max((scope for scope, _ in chosen), key=_STRENGTH.__getitem__, default=Scope.NONE)
        self.listeners = [part for wanted, part in chosen if wanted is Scope.NON_TRANSACTIONAL]
        self.participants = [part for wanted, part in chosen if _STRENGTH[wanted] > 1]
        self._take_part([part.subscriber for part in self.participants])
        self.chosen = True
        return self._choice(strongest, attributes)

    def _granted(self, answer: Answer) -> Scope:
        """What one subscriber gets; what it asks for in vain is no matter of its neighbours."""
        assert self.terms is not None, "who is asked has the terms"
        scope = answer[0] if isinstance(answer, tuple) else answer
        try:
            return granted(scope, self.terms.tx_type, self.terms.limit)
        except UsageError as exc:
            self.application.surface(Surface("usage error", self.id, str(exc)))
            return Scope.NONE

    def _choice(self, scope: Scope, attributes: Mapping[str, str]) -> ScopeChosen:
        taking = self.subscribers
        compensatable = bool(taking) and all(s.compensatable for s in taking)
        return ScopeChosen(
            self.id, scope, not any(s.anonymous for s in taking), compensatable,
            len(self.resources) <= 1 and not compensatable, max((s.attempts for s in taking), default=1),
            tuple(sorted(attributes.items())), tuple(kind for kind in ChainKind if kind in self.readers),
            tuple(sorted({s.name for s in taking})), self.leaving, bool(self.resources) or not self.quiet,
            bool(self.resources),
        )  # fmt: skip

    def _ask(self, subscriber: Subscriber, part: Part) -> Answer:
        answer: Answer | None = None
        if subscriber.asks:
            try:
                answer = self.application.run(part.participant().on_join(self))
            except BaseException:
                _logger.exception("on_join of %s failed: it does not take part", subscriber.type)
                return Scope.NONE
        if answer is None:
            return self._declared(subscriber)
        scope: object = answer[0] if isinstance(answer, tuple) else answer
        if not isinstance(scope, Scope):
            _logger.error("on_join of %s returned %r, no Scope: it does not take part", subscriber.type, answer)
            return Scope.NONE
        return answer

    def _declared(self, subscriber: Subscriber) -> Scope:
        """What was declared; otherwise the strongest that the transaction has."""
        if subscriber.scope is not None:
            return subscriber.scope
        local = self.terms is not None and self.terms.tx_type is TxType.LOCAL
        return Scope.LOCAL if local else Scope.DISTRIBUTED

    def _ask_readers(self) -> None:
        """Of those who choose by transaction, let the ones go who do not follow this one."""
        for part in [part for part in self.participants if part.unasked]:
            part.unasked = False
            scope = self._granted(self._ask(part.subscriber, part))
            if chain_for(scope, part.subscriber.durable) is not self.chain:
                self.participants.remove(part)

    # What `UnitWork` calls

    def handle(self, tx: TxId, event: Numbered, work: Any) -> None:
        """One event, to all participants."""
        self._unit = tx
        self._ask_readers()
        if not self.participants and not self.listeners:
            return  # nobody here wants it: not even read, for that might fail
        seen = self._read(event)
        for part in self.participants:
            self._call(lambda p: self._do(p.on_event(self, seen)), part)
        for listener in self.listeners:
            self._quietly(lambda p: p.on_event(self, seen), listener, "on_event")

    def compensate(self, tx: TxId, event: Numbered, work: Any) -> None:
        """Undo one event; a resource's work is part of the unit that undoes."""
        self._unit = undo_of(tx)
        seen = self._read(event)
        for part in reversed(self.participants):
            self._call(lambda p: self._do(p.on_compensate(self, seen)), part)

    def notify(self, event: Numbered) -> None:
        """One event outside any transaction."""
        try:
            seen = self.application.event(self.id, event)
        except DecodeError:
            _logger.exception("an event of %s cannot be read", self.id)
            return
        for listener in self.listeners:
            self._quietly(lambda p: p.on_event(self, seen), listener, "on_event")

    def prepare(self) -> None:
        """The application's last word."""
        for part in self.participants:
            self._call(lambda p: self.application.run(p.on_prepare(self)), part)

    def ended(self, commit: bool) -> None:
        """Tell the application. It cannot object."""
        self._ask_readers()
        for part in self.participants:
            if commit:
                self._quietly(lambda p: p.on_commit(self), part, "on_commit")
            else:
                self._quietly(lambda p: p.on_abort(self), part, "on_abort")

    def _read(self, event: Numbered) -> Event:
        try:
            return self.application.event(self.id, event)
        except DecodeError as exc:
            raise HandlerFailed(str(exc)) from exc

    def _do(self, result: Any) -> None:
        """Work that a handler returned instead of doing it is handed to its resource."""
        result = self.application.run(result)
        resource: Resource | None = getattr(result, "resource", None)
        if resource is not None:
            self._check(resource)
            known = self._handed(resource)
            resource.add(self._unit, result)
            self._hand(resource, known)

    def _call(self, act: Callable[[Participant], object], part: Part) -> None:
        try:
            act(part.participant())
        except (HandlerFailed, ResourceError):
            raise
        except BaseException as exc:  # also SystemExit: the thread is for all, and a member has to answer
            _logger.info("a handler of %s failed", self.id, exc_info=True)
            raise HandlerFailed(f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__) from exc

    def _quietly(self, act: Callable[[Participant], Any], part: Part, what: str) -> None:
        try:
            self.application.run(act(part.participant()))
        except BaseException:
            _logger.exception("%s of %s failed", what, self.id)
