"""What `Site` and `AsyncSite` share: everything but the waiting."""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from msgspec.structs import replace as replace_fields

from txlayer.adapters.base import check_label
from txlayer.effects import AskCall, ConfirmCall, LeaveCall, Predicate, Surface
from txlayer.errors import OutcomeUnknown, UsageError
from txlayer.event_types import EventTypes, check_type_name, declared
from txlayer.filters import Where, text
from txlayer.logs.port import Disk
from txlayer.logs.register import Register
from txlayer.messages import (
    Access,
    Conditions,
    Item,
    Join,
    Limit,
    Outcome,
    Scope,
    Status,
    Terms,
    TxId,
    TxType,
    Visibility,
)
from txlayer.participant import Event, Handler, PublisherParticipant, Subscriber, make_listener, make_subscriber
from txlayer.payloads import JSON, Codec, Payloads
from txlayer.plain import PlainEvents
from txlayer.ports import Bus, SiteView
from txlayer.receipt import Receipt
from txlayer.resources.port import Resource
from txlayer.runtime import directory
from txlayer.runtime.calls import Answer, Call, is_refusal
from txlayer.runtime.engine import Engine, Settings, Threads
from txlayer.runtime.inspection import TransactionView
from txlayer.runtime.loop import Probe
from txlayer.runtime.membership import Application
from txlayer.runtime.wires import HOSTS, plain_topic
from txlayer.security_levels import Secret, Signed, make_seal
from txlayer.transacting import CALL, KEY, Plan, Transacting, check_size, declared_name, make_item
from txlayer.transactions.constraints import check_terms
from txlayer.transactions.event_coordinator import Limits, size_of, size_of_terms
from txlayer.transactions.seat import Bounds, Patience

_logger = logging.getLogger(__name__)
H = TypeVar("H")
Begin = Callable[[], tuple[Transacting, Future[Answer]]]
_Beginning = tuple[Begin, float]
PUBLISHER = "txlayer.publisher"
"""The attribute by which a site recognises its own transactions."""
SELF, HOSTED = "self", "hosted"
MOST_LETTERS = 100


@dataclass(frozen=True, slots=True)
class Draft:
    """An event of a one-shot transaction with a type or attributes of its own."""

    data: Any
    type: str | None = None
    attributes: Mapping[str, Any] | None = None


