"""What every server for tests offers, wherever it comes from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Self

from txlayer.errors import TxLayerError


class How(StrEnum):
    """Where a server came from."""

    ENVIRONMENT = "environment"
    CONTAINER = "container"
    NATIVE = "native"


class ServerUnavailable(TxLayerError):
    """This server cannot be had here; the message says what is missing and how to get it."""


class ServerFailed(TxLayerError):
    """The server was started and did not come up, or ended by itself; the message ends with its log."""


class Server(ABC):
    """A running server. As a context manager it is closed at the end of the block.

    `kill`, `stop` and `restart` raise `ServerUnavailable` on a server that is not ours to end.
    """

    how: How

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients connect; stays the same through a restart of a native server."""

    @abstractmethod
    def kill(self) -> None:
        """End it without warning (SIGKILL). What it had made durable stays for `restart`."""

    @abstractmethod
    def stop(self) -> None:
        """End it in good order. Its data stay for `restart`."""

    @abstractmethod
    def restart(self) -> None:
        """Stop it if it runs, then start it at the same address with the same data, and wait until it is ready."""

    @abstractmethod
    def close(self) -> None:
        """End it for good and leave nothing behind. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.how} {self.address}>"

    @property
    def address(self) -> str:
        """`host:port` without credentials."""
        return self.url.rpartition("@")[2].rpartition("//")[2].partition("/")[0].partition("?")[0]


class SharedServer(Server):
    """A server that a test may use and not end; `why` tells it the reason."""

    def __init__(self, url: str, why: str) -> None:
        self._url = url
        self._why = why

    @property
    def url(self) -> str:
        return self._url

    def _refuse(self) -> None:
        raise ServerUnavailable(f"{self.address} {self._why}: a test that ends its server starts a private one")

    def kill(self) -> None:
        self._refuse()

    def stop(self) -> None:
        self._refuse()

    def restart(self) -> None:
        self._refuse()


class GivenServer(SharedServer):
    """A server that someone else runs, named by URL."""

    how = How.ENVIRONMENT

    def __init__(self, url: str, variable: str) -> None:
        super().__init__(url, f"was given by {variable} and is not ours to end")

    def close(self) -> None:
        """Nothing of it is ours."""
