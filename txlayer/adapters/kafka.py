"""Entry point of the Kafka adapter; the bus itself is in `kafka_bus`, which needs the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from txlayer.errors import MissingExtra

if TYPE_CHECKING:
    from txlayer.adapters.kafka_bus import KafkaBus


def open_bus(target: object, options: Mapping[str, Any]) -> KafkaBus:
    """Open `kafka://user:password@host:port,host:port?option=value`, or a dict of librdkafka settings."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as exc:
        raise MissingExtra("kafka", "confluent-kafka") from exc
    from txlayer.adapters.kafka_bus import KafkaBus
    from txlayer.adapters.kafka_options import read_target

    return KafkaBus(*read_target(target, options))