class SiteBase:
    """A member of the bus by name, with a log of its own."""

    def __init__(
        self,
        name: str,
        *,
        bus: str | Bus,
        log: str | Disk,
        security: str | Secret | Signed = "broker",
        hosts: bool = False,
        codec: Codec = JSON,
        codecs: Sequence[Codec] = (),
        types: Sequence[type] = (),
        strict: bool = False,
        patience: Patience | None = None,
        bounds: Bounds | None = None,
        limits: Limits | None = None,
        threads: Threads | None = None,
        handler_within: float = 30.0,
        probe: Probe | None = None,
        register: str | Register | None = None,
        finishers: Sequence[str] = (),
    ) -> None:
        check_label(name)
        if len(name) > MOST_LETTERS:
            raise UsageError(f"site name of {len(name)} letters: at most {MOST_LETTERS}, it becomes part of topics")
        if finishers and register is None:
            raise UsageError("finishers share a register of decisions with this site: register='postgresql://...'")
        self.name = name
        self._application = Application(Payloads.of(codec, codecs), EventTypes(strict))
        for cls in types:
            self._application.types.declare(declared(cls))
        settings = Settings(
            name, bus, log, make_seal(security, name), hosts, patience or Patience(), bounds or Bounds(),
            limits or Limits(), threads or Threads(), handler_within, probe, register, tuple(finishers),
        )  # fmt: skip
        self._engine = Engine(settings, self._application)
        self._plain: PlainEvents | None = None
        self._listening = threading.Lock()
        """Held while plain events begin to be received: each subscriber receives them once."""
        self._enlisted: set[str] = set()

    @property
    def bus(self) -> Bus:
        """The bus of a started site: for plain topics, presence and tools."""
        self._engine.check(new=False)
        return self._engine.bus

    # Subscribers

    def subscriber(
        self,
        type: str | type,
        *,
        where: Where | None = None,
        scope: Scope | None = None,
        resources: Sequence[Resource] = (),
        attempts: int = 1,
        anonymous: bool = False,
        durable: bool = False,
        compensate: Callable[[Any, Event], Any] | None = None,
    ) -> Callable[[H], H]:
        """Decorate a Participant class or a function `(tx, event)`: it takes part in transactions of this type.

        `where` filters by the transaction's attributes; `scope` is how it takes part unless `on_join` says otherwise
        (by default as strongly as the transaction allows); `attempts` how often a failing handler is called; an
        `anonymous` member is counted by its answer alone. A `durable` local member misses nothing while it is away.
        """

        def subscribe(handler: H) -> H:
            self._add(
                make_subscriber(
                    self._type_name(type), handler, where=where, scope=scope, resources=resources,  # type: ignore[arg-type]
                    attempts=attempts, anonymous=anonymous, durable=durable, compensate=compensate,
                )
            )  # fmt: skip
            return handler

        return subscribe

    def subscribe(self, type: str | type, handler: Handler, **options: Any) -> None:
        """The same as `subscriber`, as a call."""
        self.subscriber(type, **options)(handler)

    def unsubscribe(self, type: str | type) -> None:
        """Take back every `subscriber`, `listener` and `enlist` of this type: no part in new transactions of it.

        Running ones are finished. Coordinators keep nothing more for a follower or durable local member that it was;
        subscribed again, it starts with what is published then.
        """
        name = self._type_name(type)
        if self._engine.started:
            self._engine.check()
        gone = self._engine.unsubscribe(name)
        self._enlisted.discard(name)
        if self._plain is not None:
            self._plain.forget(gone)

    def enlist(self, type: str | type, resources: Sequence[Resource]) -> None:
        """Transactions of this type that this site begins work on these resources: `tx[resource]` in the `with` block.

        The site is then a member of them. Call it before the site starts, like `subscriber`: after a restart it tells
        where the work was done.
        """
        own = {PUBLISHER: self.name}
        self.subscriber(type, where=own, scope=Scope.DISTRIBUTED, resources=resources)(PublisherParticipant())
        self._enlisted.add(self._type_name(type))

    def listener(
        self, type: str | type, *, where: Where | None = None
    ) -> Callable[[Callable[[Event], Any]], Callable[[Event], Any]]:
        """Decorate a function `(event)`: it hears of every event of the type, plain or inside a transaction."""

        def listen(function: Callable[[Event], Any]) -> Callable[[Event], Any]:
            self._add(make_listener(self._type_name(type), function, where))
            return function

        return listen

    def _add(self, subscriber: Subscriber) -> None:
        if self._engine.started:
            self._engine.check()
        with self._listening:
            plain = self._plain if subscriber.plain else None
            if plain is not None:
                plain.listen(subscriber)  # first: whoever sees that this site subscribes may publish at once
            try:
                self._engine.subscribe(subscriber)
            except BaseException:
                if plain is not None:
                    plain.forget([subscriber])
                raise

    def _type_name(self, given: str | type) -> str:
        if isinstance(given, str):
            return check_type_name(given)
        declaration = declared(given)
        self._application.types.declare(declaration)
        return declaration.name

    # Life

    def _start(self) -> None:
        if self._engine.started:
            self._engine.check_process()  # first: locks may be held there for ever
        with self._listening:
            self._engine.start()
            if self._plain is not None:
                return
            try:
                self._listen()
                self._engine.show()
            except BaseException:
                self._close(1.0)
                raise

    def _abandon(self) -> None:
        """Close what another thread is starting, when it is through."""
        with self._listening:
            self._close(1.0)

    def _listen(self) -> None:
        self._plain = PlainEvents(self._engine.bus, self._application)
        self._engine.on_types = self._plain.on_types
        for subscriber in self._application.subscribers:
            if subscriber.plain:
                self._plain.listen(subscriber)

    def _close(self, timeout: float) -> None:
        if self._engine.elsewhere():
            return
        deadline = time.monotonic() + timeout
        if self._plain is not None and not self._engine.closed:
            self._plain.close(timeout / 2)  # listeners that hang leave the rest to transactions
        self._engine.close(max(0.0, deadline - time.monotonic()))

    # Event types

    def advertise(self, type: str | type, *, parent: str | None = None) -> None:
        """Tell every site that events of this type are published; subscribers of its parents listen to it too."""
        self._engine.check()
        name = self._type_name(type)
        own = self._application.types.own.get(name)
        above = parent or (own.parent if own is not None else None)
        if above is not None:
            self._application.types.parents.setdefault(name, check_type_name(above))
        key = directory.advertise(self._engine.bus, self.name, name, above)
        self._application.types.advertised.setdefault(name, {})[key] = None

    def unadvertise(self, type: str | type) -> None:
        """Take it back."""
        self._engine.check()
        name = self._type_name(type)
        key = directory.unadvertise(self._engine.bus, self.name, name)
        self._application.types.advertised.get(name, {}).pop(key, None)

    # Publishing

    def publish(self, type: str | type, data: Any, attributes: Mapping[str, Any] | None = None) -> Receipt:
        """Publish a plain event, outside any transaction."""
        self._engine.check()
        name = self._type_name(type)
        item = make_item(self._engine, data, name, attributes)
        topic = plain_topic(self._engine.bus, name)
        return self._engine.bus.publish(topic, item.payload, headers=dict(item.headers) or None, type=name)

    def _items(self, terms: Terms, events: Sequence[Any]) -> list[Item]:
        items = []
        size = size_of_terms(terms)
        for event in events:
            draft = event if isinstance(event, Draft) else Draft(event)
            name = draft.type or declared_name(draft.data) or terms.type
            items.append(make_item(self._engine, draft.data, name, draft.attributes))
            size += size_of(items[-1], self.name)
        check_size(self._engine, len(items), size)
        return items

    def _plan(
        self,
        type: str | type,
        attributes: Mapping[str, Any] | None,
        *,
        one_shot: bool = False,
        local: bool = False,
        require: Conditions | None = None,
        settle_for: Conditions | None = None,
        predicate: Predicate | None = None,
        limit: Limit = Limit.NONE,
        access: Access = Access.SINGLE,
        visibility: Visibility = Visibility.PRIVATE,
        coordinator: str | None = None,
        key: str | None = None,
        publishers: Sequence[str] = (),
        committers: Sequence[str] = (),
        census_within: float = 2.0,
        vote_within: float = 5.0,
        complete_within: float = 60.0,
        delivery_attempts: int = 8,
        on_votes_missing: Callable[[TxId | None], float | None] | None = None,
        within: float = 30.0,
    ) -> Plan:
        self._engine.check()
        name = self._type_name(type)
        self._application.types.check_advertised(name)
        for given, kind in ((limit, Limit), (access, Access), (visibility, Visibility)):
            if not isinstance(given, kind):
                raise UsageError(f"{given!r}: use one of {', '.join(f'{kind.__name__}.{one.name}' for one in kind)}")
        for option, condition in (("require", require), ("settle_for", settle_for)):
            if condition is not None and not isinstance(condition, Conditions):
                raise UsageError(f"{option}={condition!r}: write {option}=at_least(2), named('a', 'b'), ...")
        if predicate is not None and not callable(predicate):
            raise UsageError("a predicate is a function of the members' answers")
        if name in self._enlisted:
            attributes = {**(attributes or {}), PUBLISHER: self.name}
        terms = Terms(
            name, _attributes(attributes), TxType.LOCAL if local else TxType.DISTRIBUTED, access, limit, visibility,
            require or Conditions(), settle_for, one_shot, census_within, vote_within, complete_within,
            delivery_attempts, tuple(publishers), tuple(committers),
        )  # fmt: skip
        check_terms(terms)
        check_size(self._engine, 0, size_of_terms(terms))
        where = self._coordinator(coordinator, access)
        if key and where == HOSTED:
            raise UsageError("a key is known to one coordinator, and hosts come and go: name it, coordinator='...'")
        if predicate is not None and where != self.name:
            raise UsageError("a predicate does not travel to a hosted coordinator: use conditions, or host it yourself")
        asked = _harmless(predicate) if predicate is not None else None
        return Plan(terms, where, f"{KEY}{key}" if key else "", asked, on_votes_missing, within)

    def _coordinator(self, wanted: str | None, access: Access) -> str:
        if wanted is None:
            wanted = HOSTED if access is Access.MULTI else SELF
        if wanted == SELF or wanted == self.name:
            if access is Access.MULTI and not self._engine.settings.hosts:
                raise UsageError("several publishers need a coordinator that hosts: coordinator='hosted'")
            return self.name
        return wanted

    def _placed(self, plan: Plan) -> Plan:
        """With a hosting site chosen, if one is wanted. Waits a while for one."""
        if plan.coordinator != HOSTED:
            return plan
        hosts = self._engine.neighbours.await_hosts(5.0)
        if not hosts:
            raise UsageError(
                "no site offers to host: start one with `txlayer coordinator serve`, or with Site(..., hosts=True)"
            )
        return replace(plan, coordinator=choose_host(plan.terms.type, hosts))

    def _beginning(self, type: str | type, attributes: Mapping[str, Any] | None, terms: dict[str, Any]) -> _Beginning:
        plan = self._plan(type, attributes, **terms)
        return (lambda: Transacting.begin(self._engine, self._placed(plan))), plan.within

    def _joining(
        self, type: str | type | None, attributes: Mapping[str, Any] | None, id: TxId | str | None, within: float
    ) -> Begin:
        self._engine.check()
        name = self._type_name(type) if type is not None else ""
        tx = parse_txid(id) if isinstance(id, str) else id
        wanted = {str(key): text(value) for key, value in (attributes or {}).items()}
        if tx is None and not name:
            raise UsageError("join by id, or by type and attributes")

        def begin() -> tuple[Transacting, Future[Answer]]:
            if tx is not None:
                return Transacting.join(self._engine, tx, name)
            entry = self._engine.neighbours.find_open(self._engine.bus, name, wanted, within)
            if entry is None:
                raise UsageError(f"no open transaction of type {name!r} with {wanted} within {within} s")
            return Transacting.join(self._engine, entry.tx, entry.type)

        return begin

    # Asking

    def _ask(self, tx: TxId | str | None, key: str | None, coordinator: str | None) -> _Question:
        self._engine.check()
        if (tx is None) == (key is None):
            raise UsageError("ask by the transaction's id or by its key")
        if isinstance(tx, str):
            tx = parse_txid(tx)
        name = f"{KEY}{key}" if key is not None else f"{CALL}{secrets.token_hex(8)}"
        if coordinator == HOSTED:
            raise UsageError("a key is known to one coordinator: name it, coordinator='...'")
        where = tx.coordinator if tx is not None else self._coordinator(coordinator, Access.SINGLE)
        with self._engine.calls.naming:
            call, answer, new = self._engine.calls.ask(name, tx)
            if not answer.done():
                self._engine.post(AskCall(call.name, where, tx, name if key is not None else ""))
        return _Question(self._engine, call, answer, new, self._elsewhere() if coordinator is None else [])

    def _elsewhere(self) -> list[str]:
        """Other sites that may have coordinated for this one."""
        views = list(self._engine.neighbours.views.values())
        return sorted(view.name for view in views if view.info.get(HOSTS) == "yes" and view.name != self.name)

    def transactions(self) -> list[TransactionView]:
        """What is open here as coordinator or member: since when, in which state, who blocks."""
        self._engine.check(new=False)
        return self._engine.transactions()

    def on_surface(self, hear: Callable[[Surface], object]) -> None:
        """Hear of what an operator should see: a parked compensation, a follower that is stale, ignored votes, ..."""
        self._engine.surfacing.hearers.append(hear)

    def sites(self) -> list[SiteView]:
        """Who is present on the bus, as far as is known here."""
        self._engine.check(new=False)
        return sorted(self._engine.neighbours.views.values(), key=lambda view: view.name)

    def subscribed(self, type: str | type) -> list[str]:
        """Names of the present sites that subscribe to a type, as far as is known here."""
        self._engine.check(new=False)
        return self._engine.neighbours.subscribed(self._type_name(type))

    def follow_anew(self, coordinator: str) -> None:
        """After a snapshot was loaded: followers and durable local members here read a coordinator from now on."""
        self._engine.check()
        view = self._engine.neighbours.views.get(coordinator)
        if view is None:
            raise UsageError(f"site {coordinator!r} was never seen on this bus")
        self._engine.follow_anew(view)


