"""Branches of a site whose log is lost: asked for, finished, and nobody else's touched."""

from __future__ import annotations

import contextlib
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.conftest import DEADLINE, eventually
from tests.sites.conftest import Sites
from tests.sites.test_postgres import Bank
from txlayer import Signed, Site, TxId, at_least, named
from txlayer.cli import main
from txlayer.effects import Send
from txlayer.errors import Closed, TransactionAborted
from txlayer.messages import Status, Vote
from txlayer.recover import Inquiry, verdict_of
from txlayer.resources.postgres import PostgresResource
from txlayer.resources.postgres_names import ReadName
from txlayer.resources.postgres_prepared import PreparedBranch
from txlayer.testing.server import Server


class Left:
    """A member that voted yes and went away for good before it heard the decision; the decision came."""

    def __init__(self, sites: Sites, bank: Bank, commits: bool, **options: Any) -> None:
        self.bank = bank
        self.type = sites.name("transfers")
        options = {"resources": [bank.ledger], "log": sites.file("gone"), **options}
        self.gone = sites.member("gone", self.type, bank.on_transfer, **options)
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
        eventually(lambda: bank.prepared() == ("compensate" not in options))
        eventually(lambda: [view.state for view in self.gone.transactions()] == ["commitment"])
        coordinated = self.publisher._engine.participant.coordinator.transactions
        # On its way the vote may be overtaken by the word that its site is gone.
        eventually(lambda: [True in one.ballot.votes.values() for one in coordinated.values()] == [True])
        self.vanish(self.gone)
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
    def vanish(site: Site) -> None:
        """Without a word to anybody, and with no chance to finish."""
        site._engine.members.closing = True
        site._engine.loop.stop(DEADLINE)
        site.close(timeout=0.0)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that is there has the time that a busy machine needs."""
    monkeypatch.setattr("txlayer.recover.WITHIN", DEADLINE)
    monkeypatch.setattr("txlayer.recover.PEERS_WITHIN", DEADLINE)


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
    arguments = ["recover", "--dsn", postgres_server.url, "--bus", sites.url, "--site", left.gone.name]
    assert main(arguments) == 0
    assert ("committed" if commits else "rolled back") in capsys.readouterr().out
    assert bank.balance() == (105 if commits else 100)
    assert nobodys.state(tx) == "prepared", "the branch of another site is left alone"
    nobodys.roll_back(tx)
    nobodys.close()


@pytest.mark.parametrize("commits", [True, False])
def test_what_a_lost_log_would_have_undone_is_kept_listed_and_left_to_the_operator(
    memory_sites: Sites, bank: Bank, postgres_server: Server, commits: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its site comes back with a new log, which knows nothing of it: it does not forget what others may need."""
    sites = memory_sites
    left = Left(sites, bank, commits, compensate=lambda tx, event: None)
    again = PostgresResource(postgres_server.url, name=bank.table)
    back = sites.member("gone", left.type, bank.on_transfer, resources=[again])
    assert [view.state for view in back.transactions()] == ["committed orphan"]
    assert not back._engine.participant.subscriber.members, "it is no member of it any more"
    arguments = ["recover", "--dsn", postgres_server.url, "--bus", sites.url, "--site", left.gone.name]
    assert main(arguments) == (0 if commits else 1)
    out = " ".join(capsys.readouterr().out.split())
    assert ("forgotten: its coordinator has committed it" if commits else "undo it by hand") in out
    assert bank.balance() == 105
    if not commits:
        (key,) = re.findall(r"(txlayer1:\S+): left", out)
        assert main([*arguments, "--undone", key]) == 0
    assert main(arguments) == 0
    assert "0 to undo perhaps" in capsys.readouterr().out
    back.close()
    back = sites.member("gone", left.type, bank.on_transfer, resources=[bank.ledger])
    assert back.transactions() == []


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
    assert main([*arguments, "--bus", memory_sites.url]) == 1
    assert "left" in capsys.readouterr().out
    assert main(["tx", "list", "--dsn", postgres_server.url, "--site", site]) == 0
    listed = capsys.readouterr().out
    (gid,) = re.findall(r"txlayer1:\S+", listed)
    assert main([*arguments, "--commit", gid]) == 0
    assert bank.balance() == 105
    resource.close()


@pytest.mark.parametrize("named_type", [True, False])
def test_peer_repeats_the_decision_of_a_coordinator_that_is_gone(
    sites: Sites, bank: Bank, postgres_server: Server, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, named_type: bool,
) -> None:  # fmt: skip
    left = Left(sites, bank, commits=True)
    left.vanish(left.publisher)
    arguments = ["recover", "--dsn", postgres_server.url, "--bus", sites.url, "--site", left.gone.name]
    monkeypatch.setattr("txlayer.recover.WITHIN", 0.5)  # nobody is there to answer
    with monkeypatch.context() as peers:
        peers.setattr("txlayer.recover.PEERS_WITHIN", 0.5)
        assert main([*arguments, "--type", "of others"]) == 1
    assert "its coordinator does not answer" in " ".join(capsys.readouterr().out.split())
    assert bank.prepared() == 1
    assert main([*arguments, "--type", left.type] if named_type else arguments) == 0
    assert "a peer has its coordinator's decision: commit" in " ".join(capsys.readouterr().out.split())
    assert bank.balance() == 105


