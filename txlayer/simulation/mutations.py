"""The slips that planted bugs are made of: methods of the roles with one rule of the protocol left out.

`mutants` says which of them make a bug, and under which name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from txlayer import messages as m
from txlayer.effects import (
    AddEntry,
    Append,
    Broadcast,
    Drop,
    Effect,
    Settled,
)
from txlayer.logs.record_log import Head, RecordLog
from txlayer.messages import Standing
from txlayer.records import Settlement
from txlayer.runtime.write_ahead import WriteAhead
from txlayer.transactions.ballot import Ballot, Ruling
from txlayer.transactions.chain import Chain
from txlayer.transactions.compensation import Compensation
from txlayer.transactions.coordinated import Phase
from txlayer.transactions.coordinator_desk import CoordinatorDesk
from txlayer.transactions.executor import Executor, State
from txlayer.transactions.finisher import Finisher
from txlayer.transactions.local_executor import LocalExecutor
from txlayer.transactions.participant import Participant
from txlayer.transactions.reader import ChainReader
from txlayer.transactions.sequence import Sequence
from txlayer.transactions.subscriber_desk import SubscriberDesk
from txlayer.transactions.tx_coordinator import TxCoordinator

Patch = tuple[type, str, Callable[..., Any]]


def without(owner: type, name: str, unwanted: Callable[[Effect], bool]) -> Patch:
    """The same method, without some of its effects."""
    old = getattr(owner, name)

    def patched(*args: Any, **kwargs: Any) -> list[Effect]:
        return [effect for effect in old(*args, **kwargs) if not unwanted(effect)]

    return owner, name, patched


def outputs_first(owner: type, name: str) -> Patch:
    """The same method, with everything said before anything is written."""
    old = getattr(owner, name)

    def patched(*args: Any, **kwargs: Any) -> list[Effect]:
        return sorted(old(*args, **kwargs), key=lambda effect: isinstance(effect, Append | AddEntry))

    return owner, name, patched


def appends(effect: Effect) -> bool:
    return isinstance(effect, Append)


def instead(owner: type, name: str, new: Callable[..., Any]) -> Patch:
    return owner, name, new


def admit_everything(self: WriteAhead, role: Any, effects: list[Effect]) -> list[Effect]:
    free: list[Effect] = []
    for effect in effects:
        if isinstance(effect, Append):
            self._append(role, effect)
        elif isinstance(effect, Drop):
            self.log.drop(effect.key)
        elif type(effect).__name__ != "AwaitLog":
            free.append(effect)
    return free


def admit_questions(self: WriteAhead, role: Any, effects: list[Effect]) -> list[Effect]:
    """Holds back what comes with an append, answers everything else at once."""
    if not any(isinstance(effect, Append) for effect in effects):
        pending = self.pending.pop(role, None)
        free = _ADMIT(self, role, effects)
        if pending is not None:
            self.pending[role] = pending
        return free
    return _ADMIT(self, role, effects)


_ADMIT = WriteAhead.admit


def vote_twice(self: Ballot, member: bytes, yes: bool, reason: str) -> Ruling | None:
    if member not in self.members:
        return None
    key = member if member not in self.votes else b"again" + bytes([len(self.votes)])
    self.votes[key] = yes
    return None if yes else self._without(member, reason)


def count_only(self: Ballot) -> Ruling | None:
    return Ruling(True, tuple(self.members)) if sum(self.votes.values()) >= len(self.members) else None


def yes_of_anyone(self: Ballot) -> Ruling | None:
    yes = tuple(member for member in self.members if self.votes.get(member, False))
    return Ruling(True, yes) if len(self.votes) >= len(self.members) else None


def outsiders_vote(self: TxCoordinator, vote: m.Vote) -> list[Effect]:
    if self.phase is not Phase.VOTING:
        return _ON_VOTE(self, vote)
    members = list(self.ballot.members)
    if vote.member not in self.ballot.members and members:
        self.ballot.votes.setdefault(members[0], True)
        ruling = self.ballot.ruling()
        return self._rule(ruling) if ruling is not None else []
    return _ON_VOTE(self, vote)


_ON_VOTE = TxCoordinator.on_vote


def presume_commit(self: CoordinatorDesk, question: m.InDoubt) -> list[Any]:
    batches = _ON_IN_DOUBT(self, question)
    if question.tx in self.transactions:
        return batches
    token = self.seat.keyring.token(question.tx, "commit")
    members = tuple(self.seat.keyring.member(question.tx) for _ in range(1))
    return [(("c", question.tx), [Broadcast(question.type, m.Decision(question.tx, token, members))]), *batches]


_ON_IN_DOUBT = CoordinatorDesk._on_in_doubt


def unchecked_token(self: Executor, decision: m.Decision, frame: bytes) -> list[Effect]:
    if self.state is State.PREPARED and decision.token:
        commit = self.me() in decision.final
        return self._decided(commit, frame)
    return _ON_DECISION(self, decision, frame)


_ON_DECISION = Executor.on_decision


def not_named_commits(self: Executor, decision: m.Decision, frame: bytes) -> list[Effect]:
    return _ON_DECISION(self, m.Decision(decision.tx, decision.token, (*decision.final, self.me())), frame)


def doubter_gives_up(self: Executor) -> list[Effect]:
    if self.state is State.PREPARED and self.doubts >= 1:
        return self._decided(False, b"")
    return _ASK(self)


_ASK = Executor._ask


def forget_after_first_ack(self: TxCoordinator, ack: m.Ack) -> list[Effect]:
    self.unacknowledged = {ack.member: self.unacknowledged[ack.member]} if ack.member in self.unacknowledged else {}
    return _ON_ACK(self, ack)


_ON_ACK = TxCoordinator.on_ack


def confirm_not_awaited(self: TxCoordinator, final: tuple[bytes, ...]) -> list[Effect]:
    self.confirmed = True
    return _COMMIT(self, final)


_COMMIT = TxCoordinator._commit


def overtaken(self: TxCoordinator, request: m.CommitRequest) -> list[Effect]:
    return _COMMIT_REQUEST(self, m.CommitRequest(request.tx, request.publisher, 0))


_COMMIT_REQUEST = TxCoordinator.on_commit_request


def apply_out_of_order(self: ChainReader, commit: m.Commit) -> list[Effect]:
    if commit.number > self.upto + 1 and self.applying is None and self.upto >= 0:
        self.upto = commit.number - 1
    return _ON_COMMIT(self, commit)


_ON_COMMIT = ChainReader.on_commit


def gap_ignored(self: Sequence) -> None:
    return None


def claims_intact(self: Sequence) -> bool:
    self.digest = self.wanted_digest
    return True


def complete_early(self: Sequence) -> bool:
    return self.last is not None


def deadline_for_delegate(self: TxCoordinator, standing: Standing) -> list[Effect]:
    if self.phase is Phase.DELEGATED and self.attempt >= 3:
        return self._abort("the delegate does not answer")
    return _RETRY(self, standing)


_RETRY = TxCoordinator._on_retry


def recover_early(self: SubscriberDesk) -> list[Any]:
    for members in self.members.values():
        for tx in list(members):
            if isinstance(members[tx], Executor) and members[tx].state is State.PREPARING:  # type: ignore[union-attr]
                del members[tx]
    return _RESUME(self)


_RESUME = SubscriberDesk.resume


def mark_removes_prepared(self: Executor) -> list[Effect]:
    if self.state is State.PREPARED:
        return self._decided(True, b"")
    return _BELOW_MARK(self)


_BELOW_MARK = Executor.on_below_mark


def locals_follow_decision(self: SubscriberDesk, local: LocalExecutor, message: m.AnyMessage) -> list[Effect]:
    if isinstance(message, m.Decision) and not message.final and not local.done and not local.committing:
        return local._give_up()
    return _TO_LOCAL(self, local, message)


_TO_LOCAL = SubscriberDesk._to_local


def abort_reaches_locals(self: TxCoordinator, reason: str, by: str = "") -> list[Effect]:
    token = self.seat.keyring.token(self.tx, "withdrawn")
    return [Broadcast(self.terms.type, m.Withdrawn(self.tx, token)), *_ABORT(self, reason, by)]


_ABORT = TxCoordinator._abort


def local_commits_early(self: LocalExecutor, event: m.Numbered) -> list[Effect]:
    effects = _LOCAL_EVENT(self, event)
    if self.sequence.last is None:
        self.sequence.end(event.number, self.sequence.digest)
    return effects


_LOCAL_EVENT = LocalExecutor.on_event


def numbers_again(self: CoordinatorDesk, record: object) -> bool:
    taken = _DESK_RECOVER(self, record)
    if type(record).__name__ == "NumbersReserved":
        self.next_number = 1
    return taken


_DESK_RECOVER = CoordinatorDesk.recover


def chain_number_again(self: Chain, record: Any) -> None:
    _CHAIN_RECOVER(self, record)
    if type(record).__name__ == "ChainPosition":
        self.low, self.next = 1, max((*self.entries, 0)) + 1


_CHAIN_RECOVER = Chain.recover


def inspect_trusts(self: Executor, found: Any) -> list[Effect]:
    return _INSPECTED(self, replace(found, state="prepared" if not self.choice.compensatable else "committed"))


_INSPECTED = Executor.on_inspected


def always(_value: Any) -> Callable[..., Any]:
    return lambda *_args, **_kwargs: _value


def rejoin(self: SubscriberDesk, record: object) -> bool:
    return True if type(record).__name__ == "VotedNo" else _SUB_RECOVER(self, record)


_SUB_RECOVER = SubscriberDesk.recover


def stand_alone(self: Ballot) -> Ruling | None:
    yes = self._yes()
    return Ruling(True, yes) if yes else None


def delegate_says_first(self: Executor) -> list[Effect]:
    effects = _INTEND(self)
    if self.delegated and self.state is State.PREPARING:
        self.state = State.PREPARED
        early = self._delegated()
        self.state = State.PREPARING
        return [early, *effects]
    return effects


_INTEND = Executor._intend


def compensate_forward(self: Compensation) -> tuple[m.Numbered, ...]:
    return self.events


def register_ignored(self: TxCoordinator, final: tuple[bytes, ...]) -> list[Effect]:
    return self._commit(final)


def finisher_decides(self: Finisher, settled: Settled) -> list[Effect]:
    return _FINISHER_SAYS(self, replace(settled, settlement=Settlement(False)))


_FINISHER_SAYS = Finisher.on_settled


def settled_means_commit(self: TxCoordinator, settlement: Settlement) -> list[Effect]:
    return _ON_SETTLED(self, Settlement(True, tuple(self.ballot.members)))


_ON_SETTLED = TxCoordinator.on_settled


def head_unknown(self: RecordLog) -> Head:
    return Head(self.header.incarnation, 0)


def unlogged_public(self: TxCoordinator, *args: Any) -> Any:
    return replace(_RECORD(self, *args), public=())


_RECORD = TxCoordinator._record


def late_ack_ignored(self: Chain, ack: m.ChainAck) -> list[Effect]:
    reading = self.readers.get(ack.reader)
    return [] if reading is not None and reading.stale else _CHAIN_ACK(self, ack)


_CHAIN_ACK = Chain.on_ack


def half_a_log(self: Participant, records: Any) -> list[Any]:
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


def dead_submit_queued(self: CoordinatorDesk, message: Any) -> list[Any]:
    return _ON_PUBLISHER(self, message) if message.tx in self.transactions else []


_ON_PUBLISHER = CoordinatorDesk._on_publisher


def key_unknown(self: CoordinatorDesk, inquire: m.Inquire) -> list[Any]:
    if inquire.tx is not None:
        return _ON_INQUIRE(self, inquire)
    keys, self.keys = self.keys, {}
    batches = _ON_INQUIRE(self, inquire)
    self.keys = keys
    return batches


_ON_INQUIRE = CoordinatorDesk.on_inquire


def forgotten_unknown(self: CoordinatorDesk, *args: Any) -> m.Outcome:
    return replace(_OF_FORGOTTEN(self, *args), status=m.Status.UNKNOWN)


_OF_FORGOTTEN = CoordinatorDesk._of_forgotten
ON_BEGIN = Executor.on_begin
ADD = Chain.add
APPLIED = Executor._applied
