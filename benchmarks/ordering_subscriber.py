"""What an event costs a subscriber, as its topics and its waiting events grow: no step may look at all of them.

Each load is given to the delivery buffer alone and to the whole subscriber, which also checks the stamp, looks the host
up and keeps watch over what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from txlayer.ordering import effects as fx
from txlayer.ordering.delivery_buffer import DeliveryBuffer
from txlayer.ordering.messages import Event, Located, Registered
from txlayer.ordering.subscriber import Subscriber
from txlayer.ordering.subscriber_config import SubscriberConfig
from txlayer.ordering.timestamp import Stamp

TOPICS = (10, 100, 1_000, 10_000)
BUFFERED = (10, 100, 1_000, 10_000, 100_000)
Make = Callable[[int], tuple[Callable[[Event], object], DeliveryBuffer]]


def subscriber(repetitions: int) -> dict[str, dict[str, float]]:
    """Figure 4: microseconds of processor time per event, the best of so many runs, all of them in turn."""
    return {
        "topics": _best(repetitions, TOPICS, lambda n: _over_topics(n, _step)),
        "topics, buffer alone": _best(repetitions, TOPICS, lambda n: _over_topics(n, _take)),
        "entries": _best(repetitions, (1, 10, 100, 1_000), lambda n: _over_topics(1_001, _step, n)),
        "buffered": _best(repetitions, BUFFERED, lambda n: _over_buffered(n, _step)),
        "buffered, buffer alone": _best(repetitions, BUFFERED, lambda n: _over_buffered(n, _take)),
    }


def _best(repetitions: int, sizes: tuple[int, ...], cost: Callable[[int], float]) -> dict[str, float]:
    runs = [{size: cost(size) for size in sizes} for _ in range(repetitions)]
    return {str(size): round(min(run[size] for run in runs) * 1e6, 2) for size in sizes}


def _take(topics: int) -> tuple[Callable[[Event], object], DeliveryBuffer]:
    buffer = DeliveryBuffer()
    for rank in range(topics):
        buffer.add(f"t{rank}", rank, 0)
    return lambda event: buffer.take(event, 0.0), buffer


def _step(topics: int) -> tuple[Callable[[Event], object], DeliveryBuffer]:
    made = Subscriber("s", SubscriberConfig())
    names = tuple(f"t{rank:05}" for rank in range(topics))
    made.step(fx.Claimed(0, "a", 1, "log-a", ("*",)), 0.0)
    made.step(fx.Want(names), 0.0)
    for name in names:
        made.step(fx.BusSubscribed(name), 0.0)
    made.step(Located(0, 1, names, tuple(range(topics))), 0.0)
    made.step(Registered(1, False, 0.0, tuple(range(topics)), (0,) * topics), 0.0)
    assert made.at_rest
    return lambda event: made.step(event, 0.0), made.buffer


def _over_topics(topics: int, make: Make, entries: int = 10, events: int = 20_000) -> float:
    """So many entries in each stamp; eight events at a time come in the wrong order."""
    events = min(events, 2_000_000 // entries)
    clocks, made = [0] * topics, []
    for n in range(events):
        rank = n * 7 % topics
        clocks[rank] += 1
        others = sorted({(rank + 1 + step * 3) % topics for step in range(entries)} - {rank})
        stamp = Stamp(rank, clocks[rank], 1, 0, tuple(others), tuple(clocks[other] for other in others))
        made.append(Event("p", clocks[rank], stamp, b""))
    arrivals = [event for at in range(0, events, 8) for event in reversed(made[at : at + 8])]
    take, buffer = make(topics)
    started = time.process_time()
    for event in arrivals:
        take(event)
    elapsed = time.process_time() - started
    assert buffer.size == 0
    return elapsed / events


def _over_buffered(buffered: int, make: Make, topics: int = 10) -> float:
    """All events but the first come, wait for it, and go when it comes."""
    rounds = max(1, 20_000 // buffered)
    elapsed = 0.0
    for _ in range(rounds):
        clocks, made = [0] * topics, []
        for n in range(buffered + 1):
            rank = n % topics
            clocks[rank] += 1
            others = tuple(other for other in range(topics) if other != rank)
            stamp = Stamp(rank, clocks[rank], 1, 0, others, tuple(clocks[other] for other in others))
            made.append(Event("p", clocks[rank], stamp, b""))
        take, buffer = make(topics)
        started = time.process_time()
        for event in made[1:]:
            take(event)
        assert buffer.size == buffered
        take(made[0])
        elapsed += time.process_time() - started
        assert buffer.size == 0
    return elapsed / rounds / (buffered + 1)
