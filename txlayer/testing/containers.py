"""Servers in Docker containers, through Testcontainers. Its reaper removes them if this process dies."""

from __future__ import annotations

import importlib
import socket
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from txlayer.testing import kafka_ready, mosquitto, postgres
from txlayer.testing.process import wait_until
from txlayer.testing.server import How, ServerFailed, ServerUnavailable, SharedServer

MOSQUITTO_IMAGE = "eclipse-mosquitto:2.0.22"
KAFKA_IMAGE = "confluentinc/cp-kafka:7.6.0"  # what KafkaContainer's start script is written for
POSTGRES_IMAGE = "postgres:17.5"
DEFAULT_DOCKER_HOST = "unix:///var/run/docker.sock"


def docker_missing() -> str | None:
    """Why containers cannot be had here, or None. Quick, and not through docker-py, which leaks a socket."""
    try:
        docker_client = importlib.import_module("testcontainers.core.docker_client")
    except ImportError:
        return 'Testcontainers is not installed (pip install "txlayer[testing]")'
    address = docker_client.get_docker_host() or DEFAULT_DOCKER_HOST
    host = urlsplit(address)
    try:
        if host.scheme == "unix":
            _ping(host.path)
        elif host.scheme in ("tcp", "http", "https"):
            socket.create_connection((host.hostname, host.port or 2375), timeout=3.0).close()
    except OSError as exc:
        return f"no Docker engine answers at {address} ({exc.strerror or exc})"
    return None


def _ping(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(3.0)
        connection.connect(path)
        connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
        if b" 200 " not in connection.recv(1024):
            raise OSError("it does not answer a ping")


def container_class(module: str, name: str) -> Any:
    """Newer releases of Testcontainers have moved the classes and warn at the old place."""
    with quiet():
        try:
            found = importlib.import_module(f"testcontainers.community.{module}")
        except ImportError:
            found = importlib.import_module(f"testcontainers.{module}")
    return getattr(found, name)


@contextmanager
def quiet() -> Iterator[None]:
    """Testcontainers warns about what its own classes use; a test run may take warnings as errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


class ContainerServer(SharedServer):
    """A started container. Docker gives a restarted one another port, so that it is not ended before the close."""

    how = How.CONTAINER

    def __init__(self, container: Any, url: str, clean_up: Callable[[], None] = lambda: None) -> None:
        super().__init__(url, "is a container that would come back at another port")
        self._container: Any | None = container
        self._clean_up = clean_up

    def close(self) -> None:
        container, self._container = self._container, None
        if container is not None:
            container.stop()
            self._clean_up()


def mqtt() -> ContainerServer:
    container = container_class("mqtt", "MosquittoContainer")(MOSQUITTO_IMAGE)
    directory = tempfile.TemporaryDirectory(prefix="txlayer-mosquitto-")
    Path(directory.name).chmod(0o755)  # the container's user reads it
    configuration = Path(directory.name) / "mosquitto.conf"
    configuration.write_text(mosquitto.configuration({"listener": container.MQTT_PORT, "log_dest": "stderr"}))
    _start(container, lambda: container.start(configfile=str(configuration)), directory.cleanup)
    address = f"{container.get_container_host_ip()}:{container.get_exposed_port(container.MQTT_PORT)}"
    return ContainerServer(container, f"mqtt://{address}", directory.cleanup)


def kafka_container() -> Any:
    container = container_class("kafka", "KafkaContainer")(KAFKA_IMAGE).with_kraft()
    for name in ("TRANSACTION_STATE_LOG_REPLICATION_FACTOR", "TRANSACTION_STATE_LOG_MIN_ISR"):
        container.with_env(f"KAFKA_{name}", "1")
    container.with_env("KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS", "1")
    container.with_env("KAFKA_AUTO_CREATE_TOPICS_ENABLE", "false")
    return container


def kafka() -> ContainerServer:
    container = kafka_container()
    _start(container, lambda: container.start(timeout=120))
    address = container.get_bootstrap_server()
    server = ContainerServer(container, f"kafka://{address}")
    host, _, port = address.rpartition(":")
    if not wait_until(lambda: kafka_ready.ready(int(port), host), 60.0):
        server.close()
        raise ServerFailed(f"the Kafka container at {address} numbers no producers")
    return server


def postgres_container() -> Any:
    made = container_class("postgres", "PostgresContainer")
    container = made(POSTGRES_IMAGE, username="postgres", password="postgres", dbname="postgres", driver=None)
    names = ("max_prepared_transactions", "max_connections")
    settings = [f"{name}={postgres.DEFAULT_SETTINGS[name]}" for name in names]
    return container.with_command([word for setting in settings for word in ("-c", setting)])


def postgres_server() -> ContainerServer:
    container = postgres_container()
    _start(container, container.start)
    return ContainerServer(container, container.get_connection_url())


def _start(container: Any, start: Callable[[], object], clean_up: Callable[[], None] = lambda: None) -> None:
    """Docker's many errors become one; an image that cannot be pulled is the usual one."""
    try:
        with quiet():
            start()
    except Exception as exc:
        container.stop()
        clean_up()
        raise ServerUnavailable(f"the container of {container.image} did not start: {exc}") from exc
