"""What goes into the roles (events) and what comes out (effects).

Roles are pure: they ask for everything they want done and hear of everything that happened. The runtime, or the
simulated world in its place, performs effects in order and holds back every output of a role while one of that
role's appends is not durable yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from txlayer.messages import (
    AnyMessage,
    ChainKind,
    Item,
    Join,
    Numbered,
    Outcome,
    Scope,
    Terms,
    TxId,
)
from txlayer.records import AnyRecord, Settlement
from txlayer.units import UndoRecord

Role: TypeAlias = tuple[str, object]
TimerKey: TypeAlias = tuple[str, object, str]


class Append(Struct, frozen=True):
    """Write a record in place of the last one under `key`. With `barrier` every role waits for it."""

    key: str
    record: AnyRecord
    barrier: bool = False


class Drop(Struct, frozen=True):
    """Remove the record under `key`."""

    key: str


class SetTimer(Struct, frozen=True):
    """Fire once after `seconds`; replaces the timer of the same key."""

    key: TimerKey
    seconds: float


class CancelTimer(Struct, frozen=True):
    """Do not fire."""

    key: TimerKey


class Broadcast(Struct, frozen=True):
    """Publish on the control topic of an event type.

    `patient`: nobody waits for it, so it may go along with what is said next, if that is soon.
    """

    type: str
    message: AnyMessage
    patient: bool = False


class Send(Struct, frozen=True):
    """Publish to the inbox of one site."""

    site: str
    message: AnyMessage


class NotSent(Struct, frozen=True):
    """The bus takes no message of this size: it will not take it later either."""

    message: AnyMessage
    reason: str


class Answer(Struct, frozen=True):
    """Publish a frame of another site again, as it came."""

    type: str
    tx: TxId
    frame: bytes


class PublishPlain(Struct, frozen=True):
    """Publish an event on the plain topic, for the world outside. May be repeated after a crash."""

    tx: TxId
    event: Numbered


class AskScope(Struct, frozen=True):
    """Ask the application how it wants to take part; answered by `ScopeChosen`."""

    tx: TxId
    terms: Terms


class RunHandler(Struct, frozen=True):
    """Process an event in the unit of work of `tx`, opening it if need be; answered by `HandlerDone`.

    A failed attempt leaves no trace in the unit. `prepares`: it is the last one, and whoever has run it may go on and
    prepare the unit at once; then `UnitPrepared` is the answer.
    """

    tx: TxId
    event: Numbered
    attempt: int = 1
    prepares: bool = False


class Notify(Struct, frozen=True):
    """Hand an event to the application outside any transaction."""

    tx: TxId
    event: Numbered


class PrepareUnit(Struct, frozen=True):
    """Make the unit of work survive a crash, undecided; answered by `UnitPrepared`."""

    tx: TxId


class CommitUnit(Struct, frozen=True):
    """Commit an open unit in one phase, with a marker in the same transaction; answered by `UnitCommitted`.

    With `undo` that record is part of it. A unit whose marker exists was committed before.
    """

    tx: TxId
    undo: UndoRecord | None = None


class FinishUnit(Struct, frozen=True):
    """Commit or roll back a prepared unit, or roll back an open one; idempotent; answered by `UnitFinished`."""

    tx: TxId
    commit: bool


class InspectUnit(Struct, frozen=True):
    """After a restart: what does the resource hold? Answered by `UnitInspected`.

    `at_once`: the unit was to be committed with the vote, not prepared.
    """

    tx: TxId
    at_once: bool = False


class Compensate(Struct, frozen=True):
    """Undo committed work, last event first, as one unit with a marker of its own; answered by `CompensationDone`."""

    tx: TxId
    events: tuple[Numbered, ...]
    attempt: int = 1


class ApplyWhole(Struct, frozen=True):
    """Process all events and commit, as one unit with a marker; answered by `WholeApplied`.

    `tx` names the unit: of an entry of a chain, its own. `terms` are those of the entry, by which the site finds who
    reads it; without them it goes by what its log says of the transaction.
    """

    tx: TxId
    events: tuple[Numbered, ...]
    attempt: int = 1
    terms: Terms | None = None


class ForgetMarker(Struct, frozen=True):
    """The marker of `tx` is not needed any more."""

    tx: TxId


class Resolve(Struct, frozen=True):
    """Tell a caller what became of its call."""

    call: str
    outcome: Outcome


class Opened(Struct, frozen=True):
    """Tell a caller that its transaction is open for events."""

    call: str
    tx: TxId
    members: int
    type: str = ""
    """Of a transaction that was joined."""


class Surface(Struct, frozen=True):
    """Something that a caller or an operator should see; `what` is one of a few fixed words."""

    what: str
    tx: TxId | None
    detail: str = ""


class Settle(Struct, frozen=True):
    """Put a decision into the shared register, unless another one stands there; answered by `Settled`."""

    tx: TxId
    type: str
    settlement: Settlement


class ForgetSettlements(Struct, frozen=True):
    """Take this coordinator's settlements out of the register: all below `below`, and that of `number`."""

    below: int
    number: int = 0


