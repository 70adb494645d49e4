"""A TCP proxy that does to a connection what networks do: cut it, delay it, leave it half open."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards `127.0.0.1:port` to a server.

    `delay` holds every piece of data back for so many seconds. While `frozen`, nothing passes and nobody is told;
    while `refusing`, new connections are closed at once. `cut` ends all connections with a reset.
    """

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.delay = 0.0
        self.refusing = False
        self.connections = 0
        """How many have been accepted so far."""
        self._target = (host, port)
        self._lock = threading.Lock()
        self._pairs: list[_Pair] = []
        self._thawed = threading.Event()
        self._thawed.set()
        self._closed = threading.Event()
        self._until_cut: int | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="proxy", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """End all connections, whatever is on its way."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            pair.end()

    def cut_after(self, count: int) -> None:
        """Cut when so many more bytes have passed, be it in the middle of a packet."""
        with self._lock:
            self._until_cut = count

    def freeze(self) -> None:
        """Half-open from now on: both sides believe in their connection and hear nothing."""
        self._thawed.clear()

    def thaw(self) -> None:
        self._thawed.set()

    def close(self) -> None:
        self._closed.set()
        self._thawed.set()
        self.cut()
        self._thread.join(10.0)
        self._listener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closed.is_set():
            if not select.select([self._listener], [], [], 0.05)[0]:
                continue
            client, _ = self._listener.accept()
            self.connections += 1
            try:
                if self.refusing:
                    raise ConnectionRefusedError
                server = socket.create_connection(self._target, 5.0)
            except OSError:
                client.close()
                continue
            pair = _Pair(client, server)
            with self._lock:
                self._pairs.append(pair)
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=(pair, source, sink), name="proxy-way", daemon=True).start()

    def _forward(self, pair: _Pair, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while not pair.ended.is_set():
                if not select.select([source], [], [], 0.05)[0]:
                    continue
                self._thawed.wait()
                data = source.recv(65_536)
                if not data:
                    break
                if self.delay:
                    pair.ended.wait(self.delay)
                now, cut = self._split(data)
                sink.sendall(now)
                if cut:
                    self.cut()
        pair.leave()

    def _split(self, data: bytes) -> tuple[bytes, bool]:
        """What may still pass, and whether the cut is due."""
        with self._lock:
            if self._until_cut is None or len(data) < self._until_cut:
                self._until_cut = None if self._until_cut is None else self._until_cut - len(data)
                return data, False
            now, self._until_cut = data[: self._until_cut], None
            return now, True


class _Pair:
    """The two sides of one connection. The sockets are closed when neither way uses them any more."""

    def __init__(self, *sockets: socket.socket) -> None:
        self.ended = threading.Event()
        self._sockets = sockets
        self._users = 2
        self._lock = threading.Lock()

    def end(self) -> None:
        self.ended.set()

    def leave(self) -> None:
        self.ended.set()
        with self._lock:
            self._users -= 1
            if self._users:
                return
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
            sock.close()
