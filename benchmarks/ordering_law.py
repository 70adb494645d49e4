"""Topic popularity as in the study of the multistage sequencer (TNO 5.2, 5.3), and the sizes of stamps that follow.

Popularity is a Pareto law bounded to [1, 1001), whose whole part is a topic. A client's topics are distinct: drawn one
after the other, without putting back. The size of a stamp is that of its topic's sequencing group: the topic and all
that share at least `shared` subscriptions with it (two as published, one in the repaired procedure).
"""

from __future__ import annotations

import heapq
import math
import statistics
from dataclasses import dataclass
from itertools import pairwise
from random import Random

SHAPES = (0.901, 0.349)
TOPICS = 1000


def weights(shape: float, topics: int = TOPICS) -> list[float]:
    """How likely each topic is, the most popular one first."""
    whole = 1 - (topics + 1) ** -shape
    edges = [(1 - n**-shape) / whole for n in range(1, topics + 2)]
    return [after - before for before, after in pairwise(edges)]


def draw_distinct(likely: list[float], count: int, rng: Random) -> list[int]:
    """So many different topics, as if drawn one by one without putting back."""
    random, log = rng.random, math.log
    return heapq.nlargest(count, range(len(likely)), key=[log(1 - random()) / weight for weight in likely].__getitem__)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the stamps of all topics."""

    mean: float
    deviation: float


def stamp_sizes(shape: float, per_client: int, clients: int, rng: Random) -> tuple[Sizes, Sizes]:
    """For the published groups and for ours."""
    likely = weights(shape)
    subscribers = [0] * TOPICS  # a bit per client
    for client in range(clients):
        for topic in draw_distinct(likely, per_client, rng):
            subscribers[topic] |= 1 << client
    two, one = [1] * TOPICS, [1] * TOPICS
    for at, mine in enumerate(subscribers):
        for other in range(at + 1, TOPICS):
            shared = (mine & subscribers[other]).bit_count()
            if shared:
                one[at] += 1
                one[other] += 1
                if shared > 1:
                    two[at] += 1
                    two[other] += 1
    return _sizes(two), _sizes(one)


def _sizes(sizes: list[int]) -> Sizes:
    return Sizes(round(statistics.mean(sizes), 1), round(statistics.pstdev(sizes), 1))
