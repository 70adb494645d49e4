"""What a publisher's transaction does, whether its caller waits or awaits.

`Transacting` hands calls to the roles and gives futures back. `Face` is what a caller holds of it: `Transaction` waits
for the futures, `AsyncTransaction` awaits them.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from txlayer.effects import AbortCall, BeginCall, CommitCall, ConfirmCall, JoinCall, LeaveCall, Predicate, PublishCall
from txlayer.errors import (
    Backpressure,
    CensusUnfulfilled,
    OutcomeUnknown,
    PayloadTooLarge,
    ResourceError,
    TransactionAborted,
    TransactionRefused,
    UsageError,
)
from txlayer.event_types import EventType, declared
from txlayer.filters import text
from txlayer.messages import NAMELESS, Item, Outcome, Status, Terms, TxId
from txlayer.resources.port import Resource
from txlayer.runtime.calls import Answer, Call
from txlayer.runtime.engine import Engine
from txlayer.runtime.membership import Membership
from txlayer.runtime.workshop import Lend
from txlayer.transactions.event_coordinator import size_of, size_of_terms

KEY, CALL = "k:", NAMELESS
"""How calls are named: by the caller's own key, or by chance."""
ABORT_SECONDS = 5.0
"""How long leaving by an exception waits for the abort to be known; it happens anyway."""
WINDOW = 128
"""How many events a publisher is ahead of its coordinator."""
BEGIN_SECONDS = 10.0
"""How long, beyond the census, a coordinator may take to answer."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a transaction is begun with."""

    terms: Terms
    coordinator: str
    key: str = ""
    predicate: Predicate | None = None
    on_votes_missing: Callable[[TxId | None], float | None] | None = None
    within: float = 30.0


