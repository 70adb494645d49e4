"""Servers for anything that is no pytest test, such as benchmarks and scripts.

    with servers.mqtt() as server:
        connect(server.url)

Each call looks for a URL in the environment, then Docker, then starts a native process. For a server of one's own that
can be killed and has special settings, use the classes `Mosquitto`, `Kafka` and `Postgres`.
"""

from __future__ import annotations

from txlayer.testing import containers
from txlayer.testing.choose import Service, choose
from txlayer.testing.kafka import Kafka
from txlayer.testing.mosquitto import Mosquitto
from txlayer.testing.postgres import Postgres
from txlayer.testing.server import Server

__all__ = ["KAFKA", "MQTT", "POSTGRES", "Kafka", "Mosquitto", "Postgres", "kafka", "mqtt", "postgres"]


def _steady_kafka() -> Kafka:
    """For a broker that nobody kills, Kafka's own patience: a starved one is not shut out by its controller."""
    return Kafka(broker_session_timeout_ms=9_000)


MQTT = Service("MQTT broker", "TXLAYER_MQTT_URL", ("mqtt", "mqtts"), 1883, containers.mqtt, Mosquitto)
KAFKA = Service("Kafka broker", "TXLAYER_KAFKA_URL", ("kafka",), 9092, containers.kafka, _steady_kafka)
POSTGRES = Service(
    "PostgreSQL server",
    "TXLAYER_POSTGRES_URL",
    ("postgresql", "postgres"),
    5432,
    containers.postgres_server,
    Postgres,
)


def mqtt() -> Server:
    """An MQTT broker: Mosquitto without queue limits, or the one at TXLAYER_MQTT_URL."""
    return choose(MQTT)


def kafka() -> Server:
    """A Kafka broker on which an idempotent producer works at once, or the one at TXLAYER_KAFKA_URL."""
    return choose(KAFKA)


def postgres(number: int = 0) -> Server:
    """A PostgreSQL that takes prepared transactions, or the one at TXLAYER_POSTGRES_URL.

    Every call starts a new server; `number` picks from several URLs in the variable.
    """
    return choose(POSTGRES, number=number)
