"""One process of the matrix: a site with its subscribers, driven through a pipe."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from tests.crash_matrix.hook import After, Hook
from txlayer import Access, Patience, Scope, Site, at_least, named
from txlayer.errors import OutcomeUnknown, TransactionError, TxLayerError
from txlayer.resources.postgres import PostgresResource

SECONDS = 60.0
"""The bound for everything that must happen."""
QUICK = Patience(retry=0.3, in_doubt=0.5, gap=0.2, linger=0.5, mark=0.5, longest=2.0)
INSERT = "INSERT INTO entry (key, number, undo, publisher) VALUES (%s, %s, %s, %s)"


@dataclass(frozen=True)
class Role:
    """What a process is."""

    short: str
    name: str
    bus: str
    log: str
    database: str = ""
    subscriptions: tuple[str, ...] = ()
    scope: str = "distributed"
    hosts: bool = False


@dataclass
class Driver:
    """Runs in the process: takes commands, answers `(key, what, detail)`."""

    role: Role
    pipe: Connection
    hook: Hook = field(default_factory=Hook)
    second: threading.Event = field(default_factory=threading.Event)
    """The second publisher has done what it was to do."""

    def run(self) -> None:
        self.hook.watch_database()
        self._arm_at_start()
        self.site = self._site()
        self.site.start()
        self.pipe.send(("", "ready", ""))
        while True:
            command, key, options = self.pipe.recv()
            if command == "end":
                self.site.close(2.0)
                return
            threading.Thread(target=self._do, args=(command, key, options), daemon=True).start()

    def _arm_at_start(self) -> None:
        self.hook.arm(*self.pipe.recv())

    def _do(self, command: str, key: str, options: dict[str, Any]) -> None:
        try:
            answer = getattr(self, f"_on_{command}")(key, **options)
        except OutcomeUnknown as exc:
            answer = ("unknown", str(exc))
        except TransactionError as exc:
            answer = (type(exc).__name__, str(exc))
        except TxLayerError as exc:
            answer = ("error", f"{type(exc).__name__}: {exc}")
        self.pipe.send((key, *answer))

    # Commands

    def _on_arm(self, key: str, point: str, nth: int, after: After) -> tuple[str, str]:
        self.hook.arm(point, nth, after)
        return "armed", point

    def _on_pause(self, key: str, point: str, after: After) -> tuple[str, str]:
        self.hook.pause(point, after)
        return "armed", point

    def _on_release(self, key: str) -> tuple[str, str]:
        self.hook.release()
        return "released", ""

    def _on_next(self, key: str) -> tuple[str, str]:
        """The number of the next transaction, and how many entries its readers have not read."""
        engine = self.site._engine
        desk = engine.participant.coordinator
        unread = engine.ask(lambda: sum(len(chain.entries) for chain in desk.chains.values()), SECONDS)
        return str(desk.next_number), str(unread)

    def _on_readers(self, key: str) -> tuple[str, str]:
        """Who has registered for what is committed, or called, here."""
        engine = self.site._engine
        chains = engine.participant.coordinator.chains
        names = engine.ask(lambda: sorted(name for chain in chains.values() for name in chain.readers), SECONDS)
        return "readers", " ".join(names)

    def _on_knows(self, key: str, type: str) -> tuple[str, str]:
        return "knows", " ".join(self.site.subscribed(type))

    def _on_hosts(self, key: str) -> tuple[str, str]:
        return "hosts", " ".join(self.site._engine.neighbours.hosts())

    def _on_views(self, key: str) -> tuple[str, str]:
        return "views", " ".join(sorted({f"{view.part}:{view.state}" for view in self.site.transactions()}))

    def _on_recovered(self, key: str) -> tuple[str, str]:
        """Whether nothing is undecided or being done here."""
        engine = self.site._engine
        undecided, _ = engine.ask(engine._busy, SECONDS)
        return "recovered", "" if undecided else "yes"

    def _on_shot(self, key: str, type: str, data: dict[str, Any], **terms: Any) -> tuple[str, str]:
        own = None if terms.pop("keyless", False) else key
        outcome = self.site.send(type, [{"key": key, **data}], key=own, **self._terms(terms))
        return outcome.status.name, str(outcome.members)

    def _on_open(self, key: str, type: str, data: dict[str, Any], second: str = "", **terms: Any) -> tuple[str, str]:
        with self.site.transaction(type, key=key, **self._terms(terms)) as tx:
            tx.publish({"key": key, **data})
            if second:
                self.second.clear()
                self.pipe.send((key, "opened", str(tx.id)))
                self.second.wait(SECONDS)
            tx.publish({"key": key, **data})
        assert tx.outcome is not None
        return tx.outcome.status.name, str(tx.outcome.members)

    def _on_go_on(self, key: str) -> tuple[str, str]:
        self.second.set()
        return "gone on", ""

    def _on_join(self, key: str, tx: str, type: str, data: dict[str, Any]) -> tuple[str, str]:
        with self.site.join_transaction(type, id=tx) as joined:
            joined.publish({"key": key, **data})
            joined.publish({"key": key, **data})
        return "joined", ""

    def _on_outcome(self, key: str, of: str, coordinator: str = "") -> tuple[str, str]:
        outcome = self.site.outcome(key=of, coordinator=coordinator or "self", within=5.0)
        return outcome.status.name, outcome.reason

    @staticmethod
    def _terms(terms: dict[str, Any]) -> dict[str, Any]:
        terms = {"census_within": 30.0, "vote_within": 30.0, **terms}  # a busy machine is no fault
        if "members" in terms:
            terms["require"] = named(*terms.pop("members"))
        if "settle" in terms:
            terms["settle_for"] = at_least(terms.pop("settle"))
        if terms.pop("multi", False):
            terms["access"] = Access.MULTI
        return terms

    # The site

    def _site(self) -> Site:
        role = self.role
        site = Site(role.name, bus=role.bus, log=role.log, hosts=role.hosts, patience=QUICK, probe=self.hook.probe)
        if not role.database:
            return site
        ledger = PostgresResource(role.database, name="db", connections=4, lock_timeout=1.0, patience=3.0)

        def handle(tx: Any, event: Any) -> Any:
            if event.data.get("refuses") == role.short:
                tx[ledger].execute("NOTIFY refused")  # cannot be prepared
            if event.data.get("batch"):
                return ledger.batch(INSERT, (event.data["key"], event.number, False, event.publisher))
            tx[ledger].execute(INSERT, (event.data["key"], event.number, False, event.publisher))
            return None

        def undo(tx: Any, event: Any) -> None:
            if event.data.get("stuck") == role.short:
                raise RuntimeError("cannot be undone")
            tx[ledger].execute(INSERT, (event.data["key"], event.number, True, event.publisher))

        for type in role.subscriptions:
            scope = Scope(role.scope)
            site.subscribe(
                type, handle, resources=[ledger], scope=scope, durable=scope is Scope.LOCAL,
                compensate=undo if type == "undo" and role.short in ("a", "b") else None,
            )  # fmt: skip
        return site


def main(role: Role, pipe: Connection) -> None:
    """Entry point of a process."""
    Driver(role, pipe).run()
