"""The rows of the catalogue of faults as points of real processes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

NOT_COMMITTED = ("ABORTED", "REFUSED", "TransactionAborted", "TransactionRefused", "CensusUnfulfilled")
COMMITTED = ("COMMITTED", "FINISHED")


@dataclass(frozen=True)
class Scenario:
    """One transaction: who begins it, how, and who takes part."""

    name: str
    type: str
    command: str = "open"
    members: tuple[str, ...] = ("a", "b", "c")
    data: dict[str, Any] = field(default_factory=dict, hash=False)
    terms: dict[str, Any] = field(default_factory=dict, hash=False)
    events: int = 2

    @property
    def coordinator(self) -> str:
        return str(self.terms.get("coordinator", "p"))


SHOT = Scenario("one shot", "shot", "shot", events=1, data={"batch": True})
FORGOTTEN = Scenario("one shot, forgotten", "shot", "shot", events=1, terms={"keyless": True})
OPEN = Scenario("two phases", "open")
SINGLE = Scenario("one phase", "single", members=("a",))
LATE = Scenario(
    "late vote", "shot", "shot", ("a", "b"), events=1, terms={"settle": 2, "vote_within": 5.0, "census_within": 5.0}
)
HOSTED = Scenario("hosted", "hosted", terms={"coordinator": "h"})
MULTI = Scenario("two publishers", "hosted", terms={"coordinator": "h", "multi": True, "second": "q"}, events=4)
SCOPED = Scenario("scopes", "scoped")
SPLIT = Scenario("scopes, refused", "scoped", data={"refuses": "c"})
UNDO = Scenario("compensated", "undo", data={"refuses": "c"})
KEPT = Scenario("compensatable, committed", "undo")
STUCK = Scenario("parked", "undo", data={"refuses": "c", "stuck": "a"})
ORPHANED = Scenario("coordinator away", "open")


# What a process does that has come back, by its part.
FINISHING = (
    "work InspectUnit", "worked InspectUnit", "perform Send:Vote", "step Received:Decision", "write MemberDecided",
    "synced MemberDecided", "work FinishUnit", "sent COMMIT PREPARED", "worked FinishUnit", "perform Send:Ack",
)  # fmt: skip
COMMITTING = ("work InspectUnit", "sent COMMIT", "worked InspectUnit", "perform Send:Delegated")
UNDOING = (
    "work InspectUnit", "sent COMMIT", "worked InspectUnit", "write MemberDecided", "work Compensate",
    "worked Compensate", "perform Send:Compensated",
)  # fmt: skip
APPLYING = ("work ApplyWhole", "sent COMMIT", "worked ApplyWhole", "write Cursor", "perform Send:ChainAck")
DECIDING = (
    "perform Broadcast:Decision", "performed Broadcast:Decision", "step Received:Ack", "step Received:InDoubt",
    "perform Send:Outcome",
)  # fmt: skip
DELEGATING = ("perform Broadcast:Delegate", "performed Broadcast:Delegate", "step Received:Delegated")


@dataclass(frozen=True)
class Case:
    """One process ended at one point."""

    row: str
    scenario: Scenario
    victim: str
    point: str
    nth: int = 1
    outcomes: tuple[str, ...] = ()
    """What the publisher may see; anything if empty."""
    bus: str = "mqtt"
    twice: bool = False
    """Ended a second time while it recovers, if it comes by the point that was drawn."""

    @property
    def name(self) -> str:
        number = f" {self.nth}" if self.nth > 1 else ""
        again = ", and again" if self.twice else ""
        return f"{self.row} {self.bus} {self.scenario.name}: {self.victim} at {self.point}{number}{again}"

    @property
    def second(self) -> tuple[str, int]:
        """Where the second life ends: at a point that recovery may come by, or after so many steps of any kind."""
        draw = hashlib.sha256(self.name.encode()).digest()
        points = self._recovery()
        chosen = draw[0] % (len(points) + 1)
        return (points[chosen], 1) if chosen < len(points) else ("any", 1 + draw[1] % 6)

    def _recovery(self) -> tuple[str, ...]:
        if self.victim in ("l", "f"):
            return APPLYING
        if self.victim not in ("a", "b", "c"):
            return (
                DELEGATING if self.scenario is SINGLE else DECIDING if self.victim == self.scenario.coordinator else ()
            )
        if self.scenario is SINGLE:
            return COMMITTING
        return UNDOING if self.scenario.type == "undo" else FINISHING


def _rows() -> list[Case]:
    no, yes = NOT_COMMITTED, COMMITTED
    return [
        Case("C1", OPEN, "p", "perform Broadcast:Census", outcomes=no),
        Case("C1", OPEN, "p", "performed Broadcast:Census", outcomes=no),
        Case("C1", OPEN, "p", "step Received:Join", 2, outcomes=no),
        Case("C2", OPEN, "p", "perform Broadcast:Begin", outcomes=no),
        Case("C2", OPEN, "p", "performed Broadcast:Begin", outcomes=no),
        Case("C3", OPEN, "p", "perform Broadcast:Event", outcomes=no),
        Case("C3", OPEN, "p", "performed Broadcast:Event", outcomes=no),
        Case("C3", OPEN, "p", "perform Broadcast:Event", 2, outcomes=no),
        Case("C3", OPEN, "p", "perform Broadcast:Prepare", outcomes=no),
        Case("C3", OPEN, "p", "performed Broadcast:Prepare", outcomes=no),
        Case("C4", OPEN, "p", "step Received:Vote", outcomes=no),
        Case("C4", OPEN, "p", "step Received:Vote", 2, outcomes=no),
        Case("C4", SHOT, "p", "step Received:Vote", 2, outcomes=no),
        Case("C5", OPEN, "p", "step Received:Vote", 3, outcomes=no),
        Case("C5", OPEN, "p", "write Decided:COMMITTED", outcomes=no),
        Case("C5", SHOT, "p", "write Decided:COMMITTED", outcomes=no),
        Case("C6", OPEN, "p", "written Decided:COMMITTED"),
        Case("C6", SHOT, "p", "written Decided:COMMITTED"),
        Case("C7", OPEN, "p", "synced Decided:COMMITTED", outcomes=yes),
        Case("C7", SHOT, "p", "synced Decided:COMMITTED", outcomes=yes),
        Case("C7", OPEN, "p", "perform Broadcast:Decision", outcomes=yes),
        Case("C8", OPEN, "p", "performed Broadcast:Decision", outcomes=yes),
        Case("C8", SHOT, "p", "performed Broadcast:Decision", outcomes=yes),
        Case("C9", OPEN, "p", "step Received:Ack", outcomes=yes),
        Case("C9", SHOT, "p", "step Received:Ack", 2, outcomes=yes),
        Case("C10", OPEN, "p", "step Received:Ack", 3, outcomes=yes),
        Case("C10", SHOT, "p", "step LeaveCall", outcomes=yes),
        Case("C10", FORGOTTEN, "p", "step ConfirmCall"),
        Case("C10", FORGOTTEN, "p", "write Drop:Decided"),
        Case("C10", FORGOTTEN, "a", "work ForgetMarker", outcomes=yes),
        Case("Q1", SHOT, "p", "perform Broadcast:Census", outcomes=no),
        Case("Q1", SHOT, "p", "performed Broadcast:Census", outcomes=no),
        Case("Q1", SHOT, "p", "step Received:Vote", outcomes=no),
        Case("Q2", LATE, "c", "performed Send:Vote", outcomes=yes),
        Case("Q2", LATE, "c", "step Received:Decision", outcomes=yes),
        Case("Q2", LATE, "c", "synced MemberDecided", outcomes=yes),
        Case("Q2", LATE, "c", "sent ROLLBACK PREPARED", outcomes=yes),
        Case("Q2", LATE, "p", "synced Decided:COMMITTED", outcomes=yes),
        Case("L1", SINGLE, "p", "write DelegationOpened", outcomes=no),
        Case("L1", SINGLE, "p", "synced DelegationOpened"),
        Case("L1", SINGLE, "p", "perform Broadcast:Delegate"),
        Case("L1", SINGLE, "p", "performed Broadcast:Delegate"),
        Case("L1", SINGLE, "p", "step Received:Delegated", outcomes=yes),
        Case("L1", SINGLE, "a", "write Intent"),
        Case("L1", SINGLE, "a", "work CommitUnit"),
        Case("L1", SINGLE, "a", "sent COMMIT"),
        Case("L1", SINGLE, "a", "worked CommitUnit", outcomes=yes),
        Case("L1", SINGLE, "a", "performed Send:Delegated", outcomes=yes),
        Case("H1", HOSTED, "p", "performed Send:Create", outcomes=no),
        Case("H1", HOSTED, "p", "performed Send:Submit", outcomes=no),
        Case("H1", HOSTED, "p", "perform Send:CommitRequest", outcomes=no),
        Case("H1", HOSTED, "p", "performed Send:CommitRequest"),
        Case("H1", HOSTED, "p", "step Received:Outcome", outcomes=yes),
        Case("H2", HOSTED, "h", "step Received:Submit", outcomes=no),
        Case("H2", HOSTED, "h", "perform Send:Accepted", outcomes=no),
        Case("H2", HOSTED, "h", "performed Send:Accepted", outcomes=no),
        Case("H2", HOSTED, "h", "step Received:CommitRequest", outcomes=no),
        Case("H2", HOSTED, "h", "synced Decided:COMMITTED", outcomes=yes),
        Case("H3", MULTI, "q", "perform Send:Submit"),
        Case("H3", MULTI, "q", "performed Send:Submit"),
        Case("H3", MULTI, "q", "performed Send:Submit", 2),
        Case("F1", SCOPED, "f", "step Received:Commit", outcomes=yes),
        Case("F1", SCOPED, "f", "work ApplyWhole", outcomes=yes),
        Case("F1", SCOPED, "f", "sent COMMIT", outcomes=yes),
        Case("F1", SCOPED, "f", "worked ApplyWhole", outcomes=yes),
        Case("F1", SCOPED, "f", "write Cursor", outcomes=yes),
        Case("F1", SCOPED, "f", "perform Send:ChainAck", outcomes=yes),
        Case("F1", SCOPED, "l", "step Received:Commit", outcomes=yes),
        Case("F1", SCOPED, "l", "work ApplyWhole", outcomes=yes),
        Case("F1", SCOPED, "l", "sent COMMIT", outcomes=yes),
        Case("F1", SCOPED, "l", "perform Send:ChainAck", outcomes=yes),
        Case("F2", SPLIT, "l", "step Received:Commit", outcomes=no),
        Case("F2", SPLIT, "l", "sent COMMIT", outcomes=no),
        Case("F2", SPLIT, "p", "synced ChainEntry", outcomes=no),
        Case("F2", SPLIT, "p", "performed Broadcast:Prepare", outcomes=no),
        Case("F2", SPLIT, "p", "performed Broadcast:Decision", outcomes=no),
        Case("P1", OPEN, "a", "perform Send:Join"),
        Case("P1", OPEN, "a", "performed Send:Join"),
        Case("P2", OPEN, "a", "step Received:Event"),
        Case("P2", OPEN, "a", "work RunHandler", outcomes=no),
        Case("P2", OPEN, "b", "worked RunHandler", 2, outcomes=no),
        Case("P3", OPEN, "a", "write Intent", outcomes=no),
        Case("P3", OPEN, "b", "synced Intent"),  # it may be prepared by then
        Case("P3", SHOT, "c", "work PrepareUnit"),  # without a durable intent it joins again in its next life
        Case("P4", OPEN, "a", "sent PREPARE TRANSACTION"),
        Case("P4", SHOT, "b", "sent PREPARE TRANSACTION"),
        Case("P5", OPEN, "a", "worked PrepareUnit"),
        Case("P5", OPEN, "b", "perform Send:Vote"),
        Case("P5", SHOT, "c", "perform Send:Vote"),
        Case("P6", OPEN, "a", "performed Send:Vote"),
        Case("P6", SHOT, "b", "performed Send:Vote"),
        Case("P7", OPEN, "a", "write MemberDecided", outcomes=yes),
        Case("P7", OPEN, "b", "synced MemberDecided", outcomes=yes),
        Case("P7", SHOT, "c", "work FinishUnit", outcomes=yes),
        Case("P8", OPEN, "a", "sent COMMIT PREPARED", outcomes=yes),
        Case("P8", SHOT, "b", "sent COMMIT PREPARED", outcomes=yes),
        Case("P9", OPEN, "a", "worked FinishUnit", outcomes=yes),
        Case("P9", OPEN, "b", "perform Send:Ack", outcomes=yes),
        Case("P9", SHOT, "c", "performed Send:Ack", outcomes=yes),
        Case("P10", ORPHANED, "b", "step Received:Decision", outcomes=yes),
        Case("P10", ORPHANED, "b", "write MemberDecided", outcomes=yes),
        Case("K1", KEPT, "a", "write Intent"),
        Case("K1", KEPT, "a", "work CommitUnit"),
        Case("K1", KEPT, "b", "sent COMMIT"),
        Case("K1", KEPT, "b", "worked CommitUnit"),
        Case("K1", UNDO, "a", "sent COMMIT", outcomes=no),
        Case("K2", UNDO, "a", "write MemberDecided", outcomes=no),
        Case("K2", UNDO, "a", "work Compensate", outcomes=no),
        Case("K2", UNDO, "b", "sent COMMIT", 2, outcomes=no),
        Case("K2", UNDO, "a", "worked Compensate", outcomes=no),
        Case("K2", UNDO, "b", "perform Send:Compensated", outcomes=no),
        Case("K3", STUCK, "a", "worked Compensate", 5, outcomes=no),
        Case("K3", STUCK, "a", "perform Send:Compensated", outcomes=no),
    ]


def all_cases() -> list[Case]:
    """Every point, on both buses, with one kill and with two."""
    return [
        replace(case, bus=bus, twice=twice) for bus in ("mqtt", "kafka") for twice in (False, True) for case in _rows()
    ]


def sample(count: int) -> list[Case]:
    """A fixed sample: every row at least once, spread over both buses, with and without a second kill."""
    cases = _rows()
    first = list({case.row: case for case in reversed(cases)}.values())
    rest = [case for case in cases if case not in first]
    step = max(1, len(rest) // max(1, count - len(first)))
    chosen = sorted([*first, *rest[::step]][:count], key=cases.index)
    return [
        replace(case, bus=("mqtt", "kafka")[number % 2], twice=number % 4 >= 2) for number, case in enumerate(chosen)
    ]
