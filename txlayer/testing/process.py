"""One server process under a watchdog: start it, signal it, know its end, read its log."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from txlayer.testing.server import ServerFailed

WATCHDOG = Path(__file__).with_name("watchdog.py")


@dataclass(frozen=True)
class User:
    """Whom a server runs as."""

    uid: int
    gid: int


@dataclass(frozen=True)
class Finished:
    """How a command ended: what it printed, errors included, and whether it succeeded."""

    succeeded: bool
    output: str

    def tail(self, characters: int = 2_000) -> str:
        return self.output.strip()[-characters:]


def run(
    command: Sequence[str | Path],
    cwd: str | Path | None = None,
    environment: Mapping[str, str] | None = None,
    user: User | None = None,
) -> Finished:
    """Run a command to its end, without input. `environment` is added to ours. An `OSError` if it cannot be started."""
    result = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        user=user.uid if user else None,
        group=user.gid if user else None,
        extra_groups=[] if user else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    return Finished(result.returncode == 0, result.stdout)


def can_enter(directory: str | Path, user: User | None) -> bool:
    """Whether this user reaches the directory, through all those above it."""
    return user is None or run(["test", "-x", directory], cwd="/", user=user).succeeded


def free_port() -> int:
    """A loopback port that nobody listens on, below the range from which the system takes ports for clients.

    A client's connection could otherwise take the port of a broker that is down for a moment, and a client that tries
    to reconnect to such a port can even end up connected to itself. Processes with numbers near each other, such as
    those of one parallel test run, draw from different ports: none takes that of a server which another restarts.
    """
    for _ in range(100):
        port = random.randrange(12_000 + os.getpid() % 16, 32_000, 16)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerFailed("no free port between 12000 and 31999 on 127.0.0.1")


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Look every few milliseconds; false if it did not come true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@dataclass
class ServerProcess:
    """A command run under the watchdog, with its output in a log file that is appended to.

    `directory` is its working directory, and is removed by the watchdog if this process dies before the server.
    """

    command: Sequence[str]
    directory: Path
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    user: User | None = None

    def __post_init__(self) -> None:
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        report, write_end = os.pipe()
        order = {
            "parent": os.getpid(),
            "report": write_end,
            "remove": str(self.directory),
            "uid": self.user.uid if self.user else None,
            "gid": self.user.gid if self.user else None,
        }
        with self.log.open("ab") as output, os.fdopen(report) as pid:
            try:
                self._watchdog = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(WATCHDOG), json.dumps(order), *self.command],
                    cwd=self.directory,
                    env={**os.environ, **self.environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=[write_end],
                    start_new_session=True,  # an interrupt at the terminal is for the tests, which then stop the server
                )
            finally:
                os.close(write_end)
            line = pid.readline()
        if not line:
            raise ServerFailed(f"the watchdog of {self.command[0]} did not start\n{self.log_tail()}")
        self.pid = int(line)

    def running(self) -> bool:
        return self._watchdog.poll() is None

    def output(self) -> str:
        """What this run has written."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self.output().splitlines()[-lines:])

    def send(self, number: signal.Signals) -> None:
        if self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL; returns when the process and all its children are gone."""
        self.send(signal.SIGKILL)
        self._watchdog.wait()

    def stop(self, number: signal.Signals = signal.SIGTERM, seconds: float = 30.0) -> None:
        """Ask it to end, and kill it if it does not."""
        self.send(number)
        try:
            self._watchdog.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
