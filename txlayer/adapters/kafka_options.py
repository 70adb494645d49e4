"""What opens a Kafka bus: the options of a `kafka://` URL, and the settings of the clients that follow from them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from txlayer.adapters.base import EVENT_OVERHEAD
from txlayer.connect import BusUrl, read_options
from txlayer.errors import UsageError

_count = itertools.count(1)
_logger = logging.getLogger(f"{__name__}.driver")

_SECRETS = ("password", "secret", "key.pem", "oauthbearer.config", "token")
_CALLBACKS = frozenset({"error_cb", "stats_cb", "throttle_cb", "on_delivery", "dr_cb", "on_commit", "log_cb", "logger"})
_PRODUCER_ONLY = ("linger.", "batch.", "queue.buffering.", "compression.", "acks", "message.send.", "delivery.")
_CONSUMER_ONLY = ("fetch.", "max.partition.fetch.", "queued.", "isolation.level", "check.crcs", "session.", "max.poll.")

_COMMON: Mapping[str, Any] = {
    "reconnect.backoff.ms": 20,  # half of it is also how long a new client waits before it connects
    "reconnect.backoff.max.ms": 1_000,  # the client adds jitter; its own default of 10 s is long after a restart
    "retry.backoff.ms": 50,
    "socket.keepalive.enable": True,
    "socket.nagle.disable": True,
    "log.connection.close": False,
}
_PRODUCER: Mapping[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "message.timeout.ms": 0,  # kept until the broker is back; `buffer_bytes` is the limit, not time
    "allow.auto.create.topics": False,
}
_CONSUMER: Mapping[str, Any] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "allow.auto.create.topics": False,
}
_PRODUCER_DEFAULTS: Mapping[str, Any] = {"linger.ms": 1}
_CONSUMER_DEFAULTS: Mapping[str, Any] = {
    "fetch.wait.max.ms": 20,  # a partition added at run-time waits for the fetch in flight, held this long; see Pace
    "fetch.queue.backoff.ms": 5,  # with its default of 1 s a reader that was caught up with idles after each 100,000
}
_PATIENT: Mapping[str, Any] = {"fetch.wait.max.ms": 500}
_PATIENT_FOR_VALUES: Mapping[str, Any] = {
    "fetch.wait.max.ms": 100,
    "fetch.min.bytes": 64 * 1024,  # everybody follows the heartbeats of all: not a fetch for each of them
}
_IDENTITIES = ("group.id", "group.instance.id", "transactional.id")
_OWNED = frozenset({*_PRODUCER, *_CONSUMER, *_IDENTITIES, "enable.partition.eof", "queue.buffering.max.messages"})
_FEWEST_EVENTS = 1_000


class _DriverLog:
    """Takes what librdkafka would print on stderr. It calls every attempt to reconnect an error: here it is a note."""

    def log(self, level: int, message: str, *args: object) -> None:
        _logger.log(min(level, logging.INFO), message, *args)


class KafkaOptions(msgspec.Struct, frozen=True):
    """What may stand in the query of a `kafka://` URL or be given by keyword.

    Beside these, every setting of librdkafka: by its dotted name in the URL, or in the dict `config`.
    """

    name: str = ""
    """The client id."""
    max_payload: int | None = None
    buffer_bytes: int = 64 * 1024 * 1024
    cloudevents: bool = False
    partitions: int = 1
    """Of topics that are created on demand."""
    replication: int = -1
    """Of topics that are created on demand; -1: the broker's default."""
    connect_timeout: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    tls: bool = False
    ca: str | None = None
    """File with the certificates to trust; the system's where it is missing."""
    cert: str | None = None
    key: str | None = None
    sasl: str | None = None
    """SASL mechanism; PLAIN where the URL has a user."""
    recommit: float = 600.0
    """Seconds after which an idle durable subscription commits its position again, before the broker forgets it."""
    config: dict[str, Any] = {}

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if name != "config"}
        return f"KafkaOptions({', '.join(f'{name}={value!r}' for name, value in shown.items())}, config=...)"


