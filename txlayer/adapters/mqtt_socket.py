"""A socket that reads ahead and writes in one piece.

paho reads every packet byte by byte and writes each one by itself: three or four system calls for an event, and a
wake-up of the broker for every acknowledgement. Between them and the kernel, a buffer makes that one call for many.
"""

from __future__ import annotations

import socket
import ssl
import threading
from typing import Any

_READ_BYTES = 64 * 1024
_MOST_UNSENT = 1024 * 1024
_PUBLISH = 0x30


class BufferedSocket:
    """Stands where paho has its socket. Whoever runs the client calls `flush` after paho has written.

    Only whole packets are put in, so another thread may put in its own, and flush.
    """

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._data = b""
        self._place = 0
        self._unsent = bytearray()
        self._sending = threading.Lock()
        self.shared = not isinstance(sock, ssl.SSLSocket)
        """Whether one thread may write while another reads."""

    def recv(self, count: int) -> bytes:
        place = self._place
        if place == len(self._data):
            self._data, self._place = self._sock.recv(_READ_BYTES), 0
            place = 0
        chunk = self._data[place : place + count]
        self._place = place + len(chunk)
        return chunk

    def peek_publish(self) -> tuple[int, bytes, int] | None:
        """First byte and rest of the next packet, and where it ends, if it is a PUBLISH and all of it is here."""
        if self._place == len(self._data):
            try:
                self._data, self._place = self._sock.recv(_READ_BYTES), 0
            except OSError:
                return None  # whoever reads next meets it again
        data, start = self._data, self._place
        if len(data) < start + 2 or data[start] & 0xF0 != _PUBLISH:
            return None
        place, length, shift = start + 1, 0, 0
        for digit in data[place : place + 4]:
            place += 1
            length |= (digit & 0x7F) << shift
            shift += 7
            if not digit & 0x80:
                end = place + length
                return (data[start], data[place:end], end) if end <= len(data) else None
        return None

    def skip_to(self, place: int) -> None:
        """What was looked at is taken."""
        self._place = place

    def send(self, data: bytes) -> int:
        with self._sending:
            if len(self._unsent) > _MOST_UNSENT:
                raise BlockingIOError("the broker does not read")
            self._unsent += data
        return len(data)

    def flush(self) -> bool:
        """Write what is buffered; False if some is left because the kernel takes no more now."""
        try:
            with self._sending:
                while self._unsent:
                    sent = self._sock.send(self._unsent)
                    del self._unsent[:sent]
        except (BlockingIOError, InterruptedError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return False
        return True

    def pending(self) -> int:
        """Bytes that are here and that no poll will tell of."""
        decrypted = self._sock.pending() if hasattr(self._sock, "pending") else 0
        return len(self._data) - self._place + int(decrypted)

    def close(self) -> None:
        try:
            self.flush()  # the DISCONNECT is in there
        except OSError:
            self._unsent.clear()
        self._sock.close()

    def fileno(self) -> int:
        return int(self._sock.fileno())

    def setblocking(self, flag: bool) -> None:
        self._sock.setblocking(flag)


def no_delay(sock: Any) -> None:
    if isinstance(sock, socket.socket) and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def flush(sock: Any) -> bool:
    """Flush a socket if it is a buffered one; True if nothing is left."""
    try:
        return sock.flush() if isinstance(sock, BufferedSocket) else True
    except OSError:
        return True  # broken: the next read tells
