"""The driver's end of a site's process."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.stress_sites import orders
from tests.stress_sites.tastes import Config

_decode = msgspec.json.Decoder(orders.AnyAnswer).decode


class Handle:
    """One site and its process."""

    def __init__(self, config: Config, on_answer: Callable[[str, orders.AnyAnswer], None]) -> None:
        self.config = config
        self.ready = threading.Event()
        self.left: orders.Left | None = None
        self.closed: orders.Closed | None = None
        self._on_answer = on_answer
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, dies_after: int = 0) -> None:
        """A new process; it ends itself after so many steps, if any are given."""
        self.ready = threading.Event()
        config = msgspec.structs.replace(self.config, dies_after=dies_after)
        errors = (Path(self.config.folder) / f"{self.config.name}.stderr").open("ab")
        command = [sys.executable, "-m", "tests.stress_sites.site_process", msgspec.json.encode(config).decode()]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
        errors.close()
        threading.Thread(target=self._listen, args=(self._process, self.ready), daemon=True).start()

    def _listen(self, process: subprocess.Popen[bytes], ready: threading.Event) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._hear(_decode(line), ready)

    def _hear(self, answer: orders.AnyAnswer, ready: threading.Event) -> None:
        self._on_answer(self.config.name, answer)
        if isinstance(answer, orders.Ready):
            ready.set()
        elif isinstance(answer, orders.Left):
            self.left = answer
        elif isinstance(answer, orders.Closed):
            self.closed = answer

    def tell(self, order: orders.AnyOrder) -> bool:
        """False if there is nobody to be told."""
        if self._process is None or not self.ready.is_set():
            return False
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(msgspec.json.encode(order) + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return False
        return True

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._reap(self._process)

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def wait(self, seconds: float) -> int | None:
        """The exit code; None if it does not end."""
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return self._reap(self._process)

    @staticmethod
    def _reap(process: subprocess.Popen[bytes]) -> int:
        """Whoever listens to it closes what he reads, when he has read all of it."""
        code = process.wait()
        if process.stdin is not None and not process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        return code
