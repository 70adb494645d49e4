"""What may be asked of an MQTT bus, and the paho clients made from it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from txlayer.adapters.mqtt_client import QuickClient
from txlayer.connect import BusUrl, read_options
from txlayer.errors import UsageError

NEVER_EXPIRES = 0xFFFF_FFFF


class MqttOptions(msgspec.Struct, frozen=True):
    """What may stand in the query of an `mqtt://` URL, or be given by keyword."""

    name: str = ""
    """Beginning of the client ids."""
    protocol: str = "5"
    """`5`, or `3.1.1`: no headers there, so events travel in an envelope."""
    connect_timeout: float = 10.0
    keepalive: int = 30
    inflight: int = 100
    """Publishes on their way at a time; the broker's own limit counts too."""
    buffer_bytes: int = 64 * 1024 * 1024
    max_payload: int | None = None
    cloudevents: bool = False
    session_expiry: int = 300
    """Seconds for which the broker keeps events of an unnamed subscription while this process is cut off (MQTT 5)."""
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    tls_insecure: bool = False
    host: str | None = None
    port: int | None = None
    """Where to connect, for a client of the user's own."""


@dataclass(frozen=True)
class Endpoint:
    """Where and as whom to connect."""

    host: str
    port: int
    tls: bool = False
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class Will:
    """What the broker publishes, retained, when the connection breaks."""

    topic: str
    payload: bytes


def read_target(target: object, options: Mapping[str, Any]) -> tuple[Endpoint, MqttOptions, Client | None]:
    """Endpoint, options and, if the user gave one, the client."""
    read = read_options(options, MqttOptions)
    if read.protocol not in ("5", "3.1.1"):
        raise UsageError(f"protocol={read.protocol}: MQTT 5 or 3.1.1")
    if isinstance(target, BusUrl):
        tls = target.scheme == "mqtts"
        port = target.port or (8883 if tls else 1883)
        return Endpoint(target.host, port, tls, target.user, target.password), read, None
    if isinstance(target, Client):
        check_own_client(target)
        if read.host is None:
            raise UsageError("connect(client, host=..., port=...): say where your client should connect")
        version = "5" if target.protocol == MQTTProtocolVersion.MQTTv5 else "3.1.1"
        return Endpoint(read.host, read.port or 1883), msgspec.structs.replace(read, protocol=version), target
    raise UsageError(f"an MQTT bus is opened by a URL or a paho client, not {type(target).__name__}")


def check_own_client(client: Client) -> None:
    """The bus runs the client: it must be configured, and otherwise untouched."""
    taken = [name for name in ("on_connect", "on_message", "on_publish", "on_subscribe") if getattr(client, name)]
    if client.is_connected():
        raise UsageError("the client is connected already: hand it over before connect() and loop_start()")
    if taken:
        raise UsageError(f"the bus needs the client's callbacks for itself, but {', '.join(taken)} is set")
    if client._callback_api_version is not CallbackAPIVersion.VERSION2:
        raise UsageError("make the client with CallbackAPIVersion.VERSION2")


def make_client(endpoint: Endpoint, options: MqttOptions, client_id: str, durable: bool) -> Client:
    """A paho client as every session of ours needs it."""
    if options.protocol == "5":
        client = QuickClient(CallbackAPIVersion.VERSION2, client_id, protocol=MQTTProtocolVersion.MQTTv5)
    else:
        # Without an expiry a session of an unnamed subscription would stay at the broker for ever.
        client = QuickClient(CallbackAPIVersion.VERSION2, client_id, clean_session=not durable)
    if endpoint.user is not None:
        client.username_pw_set(endpoint.user, endpoint.password)
    if endpoint.tls:
        client.tls_set_context(_tls_context(options))
        client.tls_insecure_set(options.tls_insecure)
    return client


def _tls_context(options: MqttOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.ca)
        if options.cert is not None:
            context.load_cert_chain(options.cert, options.key)
    except OSError as exc:
        raise UsageError(f"cannot read the TLS files (ca, cert, key): {exc}") from exc
    if options.tls_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def expiry(packet: int, seconds: int) -> Properties:
    """Properties that set the session's expiry, for CONNECT or DISCONNECT."""
    properties = Properties(packet)
    properties.SessionExpiryInterval = seconds
    return properties


CONNECT = PacketTypes.CONNECT
DISCONNECT = PacketTypes.DISCONNECT
