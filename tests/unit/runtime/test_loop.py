"""Who takes the turns of a site's loop."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import txlayer
from tests.conftest import DEADLINE, eventually
from txlayer.adapters.ack_window import AckWindow
from txlayer.delivery import Delivery
from txlayer.errors import LogFailed
from txlayer.logs.memory import MemoryDisk
from txlayer.logs.record_log import Identity, open_log
from txlayer.runtime import engine
from txlayer.runtime.calls import Calls
from txlayer.runtime.loop import Loop
from txlayer.runtime.wires import Wires
from txlayer.security import BrokerSeal
from txlayer.tokens import Keyring
from txlayer.transactions.participant import Participant
from txlayer.transactions.seat import Seat


@pytest.fixture
def loop() -> Iterator[Loop]:
    with txlayer.connect("memory://loop") as bus:
        log = open_log(MemoryDisk(), "site", Identity("log", b"s" * 32))
        seat = Seat("site", log.header.incarnation, log.header.life, Keyring(log.header.secret))
        loop = Loop(Wires(bus, "site"), BrokerSeal(), log, Participant(seat), Calls(), None)
        workshop: Any = SimpleNamespace(results=deque(), finishing=0)
        loop.workshop = workshop
        loop.start(())
        eventually(lambda: loop._running)
        yield loop
        loop.stop(DEADLINE)


def on_a_thread(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_whoever_brings_something_takes_the_turn(loop: Loop) -> None:
    taken: list[threading.Thread] = []
    loop.bring(lambda: taken.append(threading.current_thread()))
    assert taken == [threading.current_thread()]


def test_what_is_left_is_taken_with_the_next_turn(loop: Loop) -> None:
    taken: list[int] = []
    loop.leave(lambda: taken.append(1))
    assert not taken
    loop.bring(lambda: taken.append(2))
    assert taken == [1, 2]


def test_what_an_application_posts_is_taken_by_the_loops_own_thread(loop: Loop) -> None:
    taken: list[threading.Thread] = []
    loop.post(lambda: taken.append(threading.current_thread()))
    eventually(lambda: bool(taken))
    assert taken == [loop._thread]


@pytest.mark.parametrize("first", ["post", "bring"])
def test_what_is_brought_during_a_turn_is_left_to_whoever_has_it(loop: Loop, first: str) -> None:
    inside, go_on, taken = threading.Event(), threading.Event(), []

    def hold() -> None:
        inside.set()
        go_on.wait(DEADLINE)

    holder = on_a_thread(lambda: getattr(loop, first)(hold))
    assert inside.wait(DEADLINE)
    loop.bring(lambda: taken.append(1))  # does not wait
    assert not taken
    go_on.set()
    eventually(lambda: bool(taken))
    holder.join(DEADLINE)


def test_nothing_is_lost_or_taken_twice_at_once_when_many_bring_and_post(loop: Loop) -> None:
    busy, taken = threading.Lock(), []

    def take(number: int) -> None:
        assert busy.acquire(blocking=False), "two turns at once"
        taken.append(number)
        busy.release()

    def give(ways: list[Callable[..., None]], start: int) -> None:
        for number in range(start, start + 500):
            ways[number % len(ways)](lambda number=number: take(number))

    threads = [on_a_thread(lambda i=i: give([loop.bring, loop.post], 500 * i)) for i in range(6)]
    for thread in threads:
        thread.join(DEADLINE)
    eventually(lambda: len(taken) == 3000)
    assert sorted(taken) == list(range(3000))
    assert loop.error is None


def test_a_timer_that_is_set_in_anothers_turn_wakes_the_loops_own_thread(loop: Loop) -> None:
    fired: list[threading.Thread] = []
    loop.bring(lambda: loop.later(60.0, lambda: None))
    loop.bring(lambda: loop.later(0.01, lambda: fired.append(threading.current_thread())))
    eventually(lambda: bool(fired))
    assert fired == [loop._thread]


@pytest.mark.parametrize("error", [LogFailed("the disk is gone"), SystemExit(3)])
def test_an_error_in_anothers_turn_stops_the_site_and_not_the_thread(loop: Loop, error: BaseException) -> None:
    stopped: list[Exception] = []
    loop.on_stopped = stopped.append

    def fail() -> None:
        raise error

    loop.bring(fail)
    assert loop.error is stopped[0]
    eventually(lambda: not loop._thread.is_alive())
    taken: list[int] = []
    loop.bring(lambda: taken.append(1))
    assert not taken


def test_a_stop_waits_for_the_turn_that_another_thread_has(loop: Loop) -> None:
    inside, go_on, over = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        inside.set()
        go_on.wait(DEADLINE)
        over.set()

    holder = on_a_thread(lambda: loop.bring(hold))
    assert inside.wait(DEADLINE)
    stopping = on_a_thread(lambda: loop.stop(DEADLINE))
    go_on.set()
    stopping.join(DEADLINE)
    assert over.is_set()
    assert not loop._thread.is_alive()
    holder.join(DEADLINE)


def test_a_site_that_is_behind_takes_only_what_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MOST_WAITING", 5)
    taken: list[Delivery] = []
    acked: list[int] = []
    window = AckWindow(lambda released: acked.extend(delivery.token for delivery in released))
    deliveries = [Delivery("t", b"%d" % number) for number in range(6)]
    for number, delivery in enumerate(deliveries):
        window.receive(delivery, number)
    full: Any = SimpleNamespace(
        loop=SimpleNamespace(waiting=lambda: 3, bring=lambda *items: taken.extend(items)),
        wires=SimpleNamespace(lost=0),
        settings=SimpleNamespace(name="site"),
    )
    engine.Engine._on_deliveries(full, deliveries)
    assert [delivery.payload for delivery in taken] == [b"0", b"1"]
    assert full.wires.lost == 4
    for delivery in taken:
        delivery.ack()
    assert acked == list(range(6))