@dataclass(frozen=True)
class KafkaSettings:
    """Settings for each kind of client. Nothing of them is in the repr: they hold credentials."""

    servers: str
    client_id: str
    _given: Mapping[str, Any] = field(repr=False)

    def admin(self) -> dict[str, Any]:
        return self._common(_PRODUCER_ONLY + _CONSUMER_ONLY)

    def producer(self, buffer_bytes: int, message_bytes: int) -> dict[str, Any]:
        """`message_bytes`: what the broker takes at most; a batch must not be larger either."""
        limits = {
            "queue.buffering.max.kbytes": max(1, buffer_bytes // 1024),
            "queue.buffering.max.messages": most_events(buffer_bytes),
            "message.max.bytes": message_bytes,
            "batch.size": min(1_000_000, message_bytes),
        }
        return {**_PRODUCER_DEFAULTS, **limits, **self._common(_CONSUMER_ONLY), **_PRODUCER}

    def consumer(self, group: str, *, tell_end: bool = False, patient: bool = False) -> dict[str, Any]:
        """`tell_end`: for latest values. `patient`: asks the broker seldom, so that changes of topics take longer."""
        own = {"group.id": group, "enable.partition.eof": tell_end}
        patience = _PATIENT_FOR_VALUES if tell_end else _PATIENT
        defaults = {**_CONSUMER_DEFAULTS, **(patience if patient else {})}
        return {**defaults, **self._common(_PRODUCER_ONLY), **_CONSUMER, **own}

    def given(self, name: str) -> Any:
        """A setting as the user gave it; None if he did not."""
        return self._given.get(name)

    def redact(self, text: object) -> str:
        """A driver's message without the credentials that it may repeat."""
        shown = str(text)
        for name, value in self._given.items():
            if any(secret in name for secret in _SECRETS) and value:
                shown = shown.replace(str(value), "***")
        return shown

    def _common(self, without: tuple[str, ...]) -> dict[str, Any]:
        own = {"bootstrap.servers": self.servers, "client.id": self.client_id, "logger": _DriverLog()}
        given = {name: value for name, value in self._given.items() if not name.startswith(without)}
        return {**_COMMON, **given, **own}


def most_events(buffer_bytes: int) -> int:
    """How many events may wait in a buffer: librdkafka counts their payloads only, and they may be empty."""
    return max(_FEWEST_EVENTS, buffer_bytes // EVENT_OVERHEAD)


def read_target(target: object, options: Mapping[str, Any]) -> tuple[KafkaSettings, KafkaOptions]:
    """Read a URL or the user's own dict of librdkafka settings, and the options beside it."""
    native = {name: value for name, value in options.items() if "." in name}
    read = read_options({name: value for name, value in options.items() if name not in native}, KafkaOptions)
    chosen = {**native, **read.config}
    if isinstance(target, BusUrl):
        given = {**_security(target, read, False), **chosen}
        servers = _servers(target)
    elif isinstance(target, Mapping) and target.get("bootstrap.servers"):
        given = {**target, **_security(None, read, _encrypted(target)), **chosen}
        chosen = {**target, **chosen}
        servers = str(target["bootstrap.servers"])
    else:
        raise UsageError("a Kafka bus is opened by kafka://host:port or by a dict with 'bootstrap.servers'")
    _check_encrypted(given, read, "security.protocol" in chosen)
    _check(given, read)
    client_id = read.name or str(given.get("client.id", "")) or f"txlayer-{next(_count)}"
    given = {name: value for name, value in given.items() if name not in _OWNED and name != "bootstrap.servers"}
    return KafkaSettings(servers, client_id, given), read


def _servers(url: BusUrl) -> str:
    if "," in url.host:
        return url.host
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{host}:{url.port or 9092}"


def _encrypted(settings: Mapping[str, Any]) -> bool:
    return "SSL" in str(settings.get("security.protocol", "")).upper()


def _check_encrypted(given: Mapping[str, Any], options: KafkaOptions, chosen: bool) -> None:
    """Who says how to encrypt wants it: credentials must not go in clear. `chosen`: by librdkafka's own setting."""
    asked = [name for name in ("tls", "ca", "cert", "key") if getattr(options, name)]
    if not chosen:
        asked += sorted(name for name in given if name.startswith("ssl."))
    if asked and not _encrypted(given):
        instead = f"security.protocol is {given['security.protocol']}" if chosen else "add tls=1"
        raise UsageError(f"{', '.join(asked)}: this connection would not be encrypted; {instead}")


def _security(url: BusUrl | None, options: KafkaOptions, encrypted: bool) -> dict[str, Any]:
    """`encrypted`: the settings that these are added to ask for it."""
    settings: dict[str, Any] = {}
    login = options.sasl is not None or (url is not None and url.user is not None)
    if login:
        settings["sasl.mechanism"] = options.sasl or "PLAIN"
    if url is not None and url.user is not None:
        settings["sasl.username"], settings["sasl.password"] = url.user, url.password or ""
    if login or options.tls:
        tls = options.tls or encrypted
        settings["security.protocol"] = f"{'SASL_' if login else ''}{'SSL' if tls else 'PLAINTEXT'}"
    files = {"ssl.ca.location": options.ca, "ssl.certificate.location": options.cert, "ssl.key.location": options.key}
    settings.update({name: path for name, path in files.items() if path is not None})
    return settings


def _check(given: Mapping[str, Any], options: KafkaOptions) -> None:
    callbacks = sorted(_CALLBACKS & set(given))
    if callbacks:
        raise UsageError(f"Kafka setting {callbacks[0]}: callbacks would run on the client's threads; leave it out")
    own = {**_PRODUCER, **_CONSUMER}
    for name in sorted(_OWNED & set(given)):
        if name not in own or str(given[name]).lower() != str(own[name]).lower():
            raise UsageError(f"Kafka setting {name}: txlayer depends on its own choice of it; leave it out")
    if options.partitions < 1 or options.buffer_bytes < 1024:
        raise UsageError("a Kafka bus needs partitions >= 1 and buffer_bytes >= 1024")
