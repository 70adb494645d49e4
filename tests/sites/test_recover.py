"""Branches of a site whose log is lost: asked for, finished, and nobody else's touched."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DEADLINE, eventually
from tests.sites.conftest import Sites
from tests.sites.test_postgres import Bank
from txlayer import Site, TxId, named
from txlayer.cli import main
from txlayer.errors import TransactionAborted
from txlayer.resources.postgres import PostgresResource
from txlayer.testing.server import Server


class Left:
    """A member that voted yes and went away for good before it heard the decision; the decision came."""

    def __init__(self, sites: Sites, bank: Bank, commits: bool) -> None:
        self.bank = bank
        self.type = sites.name("transfers")
        self.gone = sites.member("gone", self.type, bank.on_transfer, resources=[bank.ledger], log=sites.file("gone"))
        go_on = threading.Event()

        def slowly(tx: Any, event: Any) -> None:
            go_on.wait(DEADLINE)
            if not commits:
                raise RuntimeError("does not want to")

        other = sites.member("other", self.type, slowly)
        self.publisher = sites.start("p")
        sites.know(self.publisher, self.type, self.gone, other)
        done = threading.Thread(target=self._send)
        done.start()
        eventually(lambda: bank.prepared() == 1)
        eventually(lambda: [view.state for view in self.gone.transactions()] == ["commitment"])
        self._vanish(self.gone)
        go_on.set()
        done.join(DEADLINE)
        Path(sites.file("gone").removeprefix("sqlite:///")).unlink()

    def _send(self) -> None:
        everyone = named(self.gone.name)
        terms = {"require": everyone, "vote_within": DEADLINE, "complete_within": 2 * DEADLINE}
        with (
            contextlib.suppress(TransactionAborted),
            self.publisher.transaction(self.type, **terms) as tx,
        ):
            tx.publish({"amount": 5})

    @staticmethod
    def _vanish(site: Site) -> None:
        """Without a word to anybody, and with no chance to finish."""
        site._engine.members.closing = True
        site._engine.loop.stop(DEADLINE)
        site.close(timeout=0.0)


@pytest.fixture
def bank(postgres_server: Server) -> Any:
    made = Bank(postgres_server.url)
    yield made
    for row in made.db.execute("SELECT gid FROM pg_prepared_xacts WHERE gid LIKE %s", (f"%{made.table}%",)).fetchall():
        made.db.execute(f"ROLLBACK PREPARED '{row[0]}'")
    made.db.close()


@pytest.mark.parametrize("commits", [True, False])
def test_branch_of_a_lost_log_is_finished_as_its_coordinator_decided(
    sites: Sites, bank: Bank, postgres_server: Server, commits: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    left = Left(sites, bank, commits)
    assert bank.prepared() == 1
    tx = TxId("another", "log", 1, "abcd")
    nobodys = PostgresResource(postgres_server.url, name=bank.table)
    nobodys.open("another", "log")
    nobodys.prepare(tx)
    arguments = ["recover", "--dsn", postgres_server.url, "--bus", sites.world.url, "--site", left.gone.name]
    assert main(arguments) == 0
    assert ("committed" if commits else "rolled back") in capsys.readouterr().out
    assert bank.balance() == (105 if commits else 100)
    assert nobodys.state(tx) == "prepared", "the branch of another site is left alone"
    nobodys.roll_back(tx)
    nobodys.close()


def test_coordinator_that_nobody_knows_leaves_the_branch_and_the_operator_decides(
    memory_sites: Sites, bank: Bank, postgres_server: Server, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("txlayer.recover.WITHIN", 0.2)
    site = memory_sites.name("lost")
    resource = PostgresResource(postgres_server.url, name=bank.table)
    resource.open(site, "log")
    tx = TxId("nowhere", "log", 1, "abcd")
    resource.work(tx).execute(bank.add, (5, 1))
    resource.prepare(tx)
    arguments = ["recover", "--dsn", postgres_server.url, "--site", site]
    assert main([*arguments, "--bus", memory_sites.world.url]) == 1
    assert "left" in capsys.readouterr().out
    assert main(["tx", "list", "--dsn", postgres_server.url, "--site", site]) == 0
    listed = capsys.readouterr().out
    assert "nowhere" in listed
    (branch,) = resource.branches()
    gid = resource._names.gid(branch.tx, branch.of)
    assert main([*arguments, "--commit", gid]) == 0
    assert bank.balance() == 105
    resource.close()


def test_site_that_is_there_finishes_its_branches_itself(
    memory_sites: Sites, bank: Bank, postgres_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = memory_sites
    type = sites.name("transfers")
    member = sites.member("m", type, bank.on_transfer, resources=[bank.ledger])
    go_on = threading.Event()
    other = sites.member("n", type, lambda tx, event: go_on.wait(DEADLINE))
    publisher = sites.start("p")
    sites.know(publisher, type, member, other)
    sending = threading.Thread(target=lambda: publisher.send(type, [{"amount": 5}], vote_within=DEADLINE))
    sending.start()
    eventually(lambda: bank.prepared() == 1)
    arguments = ["recover", "--dsn", postgres_server.url, "--bus", sites.world.url, "--site", member.name]
    assert main(arguments) == 1
    assert "finishes it itself" in " ".join(capsys.readouterr().out.split())
    go_on.set()
    sending.join(DEADLINE)
    eventually(lambda: bank.balance() == 105)
