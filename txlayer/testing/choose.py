"""Which server a test gets: one given by URL, else a container, else a native process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from txlayer.testing import containers
from txlayer.testing.server import GivenServer, Server, ServerFailed, ServerUnavailable

REQUIRE = "TXLAYER_REQUIRE_SERVICES"
DOCKER = "TXLAYER_DOCKER"
NO = ("0", "no", "false", "off")


@dataclass(frozen=True)
class Service:
    """One kind of server and the ways to get it."""

    name: str
    variable: str
    schemes: tuple[str, ...]
    default_port: int
    container: Callable[[], Server]
    native: Callable[[], Server]


def choose(
    service: Service,
    environment: Mapping[str, str] = os.environ,
    docker_missing: Callable[[], str | None] = containers.docker_missing,
    number: int = 0,
) -> Server:
    """Start or find a server; `ServerUnavailable` tells for each way why it is closed.

    The variable may hold several URLs with spaces between; `number` is which one, and beyond them a server is started.
    A URL that does not answer is an error and no reason to look further: somebody meant that server.
    """
    given = environment.get(service.variable, "").split()
    if number < len(given):
        return _given(service, given[number])
    reasons = [f"{service.variable} is not set"]
    ways: list[Callable[[], Server]] = [lambda: _container(service, environment, docker_missing), service.native]
    for way in ways:
        try:
            return way()
        except ServerUnavailable as exc:
            reasons.append(str(exc))
    raise ServerUnavailable(f"no {service.name}: {'; '.join(reasons)}")


def required(environment: Mapping[str, str] = os.environ) -> bool:
    """A missing server is a failure rather than a reason to skip."""
    return environment.get(REQUIRE, "0").lower() not in ("", *NO)


def _container(service: Service, environment: Mapping[str, str], docker_missing: Callable[[], str | None]) -> Server:
    if environment.get(DOCKER, "").lower() in NO:
        raise ServerUnavailable(f"containers are turned off by {DOCKER}")
    reason = docker_missing()
    if reason:
        raise ServerUnavailable(reason)
    return service.container()


def _given(service: Service, url: str) -> Server:
    parts = urlsplit(url)
    server = GivenServer(url, service.variable)
    if parts.scheme not in service.schemes or not parts.hostname:
        wanted = " or ".join(f"{scheme}://host:port" for scheme in service.schemes)
        raise ServerFailed(f"{service.variable} must be like {wanted}")
    try:
        socket.create_connection((parts.hostname, parts.port or service.default_port), timeout=10.0).close()
    except OSError as exc:
        raise ServerFailed(f"{service.variable} names {server.address}, which does not answer: {exc}") from exc
    return server
