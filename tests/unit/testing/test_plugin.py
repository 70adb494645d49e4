import pytest

from txlayer.testing.plugin import obtain_or_skip
from txlayer.testing.server import Server, ServerFailed, ServerUnavailable


def nothing_here() -> Server:
    raise ServerUnavailable("no broker: mosquitto is not on PATH")


def broken() -> Server:
    raise ServerFailed("mosquitto did not come up")


def test_a_missing_server_skips_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TXLAYER_REQUIRE_SERVICES", raising=False)

    with pytest.raises(pytest.skip.Exception, match="mosquitto is not on PATH"):
        obtain_or_skip(nothing_here)


def test_a_missing_server_fails_where_servers_are_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TXLAYER_REQUIRE_SERVICES", "1")

    with pytest.raises(pytest.fail.Exception, match=r"mosquitto is not on PATH.*TXLAYER_REQUIRE_SERVICES is set"):
        obtain_or_skip(nothing_here)


def test_a_server_that_breaks_is_never_a_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TXLAYER_REQUIRE_SERVICES", raising=False)

    with pytest.raises(ServerFailed):
        obtain_or_skip(broken)