@dataclass(slots=True, eq=False)
class Transacting:
    """Calls of one publisher in one transaction."""

    engine: Engine
    call: Call
    plan: Plan | None
    type: str
    joined: bool = False
    ended: bool = False
    worked: bool = False
    """Its publisher has worked on a resource in it."""
    submitted: int = 0
    bytes: int = 0
    items: list[Item] = field(default_factory=list)
    lent: list[tuple[Resource, Any]] = field(default_factory=list)
    """The resources that its publisher works on, and what it has of them."""

    @classmethod
    def begin(cls, engine: Engine, plan: Plan, items: Sequence[Item] = ()) -> tuple[Transacting, Future[Answer]]:
        """Open a transaction, or run it in one shot."""
        engine.check()
        name = plan.key or f"{CALL}{secrets.token_hex(8)}"
        with engine.calls.naming:
            known = engine.calls.open.get(name)
            if known is not None and (known.in_steps or not plan.terms.one_shot):
                key = name.removeprefix(KEY)
                what = f"a transaction with key {key!r} is open in this site"
                raise UsageError(f"{what}: outcome(key={key!r}) tells its end")
            call = engine.calls.add(name)
            call.in_steps = call.publishing = not plan.terms.one_shot
            if plan.on_votes_missing is not None:
                engine.surfacing.on_votes_missing[name] = plan.on_votes_missing
            answer = engine.calls.wait(call)
            if not answer.done():  # else it is told what another caller under its key is told, and begins nothing
                engine.post(BeginCall(name, plan.terms, plan.coordinator, tuple(items), plan.predicate))
        size = size_of_terms(plan.terms)
        return cls(engine, call, plan, plan.terms.type, ended=plan.terms.one_shot, bytes=size), answer

    @classmethod
    def join(cls, engine: Engine, tx: TxId, event_type: str) -> tuple[Transacting, Future[Answer]]:
        """Publish in a transaction that another site began."""
        engine.check()
        with engine.calls.naming:
            if engine.calls.of(tx) is not None:
                raise UsageError(f"this site publishes in {tx} already: use that, or leave it first")
            call = engine.calls.add(f"{CALL}{secrets.token_hex(8)}", tx)
            answer = engine.calls.wait(call)
            engine.post(JoinCall(call.name, tx))
        return cls(engine, call, None, event_type, joined=True), answer

    @property
    def id(self) -> TxId:
        """Of a transaction that is open."""
        assert self.call.tx is not None, "an open transaction has an id"
        return self.call.tx

    def publish(self, value: Any, type: str | None, attributes: Mapping[str, Any] | None) -> None:
        """Submit an event."""
        self.check_open("publish")
        item = make_item(self.engine, value, type if type is not None else self.type or self.call.type, attributes)
        size = self.bytes + size_of(item, self.engine.settings.name)
        check_size(self.engine, self.submitted + 1, size)
        self.submitted += 1
        self.bytes = size
        self.engine.post(PublishCall(self.call.name, item))

    def commit(self) -> Future[Answer]:
        """Ask for the commit."""
        self.check_open("commit")
        self.end()
        answer = self.engine.calls.wait(self.call)
        self.engine.post(CommitCall(self.call.name))
        return answer

    def abort(self, reason: str) -> Future[Answer]:
        """Give it up."""
        self.check_open("abort")
        self.end()
        answer = self.engine.calls.wait(self.call)
        self.engine.post(AbortCall(self.call.name, reason))
        return answer

    def begin_within(self) -> float:
        """How long to wait for the coordinator's first answer."""
        return BEGIN_SECONDS + (self.plan.terms.census_within if self.plan is not None else 0.0)

    def give_up(self) -> Outcome:
        """The coordinator did not answer: nothing more is said to it.

        What nobody else can commit is then aborted. Others may commit what was joined or has committers, and a key may
        name what has committed before.
        """
        self.ended = True
        self.leave("" if self.joined else "its publisher gave up waiting for the coordinator")
        where = self.plan.coordinator if self.plan is not None else getattr(self.call.tx, "coordinator", "")
        reason = f"no answer from coordinator {where!r} within {self.begin_within()} s"
        definite = self.plan is not None and not self.plan.key and not self.plan.terms.committers
        status = Status.ABORTED if definite else Status.PENDING
        return Outcome(self.call.tx, self.call.name, status, reason=reason, final=definite)

    def not_known(self) -> Outcome:
        """Its caller does not wait any longer. If it has nothing to ask by, nobody else does either."""
        if self.call.tx is None and not (self.plan is not None and self.plan.key):
            self.leave()
        return Outcome(self.call.tx, self.call.name, Status.PENDING, final=False)

    def not_opened(self, outcome: Outcome) -> Outcome:
        """The first answer was an outcome: it was refused, or its key names one that has ended."""
        self.ended = True
        self.take_note(outcome)
        raise_for(outcome)
        raise UsageError(f"the key {self.call.name[2:]!r} names a transaction that has committed: {outcome.tx}")

    def left(self, error: BaseException | None) -> Outcome | None:
        """A publisher that joined leaves. If it was refused, it hears so, unless it fails anyway."""
        refused = self.call.outcome
        self.leave()
        if refused is not None and error is None:
            raise_for(refused)
        return refused

    def not_accepted(self, seconds: float) -> OutcomeUnknown:
        """The error for events that may or may not be in the transaction."""
        self.leave()
        return OutcomeUnknown(f"not all events of {self.call.tx} were accepted within {seconds} s")

    def crowded(self) -> bool:
        """Whether the publisher should wait until the coordinator has what it has published."""
        return self.submitted > 0 and self.submitted % WINDOW == 0

    def too_crowded(self, seconds: float) -> Backpressure:
        """The error for a coordinator that is far behind."""
        return Backpressure(f"{self.call.tx}: the coordinator has not taken {WINDOW} events within {seconds} s")

    def accepted(self) -> Future[None]:
        """Completes when the coordinator has all events of this publisher."""
        accepted = self.engine.calls.promise()

        def look() -> None:
            if accepted.done():
                return  # nobody waits for it any more
            publisher = self.engine.participant.publishers.get(self.call.name)
            if publisher is None or not publisher.unaccepted or self.call.outcome is not None:
                self.engine.calls.keep(accepted)
            else:
                self.engine.loop.later(0.005, look)

        self.engine.loop.post(look)
        return accepted

    def work(self, resource: Resource) -> Any:
        """What a resource of this site offers to work with inside the transaction. Its member rolls it back."""
        self.worked = True
        held = next((unit for known, unit in self.lent if known is resource), None)
        unit = held if held is not None else self._borrow(resource)
        gone = self.taken_away()
        if gone is not None:
            raise gone
        if unit is None:
            raise UsageError(
                f"{self.id} does not work on this resource, or no longer: site.enlist({self.type!r}, resources=[...])"
            )
        return unit

    def _borrow(self, resource: Resource) -> Any:
        """When it is its turn, on this thread: until it has it, nobody ends the unit."""
        lend = Lend(self.id, Future())
        self.engine.loop.post(partial(self.engine.lends, lend, resource))
        member = self._turn(lend)
        if member is None:
            return None
        try:
            unit = member[resource]
            resource.lend(lend.tx)
        finally:
            self.engine.loop.post(partial(self.engine.workshop.on_lent, lend))
        self.lent.append((resource, unit))
        return unit

    def _turn(self, lend: Lend) -> Membership | None:
        seconds = self.engine.workshop.within + BEGIN_SECONDS
        try:
            return lend.turn.result(seconds)
        except TimeoutError:
            if lend.turn.cancel():
                raise ResourceError(f"what is done for {lend.tx} here has not ended within {seconds} s") from None
            return lend.turn.result()

    def end(self) -> None:
        """Its publisher is through: with its calls, and with what it has worked on."""
        self.ended = True
        self.call.publishing = False
        for resource, _ in self.lent:
            resource.returned(self.id)

    def taken_away(self, by_others: bool = False) -> TransactionAborted | None:
        """The error for a publisher whose work in the transaction a member's no has rolled back meanwhile.

        The publisher may learn of it by its work before it is told. Who aborts then is told who was first.
        """
        ended = self.call.outcome or self.call.aborting
        if not self.worked or ended is None or ended.status is not Status.ABORTED:
            return None
        if by_others and ended.by == self.engine.settings.name:
            return None
        return aborted(ended)

    def take_note(self, outcome: Outcome) -> None:
        """The caller knows the outcome. Under a key of its own it is kept, so that the key is not used twice."""
        if not outcome.final:
            return
        kept = self.plan is not None and self.plan.key and outcome.status is Status.COMMITTED
        self.leave() if kept or self.joined else self.release(ConfirmCall(self.call.name))

    def leave(self, reason: str = "") -> None:
        """Nothing more is wanted of this call; with a reason, what it has opened is aborted."""
        self.release(LeaveCall(self.call.name, reason))

    def release(self, call: ConfirmCall | LeaveCall) -> None:
        """Let go of the call here, unless another caller under its key has."""
        here = self.plan is not None and self.plan.coordinator == self.engine.settings.name
        post = self.engine.note if here and isinstance(call, ConfirmCall) else self.engine.post
        with self.engine.calls.naming:
            if self.engine.calls.remove(self.call):
                self.engine.surfacing.on_votes_missing.pop(self.call.name, None)
                post(call)

    def check_open(self, what: str) -> None:
        """Refuse a call that comes too late."""
        self.engine.check(new=False)
        if self.ended:
            raise UsageError(f"{what} after the end of transaction {self.call.tx}: begin another one")
        outcome = self.call.outcome
        if outcome is not None and what == "publish":
            raise_for(outcome)


