"""A server run as a process of this machine: its directory, its ports, its starts and ends.

A subclass says how to configure and run one kind of server. What all kinds share is here: ports are drawn before the
server binds them, so that another process may come in between. Then the server ends with a complaint about the
address, and the start is repeated with other ports; a restart, which must keep its port, is repeated with the same.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import tempfile
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from txlayer.testing.process import ServerProcess, User, can_enter, free_port, wait_until
from txlayer.testing.server import How, Server, ServerFailed

ATTEMPTS = 5


class NativeServer(Server):
    """Started by the constructor, which returns once the server is ready for clients."""

    how = How.NATIVE
    kind: str
    ready_seconds = 60.0
    stop_signal = signal.SIGTERM
    port_names: Sequence[str] = ("client",)

    def __init__(self, user: User | None = None) -> None:
        self._user = user
        self._owner = os.getpid()
        self._process: ServerProcess | None = None
        self.directory = Path(tempfile.mkdtemp(prefix=f"txlayer-{self.kind}-", dir=_temporary(user)))
        if user:
            os.chown(self.directory, user.uid, user.gid)
        self.log = self.directory / "server.log"
        atexit.register(self.close)
        try:
            self._prepare()
            self._first_start()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        """Make what outlives restarts: data directories, certificates."""

    @abstractmethod
    def _configure(self, ports: Mapping[str, int]) -> None:
        """Write the configuration for these ports."""

    @abstractmethod
    def _command(self) -> Sequence[str]: ...

    def _environment(self) -> Mapping[str, str]:
        return {}

    @abstractmethod
    def _ready(self, process: ServerProcess) -> bool:
        """Called again and again until it is true. Must not mistake another server on the port for ours."""

    def _address_in_use(self, output: str) -> bool:
        return "address already in use" in output.lower()

    def _first_start(self) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            self.ports = self._draw_ports()
            self._configure(self.ports)
            if self._launch() or attempt == ATTEMPTS:
                break
        self._require_running()

    def _draw_ports(self) -> dict[str, int]:
        ports: dict[str, int] = {}
        for name in self.port_names:
            ports[name] = next(port for port in iter(free_port, 0) if port not in ports.values())
        return ports

    def _launch(self) -> bool:
        """Start the process; false if it ended because of its port, an error if for another reason."""
        process = self._process = ServerProcess(
            self._command(), self.directory, self.log, self._environment(), self._user
        )
        settled = wait_until(lambda: not process.running() or self._ready(process), self.ready_seconds)
        if settled and process.running():
            return True
        process.kill()
        if self._address_in_use(process.output()):
            return False
        raise ServerFailed(f"{self.kind} did not come up; the end of its log:\n{process.log_tail()}")

    def _require_running(self) -> None:
        if not self.running():
            tail = self._process.log_tail() if self._process else ""
            raise ServerFailed(f"{self.kind} found no free port in {ATTEMPTS} attempts; the end of its log:\n{tail}")

    @property
    def port(self) -> int:
        return self.ports["client"]

    @property
    def pid(self) -> int:
        """The server's process, while it runs."""
        if self._process is None:
            raise ServerFailed(f"{self.kind} is not running")
        return self._process.pid

    def running(self) -> bool:
        return self._process is not None and self._process.running()

    def log_text(self) -> str:
        """What all runs have written so far."""
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        if self._process:
            self._process.kill()

    def stop(self) -> None:
        if self._process:
            self._process.stop(self.stop_signal)

    def restart(self) -> None:
        self.stop()
        self.start()

    def start(self) -> None:
        """After `kill` or `stop`: start again at the same address with the same data."""
        if self.running():
            return
        for attempt in range(1, ATTEMPTS + 1):
            if self._launch() or attempt == ATTEMPTS:
                break
            time.sleep(0.2)  # whoever has our port is probably a client that leaves soon
        self._require_running()

    def close(self) -> None:
        if os.getpid() != self._owner:
            return  # a forked child has a copy of this object, not the server
        atexit.unregister(self.close)
        try:
            self.stop()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)


def _temporary(user: User | None) -> str:
    """The directory for temporary ones, unless the server's user cannot enter it."""
    usual = tempfile.gettempdir()
    return usual if can_enter(usual, user) else "/tmp"
