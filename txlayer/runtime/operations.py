"""What an operator may ask of a site that runs, or of the log of one that does not.

Forcing an outcome breaks the promise that all members end alike, if the operator errs: nobody but the coordinator, or
the delegate, knows. So it is possible only where a transaction is in doubt, and kept in the log as heuristic.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import msgspec

from txlayer import messages as m
from txlayer.effects import Append, Effect
from txlayer.errors import UsageError
from txlayer.logs.record_log import RecordLog
from txlayer.messages import Status, TxId
from txlayer.records import AnyRecord, Decided, DelegationOpened, Heuristic, Intent, MemberDecided
from txlayer.runtime.inspection import TransactionView, inspect_records
from txlayer.runtime.loop import Loop
from txlayer.runtime.readers import ReaderView, encode_readers, no_reader, readers_of
from txlayer.tokens import member_hash
from txlayer.transactions.executor import Executor

LIST, COMMIT, ABORT = "list", "commit", "abort"
READERS, REMOVE = "readers", "remove reader"
REASON = "resolved by an operator"


@dataclass(slots=True)
class Operations:
    """The operator's side of a running site. Everything is done in the turn."""

    loop: Loop
    heuristics: dict[TxId, Heuristic] = field(default_factory=dict)

    @classmethod
    def of(cls, loop: Loop) -> Operations:
        """With what earlier lives have recorded."""
        found = [record for record in loop.log.records.values() if isinstance(record, Heuristic)]
        return cls(loop, {record.tx: record for record in found})

    def force(self, tx: TxId, commit: bool) -> None:
        """End it here; `UsageError` if it is not in doubt."""
        found = self._effects(tx, commit)
        if found is None:
            raise UsageError(f"{tx} is not in doubt at {self.loop.wires.site!r}: nothing was forced")
        key, type, part, effects = found
        record = Heuristic(tx, type, part, commit, time.time())
        self.heuristics[tx] = record
        self.loop.operate((key, tx), [Append(f"h/{tx}", record), *effects])

    def _effects(self, tx: TxId, commit: bool) -> tuple[str, str, str, list[Effect]] | None:
        member = self.loop.participant.subscriber.members.get((tx.coordinator, tx.incarnation), {}).get(tx)
        if isinstance(member, Executor) and (effects := member.on_forced(commit)):
            return "m", member.terms.type, "member", effects
        coordinated = self.loop.participant.coordinator.transactions.get(tx)
        if coordinated is not None and (effects := coordinated.on_forced(commit)):
            return "c", coordinated.terms.type, "coordinator", effects
        return None

    def remove_reader(self, name: str) -> None:
        """Keep nothing any more for a reader; `UsageError` if it is none, or there to give that back by itself."""
        desk = self.loop.participant.coordinator
        if name in desk.present:
            raise UsageError(f"{name!r} is present: unsubscribe there, and it gives back what it reads")
        batches = desk.remove_reader(name)
        if not batches:
            raise no_reader(name)
        for role, effects in batches:
            self.loop.operate(role, effects)

    def readers(self) -> list[ReaderView]:
        """Who follows this site, or is a durable local member of it."""
        return readers_of(self.loop.participant.coordinator.chains)

    def views(self) -> list[TransactionView]:
        """What was forced, now and earlier."""
        return [heuristic_view(record) for record in self.heuristics.values()]


def heuristic_view(record: Heuristic) -> TransactionView:
    """A forced outcome as an operator sees it."""
    state = f"heuristic {'commit' if record.commit else 'abort'}"
    return TransactionView(record.tx, record.type, record.part, state, False, max(0.0, time.time() - record.time), ())


def encode_views(views: list[TransactionView]) -> bytes:
    """For the way to an operator."""
    return msgspec.msgpack.encode(views)


def decode_views(data: bytes) -> list[TransactionView]:
    """From a site."""
    return msgspec.msgpack.decode(data, type=list[TransactionView])


# Offline


def views_of(log: RecordLog) -> list[TransactionView]:
    """What a log holds, oldest first."""
    views = inspect_records(log)
    views += [heuristic_view(record) for record in log.records.values() if isinstance(record, Heuristic)]
    return sorted(views, key=lambda view: -view.seconds)


def force_in(log: RecordLog, tx: TxId, commit: bool) -> None:
    """End it in the log of a site that does not run; the site does so when it starts. Durable on return."""
    for key in (f"m/{tx}", f"d/{tx}"):
        record = log.records.get(key)
        changed = _forced(record, commit) if record is not None else None
        if changed is not None:
            part = "member" if key.startswith("m/") else "coordinator"
            type = changed.type if isinstance(changed, MemberDecided | Decided) else ""
            heuristic = Heuristic(tx, type, part, commit, time.time())
            log.append(key, changed)
            log.append(f"h/{tx}", heuristic)
            log.records.update({key: changed, f"h/{tx}": heuristic})
            log.write()
            log.sync()
            return
    raise UsageError(f"{tx} is not in doubt in this log: nothing was forced")


def _forced(record: AnyRecord, commit: bool) -> AnyRecord | None:
    match record:
        case Intent(delegated=False):
            undo = record.events if record.compensatable and not commit else ()
            return MemberDecided(
                record.tx, record.terms.type, commit, b"", record.compensatable, undo,
                terms=record.terms, parts=record.parts,
            )  # fmt: skip
        case MemberDecided(parked=True) if not commit:
            return msgspec.structs.replace(record, parked=False, undone=True, events=())
        case DelegationOpened():
            status = Status.COMMITTED if commit else Status.ABORTED
            final, done = ((member_hash(record.pseudonym),), (record.pseudonym.done,)) if commit else ((), ())
            return Decided(
                record.tx, record.terms.type, status, final, done, record.key, record.publisher, record.called,
                "" if commit else REASON, initiator=record.initiator, limit=record.terms.limit,
            )  # fmt: skip
        case _:
            return None


def answer_to(asked: m.Operate, site: str, operations: Operations, views: list[TransactionView]) -> m.Operated:
    """Do what was asked and tell how things stand; `views` is what was open before."""
    try:
        if asked.action in (COMMIT, ABORT) and asked.tx is not None:
            operations.force(asked.tx, asked.action == COMMIT)
            views = [view for view in views if view.tx != asked.tx]
        elif asked.action in (READERS, REMOVE):
            operations.remove_reader(asked.name) if asked.action == REMOVE else None
            return m.Operated(site, asked.id, encode_readers(operations.readers()))
        elif asked.action != LIST:
            raise UsageError(f"{asked.action[:40]!r} is nothing that a site can be asked to do")
    except UsageError as exc:
        return m.Operated(site, asked.id, refused=str(exc))
    return m.Operated(site, asked.id, encode_views([*views, *operations.views()]))
