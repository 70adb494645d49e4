"""Positions that the broker is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from txlayer.adapters.kafka_positions import Positions
from txlayer.errors import SubscribeFailed

INVALID = -1001
"""librdkafka's word for no offset."""


class Admin:
    """Gives one answer after the other, the last one again and again."""

    def __init__(self, *answers: int | KafkaError) -> None:
        self._answers = list(answers)
        self.asked = 0

    def list_offsets(self, asked: Mapping[TopicPartition, Any], request_timeout: float) -> dict[TopicPartition, Any]:
        self.asked += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return {place: _future(answer) for place in asked}


def _future(answer: int | KafkaError) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(answer, KafkaError):
        future.set_exception(KafkaException(answer))
    else:
        future.set_result(SimpleNamespace(offset=answer))
    return future


def positions(admin: Admin, timeout: float) -> Positions:
    return Positions(cast("Any", admin), str, timeout)


@pytest.mark.parametrize("no_answer", [INVALID, KafkaError(KafkaError._NOENT, "No leaders found")])
def test_a_broker_that_is_coming_up_is_asked_until_it_tells_a_position(no_answer: int | KafkaError) -> None:
    admin = Admin(no_answer, no_answer, 7)
    assert positions(admin, 60.0).ends([("t", 0)]) == {("t", 0): 7}
    assert positions(Admin(no_answer, 0), 60.0).beginnings([("t", 0)]) == {("t", 0): 0}
    assert admin.asked == 3


def test_what_is_no_position_is_never_taken_for_one() -> None:
    with pytest.raises(SubscribeFailed, match="-1001"):
        positions(Admin(INVALID), 0.01).ends([("t", 0)])
