"""A private PostgreSQL on a loopback port, with prepared transactions allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from signal import SIGINT, SIGQUIT, SIGTERM
from typing import Literal

from txlayer.testing.native import NativeServer
from txlayer.testing.postgres_programs import find_programs, server_user
from txlayer.testing.process import ServerProcess, run
from txlayer.testing.server import ServerFailed

Mode = Literal["smart", "fast", "immediate"]
SIGNALS = {"smart": SIGTERM, "fast": SIGINT, "immediate": SIGQUIT}
DEFAULT_SETTINGS: Mapping[str, object] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": True,
    "max_prepared_transactions": 64,
    "max_connections": 100,
    "shared_buffers": "32MB",
}
ENVIRONMENT = {"LC_ALL": "C", "TZ": "UTC"}  # the ready line must not be translated


class Postgres(NativeServer):
    """A server with the database `postgres` and the superuser `postgres`, no password on loopback.

    `settings` are lines of postgresql.conf (`max_connections=20`, `wal_level="logical"`).
    """

    kind = "postgres"

    def __init__(self, **settings: object) -> None:
        user = server_user()
        self._programs = find_programs(user)
        self._settings = settings
        super().__init__(user)

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _prepare(self) -> None:
        # Without sync: a machine that crashes now takes this directory with it. The server's own fsync stays on.
        command: list[str | Path] = [self._programs / "initdb", "-D", self._data, "-U", "postgres", "-A", "trust"]
        command += ["-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions"]
        result = run(command, cwd=self.directory, environment=ENVIRONMENT, user=self._user)
        if not result.succeeded:
            raise ServerFailed(f"initdb failed:\n{result.tail()}")

    def _configure(self, ports: Mapping[str, int]) -> None:
        settings = {**DEFAULT_SETTINGS, "port": ports["client"], **self._settings}
        lines = [f"{name} = '{_value(value)}'" for name, value in settings.items()]
        # Read after postgresql.conf, so that it overrides what initdb wrote there.
        (self._data / "postgresql.auto.conf").write_text("\n".join(lines) + "\n")

    def _command(self) -> Sequence[str]:
        return [str(self._programs / "postgres"), "-D", str(self._data)]

    def _environment(self) -> Mapping[str, str]:
        return ENVIRONMENT

    def _ready(self, process: ServerProcess) -> bool:
        return "database system is ready to accept connections" in process.output()

    def stop(self, mode: Mode = "fast") -> None:
        """`smart` waits for clients to leave, `fast` disconnects them, `immediate` leaves repair to the next start."""
        if self._process:
            self._process.stop(SIGNALS[mode])

    def restart(self, mode: Mode = "fast") -> None:
        self.stop(mode)
        self.start()


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value).replace("'", "''")
