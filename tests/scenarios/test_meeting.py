"""The running example of HTS (1.1, 5.3 to 5.5): a meeting on the subject DSOnline.

Calendars with databases of their own are invited by content, between ten and twenty in the paper, two and three here;
the initiator books a room in a database of its own. Some clients undo by rolling back, others by compensation, and
nobody but themselves knows which.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import eventually
from tests.scenarios.conftest import PATIENT
from tests.sites.conftest import Sites
from txlayer import Event, Limit, MemberTransaction, Participant, Site, Status, all_of, at_least, at_most, named
from txlayer.errors import CensusUnfulfilled, TransactionAborted
from txlayer.resources.memory import MemoryResource
from txlayer.resources.sqlite import SqliteResource

DSONLINE = {"subject": "DSOnline", "date": "15/03/06", "time": "15:00"}


class Calendar:
    """A site that keeps meetings in a database and is interested in one subject."""

    def __init__(self, sites: Sites, name: str, meetings: str, subject: str = "DSOnline", busy: str = "") -> None:
        self.database = SqliteResource(sites.folder / f"{name}.db")
        self.database._db.execute("CREATE TABLE IF NOT EXISTS meeting (what TEXT)")
        calendar = self.database

        class Attend(Participant):
            def on_event(self, tx: MemberTransaction, event: Event) -> None:
                if event.data == busy:
                    raise ValueError(f"{name} is busy")
                tx[calendar].execute("INSERT INTO meeting VALUES (?)", (event.data,))

        self.site: Site = sites.member(name, meetings, Attend, where={"subject": subject}, resources=[calendar])

    def meetings(self) -> list[str]:
        return [row[0] for row in self.database._db.execute("SELECT what FROM meeting ORDER BY rowid")]


class Assistant:
    """A site that commits at once and makes up for it when the meeting is called off: a compensatable client."""

    def __init__(self, sites: Sites, name: str, meetings: str) -> None:
        self.store = MemoryResource()
        self.undone: list[str] = []
        store, undone = self.store, self.undone

        class Arrange(Participant):
            def on_event(self, tx: MemberTransaction, event: Event) -> None:
                tx[store].put(event.data, "arranged")

            def on_compensate(self, tx: MemberTransaction, event: Event) -> None:
                undone.append(event.data)
                tx[store].put(event.data, "called off")

        self.site: Site = sites.member(name, meetings, Arrange, where={"subject": "DSOnline"}, resources=[store])


def initiator(sites: Sites, meetings: str, *invited: Site) -> tuple[Site, MemoryResource]:
    """The initiator takes part with a database of its own, in which it books the room."""
    rooms = MemoryResource()

    def book(tx: MemberTransaction, event: Event) -> None:
        tx[rooms].put("booked for", event.data)

    site = sites.member("p", meetings, book, resources=[rooms])
    sites.know(site, meetings, site, *invited)
    return site, rooms


def schedule(p: Site, meetings: str, *details: str) -> None:
    with p.transaction(meetings, DSONLINE, **PATIENT) as tx:
        for detail in details:
            tx.publish(detail)


def test_the_meeting_is_scheduled_everywhere(sites: Sites) -> None:
    """Who asked for the subject is invited, whatever the details say; every database has the meeting, or none."""
    meetings = sites.name("meeting")
    s1, s2 = Calendar(sites, "s1", meetings), Calendar(sites, "s2", meetings)
    other = Calendar(sites, "s3", meetings, subject="another journal")
    p, rooms = initiator(sites, meetings, s1.site, s2.site, other.site)

    scheduled: dict[str, Any] = {"limit": Limit.DISTRIBUTED, "require": all_of(at_least(2), at_most(3))}
    with p.transaction(meetings, DSONLINE, **scheduled, **PATIENT) as tx:
        assert tx.members == 3
        tx.publish("editorial meeting, 15:00")
        tx.publish("room 12", type=sites.name("meeting-details"))

    assert tx.outcome is not None
    assert tx.outcome.status is Status.COMMITTED
    eventually(lambda: s1.meetings() == s2.meetings() == ["editorial meeting, 15:00", "room 12"])
    eventually(lambda: rooms.values == {"booked for": "room 12"})
    assert other.meetings() == []


def test_one_refusal_undoes_it_everywhere_each_in_its_own_way(sites: Sites) -> None:
    """s2 has no time for the second event: s1 and the initiator roll back, the assistant compensates, last first."""
    meetings = sites.name("meeting")
    s1 = Calendar(sites, "s1", meetings)
    s2 = Calendar(sites, "s2", meetings, busy="dinner")
    assistant = Assistant(sites, "s3", meetings)
    p, rooms = initiator(sites, meetings, s1.site, s2.site, assistant.site)

    with pytest.raises(TransactionAborted, match="s2 is busy"):
        schedule(p, meetings, "editorial meeting, 15:00", "dinner")

    eventually(lambda: not rooms.units and not rooms.prepared)
    eventually(lambda: s1.meetings() == s2.meetings() == [])
    assert rooms.values == {}
    eventually(lambda: "arranged" not in assistant.store.values.values())


def test_an_assistant_that_had_committed_compensates_in_reverse(sites: Sites) -> None:
    """The refusal comes at the prepare, when the assistant has already committed its part."""
    meetings = sites.name("meeting")
    assistant = Assistant(sites, "s1", meetings)

    class Hesitant(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None:
            pass

        def on_prepare(self, tx: MemberTransaction) -> None:
            eventually(lambda: assistant.store.values == {"meeting": "arranged", "dinner": "arranged"})
            raise ValueError("on second thoughts, no")

    s2 = sites.member("s2", meetings, Hesitant)
    p = sites.start("p")
    sites.know(p, meetings, assistant.site, s2)

    with pytest.raises(TransactionAborted, match="second thoughts"):
        schedule(p, meetings, "meeting", "dinner")

    eventually(lambda: assistant.store.values == {"meeting": "called off", "dinner": "called off"})
    assert assistant.undone == ["dinner", "meeting"]


def test_without_a_vital_participant_there_is_no_meeting(sites: Sites) -> None:
    """The editor is vital and away: the census fails, and the calendars hear no details."""
    meetings = sites.name("meeting")
    s1 = Calendar(sites, "s1", meetings)
    p, rooms = initiator(sites, meetings, s1.site)

    with (
        pytest.raises(CensusUnfulfilled),
        p.transaction(meetings, DSONLINE, require=named(sites.name("editor")), census_within=0.5) as tx,
    ):
        tx.publish("editorial meeting, 15:00")

    assert s1.meetings() == []
    assert rooms.values == {}
