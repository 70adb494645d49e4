"""Planted bugs: each breaks one rule of the protocol, and the checkers must notice.

A mutant replaces one small method for the time of a run. Most of them are the rules of the protocol switched off one
at a time; some are slips that any implementation might make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from txlayer import messages as m
from txlayer.effects import (
    AddEntry,
    Append,
    Broadcast,
    Drop,
    Effect,
    ForgetMarker,
    PublishPlain,
    Send,
    SetTimer,
    Settled,
)
from txlayer.logs.record_log import Head, RecordLog
from txlayer.messages import Standing
from txlayer.records import Settlement
from txlayer.runtime.write_ahead import WriteAhead
from txlayer.transactions.ballot import Ballot, Ruling
from txlayer.transactions.census import Census
from txlayer.transactions.chain import Chain
from txlayer.transactions.compensation import Compensation
from txlayer.transactions.coordinated import Phase
from txlayer.transactions.coordinator_desk import CoordinatorDesk
from txlayer.transactions.creations import Creations
from txlayer.transactions.event_coordinator import EventCoordinator
from txlayer.transactions.executor import Executor, State
from txlayer.transactions.finisher import Finisher
from txlayer.transactions.local_executor import LocalExecutor
from txlayer.transactions.marks import Marks
from txlayer.transactions.participant import Participant
from txlayer.transactions.publisher import Publisher
from txlayer.transactions.reader import ChainReader
from txlayer.transactions.sequence import Sequence
from txlayer.transactions.subscriber_desk import SubscriberDesk
from txlayer.transactions.tx_coordinator import TxCoordinator

Patch = tuple[type, str, Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug. `hint` names the configuration that the sweep had better start with."""

    name: str
    patches: tuple[Patch, ...]
    hint: str = ""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug, for as long as this lasts."""
        before = [(owner, name, owner.__dict__.get(name)) for owner, name, _ in self.patches]
        for owner, name, new in self.patches:
            setattr(owner, name, new)
        try:
            yield
        finally:
            for owner, name, old in before:
                if old is None:  # it was inherited
                    delattr(owner, name)
                else:
                    setattr(owner, name, old)


def _without(owner: type, name: str, unwanted: Callable[[Effect], bool]) -> Patch:
    """The same method, without some of its effects."""
    old = getattr(owner, name)

    def patched(*args: Any, **kwargs: Any) -> list[Effect]:
        return [effect for effect in old(*args, **kwargs) if not unwanted(effect)]

    return owner, name, patched


def _outputs_first(owner: type, name: str) -> Patch:
    """The same method, with everything said before anything is written."""
    old = getattr(owner, name)

    def patched(*args: Any, **kwargs: Any) -> list[Effect]:
        return sorted(old(*args, **kwargs), key=lambda effect: isinstance(effect, Append | AddEntry))

    return owner, name, patched


def _appends(effect: Effect) -> bool:
    return isinstance(effect, Append)


def _instead(owner: type, name: str, new: Callable[..., Any]) -> Patch:
    return owner, name, new


def _admit_everything(self: WriteAhead, role: Any, effects: list[Effect]) -> list[Effect]:
    free: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Append):
            self._append(role, effect)
        elif isinstance(effect, Drop):
            self.log.drop(effect.key)
        elif type(effect).__name__ != "AwaitLog":
            free.append(effect)
    return free


def _admit_questions(self: WriteAhead, role: Any, effects: list[Effect]) -> list[Effect]:
    """Holds back what comes with an append, answers everything else at once."""
    if not any(isinstance(effect, Append) for effect in effects):
        pending = self.pending.pop(role, None)
        free = _ADMIT(self, role, effects)
        if pending is not None:
            self.pending[role] = pending
        return free
    return _ADMIT(self, role, effects)


_ADMIT = WriteAhead.admit


def _vote_twice(self: Ballot, member: bytes, yes: bool, reason: str) -> Ruling | None:
    if member not in self.members:
        return None
    key = member if member not in self.votes else b"again" + bytes([len(self.votes)])
    self.votes[key] = yes
    return None if yes else self._without(member, reason)


def _count_only(self: Ballot) -> Ruling | None:
    return Ruling(True, tuple(self.members)) if sum(self.votes.values()) >= len(self.members) else None


def _yes_of_anyone(self: Ballot) -> Ruling | None:
    yes = tuple(member for member in self.members if self.votes.get(member, False))
    return Ruling(True, yes) if len(self.votes) >= len(self.members) else None


def _outsiders_vote(self: TxCoordinator, vote: m.Vote) -> list[Effect]:
    if self.phase is not Phase.VOTING:
        return _ON_VOTE(self, vote)
    members = list(self.ballot.members)
    if vote.member not in self.ballot.members and members:
        self.ballot.votes.setdefault(members[0], True)
        ruling = self.ballot.ruling()
        return self._rule(ruling) if ruling is not None else []
    return _ON_VOTE(self, vote)


_ON_VOTE = TxCoordinator.on_vote


def _presume_commit(self: CoordinatorDesk, question: m.InDoubt) -> list[Any]:
    batches = _ON_IN_DOUBT(self, question)
    if question.tx in self.transactions:
        return batches
    token = self.seat.keyring.token(question.tx, "commit")
    members = tuple(self.seat.keyring.member(question.tx) for _ in range(1))
    return [(("c", question.tx), [Broadcast(question.type, m.Decision(question.tx, token, members))]), *batches]


_ON_IN_DOUBT = CoordinatorDesk._on_in_doubt


def _unchecked_token(self: Executor, decision: m.Decision, frame: bytes) -> list[Effect]:
    if self.state is State.PREPARED and decision.token:
        commit = self.me() in decision.final
        return self._decided(commit, frame)
    return _ON_DECISION(self, decision, frame)


_ON_DECISION = Executor.on_decision


def _not_named_commits(self: Executor, decision: m.Decision, frame: bytes) -> list[Effect]:
    return _ON_DECISION(self, m.Decision(decision.tx, decision.token, (*decision.final, self.me())), frame)


def _doubter_gives_up(self: Executor) -> list[Effect]:
    if self.state is State.PREPARED and self.doubts >= 1:
        return self._decided(False, b"")
    return _ASK(self)


_ASK = Executor._ask


def _forget_after_first_ack(self: TxCoordinator, ack: m.Ack) -> list[Effect]:
    self.unacknowledged = {ack.member: self.unacknowledged[ack.member]} if ack.member in self.unacknowledged else {}
    return _ON_ACK(self, ack)


_ON_ACK = TxCoordinator.on_ack


def _confirm_not_awaited(self: TxCoordinator, final: tuple[bytes, ...]) -> list[Effect]:
    self.confirmed = True
    return _COMMIT(self, final)


_COMMIT = TxCoordinator._commit


def _overtaken(self: TxCoordinator, request: m.CommitRequest) -> list[Effect]:
    return _COMMIT_REQUEST(self, m.CommitRequest(request.tx, request.publisher, 0))


_COMMIT_REQUEST = TxCoordinator.on_commit_request


def _apply_out_of_order(self: ChainReader, commit: m.Commit) -> list[Effect]:
    if commit.number > self.upto + 1 and self.applying is None and self.upto >= 0:
        self.upto = commit.number - 1
    return _ON_COMMIT(self, commit)


_ON_COMMIT = ChainReader.on_commit


def _gap_ignored(self: Sequence) -> None:
    return None


def _claims_intact(self: Sequence) -> bool:
    self.digest = self.wanted_digest
    return True


def _complete_early(self: Sequence) -> bool:
    return self.last is not None


def _deadline_for_delegate(self: TxCoordinator, standing: Standing) -> list[Effect]:
    if self.phase is Phase.DELEGATED and self.attempt >= 3:
        return self._abort("the delegate does not answer")
    return _RETRY(self, standing)


_RETRY = TxCoordinator._on_retry


def _recover_early(self: SubscriberDesk) -> list[Any]:
    for members in self.members.values():
        for tx in list(members):
            if isinstance(members[tx], Executor) and members[tx].state is State.PREPARING:  # type: ignore[union-attr]
                del members[tx]
    return _RESUME(self)


_RESUME = SubscriberDesk.resume


def _mark_removes_prepared(self: Executor) -> list[Effect]:
    if self.state is State.PREPARED:
        return self._decided(True, b"")
    return _BELOW_MARK(self)


_BELOW_MARK = Executor.on_below_mark


def _locals_follow_decision(self: SubscriberDesk, local: LocalExecutor, message: m.AnyMessage) -> list[Effect]:
    if isinstance(message, m.Decision) and not message.final and not local.done and not local.committing:
        return local._give_up()
    return _TO_LOCAL(self, local, message)


_TO_LOCAL = SubscriberDesk._to_local


def _abort_reaches_locals(self: TxCoordinator, reason: str, by: str = "") -> list[Effect]:
    token = self.seat.keyring.token(self.tx, "withdrawn")
    return [Broadcast(self.terms.type, m.Withdrawn(self.tx, token)), *_ABORT(self, reason, by)]


_ABORT = TxCoordinator._abort


def _local_commits_early(self: LocalExecutor, event: m.Numbered) -> list[Effect]:
    effects = _LOCAL_EVENT(self, event)
    if self.sequence.last is None:
        self.sequence.end(event.number, self.sequence.digest)
    return effects


_LOCAL_EVENT = LocalExecutor.on_event


def _numbers_again(self: CoordinatorDesk, record: object) -> bool:
    taken = _DESK_RECOVER(self, record)
    if type(record).__name__ == "NumbersReserved":
        self.next_number = 1
    return taken


_DESK_RECOVER = CoordinatorDesk.recover


def _chain_number_again(self: Chain, record: Any) -> None:
    _CHAIN_RECOVER(self, record)
    if type(record).__name__ == "ChainPosition":
        self.low, self.next = 1, max((*self.entries, 0)) + 1


_CHAIN_RECOVER = Chain.recover


def _inspect_trusts(self: Executor, found: Any) -> list[Effect]:
    return _INSPECTED(self, replace(found, state="prepared" if not self.choice.compensatable else "committed"))


_INSPECTED = Executor.on_inspected


def _always(_value: Any) -> Callable[..., Any]:
    return lambda *_args, **_kwargs: _value


def _rejoin(self: SubscriberDesk, record: object) -> bool:
    return True if type(record).__name__ == "VotedNo" else _SUB_RECOVER(self, record)


_SUB_RECOVER = SubscriberDesk.recover


def _stand_alone(self: Ballot) -> Ruling | None:
    yes = self._yes()
    return Ruling(True, yes) if yes else None


def _delegate_says_first(self: Executor) -> list[Effect]:
    effects = _INTEND(self)
    if self.delegated and self.state is State.PREPARING:
        self.state = State.PREPARED
        early = self._delegated()
        self.state = State.PREPARING
        return [early, *effects]
    return effects


_INTEND = Executor._intend


def _compensate_forward(self: Compensation) -> tuple[m.Numbered, ...]:
    return self.events


def _register_ignored(self: TxCoordinator, final: tuple[bytes, ...]) -> list[Effect]:
    return self._commit(final)


def _finisher_decides(self: Finisher, settled: Settled) -> list[Effect]:
    return _FINISHER_SAYS(self, replace(settled, settlement=Settlement(False)))


_FINISHER_SAYS = Finisher.on_settled


def _settled_means_commit(self: TxCoordinator, settlement: Settlement) -> list[Effect]:
    return _ON_SETTLED(self, Settlement(True, tuple(self.ballot.members)))


_ON_SETTLED = TxCoordinator.on_settled


def _head_unknown(self: RecordLog) -> Head:
    return Head(self.header.incarnation, 0)


def _unlogged_public(self: TxCoordinator, *args: Any) -> Any:
    return msgspec.structs.replace(_RECORD(self, *args), public=())


_RECORD = TxCoordinator._record


def _late_ack_ignored(self: Chain, ack: m.ChainAck) -> list[Effect]:
    reading = self.readers.get(ack.reader)
    return [] if reading is not None and reading.stale else _CHAIN_ACK(self, ack)


_CHAIN_ACK = Chain.on_ack


def _half_a_log(self: Participant, records: Any) -> list[Any]:
    """What comes of the first half leaves before the second is read: here, marks."""
    kept = list(records)
    early = Participant(self.seat)
    for record in kept[: len(kept) // 2]:
        if not early.coordinator.recover(record):
            early.subscriber.recover(record)
    types = sorted({name for record in kept if (name := getattr(record, "type", ""))})
    mark = m.Mark(self.seat.site, self.seat.incarnation, m.Standing(early.coordinator.reserved))
    says: list[Effect] = [Broadcast(name, mark) for name in types]
    return [(("mark", ""), says), *_PARTICIPANT_RECOVER(self, kept)]


_PARTICIPANT_RECOVER = Participant.recover


def _dead_submit_queued(self: CoordinatorDesk, message: Any) -> list[Any]:
    return _ON_PUBLISHER(self, message) if message.tx in self.transactions else []


_ON_PUBLISHER = CoordinatorDesk._on_publisher
_ON_BEGIN = Executor.on_begin
_ADD = Chain.add
_APPLIED = Executor._applied

MUTANTS = (
    Mutant("nothing waits for the log", (_instead(WriteAhead, "admit", _admit_everything),)),
    Mutant("questions are answered while an append is pending", (_instead(WriteAhead, "admit", _admit_questions),), hint="two phases"),
    Mutant("decision sent before it is logged", (_outputs_first(TxCoordinator, "_commit"),)),
    Mutant("decision not logged", (_without(TxCoordinator, "_commit", _appends),)),
    Mutant("intent not logged before the vote", (_without(Executor, "_intend", _appends),)),
    Mutant("a no vote is not logged", (_without(Executor, "_refuse", _appends),), hint="one phase, refused"),
    Mutant("a no vote is forgotten at restart", (_instead(SubscriberDesk, "recover", _rejoin),), hint="one phase, refused"),
    Mutant("numbers are used again after a crash", (_instead(CoordinatorDesk, "recover", _numbers_again),)),
    Mutant("decision is sent once", (_without(TxCoordinator, "_on_retry", lambda e: isinstance(e, Broadcast) and isinstance(e.message, m.Decision)),)),
    Mutant("forgotten after the first acknowledgement", (_instead(TxCoordinator, "on_ack", _forget_after_first_ack),)),
    Mutant("forgotten before the caller confirmed", (_instead(TxCoordinator, "_commit", _confirm_not_awaited),)),
    Mutant("marks are ignored", (_instead(Marks, "finished", _always(False)),)),
    Mutant("a mark decides for prepared work", (_instead(Executor, "on_below_mark", _mark_removes_prepared),)),
    Mutant("a member that is not named commits", (_instead(Executor, "on_decision", _not_named_commits),)),
    Mutant("constraints are not tested again", (_instead(Ballot, "ruling", _yes_of_anyone), _instead(Ballot, "_without", _always(None)))),
    Mutant("votes missing past the deadline count as settled", (_instead(Ballot, "on_missing", _stand_alone),)),
    Mutant("vote counted twice", (_instead(Ballot, "on_vote", _vote_twice), _instead(Ballot, "ruling", _count_only))),
    Mutant("votes of outsiders count", (_instead(TxCoordinator, "on_vote", _outsiders_vote),)),
    Mutant("census conditions are not tested", (_instead(Census, "failure", _always("")),)),
    Mutant("begin list is not checked", (_instead(Executor, "on_begin", lambda self, begin, frame: _ON_BEGIN(self, m.Begin(begin.tx, (*begin.members, self.me()), begin.type), frame)),)),
    Mutant("a member votes on events that it has not got", (_instead(Sequence, "gap", _gap_ignored), _instead(Sequence, "complete", _complete_early), _instead(Sequence, "intact", _claims_intact)), hint="two phases"),
    Mutant("nobody asks in doubt", (_instead(Executor, "_ask", _always([])),)),
    Mutant("in doubt a member gives up by itself", (_instead(Executor, "_ask", _doubter_gives_up),)),
    Mutant("token of a decision is not checked", (_instead(Executor, "on_decision", _unchecked_token),)),
    Mutant("presumed commit", (_instead(CoordinatorDesk, "_on_in_doubt", _presume_commit),)),
    Mutant("presumed abort for another incarnation", (_instead(CoordinatorDesk, "_presumed_aborted", _always(True)),), hint="hosted"),
    Mutant("delegation is not logged", (_without(TxCoordinator, "_delegate", _appends),), hint="one phase"),
    Mutant("a deadline decides for the delegate", (_instead(TxCoordinator, "_on_retry", _deadline_for_delegate),)),
    Mutant("delegate answers before it has committed", (_instead(Executor, "_intend", _delegate_says_first),)),
    Mutant("gaps are not asked for", (_without(Executor, "_ask_for_gap", lambda e: isinstance(e, Send)),), hint="two phases"),
    Mutant("commit request overtakes events", (_instead(TxCoordinator, "on_commit_request", _overtaken),)),
    Mutant("event numbers are not checked for repetition", (_instead(EventCoordinator, "upto", lambda self, publisher: 0),)),
    Mutant("anyone may publish", (_instead(EventCoordinator, "may_publish", _always(True)),)),
    Mutant("an open transaction has no deadline", (_instead(TxCoordinator, "_on_deadline", _always([])),)),
    Mutant("publisher does not repeat itself", (_without(Publisher, "_say", lambda e: isinstance(e, SetTimer)),)),
    Mutant("a late creation starts again", (_instead(Creations, "take", _always(True)), _instead(Creations, "ended", _always(False)))),
    Mutant("locals act on the decision", (_instead(SubscriberDesk, "_to_local", _locals_follow_decision),)),
    Mutant("a local member commits without a call", (_instead(LocalExecutor, "on_event", _local_commits_early),)),
    Mutant("call is not logged", (_instead(TxCoordinator, "_record_call", _always([])),), hint="durable local"),
    Mutant("local intent is not logged", (_without(LocalExecutor, "_go_on", _appends),), hint="purely local, one shot"),
    Mutant("chain entry is not logged", (_instead(Chain, "add", lambda self, tx, terms, events: replace(_ADD(self, tx, terms, events), key="e/lost")),), hint="follower"),
    Mutant("followers get no retransmission", (_instead(Chain, "on_retry", _always([])),), hint="follower"),
    Mutant("a follower skips gaps", (_instead(ChainReader, "on_commit", _apply_out_of_order),), hint="follower"),
    Mutant("a follower's position is not logged", (_without(ChainReader, "_save", _appends),), hint="follower"),
    Mutant("followers are not registered durably", (_without(Chain, "on_follow", _appends),), hint="follower"),
    Mutant("chain numbers start again after a crash", (_instead(Chain, "recover", _chain_number_again),), hint="follower"),
    Mutant("compensation in forward order", (_instead(Compensation, "_undo_order", _compensate_forward),), hint="compensation"),
    Mutant("compensation is forgotten", (_instead(Compensation, "start", _always([])),), hint="compensation"),
    Mutant("prepared work is forgotten at restart", (_instead(SubscriberDesk, "resume", _recover_early),), hint="two phases"),
    Mutant("a restarted member trusts that it prepared", (_instead(Executor, "on_inspected", _inspect_trusts),), hint="two phases"),
    Mutant("a coordinator commits past the register", (_instead(TxCoordinator, "_settle", _register_ignored),), hint="finisher"),
    Mutant("a finisher decides by itself", (_instead(Finisher, "on_settled", _finisher_decides),), hint="finisher"),
    Mutant("a coordinator ignores what stands in the register", (_instead(TxCoordinator, "on_settled", _settled_means_commit),), hint="finisher"),
    Mutant("nobody asks the finisher", (_without(Executor, "_ask", lambda e: isinstance(e, Send) and isinstance(e.message, m.InDoubt) and bool(e.message.finisher)),), hint="finisher"),
    Mutant("settling is not logged", (_without(TxCoordinator, "_settle", _appends),), hint="finisher"),
    Mutant("an old copy of the log is not noticed", (_instead(RecordLog, "head", _head_unknown),)),
    Mutant("events are not published on commit", (_without(TxCoordinator, "_commit", lambda e: isinstance(e, PublishPlain)),)),
    Mutant("what is to be published on commit is not logged", (_instead(TxCoordinator, "_record", _unlogged_public),), hint="public on commit"),
    Mutant("a late acknowledgement leaves a reader behind for ever", (_instead(Chain, "on_ack", _late_ack_ignored),)),
    Mutant("a mark leaves before the whole log is read", (_instead(Participant, "recover", _half_a_log),), hint="one phase"),
    Mutant("what a publisher says to a dead transaction is ignored", (_instead(CoordinatorDesk, "_on_publisher", _dead_submit_queued),), hint="hosted"),
    Mutant("a refused delegation is not recorded", (_without(TxCoordinator, "_delegate_refused", _appends),), hint="one phase, refused"),
    Mutant("an abort of members reaches locals", (_instead(TxCoordinator, "_abort", _abort_reaches_locals),), hint="local by chance, refused"),
    Mutant("markers are forgotten too early", (_instead(Executor, "_applied", lambda self: [ForgetMarker(self.tx), *_APPLIED(self)]),), hint="two phases"),
)  # fmt: skip
