"""A site as a pure function: everything that happens goes in, everything to be done comes out.

Every site has all roles; a transaction decides which of them are active. Effects come in batches, each under the role
that asked for them, because outputs of a role wait for appends of the same role only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from txlayer import messages as m
from txlayer.effects import (
    AbortCall,
    AddEntry,
    AskCall,
    AwaitLog,
    BeginCall,
    BranchesFound,
    CancelTimer,
    Closing,
    CommitCall,
    ConfirmCall,
    Effect,
    FollowCall,
    Input,
    JoinCall,
    LeaveCall,
    MarkersFound,
    NotSent,
    PresenceChanged,
    PublishCall,
    Received,
    Role,
    RoomChanged,
    ScopeChosen,
    Send,
    Settled,
    TimerFired,
    UnfollowCall,
    WaitLonger,
)
from txlayer.messages import AnyMessage, ChainKind, TxId
from txlayer.records import AnyRecord
from txlayer.transactions.coordinator_desk import CoordinatorDesk
from txlayer.transactions.finisher import Finisher
from txlayer.transactions.publisher import Publisher
from txlayer.transactions.seat import Seat
from txlayer.transactions.subscriber_desk import SubscriberDesk

Batch = tuple[Role, list[Effect]]
REMEMBERED = 4096
# Sets of types rather than tuples of classes: every message that arrives is looked up in them.
_TO_COORDINATOR = frozenset([
    m.Create, m.Submit, m.CommitRequest, m.Abort, m.ExtendDeadline, m.Inquire, m.Confirm, m.Join, m.Decline, m.Resend,
    m.Vote, m.Delegated, m.Ack, m.Compensated, m.InDoubt, m.Follow, m.ChainAck, m.AskMark,
])  # fmt: skip
_TO_PUBLISHER = frozenset([m.Created, m.Hello, m.Refused, m.Accepted, m.VotesMissing, m.Outcome])
_RECEIVER: dict[type, str] = {
    m.Accepted: "publisher", m.Refused: "publisher", m.Followed: "reader", m.Commit: "reader", m.Stale: "reader",
}  # fmt: skip
_CALLS = (JoinCall, PublishCall, CommitCall, AbortCall, WaitLonger, AskCall, ConfirmCall)


def meant_for(message: AnyMessage) -> str:
    """Whom it names as its receiver; empty if anyone may act on it.

    A seal does not say where a message was going: whoever reads one inbox can bring it to another, under a good seal.
    """
    field_name = _RECEIVER.get(type(message))
    return getattr(message, field_name) if field_name is not None else ""


def said_by(message: AnyMessage) -> str:
    """The coordinator in whose name a message to a publisher speaks."""
    if named := getattr(message, "coordinator", ""):
        return str(named)
    tx: TxId | None = getattr(message, "tx", None)
    return tx.coordinator if tx is not None else ""


@dataclass(slots=True)
class Participant:
    """All roles of one site."""

    seat: Seat
    coordinator: CoordinatorDesk = field(init=False)
    subscriber: SubscriberDesk = field(init=False)
    finisher: Finisher = field(init=False)
    publishers: dict[str, Publisher] = field(default_factory=dict)
    by_tx: dict[TxId, str] = field(default_factory=dict)
    by_key: dict[str, str] = field(default_factory=dict)
    confirmed: dict[TxId, None] = field(default_factory=dict)
    open_serials: dict[int, None] = field(default_factory=dict)
    serial: int = 0

    def __post_init__(self) -> None:
        self.coordinator = CoordinatorDesk(self.seat)
        self.subscriber = SubscriberDesk(self.seat)
        self.finisher = Finisher(self.seat)

    def recover(self, records: Iterable[AnyRecord]) -> list[Batch]:
        """Read the whole log; only then does anything leave."""
        for record in records:
            if not self.coordinator.recover(record) and not self.subscriber.recover(record):
                raise AssertionError(f"no role takes up {type(record).__name__}")
        return self._expand([*self.coordinator.resume(), *self.subscriber.resume()])

    def step(self, event: Input) -> list[Batch]:
        """One event in, effects out."""
        return self._expand(self._step(event))

    def _step(self, event: Input) -> list[Batch]:
        match event:
            case Received():
                return self._on_received(event.message, event.frame)
            case NotSent():
                return self._on_not_sent(event)
            case TimerFired():
                return self._on_timer(event)
            case ScopeChosen():
                return self.subscriber.on_scope(event)
            case PresenceChanged():
                return self.coordinator.on_presence(event)
            case Settled():
                return self._on_settled(event)
            case RoomChanged():
                self.coordinator.room_low = self.subscriber.room_low = event.low
                return []
            case Closing():
                self.coordinator.closing = True
                return []
            case MarkersFound():
                return self.subscriber.on_markers(event)
            case BranchesFound():
                return self.subscriber.on_branches(event)
            case FollowCall():
                return self.subscriber.on_follow(event)
            case UnfollowCall():
                return self.subscriber.on_unfollow(event)
            case BeginCall():
                return self._on_begin(event)
            case LeaveCall():
                return self._on_leave(event)
            case JoinCall() | PublishCall() | CommitCall() | AbortCall() | WaitLonger() | AskCall() | ConfirmCall():
                return self._on_call(event)
            case _:
                return self.subscriber.on_work(event)

    def _on_received(self, message: AnyMessage, frame: bytes) -> list[Batch]:
        batches: list[Batch] = []
        if meant_for(message) not in ("", self.seat.site):
            return []
        if isinstance(message, m.InDoubt) and message.finisher:
            return self._on_finish_asked(message)
        if type(message) in _TO_COORDINATOR:
            batches = self.coordinator.on_message(message)
            if not isinstance(message, m.InDoubt):
                return batches
        if type(message) in _TO_PUBLISHER:
            return self._to_publisher(message)
        return batches + self.subscriber.on_message(message, frame)

    def _on_not_sent(self, failed: NotSent) -> list[Batch]:
        """Said again it would be as large: whose transaction it is ends it, and the caller hears why."""
        message, tx = failed.message, getattr(failed.message, "tx", None)
        if isinstance(message, m.Create | m.Submit):
            call = message.key if isinstance(message, m.Create) else self.by_tx.get(message.tx, "")
            publisher = self.publishers.get(call)
            return self._publish(publisher, publisher.on_not_sent(failed.reason)) if publisher is not None else []
        return self.coordinator.on_not_sent(tx, failed.reason) if tx is not None else []

    def _on_finish_asked(self, question: m.InDoubt) -> list[Batch]:
        gone = question.tx.coordinator not in self.coordinator.present
        if question.finisher != self.seat.site or not gone or question.tx.coordinator == self.seat.site:
            return []
        return [(("f", question.tx), self.finisher.on_in_doubt(question))]

    def _on_settled(self, settled: Settled) -> list[Batch]:
        if self.seat.owns(settled.tx):
            return self.coordinator.on_settled(settled)
        return [(("f", settled.tx), self.finisher.on_settled(settled))]

    def _on_timer(self, fired: TimerFired) -> list[Batch]:
        kind, subject, name = fired.key
        if kind == "c" and isinstance(subject, TxId):
            return self.coordinator.on_timer(subject, name)
        if kind == "m" and isinstance(subject, TxId):
            return self.subscriber.on_timer(subject, name)
        if kind == "chain" and isinstance(subject, ChainKind):
            return self.coordinator.on_chain_timer(subject)
        if kind == "reader" and isinstance(subject, tuple):
            return self.subscriber.on_reader_timer(subject, name)
        if kind == "marks":
            return self.subscriber.on_marks_timer()
        publisher = self.publishers.get(str(subject))
        return self._publish(publisher, publisher.on_retry()) if publisher is not None else []

    # Publishers

    def _on_begin(self, call: BeginCall) -> list[Batch]:
        if call.call in self.publishers:
            return []
        if call.predicate is not None and call.coordinator == self.seat.site:
            self.coordinator.predicates[call.call] = call.predicate
        self.serial += 1
        self.open_serials[self.serial] = None
        known = self.coordinator.present.get(call.coordinator)
        life = self.seat.life if call.coordinator == self.seat.site else (known.life if known is not None else 0)
        publisher = Publisher(
            self.seat, call.call, call.coordinator, self.serial, next(iter(self.open_serials)), life,
            call.terms, call.items,
        )  # fmt: skip
        self.publishers[call.call] = publisher
        return self._publish(publisher, publisher.begin())

    def _on_call(
        self, call: JoinCall | PublishCall | CommitCall | AbortCall | WaitLonger | AskCall | ConfirmCall
    ) -> list[Batch]:
        publisher = self.publishers.get(call.call)
        if publisher is None:
            if not isinstance(call, JoinCall | AskCall):
                return []
            where = call.tx.coordinator if isinstance(call, JoinCall) else call.coordinator
            self.serial += 1
            below = next(iter(self.open_serials), self.serial)
            publisher = Publisher(self.seat, call.call, where, self.serial, below, tx=call.tx)
            self.publishers[call.call] = publisher
        return self._publish(publisher, self._call(publisher, call))

    def _call(
        self,
        publisher: Publisher,
        call: JoinCall | PublishCall | CommitCall | AbortCall | WaitLonger | AskCall | ConfirmCall,
    ) -> list[Effect]:
        match call:
            case JoinCall():
                return publisher.join()
            case PublishCall():
                return publisher.publish(call.item)
            case CommitCall():
                return publisher.commit()
            case AbortCall():
                return publisher.abort(call.reason)
            case WaitLonger():
                return publisher.wait_longer(call.seconds)
            case AskCall():
                publisher.key = call.key or publisher.key or call.call
                self.by_key[publisher.key] = call.call
                return publisher.ask()
            case ConfirmCall():
                return publisher.confirm()

    def _to_publisher(self, message: AnyMessage) -> list[Batch]:
        key = getattr(message, "key", "")
        tx: TxId | None = getattr(message, "tx", None)
        batches: list[Batch] = []
        calls = [key] if key in self.publishers else []
        if key in self.by_key and self.by_key[key] not in calls:
            calls.append(self.by_key[key])
        if tx is not None and tx in self.by_tx and self.by_tx[tx] not in calls:
            calls.append(self.by_tx[tx])
        if not calls and isinstance(message, m.Outcome) and tx in self.confirmed:
            assert tx is not None
            return [(("p", tx), [Send(tx.coordinator, m.Confirm(tx, self.seat.site))])]
        if (
            not calls
            and isinstance(message, m.Created)
            and message.answers[:2] == (self.seat.incarnation, self.seat.life)
        ):
            # Its caller gave up before it was open.
            gone = m.Abort(message.tx, self.seat.site, "its publisher gave up waiting for the coordinator")
            return [(("p", message.tx), [Send(message.tx.coordinator, gone)])]
        for call in calls:
            publisher = self.publishers[call]
            if said_by(message) != publisher.coordinator:
                continue
            batches += self._publish(publisher, self._answer(publisher, message))
        return batches

    def _answer(self, publisher: Publisher, message: AnyMessage) -> list[Effect]:
        match message:
            case m.Created():
                return publisher.on_created(message)
            case m.Hello():
                return publisher.on_hello(message)
            case m.Refused():
                return publisher.on_refused(message)
            case m.Accepted():
                return publisher.on_accepted(message)
            case m.VotesMissing():
                return publisher.on_votes_missing(message)
            case m.Outcome():
                return publisher.on_outcome(message)
            case _:
                return []

    def _publish(self, publisher: Publisher, effects: list[Effect]) -> list[Batch]:
        if publisher.tx is not None:
            self.by_tx[publisher.tx] = publisher.call
        if publisher.confirmed:
            self.open_serials.pop(publisher.serial, None)
        if publisher.ended:
            self.publishers.pop(publisher.call, None)
            self.by_key.pop(publisher.key, None)
            if publisher.tx is not None:
                self.by_tx.pop(publisher.tx, None)
                self._remember(publisher.tx)
        return [(("p", publisher.call), effects)]

    def _on_leave(self, call: LeaveCall) -> list[Batch]:
        publisher = self.publishers.pop(call.call, None)
        if publisher is None:
            return []
        self.open_serials.pop(publisher.serial, None)
        if publisher.tx is not None and self.by_tx.get(publisher.tx) == call.call:
            del self.by_tx[publisher.tx]
        if self.by_key.get(publisher.key) == call.call:
            del self.by_key[publisher.key]
        effects: list[Effect] = [CancelTimer(("p", call.call, "retry"))]
        if call.reason and publisher.tx is not None:
            effects.append(Send(publisher.tx.coordinator, m.Abort(publisher.tx, self.seat.site, call.reason)))
        return [(("p", call.call), effects)]

    def _remember(self, tx: TxId) -> None:
        """A confirmation can get lost: the coordinator then repeats the outcome, and is told again."""
        self.confirmed[tx] = None
        if len(self.confirmed) > REMEMBERED:
            del self.confirmed[next(iter(self.confirmed))]

    # Between roles

    def _expand(self, batches: list[Batch]) -> list[Batch]:
        """Put chain entries where they were asked for, and what chains then send under their own role."""
        expanded: list[Batch] = []
        for role, effects in batches:
            if role[0] != "c" or AddEntry not in map(type, effects):  # only coordinators of a transaction add to chains
                expanded.append((role, effects))
                continue
            flat: list[Effect] = []
            touched: list[ChainKind] = []
            for effect in effects:
                if not isinstance(effect, AddEntry):
                    flat.append(effect)
                elif self.coordinator.chains[effect.kind].read_by_anyone():
                    flat.append(self.coordinator.chains[effect.kind].add(effect.tx, effect.terms, effect.events))
                    touched.append(effect.kind)
            expanded.append((role, flat))
            expanded += [(("chain", kind), [AwaitLog(), *self.coordinator.chains[kind].announce()]) for kind in touched]
        return expanded
