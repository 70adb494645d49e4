"""The processes of the matrix on one bus, with a database for each member; ended and started again as a case asks."""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg

from tests.crash_matrix.hook import After
from tests.crash_matrix.process import SECONDS, Role, main

MEMBERS = ("a", "b", "c")
OBSERVERS = {"l": "local", "f": "follower"}
PUBLISHERS = ("p", "q")
HOST = "h"
TYPES = ("shot", "open", "hosted", "scoped", "undo")
TABLE = "CREATE TABLE entry (id bigserial, key text, number int, undo boolean, publisher text)"
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.crash_matrix.process", "paho.mqtt.client", "confluent_kafka", "psycopg_pool"])
_keys = itertools.count(1)


class NotInTime(AssertionError):
    """Something did not happen within the bound."""


class Member:
    """A process that can be ended and started again."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self._replies: dict[str, list[tuple[str, str]]] = {}
        self._process: Any = None
        self._pipe: Connection

    def start(self, point: str = "", nth: int = 0, after: After | None = None) -> bool:
        """Start it, perhaps to die on the way; False if it has."""
        ours, theirs = _context.Pipe()
        self._process = _context.Process(target=main, args=(self.role, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe = ours
        self._replies.clear()
        self._pipe.send((point, nth, after or {}))
        return self.reply("", SECONDS) is not None

    def arm(self, point: str, nth: int, after: After) -> None:
        """Die there."""
        self.ask("arm", point=point, nth=nth, after=after)

    def ask(self, command: str, **options: Any) -> tuple[str, str]:
        """Have it do something and wait for the answer."""
        key = f"ask {next(_keys)}"
        self.tell(command, key, **options)
        answer = self.reply(key, SECONDS)
        if answer is None:
            raise NotInTime(f"{self.role.name} died while it was asked {command}")
        return answer

    def tell(self, command: str, key: str, **options: Any) -> None:
        """Have it do something."""
        self._pipe.send((command, key, options))

    def reply(self, key: str, seconds: float) -> tuple[str, str] | None:
        """The next answer under this key; None if the process is dead or the time is up."""
        return self._replies[key].pop(0) if self.has_replied(key, seconds) else None

    def has_replied(self, key: str, seconds: float) -> bool:
        """Whether there is an answer under this key before the process is dead or the time is up."""
        end = time.monotonic() + seconds
        while not self._replies.get(key):
            try:
                if not self._pipe.poll(max(0.0, end - time.monotonic())):
                    return False
                found, what, detail = self._pipe.recv()
            except (EOFError, OSError):
                self._process.join(SECONDS)
                return False
            self._replies.setdefault(found, []).append((what, detail))
        return True

    def alive(self) -> bool:
        return bool(self._process.is_alive())

    def await_death(self, seconds: float) -> bool:
        self._process.join(seconds)
        return not self.alive()

    def end(self) -> None:
        if self.alive():
            self._process.kill()
            self._process.join(SECONDS)


class Cluster:
    """Everyone on one bus."""

    def __init__(self, bus: str, postgres: str, folder: Path, label: str) -> None:
        self._label = label
        self.done: list[tuple[Any, str, str]] = []
        """The cases that were right, their keys, and what the publisher saw."""
        self.second_ends: Counter[str] = Counter()
        """Where processes were ended a second time."""
        self.databases = {name: self._database(postgres, f"{label}_{name}") for name in (*MEMBERS, *OBSERVERS)}
        self._connections = {name: psycopg.connect(url, autocommit=True) for name, url in self.databases.items()}
        self.members: dict[str, Member] = {}
        for name in (*MEMBERS, *OBSERVERS, *PUBLISHERS, HOST):
            self.members[name] = Member(self._role(name, bus, folder))
        for connection in self._connections.values():
            connection.execute(TABLE)
        for member in self.members.values():
            if not member.start():
                raise NotInTime(f"{member.role.name} did not start")

    def _role(self, name: str, bus: str, folder: Path) -> Role:
        log, full = f"sqlite:///{folder / self._label}-{name}.db", self.full(name)
        if name in MEMBERS:
            types = (*TYPES, "single") if name == "a" else TYPES
            return Role(name, full, bus, log, self.databases[name], types)
        if name in OBSERVERS:
            return Role(name, full, bus, log, self.databases[name], ("scoped",), OBSERVERS[name])
        return Role(name, full, bus, log, hosts=name == HOST)

    def full(self, name: str) -> str:
        """The name of a site, which no other cluster on the bus has."""
        return f"{self._label}-{name}"

    @staticmethod
    def _database(postgres: str, name: str) -> str:
        with psycopg.connect(postgres, autocommit=True) as db:
            db.execute(f"CREATE DATABASE {name}")
        return urlsplit(postgres)._replace(path=f"/{name}").geturl()

    def gather(self, driver: str, type: str, names: Sequence[str]) -> None:
        """Wait until everyone is there and the driver knows who takes part."""
        wanted = " ".join(sorted(self.full(name) for name in names))
        self.wait(lambda: self.members[driver].ask("knows", type=type)[1] == wanted, f"{driver} knows {wanted}")

    def after(self) -> After:
        """Where the numbers of later transactions start."""
        return {self.full(name): int(self.members[name].ask("next")[0]) for name in ("p", HOST)}

    def wait(self, condition: Any, what: str, seconds: float = SECONDS) -> None:
        """Wait for a condition."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise NotInTime(f"not within {seconds} s: {what}")
            time.sleep(0.01)

    def rows(self, name: str, key: str) -> list[tuple[int, bool]]:
        """What a member has in its database under a key, in the order of writing."""
        rows = self._connections[name].execute("SELECT number, undo FROM entry WHERE key = %s ORDER BY id", (key,))
        return [(number, undo) for number, undo in rows]

    def published(self, name: str, key: str, publisher: str) -> int:
        """How many events of a publisher a member has under a key."""
        mine = "SELECT count(*) FROM entry WHERE key = %s AND publisher = %s AND NOT undo"
        row = self._connections[name].execute(mine, (key, self.full(publisher))).fetchone()
        assert row is not None
        return int(row[0])

    def prepared(self) -> list[str]:
        """Prepared transactions that are left in any database."""
        found = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
        return [row[0] for connection in self._connections.values() for row in connection.execute(found)]

    def close(self) -> None:
        for member in self.members.values():
            member.end()
        for connection in self._connections.values():
            connection.close()
