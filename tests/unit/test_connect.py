"""From a URL to a bus: every bad input has its own error, and no credential is ever shown."""

from __future__ import annotations

import builtins
import logging
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from txlayer import connect, errors
from txlayer.adapters.mqtt_options import MqttOptions, read_target
from txlayer.connect import parse, read_options

SECRET = "s3cret-word"


def test_a_url_in_its_parts() -> None:
    url = parse("mqtts://al%40ce:p%2Fw@Host:8884/?keepalive=5&name=x")
    assert (url.scheme, url.host, url.port, url.user, url.password) == ("mqtts", "host", 8884, "al@ce", "p/w")
    assert url.query == {"keepalive": "5", "name": "x"}
    assert str(url) == "mqtts://host:8884/"


def test_several_hosts() -> None:
    url = parse("kafka://u:p@a:9092,b:9093")
    assert (url.host, url.port, url.user) == ("a:9092,b:9093", None, "u")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mqtt",
        "mqtt:",
        "mqtt://",
        "//host",
        "mqtt://:1883",
        "mqtt://host:port",
        "mqtt://host:99999",
        "mqtt://host:0",
        "mqtt://[::1",
        "mqtt://host?keepalive",
        "mqtt://host#fragment",
        f"mqtt://user:{SECRET}/x@host:1883",
        f"mqtt://user:1#{SECRET}@host:1883",
        f"mqtt://user:1?{SECRET}@host:1883",
        f"mqtt://user:1/{SECRET}@host:1883",
        f"mqtt://user:{SECRET}\u2100@host:1883",
        f"mqtt://user:{SECRET}@host:port",
        f"mqtt://user:{SECRET}@host?{SECRET}",
    ],
)
def test_a_malformed_url_says_the_form_and_no_password(url: str) -> None:
    with pytest.raises(errors.MalformedUrl, match="mqtt://localhost:1883") as caught:
        connect(url)
    assert not caught.value.retriable
    assert SECRET not in everything(caught.value)


def everything(error: BaseException) -> str:
    shown, cause = "", error
    while cause is not None:
        shown += f"{cause!r} {cause} {cause.args}"
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)  # type: ignore[assignment]
    return shown


def test_an_unknown_scheme_names_those_that_are_known() -> None:
    with pytest.raises(errors.UnknownScheme, match=r"no bus adapter for amqp://.*mqtt://") as caught:
        connect(f"amqp://user:{SECRET}@host")
    assert not caught.value.retriable
    assert SECRET not in everything(caught.value)


def test_something_that_is_no_target_is_refused() -> None:
    with pytest.raises(errors.UsageError, match="a URL, a paho client or a dict"):
        connect(7)