def test_branch_of_a_member_that_the_commit_left_out_is_rolled_back(
    memory_sites: Sites, bank: Bank, postgres_server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = memory_sites
    type = sites.name("transfers")

    def before_its_vote(kind: str, subject: object) -> None:
        if kind == "perform" and isinstance(subject, Send) and isinstance(subject.message, Vote):
            raise Closed("the member dies here")

    gone = sites.member("gone", type, bank.on_transfer, resources=[bank.ledger], probe=before_its_vote)
    other = sites.member("other", type, lambda tx, event: None)
    publisher = sites.start("p")
    sites.know(publisher, type, gone, other)
    outcome = publisher.send(type, [{"amount": 5}], settle_for=at_least(1), key="kept until it is asked for")
    assert (outcome.status, outcome.members) == (Status.COMMITTED, 1)
    assert bank.prepared() == 1
    arguments = ["recover", "--dsn", postgres_server.url, "--bus", sites.url, "--site", gone.name]
    assert main(arguments) == 0
    assert f"committed it without {gone.name}" in " ".join(capsys.readouterr().out.split())
    assert bank.balance() == 100
    assert bank.prepared() == 0


def test_leftover_is_listed_with_the_age_of_its_locks(
    memory_sites: Sites, bank: Bank, postgres_server: Server, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", "300")
    sites, tx = memory_sites, TxId("nowhere", "log", 1, "abcd")
    former = PostgresResource(postgres_server.url, name=bank.table)
    former.open(sites.name("back"), "a log that is gone")
    former.work(tx).execute(bank.add, (5, 1))
    former.prepare(tx)
    former.close()
    site = sites.member("back", sites.name("transfers"), bank.on_transfer, resources=[bank.ledger])

    def listed(*where: str) -> str:
        assert main(["tx", "list", "--site", site.name, *where]) == 0
        return capsys.readouterr().out

    def held(*where: str) -> float:
        """For how long; 0 if it is not listed."""
        found = re.search(rf"{re.escape(str(tx))}.* ([0-9.]+) s ", listed(*where))
        return float(found[1]) if found is not None else 0.0

    by_site, by_database = ("--bus", sites.url), ("--dsn", postgres_server.url)
    eventually(lambda: held(*by_site) >= 1, "the site lists it")
    assert "orphan" in listed(*by_site)
    eventually(lambda: held(*by_database) >= 1, "it is found in the database")
    assert bank.table in listed(*by_database)


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
    arguments = ["recover", "--dsn", postgres_server.url, "--bus", sites.url, "--site", member.name]
    assert main(arguments) == 1
    assert "finishes it itself" in " ".join(capsys.readouterr().out.split())
    go_on.set()
    sending.join(DEADLINE)
    eventually(lambda: bank.balance() == 105)


def test_coordinators_that_sign_are_asked_under_the_name_of_the_key(memory_sites: Sites) -> None:
    sites, type = memory_sites, memory_sites.name("transfers")
    names = [sites.name("p"), sites.name("m"), "operator"]
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    allowed = {name: key.public_key() for name, key in keys.items()}
    publisher = sites.start("p", security=Signed(keys[names[0]], allowed))
    member = sites.member("m", type, lambda tx, event: None, security=Signed(keys[names[1]], allowed))
    sites.know(publisher, type, member)
    tx = publisher.send(type, [1], key="kept until it is asked for").tx
    assert tx is not None
    branch = PreparedBranch("gid", ReadName("gone", "ledger", tx), 1.0, ())
    with Inquiry(sites.url, Signed(keys["operator"], allowed)) as inquiry:
        assert inquiry.ask(branch).reason.startswith("its coordinator has committed it")


@pytest.mark.parametrize(
    ("of", "member", "final", "commit"),
    [
        (1, b"here her", (b"here here and more", b"there"), True),
        (1, b"here her", (b"there",), False),
        (2, b"here her", (b"here here and more",), True),
        (2, b"here her", (b"there",), None),
        (1, b"", (b"there",), None),
    ],
)
def test_a_branch_follows_a_list_only_where_its_name_tells(
    of: int, member: bytes, final: tuple[bytes, ...], commit: bool | None
) -> None:
    name = ReadName("here", "ledger", TxId("p", "log", 1, "abcd"), "log", of, member)
    assert verdict_of(PreparedBranch("gid", name, 1.0, ()), final, "committed").commit is commit
