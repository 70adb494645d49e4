"""How a durable name's progress is committed, against a broker that is only written down."""

from __future__ import annotations

import concurrent.futures
from dataclasses import dataclass
from typing import Any

from txlayer.adapters.kafka_positions import Committer

PLACE = ("t", 0)


@dataclass
class At:
    safe: int


class Broker:
    """Answers commits when it is told to."""

    def __init__(self) -> None:
        self.asked: list[dict[Any, int]] = []
        self.answers: list[concurrent.futures.Future[object]] = []

    def commit(self, group: str, offsets: dict[Any, int]) -> concurrent.futures.Future[object]:
        self.asked.append(offsets)
        self.answers.append(concurrent.futures.Future())
        return self.answers[-1]


def committer(broker: Broker, recommit: float = 1000.0) -> Committer:
    made = Committer(broker, "g", recommit)  # type: ignore[arg-type]
    made.know({PLACE: 5})
    return made


def test_only_what_is_news_is_committed() -> None:
    broker = Broker()
    committer(broker).tick({PLACE: At(5)})
    assert broker.asked == []
    committer(broker).tick({PLACE: At(6)})
    assert broker.asked == [{PLACE: 6}]


def test_a_failed_commit_is_made_again_in_the_end() -> None:
    broker = Broker()
    commits = committer(broker)
    commits.tick({PLACE: At(7)})
    broker.answers[0].set_exception(RuntimeError("the broker is away"))
    commits._next = 0.0
    commits.tick({PLACE: At(7)})
    assert broker.asked == [{PLACE: 7}, {PLACE: 7}]


def test_one_commit_at_a_time_so_that_none_overtakes() -> None:
    broker = Broker()
    commits = committer(broker)
    for safe in (6, 7):
        commits._next = 0.0
        commits.tick({PLACE: At(safe)})
    assert broker.asked == [{PLACE: 6}]


def test_an_idle_position_is_committed_again() -> None:
    broker = Broker()
    committer(broker, recommit=0.0).tick({PLACE: At(5)})
    assert broker.asked == [{PLACE: 5}]
