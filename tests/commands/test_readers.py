"""`txlayer readers`: who follows a site, and how one is removed that will not come back; if it does, it is told."""

from __future__ import annotations

import pytest

from tests.conftest import eventually
from tests.sites.conftest import Notes, Sites, memory_sites, notes, sites, world  # noqa: F401
from tests.sites.test_neighbours import NOBODY_THERE, publish, registered
from txlayer import Scope, Site, cli
from txlayer.messages import ChainKind


class Followed:
    """A publisher, and a follower that has what was committed so far."""

    def __init__(self, sites: Sites, notes: Notes) -> None:  # noqa: F811
        self.type, self.sites, self.notes = sites.name("orders"), sites, notes
        self.surfaced: list[str] = []
        self.publisher = sites.start("p", log=sites.file("p"))
        self.follower = self.start_follower()
        sites.know(self.publisher, self.type, self.follower)
        registered(self.publisher, self.follower)
        publish(self.publisher, self.type, "a", **NOBODY_THERE)
        eventually(lambda: notes.of("follower") == ["a"])

    def start_follower(self) -> Site:
        site = self.sites.make("f", log=self.sites.file("f"))
        site.subscribe(self.type, self.notes.handler("follower"), scope=Scope.FOLLOWER)
        site.on_surface(lambda surface: self.surfaced.append(surface.what))
        return site.start()

    def goes_on_anew(self) -> None:
        eventually(lambda: "stale" in self.surfaced, "it hears that it has missed something")
        self.sites.know(self.publisher, self.type, self.follower)
        self.follower.follow_anew(self.publisher.name)
        registered(self.publisher, self.follower)
        publish(self.publisher, self.type, "c", **NOBODY_THERE)
        eventually(lambda: self.notes.of("follower") == ["a", "c"])


def test_a_running_site_forgets_a_follower_that_is_gone(
    sites: Sites,  # noqa: F811
    notes: Notes,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    followed = Followed(sites, notes)
    name, desk = followed.follower.name, followed.publisher._engine.participant.coordinator
    target = ["--site", followed.publisher.name, "--bus", sites.url]
    assert cli.main(["readers", "list", *target]) == 0
    listed = capsys.readouterr().out
    assert name in listed
    assert "commits" in listed
    assert cli.main(["readers", "remove", name, *target]) == 2
    assert "is present" in capsys.readouterr().err
    followed.follower.close()
    eventually(lambda: name not in desk.present)
    assert cli.main(["readers", "remove", name, *target]) == 0
    assert not desk.chains[ChainKind.COMMITS].readers
    assert cli.main(["readers", "remove", name, *target]) == 2
    assert "reads nothing" in capsys.readouterr().err
    publish(followed.publisher, followed.type, "b", **NOBODY_THERE)
    followed.follower = followed.start_follower()
    followed.goes_on_anew()


def test_a_follower_that_was_removed_from_the_log_of_a_stopped_site_is_told_when_that_starts(
    memory_sites: Sites,  # noqa: F811
    notes: Notes,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    followed = Followed(memory_sites, notes)
    followed.publisher.close()
    target = ["--site", followed.publisher.name, "--log", memory_sites.file("p")]
    assert cli.main(["readers", "remove", followed.follower.name, *target]) == 0
    assert cli.main(["readers", "remove", followed.follower.name, *target]) == 2
    capsys.readouterr()
    assert cli.main(["readers", "list", *target]) == 0
    assert followed.follower.name not in capsys.readouterr().out
    followed.publisher = memory_sites.start("p", log=memory_sites.file("p"))
    followed.goes_on_anew()