class AddEntry(Struct, frozen=True):
    """Between roles of one site: put a transaction at the end of a chain, if anyone reads it.

    The entry becomes durable in one write with the appends around it.
    """

    kind: ChainKind
    tx: TxId
    terms: Terms
    events: tuple[Numbered, ...]


class AwaitLog(Struct, frozen=True):
    """Hold this role's outputs until all that any role has appended so far is durable."""


Effect: TypeAlias = (
    Append
    | Drop
    | SetTimer
    | CancelTimer
    | Broadcast
    | Send
    | Answer
    | PublishPlain
    | AskScope
    | RunHandler
    | Notify
    | PrepareUnit
    | CommitUnit
    | FinishUnit
    | InspectUnit
    | Compensate
    | ApplyWhole
    | ForgetMarker
    | Resolve
    | Opened
    | Surface
    | Settle
    | ForgetSettlements
    | AddEntry
    | AwaitLog
)


class Received(Struct, frozen=True):
    """A message arrived and its seal was good. `frame` is what arrived, to be repeated as proof."""

    message: AnyMessage
    frame: bytes = b""


class TimerFired(Struct, frozen=True):
    """A timer that was set ran out."""

    key: TimerKey


class ScopeChosen(Struct, frozen=True):
    """The application's answer to a census: the one scope of the site, and who has it.

    `one_phase`: one resource and not compensatable, so that an only member may decide alone.
    `reads`: chains of the coordinator that bring the transaction to subscribers here who follow, or are durable local
    members; they take no part in what the site does as a member.
    `parts`: the names of the subscribers that take part, to be found again after a restart.
    `leaving`: the site does not subscribe to the type any more, as its presence says, soon or already.
    `waits`: a resource, or code of the application, waits for the decision.
    `resource`: one takes part, which can tell after a crash what it has done.
    """

    tx: TxId
    scope: Scope
    identity: bool = False
    compensatable: bool = False
    one_phase: bool = False
    handler_attempts: int = 1
    attributes: tuple[tuple[str, str], ...] = ()
    reads: tuple[ChainKind, ...] = ()
    parts: tuple[str, ...] = ()
    leaving: bool = False
    waits: bool = True
    resource: bool = True


class HandlerDone(Struct, frozen=True):
    """A handler returned (`ok`) or failed."""

    tx: TxId
    number: int
    ok: bool
    reason: str = ""


class MemberAborts(Struct, frozen=True):
    """The application of a member gave the transaction up of its own accord."""

    tx: TxId
    reason: str = ""


class UnitPrepared(Struct, frozen=True):
    """The unit is durable and undecided, or it could not be prepared and is rolled back."""

    tx: TxId
    ok: bool
    reason: str = ""


class UnitCommitted(Struct, frozen=True):
    """The unit is committed with its marker, or could not be and is rolled back."""

    tx: TxId
    ok: bool
    reason: str = ""


class UnitFinished(Struct, frozen=True):
    """The decision is applied."""

    tx: TxId


