"""Is a Kafka broker ready for an idempotent producer and for a consumer that commits?

A broker listens some time before it can number producers, and librdkafka asks again only after half a second or more.
So this asks directly, every few milliseconds, with the two requests that have to succeed: InitProducerId, which makes
the broker get a block of producer ids, and FindCoordinator, which makes it create the topic of committed offsets. No
client library is needed.
"""

from __future__ import annotations

import socket
import struct

INIT_PRODUCER_ID = 22
FIND_COORDINATOR = 10
GROUP = 0


def ready(port: int, host: str = "127.0.0.1") -> bool:
    """One quick look. False while the broker refuses connections or says that it is not there yet."""
    try:
        with socket.create_connection((host, port), timeout=5.0) as connection:
            return _producer_id(connection) == 0 and _coordinator(connection) == 0
    except (OSError, EOFError):
        return False


def _producer_id(connection: socket.socket) -> int:
    no_transaction = struct.pack(">hi", -1, 60_000)
    return _error(_ask(connection, INIT_PRODUCER_ID, version=1, body=no_transaction))


def _coordinator(connection: socket.socket) -> int:
    body = _string("txlayer-ready") + struct.pack(">b", GROUP)
    return _error(_ask(connection, FIND_COORDINATOR, version=1, body=body))


def _ask(connection: socket.socket, key: int, version: int, body: bytes) -> bytes:
    header = struct.pack(">hhi", key, version, 1) + _string("txlayer-ready")
    connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
    (length,) = struct.unpack(">i", _read(connection, 4))
    return _read(connection, length)


def _error(answer: bytes) -> int:
    """Both answers start with correlation id, throttle time and error code."""
    (code,) = struct.unpack_from(">h", answer, 8)
    return int(code)


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _read(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise EOFError("the broker closed the connection")
        data += part
    return data
