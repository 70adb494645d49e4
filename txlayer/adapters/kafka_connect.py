"""The first contact with a Kafka cluster: is it there, does it know us, and how large may an event be."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from txlayer.adapters.kafka_options import KafkaSettings
from txlayer.errors import AuthenticationFailed, BrokerUnreachable, BusError, UsageError

DEFAULT_MESSAGE_BYTES = 1_000_000
"""The client's own limit, where the broker does not say."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that answered."""

    admin: AdminClient
    message_bytes: int
    """The largest batch that brokers and client take."""


def reach(settings: KafkaSettings, timeout: float) -> Cluster:
    """Connect, or say within `timeout` why not."""
    errors: list[KafkaError] = []
    config: dict[str, Any] = {**settings.admin(), "error_cb": errors.append}
    try:
        admin = AdminClient(config)
    except (KafkaException, ValueError, TypeError) as exc:
        raise UsageError(f"Kafka client settings: {settings.redact(exc)}") from None
    broker = _first_broker(admin, settings, timeout, errors)
    limits = [limit for limit in (_broker_limit(admin, broker, timeout), _given_limit(settings)) if limit]
    return Cluster(admin, min(limits, default=DEFAULT_MESSAGE_BYTES))


def _first_broker(admin: AdminClient, settings: KafkaSettings, timeout: float, errors: list[KafkaError]) -> int:
    deadline = time.monotonic() + timeout
    answer = admin.describe_cluster(request_timeout=timeout)
    while not answer.done() and time.monotonic() < deadline:
        admin.poll(0.01)  # serves the error callback
        for error in errors:
            if error.code() == KafkaError._AUTHENTICATION:
                raise AuthenticationFailed(f"Kafka at {settings.servers}: {settings.redact(error.str())}")
            if error.code() == KafkaError._SSL and "certificate verify failed" in error.str():
                raise BusError(
                    f"the certificate of {settings.servers} is not trusted: give ca= the file of its authority "
                    f"({settings.redact(error.str())})"
                )
    try:
        return int(answer.result(0.01).nodes[0].id)
    except (KafkaException, TimeoutError, IndexError) as exc:
        if isinstance(exc, KafkaException) and exc.args[0].code() in _FORBIDDEN:
            raise BusError(f"Kafka at {settings.servers}: {settings.redact(exc.args[0].str())}") from None
        told = f" ({settings.redact(errors[-1].str())})" if errors else ""
        raise BrokerUnreachable(f"no Kafka broker at {settings.servers} answered within {timeout} s{told}") from None


def _broker_limit(admin: AdminClient, broker: int, timeout: float) -> int | None:
    """`message.max.bytes` of a broker, if the access list lets us read it."""
    resource = ConfigResource(ResourceType.BROKER, str(broker))
    try:
        configs = admin.describe_configs([resource], request_timeout=timeout)[resource].result(timeout + 1.0)
        return int(configs["message.max.bytes"].value or 0) or None
    except (KafkaException, TimeoutError, KeyError, ValueError):
        return None


def _given_limit(settings: KafkaSettings) -> int | None:
    given = settings.given("message.max.bytes")
    return None if given is None else int(given)


_FORBIDDEN = (KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED)
