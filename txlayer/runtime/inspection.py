"""What a site has open, for how long, and who blocks it: for operators, tools and tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from txlayer.logs.record_log import RecordLog
from txlayer.messages import Status, TxId
from txlayer.records import AnyRecord, Decided, DelegationOpened, Intent, LocalIntent, MemberDecided, Settling, VotedNo
from txlayer.tokens import member_hash
from txlayer.transactions.coordinated import Phase
from txlayer.transactions.executor import Executor, State
from txlayer.transactions.local_executor import LocalExecutor
from txlayer.transactions.participant import Participant
from txlayer.transactions.tx_coordinator import TxCoordinator
from txlayer.units import transaction_of


@dataclass(frozen=True, slots=True)
class TransactionView:
    """One transaction in one of the parts that this site has in it."""

    tx: TxId
    type: str
    part: str
    """`coordinator`, `member`, `local` or `follower`."""
    state: str
    """Of a coordinator: census, open, voting, delegated, committed, aborted. Of a member: census, transaction,
    preparing, commitment, refused, applying, parked, done; orphan: prepared under a log that is gone, committed
    orphan: committed under one and perhaps to be undone, see `txlayer recover`. `heuristic commit` or `heuristic
    abort`: an operator."""
    in_doubt: bool
    """This site cannot go on without an answer from another."""
    seconds: float
    """Since this site has known of it; of an orphan, since it holds its locks; in a log, since it was written down."""
    blocked_by: tuple[str, ...]
    """Whose answer is missing: sites, where they gave their names, or pseudonyms."""


def inspect(participant: Participant, since: Callable[[TxId], float]) -> list[TransactionView]:
    """Everything that is not over, oldest first."""
    now = time.monotonic()
    views = [_coordinated(one, now - since(tx)) for tx, one in participant.coordinator.transactions.items()]
    for members in participant.subscriber.members.values():
        for tx, member in members.items():
            if isinstance(member, Executor):
                views.append(_member(member, now - since(tx)))
            elif isinstance(member, LocalExecutor):
                state = "done" if member.done else "applying" if member.committing else "transaction"
                blocked = (tx.coordinator,) if state == "transaction" else ()
                views.append(TransactionView(tx, member.type, "local", state, False, now - since(tx), blocked))
    for reader in participant.subscriber.readers.values():
        if reader.applying is not None:
            seconds, types = now - since(reader.applying), ",".join(reader.types)
            tx = transaction_of(reader.applying)
            views.append(TransactionView(tx, types, "follower", "applying", False, seconds, ()))
    return sorted(views, key=lambda view: -view.seconds)


def _coordinated(one: TxCoordinator, seconds: float) -> TransactionView:
    blocked: tuple[str, ...] = ()
    if one.phase is Phase.VOTING:
        blocked = tuple(one.ballot.members[member].identity or member.hex() for member in one.ballot.missing())
    elif one.phase is Phase.DELEGATED:
        blocked = tuple(join.identity or member.hex() for member, join in one.ballot.members.items())
    elif one.phase is Phase.OPEN:
        blocked = (one.publisher,)
    elif one.unacknowledged:
        joins = one.ballot.members
        blocked = tuple(
            joins[member].identity or member.hex() if member in joins else member.hex() for member in one.unacknowledged
        )
    in_doubt = one.phase is Phase.DELEGATED
    return TransactionView(one.tx, one.terms.type, "coordinator", one.phase.value, in_doubt, seconds, blocked)


def _member(one: Executor, seconds: float) -> TransactionView:
    parked = one.compensation is not None and one.compensation.parked
    state = "parked" if parked else one.state.value
    waiting = one.state in (State.JOINED, State.ACTIVE, State.PREPARED)
    in_doubt = one.state is State.PREPARED
    blocked = (one.tx.coordinator,) if waiting else ()
    return TransactionView(one.tx, one.terms.type, "member", state, in_doubt, seconds, blocked)


def inspect_records(log: RecordLog) -> list[TransactionView]:
    """The same from the log of a site that does not run, as far as it is written down."""
    now = time.time()
    views = []
    for key, record in log.records.items():
        known = _recorded(record)
        if known is not None:
            tx, type, part, state, in_doubt, blocked = known
            seconds = max(0.0, now - log.times[key]) if log.times.get(key) else 0.0
            views.append(TransactionView(tx, type, part, state, in_doubt, seconds, blocked))
    return sorted(views, key=lambda view: -view.seconds)


def _recorded(record: AnyRecord) -> tuple[TxId, str, str, str, bool, tuple[str, ...]] | None:
    match record:
        case Intent():
            blocked = () if record.delegated else (record.tx.coordinator,)
            state = State.PREPARING if record.delegated else State.PREPARED
            return record.tx, record.terms.type, "member", state.value, not record.delegated, blocked
        case VotedNo():
            return record.tx, record.type, "member", State.REFUSED.value, False, ()
        case MemberDecided():
            state_name = "parked" if record.parked else State.DONE.value if record.undone else State.APPLYING.value
            return record.tx, record.type, "member", state_name, False, ()
        case LocalIntent():
            return record.tx, record.type, "local", State.APPLYING.value, False, ()
        case DelegationOpened():
            delegate = (member_hash(record.pseudonym).hex(),)
            return record.tx, record.terms.type, "coordinator", Phase.DELEGATED.value, True, delegate
        case Settling():
            return record.tx, record.terms.type, "coordinator", Phase.SETTLING.value, True, ("the shared register",)
        case Decided():
            phase = Phase.COMMITTED if record.status is Status.COMMITTED else Phase.ABORTED
            return record.tx, record.type, "coordinator", phase.value, False, tuple(one.hex() for one in record.final)
        case _:
            return None