class UnitInspected(Struct, frozen=True):
    """What a resource holds of a transaction: `none`, `prepared` or `committed`."""

    tx: TxId
    state: str


class CompensationDone(Struct, frozen=True):
    """The committed work is undone, or this attempt failed."""

    tx: TxId
    ok: bool
    reason: str = ""


class WholeApplied(Struct, frozen=True):
    """A whole transaction is applied, or this attempt failed."""

    tx: TxId
    ok: bool
    reason: str = ""


class Settled(Struct, frozen=True):
    """What stands in the register. `key`: what the coordinator left there for this site, as one of its finishers."""

    tx: TxId
    type: str
    settlement: Settlement
    key: bytes = b""


class RoomChanged(Struct, frozen=True):
    """The disk of this site's log is almost full (`low`), or has room again."""

    low: bool


class Closing(Struct, frozen=True):
    """This site finishes what it has, and nothing new begins at it."""


class MarkersFound(Struct, frozen=True):
    """After a restart: the markers in the site's resources."""

    txs: tuple[TxId, ...]


class BranchesFound(Struct, frozen=True):
    """Units that are prepared under this log in the site's resources, and that nobody is working on."""

    txs: tuple[TxId, ...]


class PresenceChanged(Struct, frozen=True):
    """A site came, went, or came back: in a new life, or with a new log."""

    site: str
    life: int
    alive: bool
    types: tuple[str, ...] = ()
    incarnation: str = ""


Predicate: TypeAlias = Callable[[tuple[Join, ...]], bool]


class BeginCall(Struct, frozen=True):
    """A caller opens a transaction; with `items` in one shot. `predicate` only where this site coordinates."""

    call: str
    terms: Terms
    coordinator: str
    items: tuple[Item, ...] = ()
    predicate: Predicate | None = None


class JoinCall(Struct, frozen=True):
    """A further publisher takes part in an open transaction that it found in the directory."""

    call: str
    tx: TxId


class PublishCall(Struct, frozen=True):
    """A caller publishes an event in its transaction."""

    call: str
    item: Item


class CommitCall(Struct, frozen=True):
    """A caller commits. How long it waits is its own affair."""

    call: str


class AbortCall(Struct, frozen=True):
    """A caller aborts."""

    call: str
    reason: str = ""


class WaitLonger(Struct, frozen=True):
    """A caller that was told of missing votes waits."""

    call: str
    seconds: float


class AskCall(Struct, frozen=True):
    """A caller asks what became of a transaction, by id or by key."""

    call: str
    coordinator: str
    tx: TxId | None = None
    key: str = ""


class ConfirmCall(Struct, frozen=True):
    """A caller has taken note of the outcome; it may be forgotten."""

    call: str


class LeaveCall(Struct, frozen=True):
    """A caller wants nothing more of its call. The coordinator is told nothing and keeps the outcome for others.

    With a reason, what has been opened is aborted: only a role knows whether that was before the caller left.
    """

    call: str
    reason: str = ""


class UnfollowCall(Struct, frozen=True):
    """The application does not read these types any more, in no chain."""

    types: tuple[str, ...]


class FollowCall(Struct, frozen=True):
    """This site reads a chain of a coordinator, from now on. Repeated after a snapshot was loaded: `anew`."""

    coordinator: str
    incarnation: str
    kind: ChainKind
    types: tuple[str, ...]
    anew: bool = False


Input: TypeAlias = (
    Received
    | NotSent
    | TimerFired
    | ScopeChosen
    | HandlerDone
    | MemberAborts
    | UnitPrepared
    | UnitCommitted
    | UnitFinished
    | UnitInspected
    | CompensationDone
    | WholeApplied
    | Settled
    | RoomChanged
    | Closing
    | MarkersFound
    | BranchesFound
    | PresenceChanged
    | BeginCall
    | JoinCall
    | PublishCall
    | CommitCall
    | AbortCall
    | WaitLonger
    | AskCall
    | ConfirmCall
    | LeaveCall
    | FollowCall
    | UnfollowCall
)
