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
_FORM = (
    "A bus URL has the form scheme://user:password@host:port?option=value&option=value, for example "
    "mqtt://localhost:1883; special characters in it are written %2F for '/', %23 for '#', %3F for '?', %40 for '@'"
)
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
    if any(base.__module__.partition(".")[0] == "paho" for base in type(target).__mro__):
        return _opener("mqtt")(target, options)
    raise UsageError(f"connect takes a URL, a paho client or a dict of Kafka settings, not {type(target).__name__}")


def parse(text: str) -> BusUrl:
    """Read a URL. `MalformedUrl` says what is wrong with it."""
    # The reasons that the standard library gives quote the text, perhaps a password: none of them is passed on.
    try:
        parts = urlsplit(text)
        hosts = parts.netloc.rpartition("@")[2]
        port = parts.port if "," not in hosts else None
    except ValueError:
        raise MalformedUrl(f"the host or port of the bus URL cannot be read. {_FORM}") from None
    if not parts.scheme or not parts.hostname or port == 0:
        raise MalformedUrl(_FORM)
    if parts.fragment or "@" in parts.path + parts.query:
        raise MalformedUrl(f"the bus URL is cut short by a '/', '?' or '#' in front of an '@'. {_FORM}")
    try:
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise MalformedUrl(f"the options of the bus URL cannot be read. {_FORM}") from None
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
