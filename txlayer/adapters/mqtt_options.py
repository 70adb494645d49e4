"""What may be asked of an MQTT bus, and the paho clients made from it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from txlayer.adapters.mqtt_client import QuickClient
from txlayer.connect import BusUrl, read_options
from txlayer.errors import UsageError

NEVER_EXPIRES = 0xFFFF_FFFF
RECEIVE_MAXIMUM = 10_000
"""Unacknowledged events that a broker may send to one session (MQTT 5): as many as a lane holds."""


class MqttOptions(msgspec.Struct, frozen=True):
    """What may stand in the query of an `mqtt://` URL, or be given by keyword."""

    name: str = ""
    """Beginning of the client ids."""
    protocol: str = "5"
    """`5`, or `3.1.1`: no headers there, so events travel in an envelope."""
    connect_timeout: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    keepalive: Annotated[int, msgspec.Meta(ge=1, le=65_535)] = 30
    inflight: Annotated[int, msgspec.Meta(ge=1)] = 100
    """Publishes on their way at a time; the broker's own limit counts too."""
    buffer_bytes: Annotated[int, msgspec.Meta(ge=1)] = 64 * 1024 * 1024
    max_payload: Annotated[int, msgspec.Meta(ge=0)] | None = None
    cloudevents: bool = False
    session_expiry: Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)] = 300
    """Seconds for which the broker keeps events of an unnamed subscription while this process is cut off (MQTT 5)."""
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    tls_insecure: bool = False
    host: str | None = None
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = None
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
        if not tls:
            _refuse_tls_options(read, f"write mqtts://{target.host}")
        port = target.port or (8883 if tls else 1883)
        return Endpoint(target.host, port, tls, target.user, target.password), read, None
    if isinstance(target, Client):
        check_own_client(target)
        _refuse_tls_options(read, "call tls_set on your client")
        if read.host is None:
            raise UsageError("connect(client, host=..., port=...): say where your client should connect")
        version = "5" if target.protocol == MQTTProtocolVersion.MQTTv5 else "3.1.1"
        return Endpoint(read.host, read.port or 1883), msgspec.structs.replace(read, protocol=version), target
    raise UsageError(f"an MQTT bus is opened by a URL or a paho client, not {type(target).__name__}")


def _refuse_tls_options(options: MqttOptions, instead: str) -> None:
    """Ignored, they would leave who believes in them with credentials in clear."""
    given = [name for name in ("ca", "cert", "key", "tls_insecure") if getattr(options, name)]
    if given:
        raise UsageError(f"{', '.join(given)}: this connection would not be encrypted; {instead}")


_CALLBACKS = (
    "on_connect",
    "on_connect_fail",
    "on_disconnect",
    "on_log",
    "on_message",
    "on_pre_connect",
    "on_publish",
    "on_socket_close",
    "on_socket_open",
    "on_socket_register_write",
    "on_socket_unregister_write",
    "on_subscribe",
    "on_unsubscribe",
)


def check_own_client(client: Client) -> None:
    """The bus runs the client: it must be configured, and otherwise untouched.

    A callback would run the user's code on the network thread, or keep events from the bus.
    """
    taken = [name for name in _CALLBACKS if getattr(client, name)]
    if client._on_message_filtered._root._children:
        taken.append("message_callback_add")
    if client.socket() is not None or client._thread is not None:
        raise UsageError("the client is connected already: hand it over before connect() and loop_start()")
    if taken:
        raise UsageError(
            f"the bus runs the client and needs its callbacks free, but {', '.join(taken)} is in use: subscribe on the "
            "bus instead, and for paho's log call client.enable_logger()"
        )
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


def connect_properties(expiry: int) -> Properties:
    """Of a session that lives on for `expiry` seconds without a connection."""
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = expiry
    properties.ReceiveMaximum = RECEIVE_MAXIMUM
    return properties


def end_of_session() -> Properties:
    """For the DISCONNECT of a session that nobody will come back to."""
    properties = Properties(PacketTypes.DISCONNECT)
    properties.SessionExpiryInterval = 0
    return properties
