"""Runs a case: end one process where it says, start it again, and see that everyone agrees."""

from __future__ import annotations

import itertools
import time
from typing import Any

from tests.crash_matrix.cases import (
    COMMITTED,
    FORGOTTEN,
    LATE,
    MULTI,
    NOT_COMMITTED,
    ORPHANED,
    SPLIT,
    STUCK,
    UNDO,
    Case,
)
from tests.crash_matrix.cluster import MEMBERS, OBSERVERS, SECONDS, Cluster, NotInTime
from tests.crash_matrix.hook import After

_numbers = itertools.count(1)
PAUSED = {LATE: "perform Send:Vote", UNDO: "work PrepareUnit", STUCK: "work PrepareUnit"}
"""Where c stands still: until the decision is made without it, or until the others have committed."""
UNKNOWN = ("unknown", "error", "PENDING", "UNKNOWN", "FINISHED")


def run_case(cluster: Cluster, case: Case) -> None:
    """`AssertionError` says what is wrong."""
    scenario, members = case.scenario, cluster.members
    key = f"{case.row}-{next(_numbers)}"
    names = (*MEMBERS, "l", "f") if scenario.type == "scoped" else ("a",) if scenario.type == "single" else MEMBERS
    for driver in dict.fromkeys(("p", scenario.coordinator)):
        cluster.gather(driver, scenario.type, names)
    if scenario.coordinator == "h":
        cluster.wait(lambda: cluster.full("h") in members["p"].ask("hosts")[1], "the host is known")
    if scenario.type == "scoped":
        readers = " ".join(sorted(cluster.full(name) for name in OBSERVERS))
        cluster.wait(lambda: members["p"].ask("readers")[1] == readers, "those who read have registered")
        cluster.wait(lambda: members["p"].ask("next")[1] == "0", "everything earlier is read")
    victim, after = members[case.victim], cluster.after()
    if case.scenario is ORPHANED:
        members["p"].arm("step Received:Ack", 1, after)
    if scenario in PAUSED:
        members["c"].ask("pause", point=PAUSED[scenario], after=after)
    victim.arm(case.point, case.nth, after)
    second = scenario.terms.get("second")
    terms: dict[str, Any] = {**scenario.terms, "members": [cluster.full(name) for name in scenario.members]}
    terms["coordinator"] = cluster.full(scenario.coordinator)
    members["p"].tell(scenario.command, key, type=scenario.type, data=scenario.data, **terms)
    if second is not None:
        _second_publisher(cluster, case, key)
    if scenario in PAUSED:
        _release(cluster, case, key)
    if not victim.await_death(SECONDS):
        raise NotInTime(f"{case.victim} did not come to {case.point}")
    told = members["p"].reply(key, 0.0) if case.victim == "p" else None
    _revive(cluster, case, after)
    seen = told[0] if told is not None and told[0] not in UNKNOWN else _outcome(cluster, case, key)
    _check(cluster, case, key, seen)
    cluster.done.append((case, key, seen))


def recheck(cluster: Cluster) -> list[str]:
    """What was right when its case ended and is not any more."""
    found = [(case, _wrong(cluster, case, key, seen)) for case, key, seen in cluster.done]
    changed = [f"{case.name}: later on {wrong}" for case, wrong in found if wrong]
    return changed + [f"{gid} is left" for gid in cluster.prepared()]


def _release(cluster: Cluster, case: Case, key: str) -> None:
    if case.scenario is LATE:
        cluster.members["p"].has_replied(key, SECONDS)
    else:
        victim = cluster.members[case.victim]
        cluster.wait(
            lambda: not victim.alive() or (cluster.rows("a", key) and cluster.rows("b", key)), "a and b commit at once"
        )
    cluster.members["c"].tell("release", f"{key} release")


def _second_publisher(cluster: Cluster, case: Case, key: str) -> None:
    opened = cluster.members["p"].reply(key, SECONDS)
    assert opened is not None, "p died"
    assert opened[0] == "opened", opened
    second = cluster.members[case.scenario.terms["second"]]
    second.tell("join", key, tx=opened[1], type=case.scenario.type, data={})
    assert second.await_death(SECONDS), f"{case.victim} did not come to {case.point}"
    cluster.members["p"].tell("go_on", f"{key} go on")


def _revive(cluster: Cluster, case: Case, after: After) -> None:
    victim = cluster.members[case.victim]
    if case.scenario is ORPHANED:
        assert cluster.members["p"].await_death(SECONDS), "the coordinator did not decide"
    if case.twice and not _ends_again(cluster, case, after):
        return
    if not victim.start():
        raise NotInTime(f"{case.victim} did not start again")


