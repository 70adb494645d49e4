"""The sub-tx executor of a distributed member (HTS 4, TOPS 4.5.1).

A member joins, processes the events in sequence and votes when it is asked. What it must not forget is in its log
before it is said: the intent, with the events that it would have to undo and all it needs to recognise the decision,
before it votes yes; a no before it leaves, because a voter that forgot its no could join again through a late census
and vote yes. A resource prepares and finishes beside the log: after a crash it tells by itself what it has done. Where
the last event is known to be the last, its handler and the prepare are one piece of work, and the intent is logged
meanwhile. Without a resource nothing but the intent tells that the handlers have run, so it is logged after them. After
a yes nothing but a decision message counts. One record per transaction stays as a tombstone until the coordinator's
low-water mark has passed it.

A member whose unit is empty, with no resource and no code that waits for the decision, has nothing to forget: it votes
yes without a record. If it crashes, its next life acknowledges a commit that names it, and may run its handlers again.

A member that hears nothing asks the coordinator and its peers, in any state. It repeats frames of the coordinator
that it holds to peers that ask; it never says what it thinks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from msgspec.structs import replace

from txlayer import messages as m
from txlayer.effects import (
    Answer,
    Append,
    AwaitLog,
    Broadcast,
    CancelTimer,
    CommitUnit,
    CompensationDone,
    Drop,
    Effect,
    FinishUnit,
    ForgetMarker,
    HandlerDone,
    InspectUnit,
    PrepareUnit,
    RunHandler,
    ScopeChosen,
    Send,
    SetTimer,
    Surface,
    UnitCommitted,
    UnitFinished,
    UnitInspected,
    UnitPrepared,
)
from txlayer.messages import Hashes, Terms, TxId
from txlayer.records import Intent, MemberDecided, VotedNo
from txlayer.tokens import reveals
from txlayer.transactions.compensation import Compensation
from txlayer.transactions.seat import Seat, brief
from txlayer.transactions.sequence import Sequence
from txlayer.units import UndoRecord


class State(Enum):
    """Where a member is."""

    JOINED = "census"
    ACTIVE = "transaction"
    PREPARING = "preparing"
    PREPARED = "commitment"
    REFUSED = "refused"
    APPLYING = "applying"
    DONE = "done"


TIMERS = ("doubt", "gap", "compensate")
REPEATED_REFUSALS = 4
DOUBTS_BEFORE_FINISHERS = 2


@dataclass(slots=True)
class Executor:
    """One distributed member of one transaction."""

    seat: Seat
    tx: TxId
    terms: Terms
    hashes: Hashes
    choice: ScopeChosen
    sequence: Sequence
    state: State = State.JOINED
    members: tuple[bytes, ...] = ()
    delegated: bool = False
    running: bool = False
    started: bool = False
    handler_attempt: int = 1
    gaps: int = 0
    gap_at: int = 0
    doubts: int = 0
    reason: str = ""
    frames: dict[str, bytes] = field(default_factory=dict)
    commit: bool = False
    member: bytes = b""
    compensation: Compensation | None = None
    recorded: bool = False
    found_committed: bool = False
    lost: bool = False
    """There was an intent, and nothing is behind it: an earlier life may have said yes."""

    # Joining

    def join(self, census: m.Census) -> list[Effect]:
        """Take part. In one shot the events are there and the join travels with the vote."""
        if not self.terms.one_shot:
            return [Send(self.tx.coordinator, self._join()), self._doubt_timer()]
        self.state = State.ACTIVE
        self.sequence.end(len(census.events), census.digest)
        for event in census.events:
            self.sequence.take(event)
        return [self._doubt_timer(), *self._go_on()]

    def on_census_again(self) -> list[Effect]:
        """The coordinator asks again: it missed the answer."""
        if self.state is State.JOINED:
            return [Send(self.tx.coordinator, self._join())]
        if self.terms.one_shot and self.state in (State.PREPARED, State.REFUSED):
            return [self._vote()]
        return []

    def on_begin(self, begin: m.Begin, frame: bytes) -> list[Effect]:
        """The list of members: either this site is on it or it has no part in the transaction."""
        if self.state is not State.JOINED:
            return []
        if self.me() not in begin.members:
            return self._drop_out()
        self.frames["begin"] = frame
        self.members = begin.members
        self.state = State.ACTIVE
        return [self._doubt_timer(), *self._go_on()]

    def on_census_failed(self, failed: m.CensusFailed, frame: bytes) -> list[Effect]:
        """Nothing was begun."""
        return self.on_decision(m.Decision(self.tx, failed.token), frame)

    # Events

    def on_event(self, event: m.Numbered) -> list[Effect]:
        """An event of the transaction; kept even before the list of members has arrived."""
        if self.state not in (State.JOINED, State.ACTIVE):
            return []
        self.sequence.take(event)
        return [self._doubt_timer(), *self._go_on()] if self.state is State.ACTIVE else []

    def on_handler_done(self, done: HandlerDone) -> list[Effect]:
        """A handler returned or failed; a failure is retried as the subscriber's delivery policy says."""
        if self.state is not State.ACTIVE or not self.running or done.number != self.sequence.processed + 1:
            return []
        self.running = False
        if done.ok:
            self.handler_attempt = 1
            self.sequence.processed += 1
            return self._go_on()
        if self.handler_attempt < self.choice.handler_attempts:
            self.handler_attempt += 1
            return self._go_on()
        return self._refuse(done.reason or "a handler failed")

    def on_member_aborts(self, reason: str) -> list[Effect]:
        """The application gives up."""
        return self._refuse(reason or "given up by a member") if self.state is State.ACTIVE else []

    def on_prepare(self, prepare: m.Prepare, frame: bytes) -> list[Effect]:
        """Vote, or say again what was voted."""
        if self.state is State.JOINED and self.me() in prepare.members:
            self.state = State.ACTIVE
        if self.state is State.JOINED:
            return self._drop_out()
        if self.state in (State.PREPARED, State.REFUSED) and not self.delegated:
            return [self._vote()]
        if self.state is not State.ACTIVE or self.sequence.last is not None:
            return []
        self.frames["prepare"] = frame
        self.members = prepare.members
        self.sequence.end(prepare.last, prepare.digest)
        return self._go_on()

    def on_delegate(self, delegate: m.Delegate) -> list[Effect]:
        """Decide alone, or say again what was decided."""
        if delegate.member != self.me():
            return []
        if self.state is State.REFUSED or (self.state is State.PREPARED and self.delegated):
            return [self._delegated()]
        if self.state not in (State.JOINED, State.ACTIVE) or self.sequence.last is not None:
            return []
        self.state = State.ACTIVE
        self.delegated = True
        self.members = (delegate.member,)
        self.sequence.end(delegate.last, delegate.digest)
        return self._go_on()

    def _go_on(self) -> list[Effect]:
        """Run the next handler, ask for what is missing, or vote."""
        if self.state is not State.ACTIVE or self.running:
            return []
        event = self.sequence.next()
        if event is not None:
            self.running = self.started = True
            prepares = self._beside_log() and event.number == self.sequence.last and self.sequence.intact()
            run = RunHandler(self.tx, event, self.handler_attempt, prepares)
            return [run, *self._log_intent()] if prepares else [run]
        if self.sequence.gap() is not None:
            return self._ask_for_gap() if self.gaps == 0 else []
        return self._intend() if self.sequence.complete() else []

    def _ask_for_gap(self) -> list[Effect]:
        gap = self.sequence.gap()
        if gap is None or self.state is not State.ACTIVE:
            self.gaps = 0
            return []
        if gap[0] != self.gap_at:  # attempts count for each event that is missing
            self.gap_at, self.gaps = gap[0], 0
        if self.gaps >= self.terms.delivery_attempts:
            return self._refuse(f"event {gap[0]} did not arrive")
        self.gaps += 1
        pause = self.seat.patience.backoff(self.seat.patience.gap, self.gaps)
        return [Send(self.tx.coordinator, m.Resend(self.tx, *gap)), SetTimer(("m", self.tx, "gap"), pause)]

    # Voting

    def _intend(self) -> list[Effect]:
        if not self.sequence.intact():
            return self._refuse("these are not the events that were sent")
        self.state = State.PREPARING
        if self._empty():
            return self.on_prepared(UnitPrepared(self.tx, True))
        if self._beside_log():
            # Both take their time, and only the vote needs both. What is prepared without an intent is rolled back.
            return [PrepareUnit(self.tx), *self._log_intent()]
        if not self.choice.resource and not self.choice.compensatable:  # the application's last word, then the intent
            return [CommitUnit(self.tx) if self.delegated else PrepareUnit(self.tx)]
        undo = UndoRecord(self.seat.incarnation, self.me(), self._to_undo()) if self.choice.compensatable else None
        return [*self._log_intent(), CommitUnit(self.tx, undo)]

    def _log_intent(self) -> list[Effect]:
        """Once: a handler that is tried again finds it there."""
        if self.recorded:
            return []
        self.recorded = True
        record = Intent(
            self.tx, self.terms, self.hashes, self.members, self.sequence.last or 0, self.sequence.digest,
            self.choice.compensatable, self.delegated, self.choice.identity, self._to_undo(),
            self.frames.get("begin", b""), self.choice.parts, self.choice.attributes,
        )  # fmt: skip
        return [Append(self._key(), record)]

    def _to_undo(self) -> tuple[m.Numbered, ...]:
        return self.sequence.events() if self.choice.compensatable else ()

    def _beside_log(self) -> bool:
        """Whether a resource prepares the unit while its intent is logged: either may come first."""
        return self.choice.resource and not self.choice.compensatable and not self.delegated

    def _empty(self) -> bool:
        """Whether nothing of the unit has to be committed, undone or told."""
        return not (self.choice.waits or self.choice.compensatable or self.delegated)

    def on_prepared(self, done: UnitPrepared | UnitCommitted) -> list[Effect]:
        """The work is safe, undecided or undoable: vote yes. Or it could not be made so: vote no."""
        if self.state is State.ACTIVE and self.running:  # along with the last handler
            self.running = False
            self.sequence.processed += 1
            self.state = State.PREPARING
        if self.state is not State.PREPARING:
            return []
        if not done.ok:
            self.started = False
            return self._refuse(done.reason or "a resource could not prepare")
        self.state = State.PREPARED
        self.doubts = 0
        intent = [] if self._empty() else self._log_intent()
        return [*intent, self._delegated() if self.delegated else self._vote(), self._doubt_timer()]

    def _refuse(self, reason: str) -> list[Effect]:
        self.state = State.REFUSED
        self.reason = reason = brief(reason)
        self.recorded = True
        known = bool(self.hashes.commit)  # of a transaction that was forgotten only the type is
        record = VotedNo(
            self.tx, self.terms.type, reason, self.delegated, self.terms if known else None, self.choice.parts,
            self.hashes if known else None, self.choice.identity, self.choice.attributes, self.lost,
        )  # fmt: skip
        undo = [FinishUnit(self.tx, False)] if self.started else []
        answer = self._delegated() if self.delegated else self._vote()
        return [Append(self._key(), record), *undo, answer, self._doubt_timer()]

    def _drop_out(self) -> list[Effect]:
        """This site is no member; whatever it has done is undone."""
        self.state = State.DONE
        undo: list[Effect] = [FinishUnit(self.tx, False)] if self.started else []
        return [*undo, *self._stop()]

    def _stop(self) -> list[Effect]:
        return [CancelTimer(("m", self.tx, name)) for name in TIMERS]

    # Decision

    def on_decision(self, decision: m.Decision, frame: bytes) -> list[Effect]:
        """The decision, if its token is the coordinator's."""
        if self.state in (State.DONE, State.APPLYING):
            again = self.state is State.DONE and self.commit and self.me() in decision.final
            return [self._ack()] if again else []
        if not self.hashes.commit:  # refused because it was forgotten: no token can be checked, so it stays refused
            return [self._ack()] if self.me() in decision.final else []
        commit = reveals(decision.token, self.hashes.commit)
        if not commit and not reveals(decision.token, self.hashes.abort):
            return []
        return self._on_value(commit, decision.final, frame)

    def on_finish(self, finish: m.Finish, frame: bytes) -> list[Effect]:
        """The decision as it stands in the shared register, if the census named this finisher."""
        known = next((finisher for finisher in self.hashes.finishers if finisher.site == finish.finisher), None)
        if known is None or self.state in (State.DONE, State.APPLYING):
            return []
        commit = reveals(finish.token, known.commit)
        if not commit and not reveals(finish.token, known.abort):
            return []
        return self._on_value(commit, finish.final, frame)

    def _on_value(self, commit: bool, final: tuple[bytes, ...], frame: bytes) -> list[Effect]:
        named = commit and self.me() in final
        if self.delegated and not commit and self.state in (State.PREPARING, State.PREPARED):
            return []
        if self.state is State.PREPARED:
            return self._decided(named, frame)
        if self.state is State.PREPARING:
            return [] if named else self._decided(False, frame)
        return self._on_decided_without_us(named, frame)

    def _on_decided_without_us(self, named: bool, frame: bytes) -> list[Effect]:
        """Before a yes vote any decision can only mean that this site rolls back.

        If it is named, an earlier life voted yes: for a unit that was empty, or whose work the resource has lost since.
        """
        if named and self.lost:
            return [Surface("lost", self.tx, "it is committed, and the resource has lost what this site had prepared")]
        self.frames["decision"] = frame
        self.commit = named
        ack: list[Effect] = [self._ack()] if named else []
        if self.state is State.REFUSED:
            self.state = State.DONE
            return [*ack, *self._stop()]
        return [*self._drop_out(), *ack]

    def _decided(self, commit: bool, frame: bytes) -> list[Effect]:
        self.state = State.APPLYING
        self.frames["decision"] = frame
        self.commit = commit
        if self._empty():
            return [*self._stop(), *self._applied()]
        undoing = self.choice.compensatable and not commit
        record = MemberDecided(
            self.tx, self.terms.type, commit, frame, self.choice.compensatable,
            self.sequence.events() if undoing else (), terms=self.terms, parts=self.choice.parts,
        )  # fmt: skip
        work = self._apply()
        if frame and FinishUnit in map(type, work):
            # The coordinator keeps its decision until this site acknowledges, and that waits for the record.
            return [*work, Append(self._key(), record), *self._stop()]
        return [Append(self._key(), record), *self._stop(), *work]

    def _apply(self) -> list[Effect]:
        at_once = self.choice.compensatable or self.delegated
        if self.choice.compensatable and not self.commit:
            self.compensation = Compensation(self.tx, self.sequence.events(), self.seat.patience)
            return self.compensation.start()
        return self._applied() if at_once else [FinishUnit(self.tx, self.commit)]

    def on_finished(self, _done: UnitFinished) -> list[Effect]:
        """The resource has done as decided."""
        return self._applied() if self.state is State.APPLYING and self.compensation is None else []

    def _applied(self) -> list[Effect]:
        self.state = State.DONE
        self.sequence = Sequence(0)
        return [self._ack()] if self.commit else []

    def on_compensation(self, done: CompensationDone) -> list[Effect]:
        """The undoing went on."""
        if self.state is not State.APPLYING or self.compensation is None:
            return []
        effects = self.compensation.on_done(done)
        if not self.compensation.done and not self.compensation.parked:
            return effects
        self.state = State.DONE
        parked = self.compensation.parked
        record = MemberDecided(
            self.tx, self.terms.type, False, self.frames.get("decision", b""), True,
            self.sequence.events() if parked else (), parked, not parked, self.terms, self.choice.parts,
        )  # fmt: skip
        report = m.Compensated(self.tx, self.me(), parked)
        return [Append(self._key(), record), *effects, Send(self.tx.coordinator, report)]

    def on_forced(self, commit: bool) -> list[Effect]:
        """An operator decides in place of a coordinator that cannot be asked, or has undone parked work by hand."""
        if self.state is State.PREPARED and not self.delegated:
            return [] if self.found_committed and not commit else self._decided(commit, b"")
        if self.compensation is None or not self.compensation.parked or commit:
            return []
        self.compensation.parked, self.compensation.done = False, True
        record = MemberDecided(
            self.tx, self.terms.type, False, self.frames.get("decision", b""), True, undone=True,
            terms=self.terms, parts=self.choice.parts,
        )  # fmt: skip
        return [Append(self._key(), record), Send(self.tx.coordinator, m.Compensated(self.tx, self.me()))]

    # Doubt

    def on_timer(self, name: str) -> list[Effect]:
        """Something was expected and did not come."""
        if name == "gap":
            return self._ask_for_gap()
        if name == "compensate":
            return self.compensation.start() if self.compensation is not None else []
        return self._ask()

    def _ask(self) -> list[Effect]:
        if self.state in (State.DONE, State.APPLYING, State.PREPARING):
            return []
        self.doubts += 1
        answer = self._delegated() if self.delegated else self._vote()
        if self.state is State.REFUSED:
            return [answer, self._doubt_timer()] if self.doubts < REPEATED_REFUSALS else []
        question = m.InDoubt(self.tx, self.terms.type, self.state.value)
        effects: list[Effect] = [Send(self.tx.coordinator, question), Broadcast(self.terms.type, question)]
        if self.doubts >= DOUBTS_BEFORE_FINISHERS:
            effects += [
                Send(finisher.site, m.InDoubt(self.tx, self.terms.type, self.state.value, finisher.site))
                for finisher in self.hashes.finishers
            ]
        if self.state is State.PREPARED:
            effects.append(answer)
        return [*effects, self._doubt_timer()]

    def on_peer_in_doubt(self, question: m.InDoubt) -> list[Effect]:
        """Repeat what the coordinator said, if it is held here."""
        frame = self.frames.get("decision") or {
            State.JOINED.value: self.frames.get("begin") or self.frames.get("prepare"),
            State.ACTIVE.value: self.frames.get("prepare") or self.frames.get("begin"),
        }.get(question.state)
        return [Answer(self.terms.type, self.tx, frame)] if frame else []

    def on_below_mark(self) -> list[Effect]:
        """The coordinator has finished with this transaction: nobody waits for this site, so it cannot have committed.

        A yes vote still needs the decision itself. What is applied needs no tombstone any more.
        """
        if self.state in (State.JOINED, State.ACTIVE):
            return [*self._drop_out(), *self._forget()]
        if self.state is State.REFUSED:
            self.state = State.DONE
        parked = self.compensation is not None and self.compensation.parked
        return self._forget() if self.state is State.DONE and not parked else []

    def _forget(self) -> list[Effect]:
        if not self.recorded:
            return self._stop()
        marker: list[Effect] = [AwaitLog(), ForgetMarker(self.tx)] if self.choice.waits else []
        return [Drop(self._key()), *marker, *self._stop()]

    # Restart

    @classmethod
    def recover(cls, seat: Seat, record: Intent | VotedNo | MemberDecided) -> Executor:
        """A member as the log remembers it."""
        terms = record.terms if isinstance(record, Intent) else record.terms or Terms(record.type)
        hashes = None if isinstance(record, MemberDecided) else record.hashes
        hashes = hashes or Hashes(b"", b"", b"", b"")
        compensatable = False if isinstance(record, VotedNo) else record.compensatable
        choice = ScopeChosen(record.tx, m.Scope.DISTRIBUTED, compensatable=compensatable, parts=record.parts)
        if not isinstance(record, MemberDecided):
            choice = replace(choice, identity=record.identity, attributes=record.attributes)
        self = cls(seat, record.tx, terms, hashes, choice, Sequence(seat.limits.ahead), recorded=True)
        if isinstance(record, VotedNo):
            self.state, self.reason, self.delegated = State.REFUSED, record.reason, record.delegated
            self.lost = record.lost
            return self
        for event in record.events:
            self.sequence.take(event)
        if isinstance(record, Intent):
            self.state, self.members, self.delegated = State.PREPARING, record.members, record.delegated
            self.sequence.last, self.sequence.digest = record.last, record.digest
            self.frames = {"begin": record.begin} if record.begin else {}
            return self
        self.state, self.commit = State.APPLYING, record.commit
        self.frames = {"decision": record.frame}
        if record.parked or record.undone:
            self.state = State.DONE
            undo = Compensation(record.tx, record.events, seat.patience, done=record.undone, parked=record.parked)
            self.compensation = undo
        return self

    def resume(self) -> list[Effect]:
        """Go on after the whole log has been read."""
        if self.state is State.PREPARING:
            return [InspectUnit(self.tx, self.choice.compensatable or self.delegated)]
        if self.state is State.APPLYING:
            return [InspectUnit(self.tx)] if self._forced() else self._apply()
        if self.compensation is not None and self.compensation.parked:  # a crash may have come before that was heard
            return [Surface("parked", self.tx, "it could not be undone before the site restarted")]
        if self.state is not State.REFUSED:
            return []
        answer = self._delegated() if self.delegated else self._vote()  # a crash may have come before it was said
        return [answer, self._doubt_timer()]

    def on_inspected(self, found: UnitInspected) -> list[Effect]:
        """What the resource held when the site came back: prepared work may be committed, anything less may not.

        Work that is committed already was committed on a decision that this site has heard and not written down, or by
        an operator: it is voted for again, and the coordinator repeats its decision. An operator may have forced the
        commit of what was never prepared.
        """
        if self.state is State.APPLYING and self._forced():
            return self._apply() if found.state != "none" else [*self._nothing_to_commit(), *self._applied()]
        if self.state is not State.PREPARING:  # a decision came first, and has been applied
            return []
        at_once = self.choice.compensatable or self.delegated
        self.started = found.state == "prepared"
        self.found_committed = found.state == "committed" and not at_once  # at once is undone by an abort
        safe = found.state == "committed" or (self.started and not at_once)
        self.lost = not safe
        return self.on_prepared(UnitPrepared(self.tx, safe, "the site restarted"))

    def _forced(self) -> bool:
        """Whether it was an operator who decided on commit."""
        return self.commit and not self.frames.get("decision") and not self.choice.compensatable

    def _nothing_to_commit(self) -> list[Effect]:
        return [Surface("lost", self.tx, "an operator has forced a commit, and nothing was prepared")]

    # Messages

    def me(self) -> bytes:
        """This site on the list of members."""
        if not self.member:
            self.member = self.seat.keyring.member(self.tx)
        return self.member

    def _join(self) -> m.Join:
        identity = self.seat.site if self.choice.identity else ""
        return m.Join(
            self.tx, self.seat.keyring.pseudonym(self.tx), self.hashes, identity,
            self.choice.one_phase and not self.choice.compensatable, self.choice.attributes, self.choice.waits,
        )  # fmt: skip

    def _vote(self) -> Send:
        word = "yes" if self.state is State.PREPARED else "no"
        join = self._join() if self.terms.one_shot and self.hashes.commit else None
        vote = m.Vote(
            self.tx, self.me(), self.seat.keyring.token(self.tx, word), self.sequence.last or 0,
            self.sequence.digest, self.reason, join,
        )  # fmt: skip
        return Send(self.tx.coordinator, vote)

    def _delegated(self) -> Send:
        word = "yes" if self.state is State.PREPARED else "no"
        token = self.seat.keyring.token(self.tx, word)
        return Send(self.tx.coordinator, m.Delegated(self.tx, self.me(), token, self.reason))

    def _ack(self) -> Send:
        return Send(self.tx.coordinator, m.Ack(self.tx, self.me(), self.seat.keyring.token(self.tx, "done")))

    def _doubt_timer(self) -> SetTimer:
        return SetTimer(("m", self.tx, "doubt"), self.seat.patience.backoff(self.seat.patience.in_doubt, self.doubts))

    def _key(self) -> str:
        return f"m/{self.tx}"
