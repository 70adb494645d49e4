"""A receipt and those who wait for it, from several threads at once."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.conftest import DEADLINE, eventually
from txlayer import Receipt
from txlayer.errors import PublishFailed

ROUNDS = 150


@pytest.fixture
def switchy() -> Iterator[None]:
    """Threads take turns as often as they can, so that a race shows in a few hundred rounds."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def together(*functions: Callable[[], object]) -> None:
    start = threading.Barrier(len(functions))

    def run(function: Callable[[], object]) -> None:
        start.wait()
        function()

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()


def test_wait_returns_at_once_when_done() -> None:
    receipt = Receipt()
    receipt.complete()
    receipt.wait(0)
    assert receipt.done
    assert receipt.error is None


def test_the_first_answer_counts() -> None:
    receipt, error = Receipt(), PublishFailed("no")
    receipt.complete(error)
    receipt.complete()
    assert receipt.error is error
    with pytest.raises(PublishFailed, match="no"):
        receipt.wait(0)


def test_a_wait_that_is_over_leaves_nothing_behind() -> None:
    receipt = Receipt()
    for _ in range(3):
        with pytest.raises(PublishFailed, match="not acknowledged within 0"):
            receipt.wait(0)
    assert receipt._listeners == []
    receipt.complete()


def test_every_waiter_and_callback_hears_once_whoever_comes_first(switchy: None) -> None:
    for _ in range(ROUNDS):
        one_race()


def one_race() -> None:
    receipt, called = Receipt(), []
    together(
        receipt.complete,
        lambda: receipt.wait(DEADLINE),
        lambda: receipt.wait(DEADLINE),
        lambda: receipt.add_callback(called.append),
        lambda: receipt.add_callback(called.append),
    )
    eventually(lambda: len(called) == 2)


def test_callbacks_run_in_the_order_in_which_they_were_added() -> None:
    receipt, called = Receipt(), []
    for number in range(5):
        receipt.add_callback(lambda _, number=number: called.append(number))  # type: ignore[misc]
    receipt.complete()
    eventually(lambda: called == [0, 1, 2, 3, 4])


def test_a_callback_that_fails_is_logged_and_the_next_one_runs(caplog: pytest.LogCaptureFixture) -> None:
    receipt, done = Receipt(), threading.Event()
    with caplog.at_level(logging.ERROR, "txlayer.receipt"):
        receipt.add_callback(lambda _: 1 / 0)
        receipt.add_callback(lambda _: done.set())
        receipt.complete()
        assert done.wait(DEADLINE)
    assert "callback failed" in caplog.text


def test_await_in_a_race_with_complete(switchy: None) -> None:
    async def one(error: PublishFailed | None) -> None:
        receipt = Receipt()
        thread = threading.Thread(target=receipt.complete, args=(error,))
        thread.start()
        if error is None:
            await receipt
        else:
            with pytest.raises(PublishFailed):
                await receipt
        thread.join()

    async def all_of_them() -> None:
        for _ in range(ROUNDS // 2):
            await asyncio.wait_for(one(None), DEADLINE)
            await asyncio.wait_for(one(PublishFailed("no")), DEADLINE)

    asyncio.run(all_of_them())


def test_completing_after_the_awaiting_loop_was_closed_is_no_error() -> None:
    receipt = Receipt()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await receipt

    asyncio.run(give_up())
    receipt.complete()
    assert receipt.done


def test_an_ignored_receipt_costs_one_small_object() -> None:
    receipt = Receipt()
    receipt.complete(PublishFailed("nobody asked"))
    assert receipt._listeners is None
    del receipt
    gc.collect()  # no warning, no log line
