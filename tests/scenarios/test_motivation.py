"""The six scenarios that motivate TOPS over HTS (4.1.1 to 4.1.6), all about scheduling a meeting.

Several publishers, an initiator who does not take part, one event type for plain and transactional events, events of
types that nobody subscribed to, constraints that are tested again at the commit, and members that fail alone.
"""

from __future__ import annotations

import pytest

from tests.conftest import eventually
from tests.scenarios.conftest import PATIENT, Diary
from tests.sites.conftest import Sites
from txlayer import Access, Scope, Site, Status, at_least
from txlayer.errors import TransactionAborted


def attendees(sites: Sites, diary: Diary, meetings: str, *names: str) -> list[Site]:
    return [sites.member(name, meetings, diary.client(name)) for name in names]


def test_two_publishers_fill_one_transaction(sites: Sites, diary: Diary) -> None:
    """4.1.1: one secretary announces the meeting, another one the room, and it is one transaction."""
    meetings = sites.name("meetings")
    invited = attendees(sites, diary, meetings, "x", "y")
    coordinator = sites.start("office", hosts=True)
    a, b = sites.start("A"), sites.start("B")
    sites.know(coordinator, meetings, *invited)
    for site in (a, b):
        eventually(lambda site=site: coordinator.name in [view.name for view in site.sites()])

    with a.transaction(
        meetings, {"subject": "budget"}, access=Access.MULTI, coordinator=coordinator.name, **PATIENT
    ) as tx:
        tx.publish("Friday 15:00")
        eventually(lambda: (meetings, "Friday 15:00") in diary.of("x"), "the room comes after the time")
        with b.join_transaction(meetings, {"subject": "budget"}) as same:
            same.publish("room B2")

    story = ["join", (meetings, "Friday 15:00"), (meetings, "room B2"), "prepare", "commit"]
    eventually(lambda: diary.of("x") == diary.of("y") == story)


def test_the_initiator_need_not_take_part(sites: Sites, diary: Diary) -> None:
    """4.1.2: A schedules a meeting on behalf of B. A has no time itself, and is not asked."""
    meetings = sites.name("meetings")
    a = sites.start("A")
    b, c = attendees(sites, diary, meetings, "B", "C")
    sites.know(a, meetings, b, c)

    with a.transaction(meetings, **PATIENT) as tx:
        assert tx.members == 2
        tx.publish("Friday 15:00")

    assert all(view.tx != tx.id or view.part != "member" for view in a.transactions())
    eventually(lambda: diary.of("B")[-1] == diary.of("C")[-1] == "commit")


def test_the_initiator_may_take_part_and_then_counts(sites: Sites, diary: Diary) -> None:
    """4.1.2, the other way round: A subscribes like everyone, and as a member it can veto its own meeting."""
    meetings = sites.name("meetings")
    a = sites.member("A", meetings, diary.client("A", rejects="Friday 15:00"))
    (b,) = attendees(sites, diary, meetings, "B")
    sites.know(a, meetings, a, b)

    with pytest.raises(TransactionAborted, match="A cannot accept"), a.transaction(meetings, **PATIENT) as tx:
        tx.publish("Friday 15:00")

    eventually(lambda: diary.of("B")[-1] == "abort")


def test_one_subscription_serves_plain_and_transactional_events(sites: Sites, diary: Diary) -> None:
    """4.1.3: A publishes an ordinary staff meeting, B one in a transaction; attendees subscribed once."""
    meetings = sites.name("staff-meetings")
    invited = attendees(sites, diary, meetings, "x", "y")
    a, b = sites.start("A"), sites.start("B")
    sites.know(b, meetings, *invited)

    a.publish(meetings, "lunch").wait(30)
    eventually(lambda: diary.of("x") == diary.of("y") == [("plain", "lunch")])
    with b.transaction(meetings, **PATIENT) as tx:
        tx.publish("planning")

    story = [("plain", "lunch"), "join", (meetings, "planning"), "prepare", "commit"]
    eventually(lambda: diary.of("x") == diary.of("y") == story)


def test_events_of_any_type_are_delivered(sites: Sites, diary: Diary) -> None:
    """4.1.4: attendees subscribed to schedules alone; the location comes with the transaction."""
    schedule, location = sites.name("meeting-schedule"), sites.name("meeting-location")
    invited = attendees(sites, diary, schedule, "x", "y")
    a = sites.start("A")
    sites.know(a, schedule, *invited)

    with a.transaction(schedule, **PATIENT) as tx:
        tx.publish("Friday 15:00")
        tx.publish("room B2", type=location)

    story = ["join", (schedule, "Friday 15:00"), (location, "room B2"), "prepare", "commit"]
    eventually(lambda: diary.of("x") == diary.of("y") == story)
    assert a.subscribed(location) == []


def test_constraints_are_tested_again_at_commit(sites: Sites, diary: Diary) -> None:
    """4.1.5: the meeting needs two; three join, one fails to commit, and it takes place with the other two."""
    meetings = sites.name("meetings")
    invited = attendees(sites, diary, meetings, "x", "y")
    invited.append(sites.member("top", meetings, diary.client("top", fails_to_prepare=True)))
    a = sites.start("A")
    sites.know(a, meetings, *invited)

    with a.transaction(meetings, settle_for=at_least(2), **PATIENT) as tx:
        assert tx.members == 3
        tx.publish("Friday 15:00")

    assert tx.outcome is not None
    assert (tx.outcome.status, tx.outcome.members) == (Status.COMMITTED, 2)
    eventually(lambda: diary.of("x")[-1] == diary.of("y")[-1] == "commit")
    eventually(lambda: diary.of("top")[-1] == "abort")


def test_local_members_fail_alone(sites: Sites, diary: Diary) -> None:
    """4.1.6: time and place of a conference; who cannot accept the place takes neither, the others both."""
    meetings = sites.name("conference")
    invited = [sites.member(name, meetings, diary.client(name, joins=Scope.LOCAL)) for name in ("x", "y")]
    invited.append(sites.member("top", meetings, diary.client("top", joins=Scope.LOCAL, rejects="Haifa office")))
    a = sites.start("A")
    sites.know(a, meetings, *invited)

    with a.transaction(meetings, local=True, **PATIENT) as tx:
        tx.publish("Friday 15:00")
        tx.publish("Haifa office")

    eventually(lambda: diary.of("x")[-1:] == diary.of("y")[-1:] == ["commit"])
    eventually(lambda: diary.of("top") == ["join", (meetings, "Friday 15:00"), "abort"])
    assert [what for what in diary.of("x") if isinstance(what, tuple)] == [
        (meetings, "Friday 15:00"),
        (meetings, "Haifa office"),
    ]