@dataclass(slots=True)
class _Question:
    """A question about an outcome on its way."""

    engine: Engine
    call: Call
    answer: Future[Answer]
    new: bool
    """Nothing here goes on when nobody asks any more."""
    elsewhere: list[str]
    """Who else may know, where only this site was asked by a key."""

    def note(self, answer: Answer | None) -> Outcome:
        """Known here; a keyed one is kept for whoever repeats the key. `OutcomeUnknown` if it is not known yet."""
        if not isinstance(answer, Outcome) or answer.status is Status.PENDING or is_refusal(answer):
            self.drop()
            raise OutcomeUnknown(f"{self.call.tx or self.call.name[2:]}: not known yet, ask again later")
        if answer.final:
            kept = not answer.key.startswith(CALL)
            self._release(LeaveCall(self.call.name) if kept else ConfirmCall(self.call.name))
        never_here = answer.status is Status.ABORTED and answer.tx is None
        if never_here and self.elsewhere and answer.coordinator == self.engine.settings.name:
            reason = f"this site never coordinated it: name who did, coordinator='...': {', '.join(self.elsewhere)}"
            return replace_fields(answer, status=Status.UNKNOWN, reason=reason, final=False)
        return answer

    def drop(self) -> None:
        """Nobody asks any more."""
        if self.new:
            self._release(LeaveCall(self.call.name))

    def _release(self, call: ConfirmCall | LeaveCall) -> None:
        with self.engine.calls.naming:
            if self.engine.calls.remove(self.call):
                self.engine.post(call)


def _harmless(predicate: Predicate) -> Predicate:
    """A predicate that fails is one that does not hold."""

    def holds(answers: tuple[Join, ...]) -> bool:
        try:
            return bool(predicate(answers))
        except Exception:
            _logger.exception("the predicate on the answers of a census failed: it does not hold")
            return False

    return holds


def choose_host(type: str, hosts: Sequence[str]) -> str:
    """One of the hosting sites, the same for everyone who sees the same ones (highest random weight)."""
    return max(hosts, key=lambda host: hashlib.sha256(f"{type}\n{host}".encode()).digest())


def parse_txid(text: str) -> TxId:
    """A transaction's id as `str` writes it."""
    try:
        coordinator, incarnation, number, nonce = text.rsplit("/", 3)
        return TxId(coordinator, incarnation, int(number), nonce)
    except ValueError:
        raise UsageError(f"{text!r} is no transaction id: coordinator/incarnation/number/nonce") from None


def _attributes(given: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((str(name), text(value)) for name, value in (given or {}).items()))
