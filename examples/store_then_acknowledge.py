"""A consumer that acknowledges an event only after it is in its database, and so loses none when it dies.

Events are stored under their stream and number, so one that comes again after a crash changes nothing.
Run it with a bus of your own: python examples/store_then_acknowledge.py mqtt://localhost:1883
"""

from __future__ import annotations

import sqlite3
import sys
import threading

import txlayer


def consume(url: str, database: str, until: int) -> None:
    """Store events until the table holds `until` of them."""
    complete = threading.Event()

    def store(event: txlayer.Delivery) -> None:
        assert event.metadata is not None
        with sqlite3.connect(database) as table:
            table.execute("create table if not exists reading (id text primary key, value blob)")
            table.execute("insert or ignore into reading values (?, ?)", (event.metadata.id, event.payload))
            count = table.execute("select count(*) from reading").fetchone()[0]
        table.close()
        event.ack()  # safe here: now the broker may forget it
        print(f"stored {event.metadata.id}: {event.payload.decode()}")
        if count == until:
            complete.set()

    with txlayer.connect(url) as bus:
        bus.subscribe(bus.topic("readings"), store, durable="reading-store", ack=txlayer.Ack.MANUAL)
        if not complete.wait(30):
            raise SystemExit(f"fewer than {until} events came")


def main(url: str, database: str) -> None:
    with txlayer.connect(url) as bus:
        topic = bus.topic("readings")
        bus.subscribe(topic, lambda event: None, durable="reading-store").close()  # from here on nothing is missed
        for value in range(3):
            bus.publish(topic, f"{20 + value} °C".encode()).wait(30)
    consume(url, database, until=3)


if __name__ == "__main__":
    main(*(sys.argv[1:2] or ["memory://readings"]), *(sys.argv[2:3] or ["readings.db"]))
