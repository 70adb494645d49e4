"""How a durable name's progress is committed, against a broker that is only written down."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping
from dataclasses import dataclass

from txlayer.adapters.kafka_positions import Committer
from txlayer.adapters.kafka_reader import Place

PLACE = ("t", 0)


@dataclass
class At:
    safe: int


class Broker:
    """Answers commits when it is told to."""

    def __init__(self) -> None:
        self.asked: list[dict[Place, int]] = []
        self.answers: list[concurrent.futures.Future[None]] = []

    def commit(self, offsets: Mapping[Place, int]) -> concurrent.futures.Future[None]:
        self.asked.append(dict(offsets))
        self.answers.append(concurrent.futures.Future())
        return self.answers[-1]

    def serve(self) -> None:
        """Everything that was asked is done now."""
        for answer in self.answers:
            if not answer.done():
                answer.set_result(None)


def committer(broker: Broker, recommit: float = 1000.0) -> Committer:
    made = Committer(broker, recommit)
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


def test_the_last_commit_waits_for_the_one_under_way_and_then_for_itself() -> None:
    broker = Broker()
    commits = committer(broker)
    commits.tick({PLACE: At(6)})
    commits.finish({PLACE: At(8)})
    assert broker.asked == [{PLACE: 6}, {PLACE: 8}]
    assert all(answer.done() for answer in broker.answers)
