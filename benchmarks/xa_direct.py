"""Two-phase commit over three databases without any layer: a psycopg script that drives it itself, in threads."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg

_numbers = itertools.count(1)


class Direct:
    """One driver for each transaction at a time; every driver has a connection to each database."""

    def __init__(self, urls: Sequence[str], concurrency: int) -> None:
        self._drivers = [[psycopg.connect(url) for url in urls] for _ in range(concurrency)]
        self._threads = ThreadPoolExecutor(len(urls) * concurrency)
        self._free = list(self._drivers)

    def transaction(self) -> None:
        """Insert, prepare everywhere, then commit everywhere."""
        connections = self._free.pop()
        gid = f"direct-{os.getpid()}-{next(_numbers)}"
        self._everywhere(connections, lambda conn: _prepare(conn, f"{gid}-{conn.info.dbname}"))  # one per server
        self._everywhere(connections, lambda conn: conn.tpc_commit())
        self._free.append(connections)

    def _everywhere(self, connections: Sequence[Any], act: Callable[[Any], None]) -> None:
        for done in [self._threads.submit(act, conn) for conn in connections]:
            done.result()

    def close(self) -> None:
        self._threads.shutdown()
        for connections in self._drivers:
            for conn in connections:
                conn.close()


def _prepare(conn: psycopg.Connection[Any], gid: str) -> None:
    conn.tpc_begin(gid)
    conn.execute("INSERT INTO entry (value) VALUES (%s)", (gid,))
    conn.tpc_prepare()
