"""Which rows of the fault catalogue a crash hits: read off the dying site, for the count only."""

from __future__ import annotations

from txlayer.messages import Access
from txlayer.simulation.node import Node
from txlayer.transactions.coordinated import Phase
from txlayer.transactions.executor import Executor, State
from txlayer.transactions.local_executor import LocalExecutor
from txlayer.transactions.tx_coordinator import TxCoordinator

_MEMBER = {
    State.JOINED: "P1",
    State.ACTIVE: "P2",
    State.PREPARED: "P6",
    State.APPLYING: "P7",
    State.DONE: "P9",
}


def rows_hit(node: Node) -> list[str]:
    """The ids of the catalogue that describe where this site is when it dies."""
    if node.participant is None or node.ahead is None:
        return []
    pending = node.ahead.pending
    rows: list[str] = []
    for tx, coordinator in node.participant.coordinator.transactions.items():
        rows += _coordinator_rows(node, coordinator, pending.get(("c", tx)))
    for members in node.participant.subscriber.members.values():
        for tx, member in members.items():
            if isinstance(member, Executor):
                rows += _member_rows(node, member, ("m", tx) in pending)
            elif isinstance(member, LocalExecutor) and not member.done:
                rows.append("F1")
    rows += ["F1"] if node.participant.subscriber.readers else []
    remote = [p for p in node.participant.publishers.values() if p.coordinator != node.name and p.terms is not None]
    rows += ["H1"] if remote else []
    rows += ["H3"] if any(p.terms is None and p.submitted for p in node.participant.publishers.values()) else []
    return sorted(set(rows))


def _coordinator_rows(node: Node, coordinator: TxCoordinator, pending: int | None) -> list[str]:
    phase = coordinator.phase
    if phase is Phase.CENSUS:
        return ["Q1"] if coordinator.terms.one_shot else ["C1"]
    rows = ["H2"] if coordinator.publisher != node.name else []
    if phase is Phase.OPEN:
        return [*rows, "C3" if coordinator.events.events else "C2"]
    if phase is Phase.VOTING:
        return [*rows, "C4" if coordinator.ballot.votes else "C3"]
    if phase is Phase.DELEGATED:
        return [*rows, "L1"]
    if phase is Phase.COMMITTED:
        acknowledged = coordinator.decision is not None and len(coordinator.unacknowledged) < len(
            coordinator.decision.final
        )
        decided = _decided_rows(node, pending)
        return [*rows, *decided, *(["C9" if coordinator.unacknowledged else "C10"] if acknowledged else ["C8"])]
    return [*rows, "F2"] if coordinator.called and coordinator.terms.access is not Access.MULTI else rows


def _decided_rows(node: Node, pending: int | None) -> list[str]:
    """C5: not written yet; C6: written, not synced; C7: synced, not sent."""
    if pending is None or node.log is None:
        return []
    if pending <= node.log.durable:
        return ["C7"]
    return ["C6" if pending <= node.log.written else "C5"]


def _member_rows(node: Node, member: Executor, pending: bool) -> list[str]:
    rows: list[str] = []
    if member.state is State.PREPARING:
        rows.append("P3" if pending else "P4")
        rows += ["P5"] if node.resource.state(member.tx) == "prepared" else []
        rows += ["K1"] if member.choice.compensatable else []
    elif member.state is State.APPLYING and member.compensation is not None:
        rows.append("K2")
    elif member.state in _MEMBER:
        rows.append(_MEMBER[member.state])
        rows += ["P8"] if member.state is State.APPLYING and not pending else []
    late = member.state is State.PREPARED and member.terms.one_shot
    return [*rows, "Q2"] if late else rows