@pytest.mark.parametrize(
    ("module", "scheme", "extra"), [("paho", "mqtt", "mqtt"), ("confluent_kafka", "kafka", "kafka")]
)
def test_a_missing_driver_names_the_pip_command(
    module: str, scheme: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith((module, f"txlayer.adapters.{scheme}"))]:
        monkeypatch.delitem(sys.modules, name)
    real: Callable[..., Any] = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == module:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(errors.MissingExtra) as caught:
        connect(f"{scheme}://host")
    assert f'pip install "txlayer[{extra}]"' in str(caught.value)
    assert (caught.value.extra, caught.value.retriable) == (extra, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": "red"}, "unknown bus option colour; known: .*keepalive"),
        ({"keepalive": "soon"}, "keepalive"),
        ({"keepalive": 0}, "keepalive"),
        ({"keepalive": 70_000}, "keepalive"),
        ({"inflight": 0}, "inflight"),
        ({"connect_timeout": 0}, "connect_timeout"),
        ({"buffer_bytes": -1}, "buffer_bytes"),
        ({"session_expiry": 1 << 32}, "session_expiry"),
        ({"cloudevents": "perhaps"}, "cloudevents"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(errors.UsageError, match=message):
        read_options(options, MqttOptions)


def test_options_come_as_text_or_as_values() -> None:
    read = read_options({"keepalive": "7", "cloudevents": "true", "connect_timeout": 2}, MqttOptions)
    assert (read.keepalive, read.cloudevents, read.connect_timeout) == (7, True, 2.0)


def test_the_protocol_is_checked() -> None:
    with pytest.raises(errors.UsageError, match=r"5 or 3\.1\.1"):
        connect("mqtt://localhost?protocol=4")


@pytest.mark.parametrize("option", ["ca=/ca.pem", "cert=/c.pem", "key=/k.pem", "tls_insecure=1"])
def test_options_of_tls_without_tls_are_refused_before_credentials_go_in_clear(option: str) -> None:
    with pytest.raises(errors.UsageError, match=r"would not be encrypted; write mqtts://host") as caught:
        connect(f"mqtt://user:{SECRET}@host?{option}")
    assert SECRET not in everything(caught.value)
    name, _, value = option.partition("=")
    with pytest.raises(errors.UsageError, match="tls_set on your client"):
        connect(own_client(), host="127.0.0.1", port=1, **{name: value})


def test_credentials_are_in_no_repr() -> None:
    url = parse(f"mqtt://{SECRET}-user:{SECRET}@host?name={SECRET}")
    endpoint, _, _ = read_target(url, url.query)
    assert endpoint.password == SECRET
    assert SECRET not in f"{endpoint!r} {endpoint} {url}"
    assert url.password is not None
    assert url.password not in repr(url).replace(f"{SECRET}-user", "")


def test_an_unreachable_broker_is_named_without_credentials(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(errors.BrokerUnreachable) as caught:
        connect(f"mqtt://user:{SECRET}@127.0.0.1:1", connect_timeout=0.2)
    assert "127.0.0.1:1" in str(caught.value)
    assert "0.2 s" in str(caught.value)
    assert caught.value.retriable
    assert SECRET not in everything(caught.value) + caplog.text


def own_client(**options: Any) -> Client:
    return Client(CallbackAPIVersion.VERSION2, **{"protocol": MQTTProtocolVersion.MQTTv5, **options})


@pytest.mark.parametrize(
    "callback",
    ["on_connect", "on_disconnect", "on_message", "on_publish", "on_subscribe", "on_unsubscribe", "on_socket_open"],
)
def test_a_client_whose_callbacks_are_set_is_refused(callback: str) -> None:
    client = own_client()
    setattr(client, callback, lambda *_: None)
    with pytest.raises(errors.UsageError, match=callback):
        connect(client, host="127.0.0.1", port=1)


def test_a_client_without_an_address_or_of_the_old_callback_api_is_refused() -> None:
    with pytest.raises(errors.UsageError, match="host="):
        connect(own_client())
    with pytest.warns(DeprecationWarning, match="API version 1"):
        old = Client(CallbackAPIVersion.VERSION1)
    with pytest.raises(errors.UsageError, match="VERSION2"):
        connect(old, host="127.0.0.1", port=1)


def test_a_subclass_of_paho_s_client_is_a_client() -> None:
    class Mine(Client): ...

    with pytest.raises(errors.UsageError, match="host="):
        connect(Mine(CallbackAPIVersion.VERSION2))


def test_every_error_has_one_root_says_whether_to_retry_and_survives_a_process_boundary() -> None:
    def all_below(kind: type[errors.TxLayerError]) -> list[type[errors.TxLayerError]]:
        return [kind, *(found for sub in kind.__subclasses__() for found in all_below(sub))]

    ours = [kind for kind in all_below(errors.TxLayerError) if kind.__module__ == "txlayer.errors"]
    retriable = {kind.__name__ for kind in ours if kind.retriable}
    assert retriable == {"BrokerUnreachable", "Backpressure", "OutcomeUnknown", "ResourceUnavailable", "SiteStalled"}
    for kind in ours:
        if kind is not errors.MissingExtra:
            assert str(pickle.loads(pickle.dumps(kind("why")))) == "why"
