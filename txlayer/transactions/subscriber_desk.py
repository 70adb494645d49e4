"""All transactions that one site takes part in, in whatever scope, and the chains that it reads.

A census is answered once the application has chosen a scope; the table of TOPS 4-A says what it gets. What lies below
a coordinator's mark is ignored. A site that finds itself on a list of members but remembers nothing has crashed since
it joined: it votes no at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer import messages as m
from txlayer.effects import (
    Append,
    AwaitLog,
    BranchesFound,
    CompensationDone,
    Effect,
    FinishUnit,
    FollowCall,
    ForgetMarker,
    HandlerDone,
    MarkersFound,
    MemberAborts,
    Role,
    ScopeChosen,
    Send,
    SetTimer,
    Surface,
    UnfollowCall,
    UnitCommitted,
    UnitFinished,
    UnitInspected,
    UnitPrepared,
    WholeApplied,
)
from txlayer.effects import AskScope as AskScopeEffect
from txlayer.errors import UsageError
from txlayer.messages import AnyMessage, ChainKind, Hashes, Scope, Terms, TxId, TxType
from txlayer.records import Cursor, Intent, LocalIntent, MemberDecided, PeerMark, VotedNo
from txlayer.transactions.event_coordinator import check_answer
from txlayer.transactions.executor import Executor, State
from txlayer.transactions.local_executor import Listener, LocalExecutor
from txlayer.transactions.marks import Marks, Peer
from txlayer.transactions.reader import ChainReader
from txlayer.transactions.scope import granted
from txlayer.transactions.seat import Seat
from txlayer.transactions.sequence import Sequence
from txlayer.units import chain_of, undone_by

Batch = tuple[Role, list[Effect]]
Member = Executor | LocalExecutor | Listener
DECLINED = 4096
"""So many refusals to take part are remembered: a census is repeated for a few seconds."""
WorkDone = (
    HandlerDone | MemberAborts | UnitPrepared | UnitCommitted | UnitFinished | UnitInspected
    | CompensationDone | WholeApplied
)  # fmt: skip


@dataclass(slots=True)
class SubscriberDesk:
    """The subscribing half of a site."""

    seat: Seat
    members: dict[Peer, dict[TxId, Member]] = field(default_factory=dict)
    asked: dict[TxId, m.Census] = field(default_factory=dict)
    declined: dict[TxId, bool] = field(default_factory=dict)
    """Where the application does not take part, and whether that is said by name: it is not asked again when the census
    is repeated."""
    early: dict[TxId, list[tuple[AnyMessage, bytes]]] = field(default_factory=dict)
    """What arrives of a transaction while the application still chooses its scope; as if the bus were slower."""
    marks: Marks = field(default_factory=Marks)
    readers: dict[tuple[str, str, str], ChainReader] = field(default_factory=dict)
    waiting_for_marks: bool = False
    room_low: bool = False

    # Census

    def on_census(self, census: m.Census) -> list[Batch]:
        """A transaction is announced. Beyond a limit it is as if it had not been heard: it is said again."""
        tx, peer = census.tx, (census.tx.coordinator, census.tx.incarnation)
        new = self._member(tx) is None and tx not in self.asked
        if new and (crowded := self._over_limit(peer)):
            return [(("m", tx), [Surface("census ignored", tx, crowded)])]
        batches = self._on_standing(peer, census.standing)
        known = self._member(tx)
        if known is not None:
            again = known.on_census_again() if isinstance(known, Executor) else self._decline(census)
            return [*batches, (("m", tx), again)]
        if self.marks.finished(tx) or tx in self.asked:
            return batches
        # What is left on an almost full disk is for transactions that this site has voted on.
        if self.room_low or tx in self.declined:
            return [*batches, (("m", tx), self._decline(census, self.declined.get(tx, False)))]
        self.asked[tx] = census
        return [*batches, (("m", tx), [AskScopeEffect(tx, census.terms)])]

    def _over_limit(self, peer: Peer) -> str:
        bounds = self.seat.bounds
        if len(self.asked) >= bounds.censuses:
            return f"more than {bounds.censuses} censuses wait for the application: raise bounds.censuses"
        if self._is_one_too_many(peer):
            return f"more than {bounds.peers} logs of coordinators were met: raise bounds.peers"
        return ""

    def _is_one_too_many(self, peer: Peer) -> bool:
        return len(self.marks.known) >= self.seat.bounds.peers and peer not in self.marks.known

    def on_scope(self, choice: ScopeChosen) -> list[Batch]:
        """The application has chosen; what arrived meanwhile comes after."""
        census = self.asked.pop(choice.tx, None)
        early = self.early.pop(choice.tx, ())
        if census is None or self.marks.finished(choice.tx):
            return []
        batches = self._take_part(census, choice)
        if self._member(choice.tx) is None:
            self._remember_declined(choice.tx, choice.leaving)
        for message, frame in early:
            batches += self.on_message(message, frame)
        return batches

    def _take_part(self, census: m.Census, choice: ScopeChosen) -> list[Batch]:
        role: Role = ("m", choice.tx)
        try:
            scope = granted(choice.scope, census.terms.tx_type, census.terms.limit)
            check_answer(choice.attributes, self.seat.limits)
        except UsageError as exc:
            return [(role, [Surface("usage error", choice.tx, str(exc)), *self._decline(census)])]
        follow = [batch for kind in choice.reads for batch in self._follow(census, kind)]
        return [*follow, *self._as_member(census, choice, scope)]

    def _as_member(self, census: m.Census, choice: ScopeChosen, scope: Scope) -> list[Batch]:
        role: Role = ("m", choice.tx)
        if scope is Scope.DISTRIBUTED:
            sequence = Sequence(self.seat.limits.ahead)
            executor = Executor(self.seat, choice.tx, census.terms, census.hashes, choice, sequence)
            self._add(choice.tx, executor)
            return [(role, executor.join(census)), *self._watch_marks()]
        declines = self._decline(census, choice.leaving)
        return [(role, [*declines, *self._listen(census, choice, scope)]), *self._watch_marks()]

    def _listen(self, census: m.Census, choice: ScopeChosen, scope: Scope) -> list[Effect]:
        if scope is Scope.LOCAL:
            local = LocalExecutor(
                self.seat, census.tx, census.terms, census.hashes, Sequence(self.seat.limits.ahead),
                choice.handler_attempts, choice.parts,
            )  # fmt: skip
            self._add(census.tx, local)
            return local.start(census)
        if scope is not Scope.NON_TRANSACTIONAL:
            return []
        listener = Listener(census.tx, census.terms.type)
        self._add(census.tx, listener)
        return [effect for event in census.events for effect in listener.on_event(event)]

    def _remember_declined(self, tx: TxId, leaving: bool = False) -> None:
        self.declined[tx] = leaving
        if len(self.declined) > DECLINED:
            del self.declined[next(iter(self.declined))]

    def _decline(self, census: m.Census, leaving: bool = False) -> list[Effect]:
        if census.terms.tx_type is TxType.LOCAL:
            return []
        answer = self.seat.keyring.token(census.tx, "answer")[:16]
        return [Send(census.tx.coordinator, m.Decline(census.tx, answer, self.seat.site if leaving else ""))]

    # Messages of a transaction

    def on_message(self, message: AnyMessage, frame: bytes) -> list[Batch]:
        """A message to a subscriber."""
        match message:
            case m.Census():
                return self.on_census(message)
            case m.Mark():
                return self._on_mark(message)
            case m.Followed() | m.Commit() | m.Stale():
                return self._on_chain(message)
            case m.Unknown():
                return [(("m", message.tx), [Surface("unknown", message.tx, "an operator must resolve it")])]
            case (
                m.Begin() | m.Prepare() | m.Delegate() | m.Decision() | m.Finish() | m.CensusFailed() | m.Event()
                | m.InDoubt() | m.Called() | m.Withdrawn()
            ):  # fmt: skip
                return self._on_transaction(message, frame)
            case _:
                return []

    def _on_transaction(
        self,
        message: (
            m.Begin | m.Prepare | m.Delegate | m.Decision | m.Finish | m.CensusFailed | m.Event
            | m.InDoubt | m.Called | m.Withdrawn
        ),
        frame: bytes,
    ) -> list[Batch]:  # fmt: skip
        member = self._member(message.tx)
        role: Role = ("m", message.tx)
        if member is None and message.tx in self.asked:
            held = self.early.setdefault(message.tx, [])
            if len(held) < self.seat.limits.ahead:
                held.append((message, frame))
            return []
        match member:
            case None:
                return [(role, self._of_unknown(message)), *self._watch_marks()]
            case Executor():
                return [(role, self._to_executor(member, message, frame)), *self._watch_marks()]
            case LocalExecutor():
                effects = [*self._to_local(member, message), *self._of_former_life(message)]
                return [(role, effects), *self._watch_marks()]
            case Listener():
                heard = member.on_event(message.event) if isinstance(message, m.Event) else []
                return [(role, [*heard, *self._of_former_life(message)])]

    def _to_executor(self, executor: Executor, message: AnyMessage, frame: bytes) -> list[Effect]:
        match message:
            case m.Begin():
                return executor.on_begin(message, frame)
            case m.Prepare():
                return executor.on_prepare(message, frame)
            case m.Delegate():
                return executor.on_delegate(message)
            case m.Decision():
                return executor.on_decision(message, frame)
            case m.Finish():
                return executor.on_finish(message, frame)
            case m.CensusFailed():
                return executor.on_census_failed(message, frame)
            case m.Event():
                return executor.on_event(message.event)
            case m.InDoubt():
                return executor.on_peer_in_doubt(message)
            case _:
                return []

    def _to_local(self, local: LocalExecutor, message: AnyMessage) -> list[Effect]:
        match message:
            case m.Event():
                return local.on_event(message.event)
            case m.Called():
                return local.on_called(message)
            case m.Withdrawn():
                return local.on_withdrawn(message)
            case _:
                return []

    def _of_unknown(self, message: AnyMessage) -> list[Effect]:
        """A message of a transaction that this site has forgotten, or never knew."""
        match message:
            case m.Begin() | m.Prepare() if self._me(message.tx) in message.members:
                return self._refuse_forgotten(message.tx, message.type, delegated=False)
            case m.Delegate() if message.member == self._me(message.tx):
                return self._refuse_forgotten(message.tx, message.type, delegated=True)
            case _:
                return self._of_former_life(message)

    def _of_former_life(self, message: AnyMessage) -> list[Effect]:
        """Acknowledge a commit that names this site while no executor knows of it, whatever else it is in it now.

        Its name on the list means that it voted yes; no record means that it applied and forgot, or that its unit was
        empty.
        """
        if not isinstance(message, m.Decision) or self._me(message.tx) not in message.final:
            return []
        done = self.seat.keyring.token(message.tx, "done")
        return [Send(message.tx.coordinator, m.Ack(message.tx, self._me(message.tx), done))]

    def _refuse_forgotten(self, tx: TxId, event_type: str, delegated: bool) -> list[Effect]:
        if tx in self.asked or self.marks.finished(tx):
            return []
        nothing = Hashes(b"", b"", b"", b"")
        choice = ScopeChosen(tx, Scope.DISTRIBUTED)
        executor = Executor(
            self.seat, tx, Terms(event_type), nothing, choice, Sequence(0), State.ACTIVE, delegated=delegated
        )
        self._add(tx, executor)
        return executor._refuse("the site restarted")

    # Work

    def on_work(self, done: WorkDone) -> list[Batch]:
        """Work for a transaction was done, or failed."""
        member = self._member(done.tx)
        if isinstance(done, WholeApplied):
            for key in sorted(self.readers):
                reader = self.readers[key]
                if reader.applying == done.tx:
                    return self._without(key, reader.on_applied(done))
        if isinstance(member, Executor):
            return [(("m", done.tx), self._executor_work(member, done)), *self._watch_marks()]
        if isinstance(member, LocalExecutor):
            return [(("m", done.tx), self._local_work(member, done)), *self._watch_marks()]
        return []

    def _executor_work(self, executor: Executor, done: WorkDone) -> list[Effect]:
        match done:
            case HandlerDone():
                return executor.on_handler_done(done)
            case MemberAborts():
                return executor.on_member_aborts(done.reason)
            case UnitPrepared() | UnitCommitted():
                return executor.on_prepared(done)
            case UnitFinished():
                return executor.on_finished(done)
            case UnitInspected():
                return executor.on_inspected(done)
            case CompensationDone():
                return executor.on_compensation(done)
            case WholeApplied():
                return []

    def _local_work(self, local: LocalExecutor, done: WorkDone) -> list[Effect]:
        match done:
            case HandlerDone():
                return local.on_handler_done(done)
            case UnitCommitted():
                return local.on_committed(done)
            case WholeApplied():
                return local.on_applied(done)
            case _:
                return []

    def on_timer(self, tx: TxId, name: str) -> list[Batch]:
        """A timer of one transaction."""
        member = self._member(tx)
        if isinstance(member, Executor | LocalExecutor):
            return [(("m", tx), member.on_timer(name)), *self._watch_marks()]
        return []

    # Chains

    def on_follow(self, call: FollowCall) -> list[Batch]:
        """The application wants to read a chain of this coordinator."""
        key = (call.coordinator, call.incarnation, call.kind.value)
        known = self.readers.get(key)
        types = tuple(sorted({*(known.types if known is not None else ()), *call.types}))
        if not types:
            return []
        if known is not None and known.types and not call.anew:
            if types == known.types:
                return []
            known.types = types
            known.registration += 1
            return [(("reader", key), known.start())]
        if known is None and len(self.readers) >= self.seat.bounds.peers:
            full = f"more than {self.seat.bounds.peers} chains are read: raise bounds.peers"
            return [(("reader", key), [Surface("chain ignored", None, full)])]
        self.readers[key] = reader = ChainReader(self.seat, call.coordinator, call.incarnation, call.kind, types)
        reader.registration = known.registration + 1 if known is not None else 1
        return [(("reader", key), reader.start())]

    def on_unfollow(self, call: UnfollowCall) -> list[Batch]:
        """The application does not read these types any more: coordinators need not keep them for this site."""
        readers = [(key, self.readers[key]) for key in sorted(self.readers)]
        return [(("reader", key), reader.give_back(call.types)) for key, reader in readers]

    def _without(self, key: tuple[str, str, str], effects: list[Effect]) -> list[Batch]:
        """What a reader does; one that has given everything back is forgotten."""
        forget = self.readers[key].given_back()
        if forget:
            del self.readers[key]
        return [(("reader", key), [*effects, *forget])]

    def on_reader_timer(self, key: tuple[str, str, str], name: str) -> list[Batch]:
        """A timer of one chain."""
        reader = self.readers.get(key)
        return [(("reader", key), reader.on_timer(name))] if reader is not None else []

    def _follow(self, census: m.Census, kind: ChainKind) -> list[Batch]:
        return self.on_follow(FollowCall(census.tx.coordinator, census.tx.incarnation, kind, (census.terms.type,)))

    def _on_chain(self, message: m.Followed | m.Commit | m.Stale) -> list[Batch]:
        key = (message.coordinator, message.incarnation, message.kind.value)
        reader = self.readers.get(key)
        if reader is None:
            return []
        match message:
            case m.Followed():
                return self._without(key, reader.on_followed(message))
            case m.Commit():
                return [(("reader", key), reader.on_commit(message))]
            case m.Stale():
                return [(("reader", key), reader.on_stale(message))]

    # Marks

    def _on_mark(self, mark: m.Mark) -> list[Batch]:
        peer = (mark.coordinator, mark.incarnation)
        if self._is_one_too_many(peer) and peer not in self.members:
            return []
        self.marks.advance(peer, mark.standing)
        return self._sweep(peer, list(self.members.get(peer, {})), "w", self.marks.known[peer])

    def _on_standing(self, peer: Peer, standing: m.Standing) -> list[Batch]:
        """The cheap mark of a census: look from the oldest on, stop at the first that it does not cover."""
        if not self.marks.advance(peer, standing):
            return []
        covered = []
        for tx in self.members.get(peer, {}):
            if tx.number >= standing.below:
                break
            covered.append(tx)
        return self._sweep(peer, covered, "v", standing)

    def _sweep(self, peer: Peer, txs: list[TxId], kind: str, covering: m.Standing) -> list[Batch]:
        """Forget what is finished; that it is, is remembered.

        The mark of a census has a record of its own, since it comes often: the other one lists all that are open.
        """
        batches: list[Batch] = []
        dropped = False
        for tx in txs:
            member = self._member(tx)
            if member is None or not self.marks.finished(tx):
                continue
            effects = [] if isinstance(member, Listener) else member.on_below_mark()
            if self._removable(member):
                del self.members[peer][tx]
                dropped = True
            batches.append((("m", tx), effects))
        if not dropped:
            return batches
        if not self.members[peer]:
            del self.members[peer]
        remembered = PeerMark(peer[0], peer[1], covering)
        return [(("marks", peer), [Append(f"{kind}/{peer[0]}/{peer[1]}", remembered)]), *batches]

    @staticmethod
    def _removable(member: Member) -> bool:
        if isinstance(member, Executor):
            parked = member.compensation is not None and member.compensation.parked
            return member.state is State.DONE and not parked
        return member.done if isinstance(member, LocalExecutor) else True

    @classmethod
    def _over(cls, member: Member) -> bool:
        """Whether nothing but the mark is waited for."""
        return cls._removable(member) or (isinstance(member, Executor) and member.state is State.REFUSED)

    def _watch_marks(self) -> list[Batch]:
        if self.waiting_for_marks:
            return []
        self.waiting_for_marks = True
        return [(("marks", ""), [SetTimer(("marks", "", "ask"), self.seat.patience.mark)])]

    def on_marks_timer(self) -> list[Batch]:
        """Something may be waiting to be forgotten: ask its coordinator."""
        self.waiting_for_marks = False
        asks: list[Effect] = []
        for peer in sorted(self.members):
            first = next((tx for tx, member in self.members[peer].items() if self._over(member)), None)
            if first is not None:
                asks.append(Send(peer[0], m.AskMark(self._type_of(peer, first), peer[1])))
        batches: list[Batch] = [(("marks", ""), asks)]
        return batches + (self._watch_marks() if any(self.members.values()) else [])

    def _type_of(self, peer: Peer, tx: TxId) -> str:
        member = self.members[peer][tx]
        return member.terms.type if isinstance(member, Executor) else member.type

    # Restart

    def recover(self, record: object) -> bool:
        """Take up a record if it is a subscriber's."""
        match record:
            case Intent() | VotedNo() | MemberDecided():
                self._add(record.tx, Executor.recover(self.seat, record))
            case LocalIntent():
                self._add(record.tx, LocalExecutor.recover(self.seat, record))
            case PeerMark():
                self.marks.advance((record.coordinator, record.incarnation), record.standing)
            case Cursor():
                reader = ChainReader(
                    self.seat,
                    record.coordinator,
                    record.incarnation,
                    record.kind,
                    record.types,
                    record.upto,
                    record.stale,
                    registration=record.registration,
                )
                self.readers[reader.key()] = reader
            case _:
                return False
        return True

    def resume(self) -> list[Batch]:
        """Go on after the whole log has been read."""
        batches: list[Batch] = []
        for peer in sorted(self.members):
            self.members[peer] = {tx: self.members[peer][tx] for tx in sorted(self.members[peer])}
            for tx, member in self.members[peer].items():
                if not isinstance(member, Listener):
                    batches.append((("m", tx), member.resume()))
        for key in sorted(self.readers):
            batches.append((("reader", key), self.readers[key].resume()))
        return batches + (self._watch_marks() if any(self.members.values()) else [])

    def on_markers(self, found: MarkersFound) -> list[Batch]:
        """Markers that no record stands behind are leftovers of a crash while forgetting."""
        return [(("m", unit), [ForgetMarker(unit)]) for unit in found.txs if not self._needs_marker(unit)]

    def on_branches(self, found: BranchesFound) -> list[Batch]:
        """What was prepared and nobody stands behind is rolled back: this site never said yes to it.

        A prepare that a crash overtook before the intent was durable; one whose answer came after the vote of no.
        """
        return [(("m", unit), _give_up(unit)) for unit in found.txs if not self._stands_behind(undone_by(unit))]

    def _stands_behind(self, unit: TxId) -> bool:
        member = self._member(unit)
        if isinstance(member, Executor):
            return member.state not in (State.REFUSED, State.DONE)
        if unit in self.asked or (isinstance(member, LocalExecutor) and not member.done):
            return True
        return any(reader.applying == unit for reader in self.readers.values())

    def _needs_marker(self, unit: TxId) -> bool:
        kind = chain_of(unit)
        if kind is None:
            return self._member(unit) is not None
        reader = self.readers.get((unit.coordinator, unit.incarnation, kind.value))
        return reader is not None and not reader.stale

    # Bookkeeping

    def _member(self, tx: TxId) -> Member | None:
        return self.members.get((tx.coordinator, tx.incarnation), {}).get(tx)

    def _add(self, tx: TxId, member: Member) -> None:
        self.members.setdefault((tx.coordinator, tx.incarnation), {})[tx] = member

    def _me(self, tx: TxId) -> bytes:
        return self.seat.keyring.member(tx)


def _give_up(unit: TxId) -> list[Effect]:
    """Once the log has shown that it is still this site's: a later life may have prepared it."""
    return [Surface("given up", unit, "prepared and not voted for"), AwaitLog(), FinishUnit(unit, False)]