def make_item(engine: Engine, value: Any, type: str, attributes: Mapping[str, Any] | None) -> Item:
    """An event as it travels; checked against its declared type."""
    found = value.__class__.__dict__.get("__txlayer_type__")
    if isinstance(found, EventType):
        engine.application.types.declare(declared(value.__class__))
    engine.application.types.check(type, value)
    payload, headers = engine.application.payloads.encode(value)
    headers.update({name: text(value) for name, value in (attributes or {}).items()})
    return Item(type, payload, tuple(sorted(headers.items())))


def check_size(engine: Engine, events: int, size: int) -> None:
    """Refuse what is over a limit before it is sent anywhere."""
    limits = engine.limits
    if events > limits.events:
        raise UsageError(f"more than {limits.events} events in one transaction: raise limits=Limits(events=...)")
    if size > limits.bytes:
        largest = engine.bus.capabilities.max_payload
        bound = f"the bus takes {largest} in one message" if largest is not None else "raise limits=Limits(bytes=...)"
        what = "bytes in one transaction, attributes counted in"
        raise PayloadTooLarge(f"{size} {what}, at most {limits.bytes}: {bound}")


def aborted(outcome: Outcome) -> TransactionAborted:
    """The error for an abort."""
    by = f" by {outcome.by}" if outcome.by else ""
    return TransactionAborted(f"aborted{by}: {outcome.reason}", outcome)


def raise_for(outcome: Outcome) -> Outcome:
    """The outcome of a commit, or the error that it stands for."""
    match outcome.status:
        case Status.COMMITTED:
            return outcome
        case Status.ABORTED:
            raise aborted(outcome)
        case Status.REFUSED if outcome.by:
            raise TransactionRefused(f"refused by {outcome.by}: {outcome.reason}", outcome)
        case Status.REFUSED:
            raise CensusUnfulfilled(f"census not fulfilled: {outcome.reason}", outcome)
        case Status.PENDING:
            keyed = f"the key {outcome.key.removeprefix(KEY)!r}" if outcome.key.startswith(KEY) else "the transaction"
            what = outcome.tx or keyed
            because = f" ({outcome.reason})" if outcome.reason else ""
            raise OutcomeUnknown(f"the outcome of {what} is not known yet{because}: ask site.outcome(...)", outcome)
        case _:
            raise OutcomeUnknown(f"{outcome.tx}: {outcome.reason}", outcome)


def declared_name(data: Any) -> str | None:
    """The type that the class of a value is declared as."""
    found = data.__class__.__dict__.get("__txlayer_type__")
    return found.name if isinstance(found, EventType) else None


class Face:
    """A transaction as its caller holds it."""

    _begin_it = ""
    """How this face is begun, for who forgot."""

    def __init__(self, begin: Callable[[], tuple[Transacting, Future[Answer]]], within: float) -> None:
        self._begin = begin
        self._within = within
        self._core: Transacting | None = None
        self.outcome: Outcome | None = None
        """What became of it, once that is known."""

    @property
    def id(self) -> TxId:
        """Names it for ever: for `outcome` after a crash, for other publishers to join."""
        return self._open().id

    @property
    def members(self) -> int:
        """How many distributed members joined."""
        return self._open().call.members

    def _open(self) -> Transacting:
        if self._core is None:
            raise UsageError(f"the transaction has not begun: {self._begin_it}")
        return self._core

    def _not_begun(self) -> None:
        if self._core is not None:
            raise UsageError("this transaction has begun: ask the site for another one")
