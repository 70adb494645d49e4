"""A meeting that takes place if at least two of the invited can come, and then in all their calendars.

Calendars are invited by subject; one of them refuses, and the constraint still holds without it.
Run it with a bus of your own: python examples/schedule_a_meeting.py mqtt://localhost:1883
"""

from __future__ import annotations

import sys
import time

from txlayer import Event, Limit, MemberTransaction, Participant, Site, at_least
from txlayer.errors import TransactionAborted


def say(text: str) -> None:
    print(text + "\n", end="", flush=True)  # in one piece, whichever thread it is


def calendar(name: str, bus: str, busy_at: str = "") -> Site:
    """A site that attends meetings of one subject, unless it is busy."""
    site = Site(name, bus=bus, log="memory://")

    @site.subscriber("meetings", where={"subject": "DSOnline"})
    class Attend(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None:
            if event.data == busy_at:
                raise ValueError(f"{name} is busy at {event.data}")

        def on_commit(self, tx: MemberTransaction) -> None:
            say(f"{name}: it is in the calendar")

        def on_abort(self, tx: MemberTransaction) -> None:
            say(f"{name}: crossed out")

    return site


def main(bus: str) -> None:
    names = ["ada", "ben", "eve"]
    with (
        calendar("ada", bus),
        calendar("ben", bus, busy_at="15:00"),
        calendar("eve", bus, busy_at="18:00"),
        Site("office", bus=bus, log="memory://") as office,
    ):
        while office.subscribed("meetings") != names:
            time.sleep(0.01)
        for hour in ("15:00", "18:00"):
            with office.transaction(
                "meetings", {"subject": "DSOnline"}, settle_for=at_least(2), limit=Limit.LOCAL
            ) as tx:
                tx.publish(hour)
                tx.publish("room B2", type="meeting.location")
            assert tx.outcome is not None
            say(f"office: at {hour} {tx.outcome.members} of {len(names)} come")
        try:
            with office.transaction("meetings", {"subject": "DSOnline"}) as tx:
                tx.publish("15:00")
        except TransactionAborted as exc:
            say(f"office: without the constraint everyone must come, and it was {exc}")


if __name__ == "__main__":
    main(*(sys.argv[1:2] or ["memory://meeting"]))
