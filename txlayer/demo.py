"""`txlayer demo`: a meeting is scheduled by transactions, and what can go wrong does. One process, no server.

Every site has its own log and its own SQLite calendar. What is shown is what the runtime of each site does, told by its
probe, in the order in which it happens.
"""

from __future__ import annotations

import logging
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from txlayer import messages as m
from txlayer.conditions import at_least
from txlayer.demo_timeline import Timeline
from txlayer.effects import Broadcast, FinishUnit, Received, Send
from txlayer.errors import Closed, TransactionAborted
from txlayer.event_types import event_type
from txlayer.messages import Conditions
from txlayer.participant import Event, MemberTransaction, Participant
from txlayer.resources.sqlite import SqliteResource
from txlayer.site import Site
from txlayer.transactions.seat import Patience

_SECONDS = 10.0
_PATIENT = {"census_within": _SECONDS, "vote_within": _SECONDS}
"""A census closes when all have answered: on a busy machine that may take a while."""
_QUICK = Patience(retry=0.2, in_doubt=0.3, mark=0.3)
_BUS = "memory://demo"
MEETINGS = "meetings"
MEMBERS = ("anna", "bert", "carl")
HOME = "17:00"
"""Carl takes no meeting after that."""


@event_type("meeting.time")
class Time(msgspec.Struct):
    """When."""

    time: str


@event_type("meeting.room")
class Room(msgspec.Struct):
    """Where: another event type, published in the same transaction without any further subscription."""

    room: str


class Calendar:
    """A member: it writes meetings into its database, as part of the transaction."""

    def __init__(
        self, folder: Path, name: str, say: Callable[[str, str], None], thinks: Callable[[MemberTransaction], None]
    ) -> None:
        self.thinks = thinks
        self.name = name
        self._path = folder / f"{name}-calendar.db"
        self._say = say
        with closing(sqlite3.connect(self._path)) as db:
            db.execute("CREATE TABLE entry (id INTEGER PRIMARY KEY, text TEXT)")
        self.database = SqliteResource(self._path, name)

    def reopen(self) -> None:
        """A site closes its resources; one that comes back brings them again."""
        self.database = SqliteResource(self._path, self.name)

    def handle(self, tx: MemberTransaction, event: Event) -> None:
        """One event."""
        if self.name == "carl" and isinstance(event.data, Time) and event.data.time > HOME:
            self.thinks(tx)
            raise ValueError(f"carl is at home after {HOME}")
        text = event.data.time if isinstance(event.data, Time) else event.data.room
        tx[self.database].execute("INSERT INTO entry (text) VALUES (?)", (text,))
        self._say(self.name, f"writes {text}, #{event.number} of {event.publisher}")

    def entries(self) -> list[str]:
        """What is committed."""
        with closing(sqlite3.connect(self._path)) as db:
            return [text for (text,) in db.execute("SELECT text FROM entry ORDER BY id")]


