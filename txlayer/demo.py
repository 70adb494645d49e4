"""`txlayer demo`: typed events between sites on the memory bus, with what travels beside each payload."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
from rich.console import Console
from rich.table import Table

from txlayer.connect import connect
from txlayer.delivery import Delivery
from txlayer.ports import Bus, Identity
from txlayer.presence import Roster

_SECONDS = 10.0


class Time(msgspec.Struct):
    """An event type of the demo."""

    time: str


class Room(msgspec.Struct):
    """Another one."""

    room: str


TYPES: dict[str, type[Time] | type[Room]] = {"meeting.time": Time, "meeting.room": Room}


class Seen:
    """What the subscribers got."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._deliveries: list[tuple[str, Delivery]] = []

    def by(self, site: str) -> Callable[[Delivery], None]:
        def handler(delivery: Delivery) -> None:
            with self._changed:
                self._deliveries.append((site, delivery))
                self._changed.notify_all()

        return handler

    def take(self, count: int) -> list[tuple[str, Delivery]]:
        """Wait for that many deliveries and hand them out, by subscriber."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._deliveries) >= count, _SECONDS):
                raise RuntimeError(f"{count} deliveries expected, {len(self._deliveries)} came")
            taken, self._deliveries = self._deliveries, []
        return sorted(taken, key=lambda entry: entry[0])


def publish(bus: Bus, topic: str, event: Time | Room) -> None:
    """A typed event: its encoding is the payload, its type travels beside it."""
    name = next(name for name, type in TYPES.items() if isinstance(event, type))
    bus.publish(topic, msgspec.json.encode(event), type=name).wait(_SECONDS)


def show(console: Console, deliveries: list[tuple[str, Delivery]]) -> None:
    """A row for each: the payload as it was, the event that its type makes of it, and what travelled beside it."""
    table = Table.grid(padding=(0, 2))
    for site, delivery in deliveries:
        metadata = delivery.metadata
        assert metadata is not None
        event = msgspec.json.decode(delivery.payload, type=TYPES[metadata.type])
        beside = f"{metadata.type} #{metadata.number} of {metadata.source.split('/')[-1][:6]}"
        table.add_row(f"  [green]{site}[/green]", delivery.topic, f"[cyan]{event}[/cyan]", f"[dim]{beside}[/dim]")
    console.print(table, soft_wrap=True)


def run(console: Console | None = None) -> int:
    console = console or Console()
    console.print("[bold]txlayer[/bold]: four sites, one process, no server. MQTT and Kafka take the same calls.\n")
    url = "memory://demo"
    with connect(url) as office, connect(url) as calendar, connect(url) as board, connect(url) as archive:
        seen = Seen()
        for name, bus in (("office", office), ("calendar", calendar), ("board", board)):
            bus.enter(name, Identity(f"{name}-log"))
        calendar.subscribe("meetings/+", seen.by("calendar"))
        board.subscribe("meetings/rooms", seen.by("board"))
        archive.subscribe("meetings/#", seen.by("archive"), durable="archive").close()

        publish(office, "meetings/times", Time("15:00"))
        publish(office, "meetings/times", Time("16:00"))
        publish(office, "meetings/rooms", Room("B2"))
        console.print("[bold]office published three events[/bold]; type and number travel beside the payload:")
        show(console, seen.take(4))

        archive.subscribe("meetings/#", seen.by("archive"), durable="archive")
        console.print("\n[bold]the archive was away[/bold]; its durable subscription kept them:")
        show(console, seen.take(3))

        with Roster(office) as roster:
            sites = ", ".join(f"{site.name} ({site.standing.value})" for site in roster.sites())
        console.print(f"\n[bold]who is here:[/bold] {sites}")
    return 0
