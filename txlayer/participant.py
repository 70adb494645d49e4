"""What an application does with transactions: participants, and what they are handed.

A subscriber is a class, an instance or a function. Of a class the site makes one instance for each transaction, so it
may keep what it needs in its attributes; an instance serves all transactions, several at a time. The calls for one
transaction come one after the other, on threads of the site's pool.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from txlayer.errors import UsageError
from txlayer.filters import Filter
from txlayer.messages import ChainKind, Scope, Terms, TxId
from txlayer.resources.port import Resource
from txlayer.transactions.scope import chain_for


@dataclass(frozen=True, slots=True)
class Event:
    """An event as a handler gets it. `number` and `tx` are those of its transaction; a plain event has neither."""

    type: str
    data: Any
    attributes: Mapping[str, str]
    publisher: str = ""
    number: int | None = None
    tx: TxId | None = None
    payload: bytes = b""


class MemberTransaction(Protocol):
    """A transaction as its members see it."""

    @property
    def id(self) -> TxId:
        """Names it for ever; the same after a restart, so a handler recognises work that it did before."""

    @property
    def type(self) -> str: ...

    @property
    def attributes(self) -> Mapping[str, str]: ...

    @property
    def terms(self) -> Terms | None:
        """All that the initiator fixed; None where an older log does not tell."""

    def __getitem__(self, resource: Resource) -> Any:
        """What this resource offers to work with inside the transaction: a connection, a store, ..."""

    def abort(self, reason: str = "") -> None:
        """Give the transaction up as a member; the vote is no."""


Answer: TypeAlias = Scope | tuple[Scope, Mapping[str, str]]
"""A scope, perhaps with attributes that the initiator's predicate can read."""


class Participant:
    """One subscriber's part in a transaction. Override what is needed; an exception is a vote of no.

    With an `AsyncSite` the methods may be coroutines.
    """

    def on_join(self, tx: MemberTransaction) -> Any:
        """Choose how to take part; None for the scope that the subscriber declared.

        It may be asked about one transaction again: after a restart, or when one arrives by a chain that began while
        the site was away. Let its answer depend on the transaction alone.
        """
        return None

    def on_event(self, tx: MemberTransaction, event: Event) -> Any:
        """Do the work of one event. What it does outside `tx[resource]` may be done again after a crash.

        Who chose `Scope.NON_TRANSACTIONAL` gets the events of a transaction here too, as mere notifications.
        """
        raise NotImplementedError(f"{type(self).__name__} needs on_event")

    def on_prepare(self, tx: MemberTransaction) -> Any:
        """The last moment to object, before the resources prepare."""

    def on_commit(self, tx: MemberTransaction) -> Any:
        """The work is committed here; after a crash it may be called again. It cannot object any more."""

    def on_abort(self, tx: MemberTransaction) -> Any:
        """The work is rolled back here; after a crash it may be called again."""

    def on_compensate(self, tx: MemberTransaction, event: Event) -> Any:
        """Undo the committed work of one event, last first. Overriding it makes the member compensatable."""
        raise NotImplementedError(f"{type(self).__name__} has no on_compensate")

    def on_plain(self, event: Event) -> Any:
        """A plain event of the type, outside any transaction."""


class FunctionParticipant(Participant):
    """A function `(tx, event)` as a participant."""

    def __init__(self, function: Callable[[Any, Event], Any], compensate: Callable[[Any, Event], Any] | None) -> None:
        self.function = function
        self.compensate = compensate

    def on_event(self, tx: MemberTransaction, event: Event) -> Any:
        return self.function(tx, event)

    def on_compensate(self, tx: MemberTransaction, event: Event) -> Any:
        assert self.compensate is not None
        return self.compensate(tx, event)


class PublisherParticipant(Participant):
    """A publisher that works on resources of its own inside its transaction: a member without handlers."""

    def on_event(self, tx: MemberTransaction, event: Event) -> Any:
        return None


