"""Who may hold a name: the rules as tables, then holders and rosters over a memory bus."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import DEADLINE, eventually
from txlayer import Identity, Roster, Standing, connect, presence
from txlayer.adapters.memory import MemoryBus
from txlayer.errors import NameTaken, PublishFailed
from txlayer.presence import Holder, Verdict, Word, decode, encode, judge, must_listen
from txlayer.receipt import Receipt
from txlayer.runtime import directory
from txlayer.runtime.wires import remembered_head
from txlayer.ticker import Ticker

_numbers = itertools.count(1)


def word(incarnation: str = "log", life: int = 1, epoch: int = 1, nonce: str = "n", **rest: Any) -> Word:
    return Word(incarnation, life, epoch, nonce, **rest)


DEEP = b"\x91" * 100_000
UNREADABLE = [
    b"",
    b"{",
    b"\xff\xfe",
    b'{"incarnation":"\xff","life":1,"epoch":1,"nonce":"n"}',
    b'{"incarnation":"i","life":1,"epoch":1,"nonce":"n","info":{"\xff":"x"}}',
    b'{"x":' + b"[" * 100_000,
    DEEP,
    b"\x92\xa1\xff\x01",
    b"\x93\xa1a\x01" + DEEP,
    b"\x83\xa1x" + DEEP,
]


@pytest.mark.parametrize(
    ("last", "identity", "expected"),
    [
        (None, Identity("log", 1), False),
        (word(alive=False), Identity("other", 1), False),
        (word(life=1), Identity("log", 2), False),
        (word(life=2), Identity("log", 2), True),
        (word(life=3), Identity("log", 2), True),
        (word(life=1), Identity("other", 9), True),
    ],
    ids=["nobody", "dead", "own past", "same life", "later life", "another incarnation"],
)
def test_who_must_listen_before_entering(last: Word | None, identity: Identity, expected: bool) -> None:
    assert must_listen(last, identity) is expected


@pytest.mark.parametrize(
    ("seen", "confirmed", "expected"),
    [
        (None, True, Verdict.REPEAT),
        (word(epoch=4, nonce="old"), True, Verdict.REPEAT),
        (word(epoch=4, nonce="old", alive=False), False, Verdict.REPEAT),
        (word(epoch=5, nonce="me"), False, Verdict.MINE),
        (word(epoch=5, nonce="me", beat=9), True, Verdict.MINE),
        (word(epoch=5, nonce="me", alive=False), True, Verdict.REPEAT),
        (word(epoch=5, nonce="other"), False, Verdict.REPLACED),
        (word(epoch=5, nonce="other"), True, Verdict.REPEAT),
        (word(epoch=6, nonce="other"), True, Verdict.REPLACED),
        (word(epoch=6, nonce="other"), False, Verdict.REPLACED),
    ],
    ids=[
        "removed",
        "earlier epoch",
        "late will",
        "mine",
        "my heartbeat",
        "my own will while I live",
        "other first",
        "I was first",
        "replaced",
        "replaced before I was seen",
    ],
)
def test_what_a_holder_makes_of_a_word(seen: Word | None, confirmed: bool, expected: Verdict) -> None:
    assert judge(word(epoch=5, nonce="me"), seen, confirmed) is expected


@pytest.mark.parametrize("value", [None, b"", b"{}", b"\xff", b'{"incarnation":1}', b"[]", b"null"])
def test_bytes_that_are_no_word_are_nobody(value: bytes | None) -> None:
    assert decode(value) is None


def test_a_word_round_trip() -> None:
    original = word(info={"role": "ä"}, beat=3)
    assert decode(encode(original)) == original


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second of silence is enough, in a test that waits for it."""
    monkeypatch.setattr(presence, "SILENCE", 1.0)
    monkeypatch.setattr(presence, "BEAT", 0.1)


class World:
    def __init__(self) -> None:
        self.url = f"memory://presence-{next(_numbers)}"
        self.buses: list[MemoryBus] = []

    def bus(self) -> MemoryBus:
        bus = connect(self.url)
        assert isinstance(bus, MemoryBus)
        self.buses.append(bus)
        return bus


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    for bus in world.buses:
        bus.close()


@pytest.mark.parametrize("value", UNREADABLE, ids=range(len(UNREADABLE)))
def test_latest_values_that_are_none_of_ours_are_ignored(value: bytes, world: World) -> None:
    assert decode(value) is None
    bus, heard = world.bus(), []
    for key in ("heads/s", "open/s/x", "types/s/x"):
        bus.announce(key, value).wait(DEADLINE)
    assert remembered_head(bus, "s") is None
    watch = bus.watch("open")
    assert directory.found(watch, "t", {}) == []
    watch.close()
    directory.watch_types(bus, lambda key, entry: heard.append(entry)).close()
    assert heard == []