class Demo:
    """The sites and what they tell."""

    def __init__(self, folder: Path, timeline: Timeline) -> None:
        self.folder = folder
        self.timeline = timeline
        self.calendars = {name: Calendar(folder, name, timeline.say, self._think) for name in MEMBERS}
        self.lunches: list[str] = []
        self.sites: dict[str, Site] = {}
        self.ordered = threading.Event()
        """The caterer has voted: what it ordered is ordered."""
        self.kill = ""
        """Who is to be killed when its vote has been counted, before it hears of the decision."""
        self._told: set[object] = set()

    def start(self, name: str) -> Site:
        """A site, perhaps for another time: the same name and the same log."""
        site = Site(
            name, bus=_BUS, log=f"sqlite:///{self.folder / name}.db", patience=_QUICK, types=[Time, Room],
            probe=lambda what, thing: self._hear(name, what, thing),
        )  # fmt: skip
        if name in self.calendars:
            calendar = self.calendars[name]
            site.subscribe(MEETINGS, calendar.handle, resources=[calendar.database])
        if name == "caterer":
            site.subscribe(MEETINGS, self._caterer(), where={"lunch": "yes"})
        self.sites[name] = site.start()
        return site

    def _think(self, tx: MemberTransaction) -> None:
        """Carl refuses late: when there is lunch, after it is ordered."""
        if tx.attributes.get("lunch") == "yes":
            self.ordered.wait(_SECONDS / 4)

    def _caterer(self) -> type[Participant]:
        """Orders at once, and knows how to cancel: a compensatable member."""
        demo = self

        class Caterer(Participant):
            def on_event(self, tx: MemberTransaction, event: Event) -> None:
                if isinstance(event.data, Time):
                    demo.lunches.append(event.data.time)
                    demo.timeline.say("caterer", "orders lunch")

            def on_compensate(self, tx: MemberTransaction, event: Event) -> None:
                if isinstance(event.data, Time):
                    demo.lunches.remove(event.data.time)
                    demo.timeline.say("caterer", "cancels it", "yellow")

        return Caterer

    def schedule(self, when: str, where: str, lunch: str = "no", settle_for: Conditions | None = None) -> None:
        """The office schedules a meeting."""
        office = self.sites["office"]
        self.timeline.say("office", f"schedules {when}")
        try:
            with office.transaction(MEETINGS, {"lunch": lunch}, settle_for=settle_for, **_PATIENT) as tx:
                tx.publish(Time(when))
                tx.publish(Room(where))
        except TransactionAborted as exc:
            self.timeline.end(f"aborted by {exc.by}: {exc.reason}", "red")
        else:
            assert tx.outcome is not None
            self.timeline.end(f"committed with {tx.outcome.members} members", "green")

    def settle(self) -> None:
        """Wait until nobody has anything left to do."""
        self._await(lambda: not any(self._busy(site) for site in self.sites.values()), "the sites did not come to rest")
        self.timeline.show()

    @staticmethod
    def _await(condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + _SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(otherwise)
            time.sleep(0.02)

    @staticmethod
    def _busy(site: Site) -> bool:
        return any(view.state not in ("done", "refused", "committed", "aborted") for view in site.transactions())

    def bring_back(self, name: str) -> None:
        """What a supervisor does after a crash: start it again, with the log that it left."""
        self._await(lambda: self.kill != name, f"{name} is not killed")
        dead = self.sites.pop(name)
        dead.close(0.0)
        self.calendars[name].reopen()
        self.timeline.say(name, "is started again", "yellow")
        self.start(name)

    def _hear(self, name: str, what: str, thing: object) -> None:
        if (
            what == "step"
            and self.kill == name
            and isinstance(thing, Received)
            and isinstance(thing.message, m.Decision)
        ):
            self.kill = ""
            self.timeline.say(name, "IS KILLED", "bold red")
            raise Closed(f"{name} was killed")
        if what == "performed" and isinstance(thing, Send | Broadcast):
            self._on_message(name, thing.message)
        elif what == "worked" and isinstance(thing, FinishUnit) and (name, thing) not in self._told:
            self._told.add((name, thing))  # a site that comes back makes sure of what it has done before
            self.timeline.say(name, *(("commits", "green") if thing.commit else ("rolls back", "red")))

    def _on_message(self, name: str, message: object) -> None:
        match message:
            case m.Census():
                self.timeline.say(name, "who takes part?")
            case m.Join():
                self.timeline.say(name, "joins")
            case m.Prepare():
                self.timeline.say(name, "asks for votes")
            case m.Vote():
                self.timeline.say(name, *(("votes no", "red") if message.reason else ("votes yes", "")))
                if name == "caterer":
                    self.ordered.set()
            case m.Decision():
                self.timeline.say(name, *(("DECIDES commit", "green") if message.final else ("DECIDES abort", "red")))


@contextmanager
def _sites(folder: Path, timeline: Timeline) -> Iterator[Demo]:
    demo = Demo(folder, timeline)
    try:
        for name in (*MEMBERS, "caterer", "office"):
            demo.start(name)
        members = sorted((*MEMBERS, "caterer"))
        deadline = time.monotonic() + _SECONDS
        while demo.sites["office"].subscribed(MEETINGS) != members and time.monotonic() < deadline:
            time.sleep(0.01)
        yield demo
    finally:
        for site in demo.sites.values():
            site.close(1.0)


def run(console: Console | None = None) -> int:
    """Tell the story; 0 if everyone agrees in the end."""
    console = console or Console()
    logging.getLogger("txlayer").addHandler(logging.NullHandler())
    timeline = Timeline(console, ("office", *MEMBERS, "caterer"))
    console.print("[bold]txlayer[/bold]: five sites, one process, no server. MQTT and Kafka take the same calls.")
    with closing(timeline), tempfile.TemporaryDirectory() as folder, _sites(Path(folder), timeline) as demo:
        return _story(demo, console)


def _story(demo: Demo, console: Console) -> int:
    timeline = demo.timeline
    timeline.scene(
        "The meeting is scheduled", "Events with number and publisher beside them: in all calendars, or none."
    )
    demo.schedule("15:00", "B2")
    demo.settle()

    timeline.scene("Carl refuses, and two are enough", "settle_for=at_least(2): the constraint still holds.")
    demo.schedule("17:30", "B3", settle_for=at_least(2))
    demo.settle()

    timeline.scene(
        "Carl refuses, and lunch is cancelled", "The caterer ordered at once and undoes it; the others roll back."
    )
    demo.schedule("18:00", "B4", lunch="yes")
    demo.settle()

    timeline.scene(
        "Bert is killed after his vote, before he hears the decision",
        "His log knows that he said yes. He comes back and asks.",
    )
    demo.kill = "bert"
    demo.schedule("11:00", "B5")
    demo.bring_back("bert")
    demo.settle()
    return _agreement(demo, console)


def _agreement(demo: Demo, console: Console) -> int:
    everyone, without_carl = ["15:00", "B2", "17:30", "B3", "11:00", "B5"], ["15:00", "B2", "11:00", "B5"]
    expected: dict[str, Any] = {"anna": everyone, "bert": everyone, "carl": without_carl}
    console.print("\n[bold]Everyone agrees[/bold]")
    for name, calendar in demo.calendars.items():
        console.print(f"  {name:8} {', '.join(calendar.entries())}", highlight=False)
    console.print(f"  {'caterer':8} {', '.join(demo.lunches) or 'no lunch'}", highlight=False)
    agreed = not demo.lunches and all(demo.calendars[name].entries() == expected[name] for name in MEMBERS)
    if not agreed:
        console.print("[bold red]  they do not agree[/bold red]")
    return 0 if agreed else 1