class ListenerParticipant(Participant):
    """A function `(event)`: every event of the type, plain or not, outside any transaction."""

    def __init__(self, function: Callable[[Event], Any]) -> None:
        self.function = function

    def on_event(self, tx: MemberTransaction, event: Event) -> Any:
        return self.function(event)

    def on_plain(self, event: Event) -> Any:
        return self.function(event)


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A participant with what it asked for. Use `Site.subscriber` or `Site.subscribe`."""

    type: str
    make: Callable[[], Participant]
    filter: Filter
    scope: Scope | None = None
    resources: tuple[Resource, ...] = ()
    attempts: int = 1
    anonymous: bool = False
    durable: bool = False
    compensatable: bool = False
    asks: bool = False
    """on_join is overridden."""
    quiet: bool = False
    """Nothing but on_event is overridden: prepare, commit and abort call no application code."""
    plain: bool = False
    """Wants plain events too."""
    name: str = ""
    """Of its class or function: what a log remembers of who took part."""

    @property
    def chain(self) -> ChainKind | None:
        """The chain that brings it its transactions, as it declared; None if it hears of them as they happen."""
        return chain_for(self.scope, self.durable) if self.scope is not None else None

    def may_read(self, kind: ChainKind) -> bool:
        """Whether transactions may come to it by this chain."""
        return (kind is ChainKind.COMMITS or self.durable) if self.asks else self.chain is kind

    def may_join(self) -> bool:
        """Whether it may take part in what its site does as a member."""
        outside = self.scope in (Scope.NONE, Scope.NON_TRANSACTIONAL) or self.chain is not None
        return self.asks or not outside


Handler: TypeAlias = type[Participant] | Participant | Callable[[Any, Event], Any]


def make_subscriber(
    type_name: str,
    handler: Handler,
    *,
    where: Any = None,
    scope: Scope | None = None,
    resources: Sequence[Resource] = (),
    attempts: int = 1,
    anonymous: bool = False,
    durable: bool = False,
    compensate: Callable[[Any, Event], Any] | None = None,
) -> Subscriber:
    """Check what was asked for."""
    if attempts < 1:
        raise UsageError(f"attempts={attempts}: a handler is called at least once")
    if scope is not None and not isinstance(scope, Scope):
        raise UsageError(f"scope={scope!r}: use one of Scope.{', Scope.'.join(Scope.__members__)}")
    if durable and scope is not Scope.LOCAL:
        raise UsageError("durable=True is for local members: give scope=Scope.LOCAL (followers always are)")
    make = _maker(handler, compensate)
    example = handler if isinstance(handler, type) else type(make())
    compensatable = compensate is not None or _overrides(example, "on_compensate")
    if isinstance(handler, FunctionParticipant) or not isinstance(handler, type | Participant):
        compensatable = compensate is not None
    return Subscriber(
        type_name, make, Filter.of(where), scope, tuple(resources), attempts, anonymous, durable, compensatable,
        _overrides(example, "on_join"),
        not any(_overrides(example, name) for name in ("on_prepare", "on_commit", "on_abort")),
        _overrides(example, "on_plain"), getattr(handler, "__qualname__", type(handler).__qualname__),
    )  # fmt: skip


def make_listener(type_name: str, function: Callable[[Event], Any], where: Any = None) -> Subscriber:
    """A subscriber outside all transactions."""
    participant = ListenerParticipant(function)
    return Subscriber(
        type_name, lambda: participant, Filter.of(where), Scope.NON_TRANSACTIONAL, quiet=True, plain=True
    )  # fmt: skip


def _maker(handler: Handler, compensate: Callable[[Any, Event], Any] | None) -> Callable[[], Participant]:
    if isinstance(handler, type):
        if not issubclass(handler, Participant):
            raise UsageError(f"{handler.__name__} is no Participant: derive it from txlayer.Participant")
        if compensate is not None:
            raise UsageError("a Participant has on_compensate; compensate= is for functions")
        try:
            inspect.signature(handler).bind()
        except TypeError as exc:
            raise UsageError(
                f"one {handler.__name__} is made for each transaction, without arguments ({exc}): give its constructor "
                "defaults, or subscribe an instance"
            ) from exc
        return handler
    if isinstance(handler, Participant):
        return lambda: handler
    if not callable(handler):
        raise UsageError("a subscriber is a Participant class, a Participant or a function (tx, event)")
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError as exc:
        raise UsageError(f"a subscriber function takes (tx, event): {exc}") from exc
    function = FunctionParticipant(handler, compensate)
    return lambda: function


def _overrides(cls: type, name: str) -> bool:
    return getattr(cls, name) is not getattr(Participant, name)
