"""All transactions that one site coordinates: numbers, keys, marks, chains, and what to say of those it has forgotten.

Numbers are reserved in durable blocks before any is used. Of a transaction without a record a coordinator says
aborted, but only if its own log would have the record: another incarnation's it does not know, and a number that it
never gave out means that its log is older than it should be. Of a commit that it has forgotten it says *finished*,
never *aborted*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from txlayer import messages as m
from txlayer.effects import (
    Append,
    Broadcast,
    Effect,
    ForgetSettlements,
    Predicate,
    PresenceChanged,
    Role,
    Send,
    Settled,
    Surface,
)
from txlayer.errors import UsageError
from txlayer.messages import AnyMessage, Asked, ChainKind, Outcome, Status, TxId
from txlayer.records import (
    ChainEntry,
    ChainPosition,
    Decided,
    DelegationOpened,
    ForgottenKey,
    NumbersReserved,
    Reader,
    Retired,
    Settling,
)
from txlayer.transactions.chain import Chain
from txlayer.transactions.constraints import check_terms
from txlayer.transactions.coordinated import Phase
from txlayer.transactions.creations import Creations
from txlayer.transactions.event_coordinator import size_of, size_of_terms
from txlayer.transactions.forgotten import Forgotten
from txlayer.transactions.seat import Seat
from txlayer.transactions.tx_coordinator import TxCoordinator

BLOCK = 1000
Batch = tuple[Role, list[Effect]]


@dataclass(slots=True)
class CoordinatorDesk:
    """The coordinating half of a site."""

    seat: Seat
    transactions: dict[TxId, TxCoordinator] = field(default_factory=dict)
    keys: dict[str, TxId] = field(default_factory=dict)
    settled: dict[TxId, None] = field(default_factory=dict)
    creations: Creations = field(init=False)
    chains: dict[ChainKind, Chain] = field(default_factory=dict)
    present: dict[str, PresenceChanged] = field(default_factory=dict)
    predicates: dict[str, Predicate] = field(default_factory=dict)
    next_number: int = 1
    reserved: int = 1
    forgotten: Forgotten = field(default_factory=Forgotten)
    public: dict[TxId, tuple[m.Numbered, ...]] = field(default_factory=dict)
    room_low: bool = False
    closing: bool = False

    def __post_init__(self) -> None:
        self.chains = {kind: Chain(self.seat, kind) for kind in ChainKind}
        self.creations = Creations(
            most_publishers=self.seat.bounds.publishers, most_open=self.seat.bounds.open_transactions
        )

    # Creation

    def on_create(self, create: m.Create) -> list[Batch]:
        """A publisher opens a transaction, or repeats that it wants to."""
        if create.coordinator != self.seat.site:  # meant for another site, brought here by someone
            return []
        predicate = self.predicates.pop(create.key, None) if create.publisher == self.seat.site else None
        known = self.keys.get(create.key)
        current = create.coordinator_life == self.seat.life
        if known is not None:
            if current:  # a copy of it may come when the transaction is forgotten
                self.creations.take(create)
            return self._step(known, lambda tx: tx.on_create_again(create))
        if not current:
            return self._reply(create.publisher, m.Hello(create.key, self.seat.site, self.seat.life))
        if self.creations.ended(create) or self.forgotten.committed(create.key):
            return self._reply(create.publisher, self._of_forgotten_key(create.key, create.asked))
        refusal = self.creations.over_limit(create)
        if refusal:
            return self._reply(create.publisher, m.Refused(create.key, None, refusal, self.seat.site, create.asked))
        if not self.creations.take(create):
            return []
        refusal = self._refusal(create)
        if refusal:
            return self._reply(create.publisher, m.Refused(create.key, None, refusal, self.seat.site, create.asked))
        return self._open(create, predicate)

    def _open(self, create: m.Create, predicate: Predicate | None) -> list[Batch]:
        tx = self.seat.tx(self.next_number)
        reserve: list[Effect] = []
        if self.next_number >= self.reserved:
            self.reserved = self.next_number + BLOCK
            reserve = [Append("n", NumbersReserved(self.reserved), barrier=True)]
        self.next_number += 1
        present = self._present(create.terms.type)
        self.keys[create.key] = tx
        self.transactions[tx] = coordinator = TxCoordinator.create(self.seat, tx, create, present, predicate)
        return [(("c", tx), [*reserve, *coordinator.start(self._low())]), *self._after(coordinator)]

    def _refusal(self, create: m.Create) -> str:
        if self.closing:
            return f"{self.seat.site} is closing and begins nothing new: choose another coordinator"
        if self.room_low:
            return f"the disk of {self.seat.site} is almost full: what is left is kept for decisions"
        if len(self.transactions) >= self.seat.bounds.open_transactions:
            return f"more than {self.seat.bounds.open_transactions} open transactions: raise bounds.open_transactions"
        try:
            check_terms(create.terms)
        except UsageError as exc:
            return str(exc)
        size = size_of_terms(create.terms) + sum(size_of(item, create.publisher) for item in create.items)
        if len(create.items) > self.seat.limits.events or size > self.seat.limits.bytes:
            return f"over {self.seat.limits.events} events or {self.seat.limits.bytes} bytes: raise limits"
        return ""

    def _present(self, event_type: str) -> dict[str, None] | None:
        if not self.present:
            return None
        return {name: None for name, site in self.present.items() if event_type in site.types}

    # Routing

    def on_message(self, message: AnyMessage) -> list[Batch]:
        """A message to a coordinator; those that it does not know are answered from what a log must hold."""
        match message:
            case m.Create():
                return self.on_create(message)
            case m.Inquire():
                return self.on_inquire(message)
            case m.Follow() | m.ChainAck():
                return self._on_reader(message)
            case m.AskMark():
                return self._on_ask_mark(message)
            case m.InDoubt():
                return self._on_in_doubt(message)
            case m.Submit() | m.CommitRequest() | m.Abort():
                return self._on_publisher(message)
            case m.Join():
                return self._step(message.tx, lambda tx: tx.on_join(message))
            case m.Decline():
                return self._step(message.tx, lambda tx: tx.on_decline(message))
            case m.Vote():
                return self._step(message.tx, lambda tx: tx.on_vote(message))
            case m.Delegated():
                return self._step(message.tx, lambda tx: tx.on_delegated(message))
            case m.Ack():
                return self._step(message.tx, lambda tx: tx.on_ack(message))
            case m.Confirm():
                return self._step(message.tx, lambda tx: tx.on_confirm(message))
            case m.Resend():
                return self._step(message.tx, lambda tx: tx.on_resend(message))
            case m.ExtendDeadline():
                return self._step(message.tx, lambda tx: tx.on_extend(message))
            case m.Compensated():
                what = "compensation parked" if message.parked else "compensated"
                return [(("c", message.tx), [Surface(what, message.tx, message.member.hex())])]
            case _:
                return []

    def on_timer(self, tx: TxId, name: str) -> list[Batch]:
        """A timer of one transaction."""
        return self._step(tx, lambda coordinator: coordinator.on_timer(name, self._low()))

    def on_not_sent(self, tx: TxId, reason: str) -> list[Batch]:
        """A message of this coordinator is too large for the bus."""
        return self._step(tx, lambda coordinator: coordinator.on_not_sent(reason))

    def on_settled(self, settled: Settled) -> list[Batch]:
        """The register has spoken about one of this site's transactions."""
        return self._step(settled.tx, lambda coordinator: coordinator.on_settled(settled.settlement))

    def on_chain_timer(self, kind: ChainKind) -> list[Batch]:
        """A timer of one chain."""
        return [(("chain", kind), self.chains[kind].on_retry())]

    def on_presence(self, change: PresenceChanged) -> list[Batch]:
        """A site came or went. One that came back in a new life, or with a new log, was gone in between."""
        before = self.present.get(change.site)
        if before is not None and _is_past(change, before):
            return []
        if change.alive:
            self.present[change.site] = change
        else:
            self.present.pop(change.site, None)
        if change.alive and before is not None and _same_life(change, before):
            return self._on_types(change, before)
        batches: list[Batch] = []
        if change.alive:
            batches = [(("chain", kind), chain.on_present(change.site)) for kind, chain in self.chains.items()]
            if before is None:
                return batches
        lost = before if change.alive and before is not None else change
        for tx in list(self.transactions):
            batches += self._step(tx, lambda coordinator: coordinator.on_presence_lost(lost, change.alive))
        return batches

    def _on_types(self, now: PresenceChanged, before: PresenceChanged) -> list[Batch]:
        """A site that goes on may have unsubscribed from types that it had."""
        gone = set(before.types) - set(now.types)
        waiting = [tx for tx, one in self.transactions.items() if gone and one.terms.type in gone]
        return [batch for tx in waiting for batch in self._step(tx, lambda one: one.on_unsubscribed(now.site))]

    def _on_publisher(self, message: m.Submit | m.CommitRequest | m.Abort) -> list[Batch]:
        coordinator = self.transactions.get(message.tx)
        if coordinator is None:
            return self._reply(message.publisher, self._of_forgotten(message.tx, ""))
        if isinstance(message, m.Submit):
            return self._run(coordinator, coordinator.on_submit(message))
        if isinstance(message, m.Abort):
            return self._run(coordinator, coordinator.on_abort(message))
        return self._run(coordinator, coordinator.on_commit_request(message))

    def on_inquire(self, inquire: m.Inquire) -> list[Batch]:
        """A caller asks by id or by key."""
        tx = inquire.tx or self.keys.get(inquire.key)
        if tx is None:
            self.creations.on_question(inquire)
            return self._reply(inquire.publisher, self._of_forgotten_key(inquire.key, inquire.asked))
        coordinator = self.transactions.get(tx)
        if coordinator is None:
            return self._reply(inquire.publisher, self._of_forgotten(tx, inquire.key))
        return self._run(coordinator, coordinator.on_inquire(inquire))

    def _of_forgotten_key(self, key: str, asked: Asked) -> Outcome:
        """Of a forgotten commit that it is finished; of what never was that it aborted, as long as that is certain."""
        known = self.forgotten.keys.get(key)
        if known is not None:
            tx = self.seat.tx(known[0])
            return Outcome(tx, key, Status.FINISHED, reason="finished and forgotten", answers=asked)
        status, reason = Status.ABORTED, "nothing is known under this key"
        if self.forgotten.keys_lost:
            status, reason = Status.UNKNOWN, f"{reason}: it did not commit, or that is forgotten"
        return Outcome(None, key, status, reason=reason, coordinator=self.seat.site, answers=asked)

    def _of_forgotten(self, tx: TxId, key: str) -> Outcome:
        """What is true of a transaction without a record."""
        if not self.seat.owns(tx) or tx.number >= self.next_number:
            gone = "the log that decides this is gone"
            return Outcome(tx, key, Status.UNKNOWN, reason=gone, coordinator=self.seat.site)
        if tx.number in self.forgotten:
            return Outcome(tx, key, Status.FINISHED, reason="finished and forgotten")
        return Outcome(tx, key, Status.ABORTED, reason="its coordinator restarted or has ended it")

    def _on_in_doubt(self, question: m.InDoubt) -> list[Batch]:
        coordinator = self.transactions.get(question.tx)
        if coordinator is not None:
            return self._run(coordinator, coordinator.on_in_doubt(question))
        if question.tx.coordinator != self.seat.site:
            return []
        role: Role = ("c", question.tx)
        if not self._presumed_aborted(question.tx):
            return [(role, [Broadcast(question.type, m.Unknown(question.tx)), Surface("unknown asked", question.tx)])]
        if question.state == "local":
            token = self.seat.keyring.token(question.tx, "withdrawn")
            return [(role, [Broadcast(question.type, m.Withdrawn(question.tx, token))])]
        token = self.seat.keyring.token(question.tx, "abort")
        return [(role, [Broadcast(question.type, m.Decision(question.tx, token, (), "presumed abort"))])]

    def _presumed_aborted(self, tx: TxId) -> bool:
        """Without a record: only if the record could only be in this log."""
        return self.seat.owns(tx) and tx.number < self.next_number and tx == self.seat.tx(tx.number)

    def _on_reader(self, message: m.Follow | m.ChainAck) -> list[Batch]:
        chain = self.chains[message.kind]
        if message.incarnation != self.seat.incarnation:
            return []
        effects = chain.on_follow(message) if isinstance(message, m.Follow) else chain.on_ack(message)
        return [(("chain", message.kind), effects)]

    def remove_reader(self, name: str) -> list[Batch]:
        """An operator says that a reader is gone for good. Nothing if it reads nothing here."""
        removed = [(kind, chain.remove(name)) for kind, chain in self.chains.items()]
        return [(("chain", kind), effects) for kind, effects in removed if effects]

    # Marks

    def _low(self) -> m.Standing:
        """A mark that costs nothing to compute: transactions are kept in the order of their numbers."""
        first = next(iter(self.transactions), None)
        return m.Standing(first.number if first is not None else self.next_number)

    def _on_ask_mark(self, question: m.AskMark) -> list[Batch]:
        if question.incarnation != self.seat.incarnation:
            return []
        standing = m.Standing(self.next_number, tuple(sorted(tx.number for tx in self.transactions)))
        mark = m.Mark(self.seat.site, self.seat.incarnation, standing)
        return [(("mark", question.type), [Broadcast(question.type, mark)])]

    # Steps of one transaction

    def _step(self, tx: TxId, step: Callable[[TxCoordinator], list[Effect]]) -> list[Batch]:
        coordinator = self.transactions.get(tx)
        return self._run(coordinator, step(coordinator)) if coordinator is not None else []

    def _run(self, coordinator: TxCoordinator, effects: list[Effect]) -> list[Batch]:
        return [(("c", coordinator.tx), [*self._remember(coordinator), *effects]), *self._after(coordinator)]

    def _remember(self, coordinator: TxCoordinator) -> list[Effect]:
        """Of a commit that ends: that it was one, in the log before its record is dropped."""
        if coordinator.phase is not Phase.ENDED or not coordinator.took_effect():
            return []
        committed = coordinator.outcome is not None and coordinator.outcome.status is Status.COMMITTED
        return self.forgotten.add(coordinator.tx.number, coordinator.key, committed, coordinator.retired)

    def _after(self, coordinator: TxCoordinator) -> list[Batch]:
        if coordinator.phase is Phase.ENDED:
            self.transactions.pop(coordinator.tx, None)
            self.settled.pop(coordinator.tx, None)
            self.keys.pop(coordinator.key, None)
            if not coordinator.hashes.finishers:
                return []
            return [(("c", coordinator.tx), [ForgetSettlements(self._low().below, coordinator.tx.number)])]
        if not coordinator.settled():
            return []
        self.settled[coordinator.tx] = None
        return self._retire() if len(self.settled) > self.seat.bounds.unconfirmed else []

    def _retire(self) -> list[Batch]:
        """Too many outcomes that nobody confirms: the oldest is forgotten, and that it was is remembered."""
        oldest = self.transactions[next(iter(self.settled))]
        return self._run(oldest, oldest.retire())

    def _reply(self, site: str, message: AnyMessage) -> list[Batch]:
        return [(("reply", site), [Send(site, message)])]

    # Restart

    def recover(self, record: object) -> bool:
        """Take up a record if it is a coordinator's."""
        match record:
            case NumbersReserved():
                self.next_number = self.reserved = max(self.reserved, record.upto)
            case Decided() | DelegationOpened() | Settling():
                coordinator = TxCoordinator.recover(self.seat, record)
                self.transactions[record.tx] = coordinator
                self.keys[record.key] = record.tx
                if isinstance(record, Decided):
                    self.public[record.tx] = record.public
            case ChainEntry() | ChainPosition() | Reader():
                self.chains[record.kind].recover(record)
            case Retired() | ForgottenKey():
                self.forgotten.recover(record)
            case _:
                return False
        return True

    def resume(self) -> list[Batch]:
        """Go on after the whole log has been read."""
        self.forgotten.resume()
        self.transactions = {tx: self.transactions[tx] for tx in sorted(self.transactions)}
        batches: list[Batch] = []
        for tx, coordinator in list(self.transactions.items()):
            batches += self._run(coordinator, coordinator.resume(self.public.pop(tx, ())))
        for kind, chain in self.chains.items():
            batches.append((("chain", kind), chain.resume()))
        if self.seat.finishers:
            batches.append((("mark", ""), [ForgetSettlements(self._low().below)]))
        return batches


def _same_life(change: PresenceChanged, before: PresenceChanged) -> bool:
    return change.incarnation == before.incarnation and change.life == before.life


def _is_past(change: PresenceChanged, before: PresenceChanged) -> bool:
    """Of an earlier life; or the death of a log that does not hold the name any more."""
    if change.incarnation == before.incarnation:
        return change.life < before.life
    return not change.alive
