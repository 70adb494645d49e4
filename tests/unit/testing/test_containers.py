"""The Testcontainers path, where no Docker runs: what is asked of Testcontainers, with its client replaced."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from txlayer.testing import containers
from txlayer.testing.server import How, ServerUnavailable

container_module = pytest.importorskip("testcontainers.core.container")


@pytest.fixture(autouse=True)
def docker(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """A Docker client that accepts everything."""
    client = MagicMock()
    monkeypatch.setattr(container_module, "DockerClient", client)
    return client


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Containers that were started and not stopped; they answer at docker-host with their own port plus 10000."""
    running: list[Any] = []
    base = container_module.DockerContainer

    def start(self: Any) -> Any:
        running.append(self)
        return self

    monkeypatch.setattr(base, "start", start)
    monkeypatch.setattr(base, "stop", lambda self, *args: running.remove(self))
    monkeypatch.setattr(base, "get_container_host_ip", lambda self: "docker-host")
    monkeypatch.setattr(base, "get_exposed_port", lambda self, port: int(port) + 10_000)
    return running


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Path]:
    """A socket at which something answers like Docker, once."""
    path = tmp_path / "docker.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"HTTP/1.0 200 OK\r\n\r\nOK")

        thread = threading.Thread(target=answer)
        thread.start()
        yield path
        thread.join()


def test_an_engine_that_answers_is_used(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{engine}")

    assert containers.docker_missing() is None


@pytest.mark.parametrize("host", ["unix:///nonexistent/docker.sock", "tcp://127.0.0.1:1"])
def test_a_missing_engine_is_named_with_its_address(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)

    reason = containers.docker_missing()

    assert reason is not None
    assert f"no Docker engine answers at {host}" in reason


@pytest.mark.parametrize("image", [containers.MOSQUITTO_IMAGE, containers.KAFKA_IMAGE, containers.POSTGRES_IMAGE])
def test_images_are_pinned(image: str) -> None:
    assert image.rpartition(":")[2][0].isdigit()


def test_mosquitto_gets_our_configuration(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class_ = containers.container_class("mqtt", "MosquittoContainer")
    monkeypatch.setattr(class_, "_wait", lambda self: None)

    server = containers.mqtt()

    (container,) = started
    (configuration,) = (Path(path) for path in container.volumes)
    lines = configuration.read_text().splitlines()
    assert container.image == containers.MOSQUITTO_IMAGE
    assert lines[0] == "listener 1883"
    assert {"allow_anonymous true", "set_tcp_nodelay true", "max_queued_messages 0"} <= set(lines)
    assert server.how is How.CONTAINER
    assert server.url == "mqtt://docker-host:11883"

    server.close()
    server.close()
    assert started == []
    assert not configuration.parent.exists()


def test_kafka_runs_in_kraft_mode_with_transactions_on_one_broker(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class_ = containers.container_class("kafka", "KafkaContainer")
    monkeypatch.setattr(class_, "start", lambda self, timeout: started.append(self))
    asked: list[tuple[int, str]] = []
    monkeypatch.setattr(containers.kafka_ready, "ready", lambda port, host: asked.append((port, host)) or True)

    with containers.kafka() as server:
        (container,) = started
        assert container.image == containers.KAFKA_IMAGE
        assert container.kraft_enabled
        assert container.env["KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR"] == "1"
        assert container.env["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"
        assert server.url == "kafka://docker-host:19093"
        assert asked == [(19093, "docker-host")]
    assert started == []


def test_postgres_takes_prepared_transactions(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class_ = containers.container_class("postgres", "PostgresContainer")
    monkeypatch.setattr(class_, "start", lambda self: started.append(self))
    monkeypatch.setattr(class_, "get_connection_url", lambda self: "postgresql://postgres:postgres@docker-host:15432/x")

    with containers.postgres_server() as server:
        (container,) = started
        assert container.image == containers.POSTGRES_IMAGE
        assert "max_prepared_transactions=64" in container._command
        assert container.driver == ""
        assert server.url.startswith("postgresql://postgres:postgres@")
        assert "postgres:postgres" not in repr(server)


def test_a_container_that_does_not_start_is_removed_and_the_reason_told(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any) -> None:
        started.append(self)
        raise RuntimeError("pull access denied")

    monkeypatch.setattr(containers.container_class("postgres", "PostgresContainer"), "start", fail)

    with pytest.raises(ServerUnavailable, match=r"postgres:.* did not start: pull access denied"):
        containers.postgres_server()
    assert started == []


@pytest.mark.parametrize("end", ["kill", "stop", "restart"])
def test_a_container_is_not_ended_by_a_test(end: str) -> None:
    server = containers.ContainerServer(MagicMock(), "mqtt://docker-host:11883")

    with pytest.raises(ServerUnavailable, match="a private one"):
        getattr(server, end)()