def test_a_word_that_cannot_be_read_says_nothing_of_its_site(world: World) -> None:
    bus = world.bus()
    bus.announce("sites/a", encode(word(alive=False))).wait(DEADLINE)
    with Roster(bus) as roster:
        bus.announce("sites/a", b"{").wait(DEADLINE)
        bus.announce("sites/b", encode(word(alive=False))).wait(DEADLINE)
        eventually(lambda: standing(roster, "b") is Standing.DEAD)
        assert standing(roster, "a") is Standing.DEAD


def standing(roster: Roster, name: str) -> Standing | None:
    return next((view.standing for view in roster.sites() if view.name == name), None)


def test_of_two_who_enter_at_once_one_stays(world: World) -> None:
    for number in range(20):
        buses, outcomes = [world.bus(), world.bus()], []
        start = threading.Barrier(2)

        def enter(bus: MemoryBus, start: threading.Barrier = start, outcomes: list[str] = outcomes) -> None:
            holder = Holder(bus, bus._ticker, f"sites/twins-{number}", Identity(bus.name))  # noqa: B023
            holder.listen()
            start.wait()
            try:
                holder.enter(DEADLINE)
            except NameTaken:
                outcomes.append("refused")
            else:
                outcomes.append("entered")
                eventually(lambda: not holder.lost)

        threads = [threading.Thread(target=enter, args=(bus,)) for bus in buses]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        assert sorted(outcomes) == ["entered", "refused"]


@pytest.mark.usefixtures("quick")
def test_a_silent_holder_is_replaced_and_knows_when_it_wakes(world: World) -> None:
    zombie_bus, bus = world.bus(), world.bus()
    sleeping = zombie_bus.enter("site", Identity("log-a", 1))
    zombie_bus._ticker.close()  # a stalled machine: no heartbeat, no will
    new = bus.enter("site", Identity("log-b", 1))
    eventually(lambda: sleeping.lost)
    sleeping.update({"role": "zombie"})
    sleeping.leave()
    with Roster(bus) as roster:
        [view] = roster.sites()
        assert (view.identity.incarnation, view.standing, view.info) == ("log-b", Standing.ALIVE, {})
    assert not new.lost


