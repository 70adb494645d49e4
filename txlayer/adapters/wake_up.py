"""Wakes a thread that sleeps in `poll`."""

from __future__ import annotations

import socket


class WakeUp:
    """`asleep` is set by the sleeper just before it sleeps and looks at its queues once more; so no call is missed."""

    def __init__(self) -> None:
        self.asleep = False
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        return self._reader.fileno()

    def call(self) -> None:
        """From any thread; costs nothing while the sleeper is awake."""
        if self.asleep:
            self.insist()

    def insist(self) -> None:
        """Wake it at the next poll, even if it is awake now."""
        self.asleep = False
        try:
            self._writer.send(b"x")
        except OSError:
            return  # full: it will wake; closed: nobody sleeps there any more

    def clear(self) -> None:
        """By the sleeper, when its poll told of `fileno`."""
        self._reader.recv(4096)

    def close_reader(self) -> None:
        self._reader.close()

    def close(self) -> None:
        self._writer.close()