def _ends_again(cluster: Cluster, case: Case, after: After) -> bool:
    """Start the victim to die once more as it recovers; False if it recovers and never comes to that point."""
    victim, (point, nth) = cluster.members[case.victim], case.second
    victim.start(point, nth, after)
    try:
        cluster.wait(lambda: not victim.alive() or _recovered(cluster, case), f"{case.victim} recovers, or dies again")
        victim.arm("", 0, {})
    except (NotInTime, OSError):
        if not victim.await_death(SECONDS):
            raise
    if victim.alive():
        return False
    cluster.second_ends[point] += 1
    return True


def _recovered(cluster: Cluster, case: Case) -> bool:
    """Whether the victim has nothing left to do, and nobody waits for what it might say."""
    if case.victim in OBSERVERS and cluster.members["p"].ask("next")[1] != "0":
        return False
    return bool(cluster.members[case.victim].ask("recovered")[1]) and not cluster.prepared()


def _outcome(cluster: Cluster, case: Case, key: str) -> str:
    """What the publisher saw; if it died or was left in doubt, what it hears when it asks."""
    if case.scenario is ORPHANED:
        _peers_help(cluster, case, key)
        cluster.members["p"].start()
    publisher = cluster.members["p"]
    seen = publisher.reply(key, SECONDS) if case.victim != "p" and case.scenario is not ORPHANED else None
    if seen is not None and seen[0] not in UNKNOWN:
        return seen[0]
    if case.scenario is FORGOTTEN:
        return "unknown"
    end = time.monotonic() + SECONDS
    answer = ("", "")
    while time.monotonic() < end:
        answer = publisher.ask("outcome", of=key, coordinator=cluster.full(case.scenario.coordinator))
        if answer[0] not in UNKNOWN or answer[0] == "FINISHED":
            return answer[0]
        time.sleep(0.1)
    raise NotInTime(f"nobody knows the outcome: {answer}")


def _peers_help(cluster: Cluster, case: Case, key: str) -> None:
    """While the coordinator is away, a peer repeats its decision to the member that missed it."""
    cluster.wait(lambda: _whole(cluster.rows(case.victim, key), 2), f"{case.victim} hears the decision from its peers")


def _check(cluster: Cluster, case: Case, key: str, seen: str) -> None:
    if case.outcomes:
        assert seen in case.outcomes, f"the publisher saw {seen}"
    wrong = ""

    def right() -> bool:
        nonlocal wrong
        wrong = _wrong(cluster, case, key, seen) or " ".join(cluster.prepared())
        return not wrong

    try:
        cluster.wait(right, "")
    except NotInTime as exc:
        raise NotInTime(f"{exc}{wrong}; the publisher saw {seen}") from None
    if case.scenario is STUCK:
        cluster.wait(lambda: "member:parked" in cluster.members["a"].ask("views")[1], "the parked one is listed")


def _wrong(cluster: Cluster, case: Case, key: str, seen: str) -> str:
    """What does not agree with the outcome, or nothing."""
    scenario = case.scenario
    rows = {name: cluster.rows(name, key) for name in (*MEMBERS, *OBSERVERS)}
    committed = seen in COMMITTED if seen in (*COMMITTED, *NOT_COMMITTED) else any(rows[m] for m in scenario.members)
    events = len(rows["a"]) if scenario is MULTI else scenario.events  # a second publisher may die on the way
    for name in scenario.members:
        if scenario is STUCK and name == "a" and rows[name]:
            continue  # committed, and cannot be undone
        if committed and not _whole(rows[name], events):
            return f"{name} has {rows[name]} of a committed transaction"
        if not committed and not _nothing(rows[name]):
            return f"{name} has {rows[name]} of one that did not commit"
        if committed and scenario is MULTI and cluster.published(name, key, "p") != 2:
            return f"{name} has not all events of the first publisher: {rows[name]}"
    if scenario is LATE and rows["c"]:
        return f"c, which is not on the final list, has {rows['c']}"
    if scenario.type == "scoped":
        if not _whole(rows["f"], scenario.events if committed else 0):
            return f"the follower has {rows['f']}"
        called = committed or scenario is SPLIT  # all its points are behind the call, which is logged before anything
        if not _whole(rows["l"], scenario.events if called else 0):
            return f"the local member has {rows['l']}"
    return ""


def _whole(rows: list[tuple[int, bool]], events: int) -> bool:
    """All events, each once, in order."""
    return rows == [(number, False) for number in range(1, events + 1)]


def _nothing(rows: list[tuple[int, bool]]) -> bool:
    """Nothing, or all of it and then all of it undone, last first."""
    done = [number for number, undo in rows if not undo]
    undone = [number for number, undo in rows if undo]
    return undone == done[::-1] and len(set(done)) == len(done)
