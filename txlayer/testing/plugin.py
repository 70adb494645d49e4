"""The pytest plug-in: brokers and databases as fixtures, see docs/how-to/test-servers.md.

Loaded in every pytest run where txlayer is installed, so it imports nothing heavy until a fixture is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, NoReturn, TypeVar

import pytest

if TYPE_CHECKING:
    from txlayer.testing.kafka import Kafka
    from txlayer.testing.mosquitto import Mosquitto
    from txlayer.testing.postgres import Postgres
    from txlayer.testing.server import Server

S = TypeVar("S", bound="Server")


def obtain_or_skip(start: Callable[[], S]) -> S:
    """The started server; where it cannot be had, the test is skipped, or fails if servers are required."""
    from txlayer.testing.server import ServerUnavailable

    try:
        return start()
    except ServerUnavailable as exc:
        _give_up(str(exc))


def _give_up(reason: str) -> NoReturn:
    from txlayer.testing.choose import REQUIRE, required

    if required():
        pytest.fail(f"{reason} ({REQUIRE} is set)", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def mqtt_broker() -> Iterator[Server]:
    """An MQTT broker shared by the whole run: `mqtt_broker.url`. Do not end it; see `private_mqtt_broker`."""
    from txlayer.testing import servers

    with obtain_or_skip(servers.mqtt) as server:
        yield server


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[Server]:
    """A Kafka broker shared by the whole run: `kafka_broker.url`. Do not end it; see `private_kafka_broker`."""
    from txlayer.testing import servers

    with obtain_or_skip(servers.kafka) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_servers() -> Iterator[Callable[[int], list[Server]]]:
    """`postgres_servers(3)`: that many different servers, the same ones for every test that asks."""
    from txlayer.testing import servers

    running: list[Server] = []
    with ExitStack() as stack:

        def first(count: int) -> list[Server]:
            while len(running) < count:
                running.append(stack.enter_context(obtain_or_skip(lambda: servers.postgres(len(running)))))
            return running[:count]

        yield first


@pytest.fixture(scope="session")
def postgres_server(postgres_servers: Callable[[int], list[Server]]) -> Server:
    """The first of `postgres_servers`."""
    return postgres_servers(1)[0]


@pytest.fixture
def private_mqtt_broker() -> Iterator[Callable[..., Mosquitto]]:
    """`private_mqtt_broker(persistence=True, max_packet_size=1000, user=..., password=..., tls=True)`.

    A Mosquitto of this test's own, which it may kill and restart; ended with the test.
    """
    from txlayer.testing.mosquitto import Mosquitto

    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(obtain_or_skip(lambda: Mosquitto(**settings)))


@pytest.fixture
def private_kafka_broker() -> Iterator[Callable[..., Kafka]]:
    """`private_kafka_broker(sasl={"user": "password"}, tls=True, message_max_bytes=1000)`: one of this test's own."""
    from txlayer.testing.kafka import Kafka

    with ExitStack() as stack:
        yield lambda **properties: stack.enter_context(obtain_or_skip(lambda: Kafka(**properties)))


@pytest.fixture
def private_postgres_server() -> Iterator[Callable[..., Postgres]]:
    """`private_postgres_server(max_connections=10)`: a PostgreSQL of this test's own."""
    from txlayer.testing.postgres import Postgres

    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(obtain_or_skip(lambda: Postgres(**settings)))
