"""`connect`: from a URL, or a driver's own object, to a bus.

Adapters are found by URL scheme in the entry-point group `txlayer.buses`; each entry is a function
`open_bus(target, options) -> Bus`. Installing a package with such an entry adds a bus.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from txlayer.errors import MalformedUrl, MissingExtra, UnknownScheme, UsageError
from txlayer.ports import Bus

GROUP = "txlayer.buses"
_DRIVERS = {"paho": ("mqtt", "paho-mqtt"), "confluent_kafka": ("kafka", "confluent-kafka")}
_Options = TypeVar("_Options", bound=msgspec.Struct)


@dataclass(frozen=True)
class BusUrl:
    """A URL in its parts. The password stays out of every repr and error."""

    scheme: str
    host: str
    port: int | None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    path: str = ""
    query: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        port = "" if self.port is None else f":{self.port}"
        return f"{self.scheme}://{self.host}{port}{self.path}"


def connect(target: object, **options: Any) -> Bus:
    """Open a bus: `memory://name`, `mqtt://host:port`, `mqtts://…`, `kafka://host:port`.

    Also takes a `paho.mqtt.client.Client` that is configured and not yet connected (with `host=` and `port=`), or a
    dict of librdkafka settings. Options can be given in the URL's query or by keyword.
    """
    if isinstance(target, str):
        url = parse(target)
        return _opener(url.scheme)(url, {**url.query, **options})
    if isinstance(target, Mapping):
        return _opener("kafka")(target, options)
    if type(target).__module__.partition(".")[0] == "paho":
        return _opener("mqtt")(target, options)
    raise UsageError(f"connect takes a URL, a paho client or a dict of Kafka settings, not {type(target).__name__}")


def parse(text: str) -> BusUrl:
    """Read a URL. `MalformedUrl` says what is wrong with it."""
    try:
        parts = urlsplit(text)
        port = parts.port
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as exc:
        raise MalformedUrl(f"cannot read the bus URL: {exc}") from None
    if not parts.scheme or not parts.hostname:
        raise MalformedUrl("a bus URL has the form scheme://host:port?option=value, for example mqtt://localhost:1883")
    hosts = parts.netloc.rpartition("@")[2]
    return BusUrl(
        scheme=parts.scheme,
        host=parts.hostname if "," not in hosts else hosts,
        port=port,
        user=unquote(parts.username) if parts.username is not None else None,
        password=unquote(parts.password) if parts.password is not None else None,
        path=parts.path,
        query=dict(query),
    )


def read_options(options: Mapping[str, Any], type: type[_Options]) -> _Options:
    """Options as the adapter's own struct, from strings or values; an unknown or unreadable one is a usage error."""
    known = msgspec.structs.fields(type)
    unknown = sorted(set(options) - {option.name for option in known})
    if unknown:
        names = ", ".join(sorted(option.name for option in known))
        raise UsageError(f"unknown bus option {', '.join(unknown)}; known: {names}")
    try:
        return msgspec.convert(dict(options), type, strict=False)
    except msgspec.ValidationError as exc:
        raise UsageError(f"bus option: {exc}") from None


def _opener(scheme: str) -> Callable[[object, Mapping[str, Any]], Bus]:
    found = importlib.metadata.entry_points(group=GROUP)
    for entry in found:
        if entry.name == scheme:
            try:
                opener: Callable[[object, Mapping[str, Any]], Bus] = entry.load()
            except ModuleNotFoundError as exc:
                driver = _DRIVERS.get((exc.name or "").partition(".")[0])
                if driver is None:
                    raise
                raise MissingExtra(*driver) from exc
            return opener
    known = ", ".join(sorted(f"{entry.name}://" for entry in found))
    raise UnknownScheme(f"no bus adapter for {scheme}://; installed: {known}")
