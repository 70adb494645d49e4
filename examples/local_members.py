"""An invitation that everyone accepts or declines for himself, but always whole: the time and the place, or neither.

In a local transaction there is no vote; a member that fails rolls back alone and the others go on.
Run it with a bus of your own: python examples/local_members.py mqtt://localhost:1883
"""

from __future__ import annotations

import sys
import threading
import time

from txlayer import Event, MemberTransaction, Participant, Scope, Site


def say(text: str) -> None:
    print(text + "\n", end="", flush=True)  # in one piece, whichever thread it is


def office(name: str, bus: str, place: str, ended: threading.Semaphore) -> Site:
    """People of one office; they do not travel."""
    site = Site(name, bus=bus, log="memory://")

    @site.subscriber("conferences", scope=Scope.LOCAL)
    class Invited(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None:
            if event.type == "conference.place" and event.data != place:
                raise ValueError(f"{name} does not travel to {event.data}")

        def on_commit(self, tx: MemberTransaction) -> None:
            say(f"{name}: will be there")
            ended.release()

        def on_abort(self, tx: MemberTransaction) -> None:
            say(f"{name}: will not, and keeps the date free")
            ended.release()

    return site


def main(bus: str) -> None:
    ended = threading.Semaphore(0)
    with (
        office("north", bus, "Haifa", ended),
        office("south", bus, "Eilat", ended),
        Site("organizer", bus=bus, log="memory://") as organizer,
    ):
        while organizer.subscribed("conferences") != ["north", "south"]:
            time.sleep(0.01)
        with organizer.transaction("conferences", local=True) as tx:
            tx.publish("3 May")
            tx.publish("Haifa", type="conference.place")
        for _ in range(2):
            ended.acquire(timeout=10)


if __name__ == "__main__":
    main(*(sys.argv[1:2] or ["memory://conference"]))
