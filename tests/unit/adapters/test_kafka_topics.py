"""Finding topics while the broker is away, and after the bus was closed."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.conftest import DEADLINE
from txlayer.adapters.kafka_topics import KafkaTopics
from txlayer.errors import BrokerUnreachable, BusError, Closed, TxLayerError


class Admin:
    """Answers every request with an error."""

    def __init__(self, code: int = KafkaError._TRANSPORT) -> None:
        self._code = code

    def list_topics(self, timeout: float) -> None:
        raise KafkaException(KafkaError(self._code))

    def describe_topics(self, *args: Any, **rest: Any) -> None:
        raise KafkaException(KafkaError(self._code))


def topics(code: int = KafkaError._TRANSPORT) -> KafkaTopics:
    admin: Any = Admin(code)
    return KafkaTopics(admin, 1, 1, str)


@pytest.mark.parametrize(
    ("code", "kind"), [(KafkaError._TRANSPORT, BrokerUnreachable), (KafkaError.CLUSTER_AUTHORIZATION_FAILED, BusError)]
)
def test_topics_that_the_broker_does_not_tell_are_an_error_of_ours(code: int, kind: type[TxLayerError]) -> None:
    with pytest.raises(kind) as caught:
        topics(code).all(1.0)
    assert type(caught.value) is kind


def test_a_search_that_is_under_way_ends_with_the_bus() -> None:
    made = topics()
    found = made.find("t")
    made.close()
    assert isinstance(found.exception(DEADLINE), Closed)


def test_a_search_that_begins_after_close_ends() -> None:
    made = topics()
    made.find("t")
    made.close()
    assert isinstance(made.find("t").exception(DEADLINE), Closed)
    assert isinstance(made.find("u").exception(DEADLINE), Closed)