def listening(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[Holder, threading.Thread]:
    """Somebody who wants the name of a silent holder, and would listen for long."""
    monkeypatch.setattr(presence, "SILENCE", 10 * DEADLINE)
    bus = world.bus()
    bus.announce("sites/site", encode(word("other", epoch=3, nonce="silent"))).wait(DEADLINE)
    holder = Holder(bus, bus._ticker, "sites/site", Identity("log"))
    thread = threading.Thread(target=holder.listen, daemon=True)
    thread.start()
    eventually(lambda: holder._changed._waiters, "it listens")  # type: ignore[attr-defined]
    return holder, thread


@pytest.mark.parametrize("last", [word("other", epoch=3, nonce="silent", alive=False), None], ids=["dead", "removed"])
def test_whoever_listens_enters_as_soon_as_the_holder_is_dead(
    world: World, monkeypatch: pytest.MonkeyPatch, last: Word | None
) -> None:
    holder, thread = listening(world, monkeypatch)
    world.bus().announce("sites/site", encode(last) if last else None)
    thread.join(DEADLINE)
    assert not thread.is_alive()
    holder.enter(DEADLINE)
    assert holder.epoch == (4 if last else 1)


class AwayValues:
    """A bus whose broker is away: nothing is ever acknowledged."""

    def __init__(self, bus: MemoryBus) -> None:
        self.bus, self.announced, self.watches = bus, [], []  # type: ignore[var-annotated]

    def announce(self, key: str, value: bytes | None) -> Receipt:
        self.announced.append(value)
        return Receipt()

    def watch(self, prefix: str, handler: Any = None) -> Any:
        self.watches.append(self.bus.watch(prefix, handler))
        return self.watches[-1]


class LateValues(AwayValues):
    """A bus whose watches tell what has come only when they are let."""

    def __init__(self, bus: MemoryBus) -> None:
        super().__init__(bus)
        self.go_on = threading.Event()

    def announce(self, key: str, value: bytes | None) -> Receipt:
        return self.bus.announce(key, value)

    def watch(self, prefix: str, handler: Any = None) -> Any:
        def late(key: str, value: bytes | None) -> None:
            self.go_on.wait(DEADLINE)
            handler(key, value)

        return super().watch(prefix, late)


def test_words_from_before_the_look_at_a_name_that_are_told_after_it_are_no_rivals(world: World) -> None:
    bus, values = world.bus(), LateValues(world.bus())
    bus.announce("sites/site", encode(word("other", epoch=3))).wait(DEADLINE)
    holder = Holder(values, bus._ticker, "sites/site", Identity("log"))
    bus.announce("sites/site", None).wait(DEADLINE)
    [watch] = values.watches
    assert watch.snapshot() == {}
    thread = threading.Thread(target=holder.listen, daemon=True)
    thread.start()
    eventually(lambda: watch._changed._waiters or holder._claiming)
    values.go_on.set()
    thread.join(DEADLINE)
    holder.enter(DEADLINE)
    assert not holder.lost


def test_the_late_will_of_an_earlier_life_does_not_free_a_name(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, thread = listening(world, monkeypatch)
    late = word("other", epoch=2, nonce="earlier", alive=False)
    world.bus().announce("sites/site", encode(late)).wait(DEADLINE)
    eventually(lambda: holder._word == late)
    assert not holder._is_gone(word("other", epoch=3, nonce="silent"))
    world.bus().announce("sites/site", encode(word("other", epoch=3, nonce="silent", alive=False)))
    thread.join(DEADLINE)
    assert not thread.is_alive()


def test_the_late_will_of_an_earlier_life_is_talked_over(world: World) -> None:
    bus = world.bus()
    first = bus.enter("site", Identity("log", 1))
    late_will = first._holder.will
    bus.enter("site", Identity("log", 2))
    with Roster(world.bus()) as roster:
        eventually(lambda: standing(roster, "site") is Standing.ALIVE)
        world.bus().announce("sites/site", late_will)
        watch = world.bus().watch("sites")
        eventually(lambda: (seen := decode(watch.snapshot()["sites/site"])) and seen.alive and seen.life == 2)
        assert standing(roster, "site") is Standing.ALIVE


def test_a_removed_entry_of_a_living_site_comes_back(world: World) -> None:
    bus = world.bus()
    bus.enter("site", Identity("log"))
    bus.announce("sites/site", None)
    with Roster(bus) as roster:
        eventually(lambda: standing(roster, "site") is Standing.ALIVE)


def test_dead_entries_are_listed_and_removed_and_living_ones_are_not(world: World) -> None:
    bus = world.bus()
    crashed = world.bus()
    crashed.enter("dead", Identity("log-a"))
    crashed.crash()
    bus.enter("alive", Identity("log-b"))
    with Roster(bus) as roster:
        eventually(lambda: (standing(roster, "dead"), standing(roster, "alive")) == (Standing.DEAD, Standing.ALIVE))
        with pytest.raises(NameTaken, match="alive"):
            roster.remove("alive")
        roster.remove("dead")
        eventually(lambda: [view.name for view in roster.sites()] == ["alive"])
        roster.remove("never there")


@pytest.mark.usefixtures("quick")
def test_a_word_that_the_bus_shows_again_is_no_sign_of_life(world: World) -> None:
    bus, told = world.bus(), []
    bus.announce("sites/silent", encode(word(nonce="gone")))
    with Roster(bus, told.append) as roster:

        def show_again() -> bool:
            bus.announce("sites/silent", encode(word(nonce="gone")))
            return standing(roster, "silent") is Standing.DEAD

        eventually(show_again)
        eventually(lambda: [view.standing for view in told][-1] is Standing.DEAD)


def test_a_new_roster_knows_at_once_who_is_there(world: World) -> None:
    bus = world.bus()
    bus.announce("sites/dead", encode(word(alive=False)))
    for _ in range(100):
        with Roster(bus) as roster:
            assert [view.name for view in roster.sites()] == ["dead"]


def test_roster_reports_every_change_in_order(world: World) -> None:
    bus, told = world.bus(), []
    with Roster(world.bus(), told.append):
        site = bus.enter("site", Identity("log"), {"n": "0"})
        for number in range(1, 30):
            site.update({"n": str(number)})
        site.leave()
        eventually(lambda: told and told[-1].standing is Standing.DEAD)
    seen = [int(view.info["n"]) for view in told if view.standing is Standing.ALIVE]
    assert seen == sorted(seen)


def test_update_is_not_undone_by_a_heartbeat_at_the_same_time(world: World) -> None:
    bus = world.bus()
    site = bus.enter("site", Identity("log"))
    stop = threading.Event()

    def beat() -> None:
        while not stop.is_set():
            site._holder._say()

    beater = threading.Thread(target=beat)
    beater.start()
    watch = bus.watch("sites/site")
    for number in range(200):
        site.update({"n": str(number)})
        latest = decode(watch.snapshot()["sites/site"])
        assert latest is not None
        assert latest.info == {"n": str(number)}
    stop.set()
    beater.join(DEADLINE)


def test_entering_while_the_broker_is_away_fails_and_leaves_nothing(world: World) -> None:
    values, ticker = AwayValues(world.bus()), Ticker("t")
    holder = Holder(values, ticker, "sites/x", Identity("log"))
    holder.listen()
    with pytest.raises(PublishFailed):
        holder.enter(timeout=0.01)
    assert values.watches[0].closed
    assert len(values.announced) == 1
    assert ticker._thread is None


def test_while_the_broker_is_away_one_heartbeat_waits_for_it(world: World) -> None:
    bus = world.bus()
    alone = bus.enter("y", Identity("log"))._holder
    bus.native.stop()
    for _ in range(100):
        alone._beat()
    assert len(bus._outbox) == 1
    bus.native.start()
