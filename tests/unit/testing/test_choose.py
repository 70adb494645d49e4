import socket
from collections.abc import Iterator

import pytest

from txlayer.testing.choose import Service, choose, required
from txlayer.testing.server import GivenServer, How, Server, ServerFailed, ServerUnavailable


class FakeServer(GivenServer):
    def __init__(self, how: How) -> None:
        super().__init__("mqtt://fake:1", "NONE")
        self.how = how


def service(container: bool = True, native: bool = True) -> Service:
    def start(how: How, possible: bool) -> Server:
        if not possible:
            raise ServerUnavailable(f"no {how} today")
        return FakeServer(how)

    return Service(
        "MQTT broker",
        "TXLAYER_MQTT_URL",
        ("mqtt", "mqtts"),
        1883,
        lambda: start(How.CONTAINER, container),
        lambda: start(How.NATIVE, native),
    )


def docker_runs() -> None:
    return None


def docker_is_missing() -> str:
    return "no Docker engine answers"


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_url_in_the_environment_comes_first(listening: str) -> None:
    server = choose(service(), {"TXLAYER_MQTT_URL": f"mqtt://{listening}"}, docker_runs)

    assert server.how is How.ENVIRONMENT
    assert server.url == f"mqtt://{listening}"


def test_a_container_comes_before_a_native_process() -> None:
    assert choose(service(), {}, docker_runs).how is How.CONTAINER


def test_without_docker_the_server_is_native() -> None:
    assert choose(service(), {}, docker_is_missing).how is How.NATIVE


def test_a_container_that_does_not_start_is_replaced_by_a_native_process() -> None:
    assert choose(service(container=False), {}, docker_runs).how is How.NATIVE


@pytest.mark.parametrize("value", ["0", "no", "False"])
def test_containers_can_be_turned_off(value: str) -> None:
    assert choose(service(), {"TXLAYER_DOCKER": value}, docker_runs).how is How.NATIVE


def test_with_nothing_available_the_error_tells_why_for_each_way() -> None:
    with pytest.raises(ServerUnavailable) as caught:
        choose(service(native=False), {}, docker_is_missing)

    for reason in ("no MQTT broker", "TXLAYER_MQTT_URL is not set", "no Docker engine answers", "no native today"):
        assert reason in str(caught.value)


def test_several_urls_are_several_servers_and_beyond_them_one_is_started(listening: str) -> None:
    environment = {"TXLAYER_MQTT_URL": f"mqtt://{listening}/a mqtt://{listening}/b"}

    chosen = [choose(service(), environment, docker_runs, number) for number in range(3)]

    assert [server.how for server in chosen] == [How.ENVIRONMENT, How.ENVIRONMENT, How.CONTAINER]
    assert chosen[1].url.endswith("/b")


def test_a_given_server_that_does_not_answer_is_an_error_not_a_reason_to_look_further() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    with pytest.raises(ServerFailed, match=f"TXLAYER_MQTT_URL names 127.0.0.1:{port}, which does not answer"):
        choose(service(), {"TXLAYER_MQTT_URL": f"mqtt://user:secret@127.0.0.1:{port}"}, docker_runs)


def test_a_given_url_of_another_kind_is_refused() -> None:
    with pytest.raises(ServerFailed, match="must be like mqtt://host:port or mqtts://host:port"):
        choose(service(), {"TXLAYER_MQTT_URL": "http://127.0.0.1:80"}, docker_runs)


@pytest.mark.parametrize("end", ["kill", "stop", "restart"])
def test_a_given_server_is_not_ours_to_end(end: str) -> None:
    server = GivenServer("mqtt://user:secret@broker:1883", "TXLAYER_MQTT_URL")

    with pytest.raises(ServerUnavailable, match="broker:1883 was given by TXLAYER_MQTT_URL") as caught:
        getattr(server, end)()
    assert "secret" not in str(caught.value) + repr(server)
    server.close()


@pytest.mark.parametrize(("value", "expected"), [(None, False), ("", False), ("0", False), ("no", False), ("1", True)])
def test_servers_are_required_on_request(value: str | None, expected: bool) -> None:
    assert required({} if value is None else {"TXLAYER_REQUIRE_SERVICES": value}) is expected
