"""Slips of a member or a follower: rules on tombstones, marks, intents and doubt, each left out alone."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from txlayer import messages as m
from txlayer.effects import Append, AwaitLog, Broadcast, Drop, Effect, ForgetMarker
from txlayer.records import Intent
from txlayer.transactions.executor import Executor, State
from txlayer.transactions.subscriber_desk import SubscriberDesk

OPINION = b"opinion"


def delegation_unanswered(self: SubscriberDesk, message: m.AnyMessage) -> list[Effect]:
    return [] if isinstance(message, m.Delegate) else _OF_UNKNOWN(self, message)


_OF_UNKNOWN = SubscriberDesk._of_unknown


def no_tombstone(self: SubscriberDesk, done: Any) -> list[Any]:
    batches = _ON_WORK(self, done)
    member = self._member(done.tx)
    if isinstance(member, Executor) and member.state is State.DONE and member.compensation is None:
        del self.members[done.tx.coordinator, done.tx.incarnation][done.tx]
        forget: list[Effect] = [Drop(f"m/{done.tx}"), AwaitLog(), ForgetMarker(done.tx)]
        batches = [*batches, (("m", done.tx), forget)]
    return batches


_ON_WORK = SubscriberDesk.on_work


def mark_removes_unapplied(self: Executor) -> list[Effect]:
    return _removed(self, State.PREPARED, State.PREPARING, State.APPLYING)


def mark_removes_applying(self: Executor) -> list[Effect]:
    return _removed(self, State.APPLYING)


def _removed(self: Executor, *states: State) -> list[Effect]:
    if self.state in states:
        self.state = State.DONE
        return self._forget()
    return _BELOW_MARK(self)


_BELOW_MARK = Executor.on_below_mark


def named_unheard(self: Executor, named: bool, frame: bytes) -> list[Effect]:
    return [] if named else _DECIDED_WITHOUT_US(self, named, frame)


_DECIDED_WITHOUT_US = Executor._on_decided_without_us


def intent_while_the_handler_runs(self: Executor) -> bool:
    return self.choice.waits and not self.choice.compensatable and not self.delegated


def empty_vote_of_anyone(self: Executor) -> bool:
    return not (self.choice.compensatable or self.delegated)


def heed_aborts(self: SubscriberDesk, message: Any, frame: bytes) -> list[Any]:
    if isinstance(message, m.Decision) and not message.final and message.reason:
        self._remember_declined(message.tx)
    return _ON_TRANSACTION(self, message, frame)


_ON_TRANSACTION = SubscriberDesk._on_transaction


def skip_aborted(self: SubscriberDesk, message: Any) -> list[Any]:
    """What it has heard an abort of passes a follower by, though it stands in the chain of commits."""
    follows = isinstance(message, m.Commit) and message.kind is m.ChainKind.COMMITS
    if follows and message.tx in self.declined:
        message = replace(message, tx=None)
    return _ON_CHAIN(self, message)


_ON_CHAIN = SubscriberDesk._on_chain


def says_its_opinion(self: Executor, question: m.InDoubt) -> list[Effect]:
    if self.state is State.REFUSED or (self.state is State.DONE and not self.commit):
        return [Broadcast(self.terms.type, m.Decision(self.tx, OPINION, ()))]
    return _PEER_IN_DOUBT(self, question)


_PEER_IN_DOUBT = Executor.on_peer_in_doubt


def believes_opinions(self: Executor, decision: m.Decision, frame: bytes) -> list[Effect]:
    if decision.token == OPINION and self.state is State.PREPARED and not self.delegated:
        return self._decided(False, frame)
    return _ON_DECISION(self, decision, frame)


_ON_DECISION = Executor.on_decision


def intent_without_events(self: Executor) -> list[Effect]:
    return _intent_with(self, events=())


def intent_without_hashes(self: Executor) -> list[Effect]:
    return _intent_with(self, hashes=m.Hashes(b"", b"", b"", b""))


def _intent_with(self: Executor, **changes: Any) -> list[Effect]:
    def changed(effect: Effect) -> Effect:
        if isinstance(effect, Append) and isinstance(effect.record, Intent):
            return replace(effect, record=replace(effect.record, **changes))
        return effect

    return [changed(effect) for effect in _LOG_INTENT(self)]


_LOG_INTENT = Executor._log_intent
