"""The same load through txlayer, on whatever bus the URL names, and a raw way compared with it."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.side_by_side import Publish, Subscribe, Way, compare, stamped
from txlayer import Delivery, connect, errors

SECONDS = 60.0
WARM = "bench-warm"
"""Publishers send this topic one event first: an idempotent Kafka producer may wait half a second for its number."""


def measure(raw_publish: Publish, raw_subscribe: Subscribe, url: str, events: int, repetitions: int) -> dict[str, Any]:
    """Both ways in turns, and how long a subscription takes at run-time."""
    ways = [Way("raw", raw_publish, raw_subscribe), Way("txlayer", publish, subscribe)]
    result = compare(ways, url, events, repetitions)
    result["ratio"] = round(result["txlayer"]["events_per_second"] / result["raw"]["events_per_second"], 3)
    result["subscribe_to_first_event_ms"] = subscribe_to_first_event_ms(url)
    return result


def publish(url: str, topic: str, events: int, pause: float, acknowledged: Callable[[], None]) -> None:
    with connect(url) as bus:
        bus.publish(WARM, b"").wait(SECONDS)
        receipts = []
        for _ in range(events):
            while True:
                try:
                    receipts.append(bus.publish(topic, stamped()))
                    break
                except errors.Backpressure:
                    receipts[-1].wait(SECONDS)
            if pause:
                time.sleep(pause)
        for receipt in receipts:
            receipt.wait(SECONDS)
        acknowledged()


def subscribe(url: str, topic: str, ready: Callable[[], None], seen: Callable[[bytes], bool]) -> None:
    done = threading.Event()

    def handler(delivery: Delivery) -> None:
        if seen(delivery.payload):
            done.set()

    with connect(url) as bus:
        bus.subscribe(topic, handler)
        ready()
        done.wait(300)


def subscribe_to_first_event_ms(url: str, rounds: int = 20) -> float:
    """From the call of `subscribe`, on a bus that is receiving, to the first event at the handler; median."""
    times = []
    with connect(url) as subscriber, connect(url) as publisher:
        for number in range(rounds):
            topic, arrived = f"bench-first-{time.monotonic_ns()}-{number}", threading.Event()
            publisher.publish(topic, b"there is such a topic").wait(SECONDS)
            began = time.monotonic()
            subscriber.subscribe(topic, lambda _, arrived=arrived: arrived.set())  # type: ignore[misc]
            publisher.publish(topic, b"x")
            arrived.wait(SECONDS)
            times.append(time.monotonic() - began)
    return round(statistics.median(times[1:]) * 1000, 2)  # the first one may start a consumer
