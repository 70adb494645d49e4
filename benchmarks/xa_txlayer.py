"""Three members, each a site in a process of its own with a log and a database, and a publisher that coordinates."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

from txlayer import Event, Limit, MemberTransaction, Site, Threads, all_of, named, only
from txlayer.resources.postgres import PostgresResource

_SECONDS = 60.0


class Layer:
    """One-shot transactions, default security, every member inserts one row in one message to its database."""

    def __init__(self, broker: str, urls: list[str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="txlayer-xa-")
        self._run = f"bench-{os.getpid()}"
        context = multiprocessing.get_context("spawn")
        self._members: list[tuple[Any, Connection]] = []
        names = [f"{self._run}-{number}" for number in range(len(urls))]
        for name, url in zip(names, urls, strict=True):
            ours, theirs = context.Pipe()
            log = f"sqlite:///{self._folder.name}/{name}.db"
            process = context.Process(target=member, args=(name, broker, log, url, self._run, theirs), daemon=True)
            process.start()
            self._members.append((process, ours))
        for _, ready in self._members:
            if not ready.poll(_SECONDS):
                raise RuntimeError("a member did not start")
        self._site = Site(f"{self._run}-p", bus=broker, log=f"sqlite:///{self._folder.name}/p.db").start()
        self._everyone = all_of(only(*names), named(*names))
        end = time.monotonic() + _SECONDS
        while self._site.subscribed(self._run) != names:
            if time.monotonic() > end:
                raise RuntimeError("the members were not found")
            time.sleep(0.01)

    def transaction(self) -> None:
        """The call returns when the decision is durable."""
        self._site.send(
            self._run, [{"value": "x"}], limit=Limit.DISTRIBUTED, require=self._everyone, census_within=20.0
        )

    def close(self) -> None:
        self._site.close()
        for process, connection in self._members:
            connection.send("end")
            process.join(_SECONDS)
        self._folder.cleanup()


def member(name: str, broker: str, log: str, url: str, type: str, connection: Connection) -> None:
    """A site with one subscriber."""
    entries = PostgresResource(url, name="entries")
    site = Site(name, bus=broker, log=log, threads=Threads(handlers=8, finishers=8))

    @site.subscriber(type, resources=[entries])
    def on_entry(_tx: MemberTransaction, event: Event) -> Any:
        return entries.batch("INSERT INTO entry (value) VALUES (%s)", (event.data["value"],))

    with site:
        connection.send("ready")
        connection.recv()
