"""Two secretaries fill one transaction: one says when the meeting is, the other one where.

Several publishers need a coordinator outside of both; here any site that offers to host will do.
Run it with a bus of your own: python examples/two_publishers.py mqtt://localhost:1883
"""

from __future__ import annotations

import sys
import time

from txlayer import Access, Event, MemberTransaction, Site


def say(text: str) -> None:
    print(text + "\n", end="", flush=True)  # in one piece, whichever thread it is


def main(bus: str) -> None:
    host = Site("host", bus=bus, log="memory://", hosts=True)
    calendar = Site("calendar", bus=bus, log="memory://")
    first = Site("first", bus=bus, log="memory://")
    second = Site("second", bus=bus, log="memory://")

    @calendar.subscriber("meetings")
    def enter(tx: MemberTransaction, event: Event) -> None:
        say(f"calendar: {event.number}. {event.data} (from the {event.publisher} secretary)")

    with host, calendar, first, second:
        while host.subscribed("meetings") != ["calendar"]:
            time.sleep(0.01)
        with first.transaction("meetings", {"subject": "budget"}, access=Access.MULTI) as tx:
            tx.publish("Friday 15:00")
            with second.join_transaction("meetings", {"subject": "budget"}) as same:
                same.publish("room B2")  # leaving the block hands it in; only the first secretary commits
        assert tx.outcome is not None
        say(f"host: {tx.outcome.status.value}")


if __name__ == "__main__":
    main(*(sys.argv[1:2] or ["memory://secretaries"]))
