"""Who may connect, and what is said to those who may not."""

from __future__ import annotations

import logging
import socket
import threading
import time

import pytest
import tenacity

from tests.conftest import DEADLINE, eventually
from tests.inbox import Inbox
from tests.integration.mqtt.rig import OLD, SECRET, Opener, PrivateBroker
from txlayer import (
    connect,
    errors,
)


def test_user_and_password(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = private_mqtt_broker(user="alice", password=SECRET)
    address = broker.url.removeprefix("mqtt://")
    with caplog.at_level(logging.DEBUG):
        bus, inbox = opened(f"mqtt://alice:{SECRET}@{address}"), Inbox()
        bus.subscribe(name, inbox, durable=name)
        bus.publish(name, b"x").wait(DEADLINE)
        inbox.wait(1)
        for url in (f"mqtt://alice:{SECRET}x@{address}", f"mqtt://{address}"):
            for protocol in ("5", OLD):
                with pytest.raises(errors.AuthenticationFailed, match=address) as caught:
                    connect(url, protocol=protocol)
                assert not caught.value.retriable
                assert SECRET not in repr(caught.value) + str(caught.value.__cause__)
    assert SECRET not in caplog.text + repr(bus) + repr(bus.__dict__)


@pytest.mark.parametrize("scheme", ["mqtt", "mqtts"])
def test_a_port_that_accepts_and_says_nothing(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        began = time.monotonic()
        with pytest.raises(errors.BrokerUnreachable, match=address) as caught:
            connect(f"{scheme}://{address}", connect_timeout=0.5)
        assert caught.value.retriable
        assert 0.4 < time.monotonic() - began < DEADLINE


def test_a_port_that_answers_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            try:
                while True:
                    client, _ = server.accept()
                    with client:
                        client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            except OSError:
                return

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(errors.BrokerUnreachable, match=address):
            connect(f"mqtt://{address}", connect_timeout=0.5)
        server.shutdown(socket.SHUT_RDWR)
        thread.join(DEADLINE)


def test_what_is_said_by_older_clients_is_heard(private_mqtt_broker: PrivateBroker, opened: Opener, name: str) -> None:
    broker = private_mqtt_broker()
    old, new, inboxes = opened(broker.url, protocol="3.1.1"), opened(broker.url), (Inbox(), Inbox())
    for bus, inbox in zip((old, new), inboxes, strict=True):
        bus.subscribe(name, inbox)
    for bus in (old, new):
        bus.say(name, b"{}")
        bus.flush()
    for inbox in inboxes:
        inbox.wait(2)
        assert inbox.payloads == [b"{}", b"{}"]


def test_tls_with_its_authority_and_without(private_mqtt_broker: PrivateBroker, opened: Opener, name: str) -> None:
    broker = private_mqtt_broker(tls=True)
    bus, inbox = opened(broker.url, ca=str(broker.ca_file)), Inbox()
    bus.subscribe(name, inbox, durable=name)
    for number in range(100):
        bus.publish(name, b"%d" % number * 10_000)
    inbox.wait(100)
    assert inbox.payloads == [b"%d" % number * 10_000 for number in range(100)]
    for number in range(100):
        bus.say(name, b"%d" % number * 10_000)
        bus.flush()
    inbox.wait(200)
    assert inbox.payloads[100:] == inbox.payloads[:100]
    opened(broker.url, tls_insecure=True)
    with pytest.raises(errors.BusError, match=r"certificate .* is not trusted .*ca="):
        connect(broker.url)
    with pytest.raises(errors.UsageError, match="TLS files"):
        connect(broker.url, ca=str(broker.directory / "nowhere.pem"))


@pytest.mark.parametrize("first", ["the one that speaks", "the one that hears"])
def test_connections_of_a_bus_come_back_together(
    private_mqtt_broker: PrivateBroker, opened: Opener, name: str, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever can only speak asks, and hears none of the answers while its other connection pauses."""
    broker = private_mqtt_broker()
    bus, inbox, pausing = opened(broker.url), Inbox(), set[bool]()
    bus.subscribe(name, inbox, durable=name)

    def pause(state: tenacity.RetryCallState) -> float:
        speaks = threading.current_thread() is bus._main._thread
        pausing.add(speaks)
        return 0.01 if speaks == (first == "the one that speaks") else 10 * DEADLINE

    monkeypatch.setattr("txlayer.adapters.mqtt_session.tenacity.wait_random_exponential", lambda **_: pause)
    broker.kill()
    eventually(lambda: len(pausing) == 2)
    broker.restart()

    def heard() -> bool:
        bus.say(name, b"x")
        bus.flush()
        return bool(inbox)

    eventually(heard)
