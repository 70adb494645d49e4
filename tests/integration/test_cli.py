"""The command line on a real broker."""

from __future__ import annotations

import re
import threading

import pytest

from tests.conftest import DEADLINE, eventually
from txlayer import Delivery, Identity, Retry, cli, connect, dead_letters
from txlayer.testing.server import Server


@pytest.fixture(params=["mqtt_broker", "kafka_broker"])
def url(request: pytest.FixtureRequest) -> str:
    server: Server = request.getfixturevalue(request.param)
    return server.url


def test_sites_shows_who_is_present_and_removes_the_dead(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with connect(url) as bus:
        presence = bus.enter("cli-site", Identity("cli-log", 7), {"role": "calendar"})
        assert cli.main(["sites", "--bus", url]) == 0
        shown = capsys.readouterr().out
        assert "cli-site" in shown
        assert "alive" in shown
        assert cli.main(["sites", "--bus", url, "--remove", "cli-site"]) == 1
        assert "is alive" in capsys.readouterr().err
        presence.leave()
    assert cli.main(["sites", "--bus", url, "--remove", "cli-site"]) == 0
    capsys.readouterr()
    assert cli.main(["sites", "--bus", url]) == 0
    assert "cli-site" not in capsys.readouterr().out


def test_dead_letters_are_listed_replayed_and_removed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    mended, got = threading.Event(), []

    def handler(delivery: Delivery) -> None:
        if not mended.is_set():
            raise LookupError("no such room")
        got.append(delivery.payload)

    with connect(url) as bus:
        topic = bus.topic("cli", "rooms")
        retry = Retry(attempts=2, first_wait=0.001)
        subscription = bus.subscribe(topic, handler, durable="cli-booking", retry=retry)
        bus.publish(topic, b"B2").wait(DEADLINE)
        bus.publish(topic, b"B3").wait(DEADLINE)
        eventually(lambda: subscription.stats.dead_letters == 2)
        assert cli.main(["dead", "list", "--bus", url, "--subscription", "cli-booking"]) == 0
        listed = capsys.readouterr().out
        first, second = (word for word in listed.split() if re.fullmatch(r"[0-9a-f]{16}-[0-9a-f]{8}", word))
        mended.set()
        assert cli.main(["dead", "replay", first, "--bus", url]) == 0
        eventually(lambda: got == [b"B2"])
        assert cli.main(["dead", "remove", second, "--bus", url]) == 0
        assert dead_letters.letters(bus, "cli-booking") == []
        assert cli.main(["dead", "replay", first, "--bus", url]) == 2
        assert "no dead letter" in capsys.readouterr().err
        subscription.unsubscribe()


def test_bad_calls_are_told_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["sites", "--bus", "carrier-pigeon://roof"]) == 2
    assert "no bus adapter for carrier-pigeon://" in capsys.readouterr().err
    assert cli.main(["sites", "--bus", "mqtt://127.0.0.1:1?connect_timeout=0.3"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
