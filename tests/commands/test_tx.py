"""`txlayer tx`, `txlayer sites` and `txlayer coordinator`: what an operator sees, and what he may force."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DEADLINE, eventually
from tests.sites.conftest import QUICK, Sites, memory_sites, sites, world  # noqa: F401
from txlayer import Access, Event, MemberTransaction, Secret, Site, TransactionView, cli
from txlayer.commands import coordinator
from txlayer.connect import connect
from txlayer.errors import Closed, OutcomeUnknown, SiteStalled, UsageError
from txlayer.messages import TxId
from txlayer.operator import RunningSite
from txlayer.resources.memory import MemoryResource


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is shown is copied into the next command: it is whole in any terminal."""
    monkeypatch.setenv("COLUMNS", "40")


class Stuck:
    """A member that has voted yes, and a coordinator that is gone before it has decided."""

    def __init__(self, sites: Sites, **options: Any) -> None:  # noqa: F811
        self.type = sites.name("orders")
        self.store = MemoryResource()
        self.sites = sites
        self.options = options
        self.member = self.start_member()
        self.coordinator = sites.make("c", log=sites.file("c"), probe=self._die, **options)
        self.coordinator.start()
        other = sites.member("n", self.type, lambda tx, event: None)  # a single member would decide alone
        sites.know(self.coordinator, self.type, self.member, other)
        self.tx = self._run()
        eventually(lambda: self.in_doubt() == [self.tx], "the member is in doubt")

    def _run(self) -> TxId:
        tx = self.coordinator.transaction(self.type).start()
        tx.publish("one")
        with pytest.raises(OutcomeUnknown):
            tx.commit(within=1.0)
        return tx.id

    def start_member(self) -> Site:
        def put(tx: MemberTransaction, event: Event) -> None:
            tx[self.store].put("order", event.data)

        member = self.sites.make("m", log=self.sites.file("m"), **self.options)
        member.subscribe(self.type, put, resources=[self.store])
        return member.start()

    def in_doubt(self) -> list[TxId]:
        return [view.tx for view in self.member.transactions() if view.in_doubt]

    def _die(self, what: str, thing: object) -> None:
        """Before a vote is looked at the coordinator's loop ends, as if the process were gone."""
        if what == "step" and type(getattr(thing, "message", None)).__name__ == "Vote":
            raise Closed("the coordinator dies here")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(list(arguments)) == 0
    return capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")
def test_a_running_site_tells_who_blocks_and_takes_a_forced_outcome(
    sites: Sites,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    stuck = Stuck(sites)
    target = ["--site", stuck.member.name, "--bus", sites.url]
    listed = shown(capsys, "tx", "list", *target)
    assert str(stuck.tx) in listed
    assert "commitment, in doubt" in listed
    assert stuck.coordinator.name in listed
    detail = shown(capsys, "tx", "show", str(stuck.tx), *target)
    assert "blocked by" in detail
    assert "it can only wait, or be resolved" in detail
    assert "by force" in shown(capsys, "tx", "resolve", str(stuck.tx), "--commit", *target)
    eventually(lambda: stuck.store.values == {"order": "one"}, "the work is committed")
    assert "heuristic commit" in shown(capsys, "tx", "list", *target)
    assert cli.main(["tx", "resolve", str(stuck.tx), "--abort", *target]) == 2
    assert "not in doubt" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_the_log_of_a_stopped_site_tells_the_same_and_takes_a_forced_outcome(
    memory_sites: Sites,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    stuck = Stuck(memory_sites)
    stuck.member.close(timeout=0.1)
    target = ["--site", stuck.member.name, "--log", memory_sites.file("m")]
    listed = shown(capsys, "tx", "list", *target)
    assert str(stuck.tx) in listed
    assert "commitment, in doubt" in listed
    shown(capsys, "tx", "resolve", str(stuck.tx), "--abort", *target)
    assert "heuristic abort" in shown(capsys, "tx", "list", *target)
    stuck.member = stuck.start_member()
    eventually(lambda: not stuck.store.prepared and not stuck.store.units, "the site rolls back when it starts")
    assert stuck.store.values == {}
    assert stuck.in_doubt() == []


def test_an_operator_needs_what_the_sites_have(memory_sites: Sites) -> None:  # noqa: F811
    site = memory_sites.start("a", security=Secret("an enrolment secret"))
    with connect(memory_sites.world.url) as bus:
        with pytest.raises(UsageError, match="did not answer"):
            RunningSite(site.name, bus, within=0.3).transactions()
        assert RunningSite(site.name, bus, Secret("an enrolment secret")).transactions() == []
        with pytest.raises(UsageError, match="not present"):
            RunningSite("nobody", bus).transactions()


def test_a_file_that_is_no_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["tx", "list", "--site", "a", "--log", f"sqlite:///{tmp_path / 'none.db'}"]) == 2
    assert "no log of a site" in capsys.readouterr().err
    assert cli.main(["tx", "list", "--site", "a"]) == 2
    assert "--bus" in capsys.readouterr().err


def test_sites_shows_incarnation_and_subscriptions(
    sites: Sites,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    site = sites.member("a", sites.name("orders"), lambda tx, event: None)
    listed = shown(capsys, "sites", "--bus", sites.url)
    assert site.name in listed
    assert site._engine.identity.incarnation in listed
    assert sites.name("orders") in listed


def test_a_site_that_stands_still_does_not_end_its_command(
    memory_sites: Sites,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site, over = memory_sites.start("a"), threading.Event()
    site._engine.loop.post(lambda: over.wait(DEADLINE))
    with monkeypatch.context() as patch:
        patch.setattr(site._engine, "ask", partial(site._engine.ask, timeout=0.05))
        with pytest.raises(SiteStalled, match="did not answer"):
            site.transactions()
        coordinator.check(site)
    over.set()
    eventually(lambda: _answers(site), "it goes on")


def _answers(site: Site) -> bool:
    try:
        return site.transactions() == []
    except SiteStalled:
        return False


@pytest.fixture(params=["mqtt_broker", "kafka_broker"])
def broker(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(request.param).url
    return url


@pytest.fixture
def hosted(broker: str, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """`txlayer coordinator serve` as a process: its name and the URL of its bus."""
    name = f"host-{os.getpid()}-{tmp_path.name}"
    log = f"sqlite:///{tmp_path / 'host.db'}"
    command = [sys.executable, "-m", "txlayer.cli", "coordinator", "serve"]
    process = subprocess.Popen([*command, "--name", name, "--bus", broker, "--log", log], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert b"coordinates" in process.stdout.readline()
    yield name, broker
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=DEADLINE)
    assert b"has ended" in rest
    assert process.returncode == 0


def test_a_hosted_coordinator_serves_several_publishers(hosted: tuple[str, str], tmp_path: Path) -> None:
    host, bus = hosted
    type, seen = f"type-{host}", list[Any]()
    member = Site(f"m-{host}", bus=bus, log="memory://", patience=QUICK)
    member.subscribe(type, lambda tx, event: seen.append(event.data))
    with (
        member,
        Site(f"p-{host}", bus=bus, log="memory://") as first,
        Site(f"q-{host}", bus=bus, log="memory://") as second,
    ):
        eventually(lambda: first.subscribed(type) == [member.name])
        with first.transaction(type, {"subject": "a"}, access=Access.MULTI, coordinator=host) as tx:
            tx.publish(1)
            assert tx.id.coordinator == host
            with second.join_transaction(type, {"subject": "a"}) as joined:
                joined.publish(2)
        assert seen == [1, 2]
        views = RunningSite(host, first._engine.bus).transactions()
        assert all(isinstance(view, TransactionView) for view in views)
