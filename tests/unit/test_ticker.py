"""Periodic calls on one thread."""

from __future__ import annotations

import logging
import threading

import pytest

from tests.conftest import DEADLINE, eventually
from txlayer.ticker import Ticker


def test_functions_are_called_again_and_again_until_cancelled() -> None:
    ticker, calls, others = Ticker("t"), [], []
    cancel = ticker.every(0.001, lambda: calls.append(1))
    ticker.every(0.001, lambda: others.append(1))
    eventually(lambda: len(calls) > 5)
    cancel()
    cancel()
    eventually(lambda: len(others) > 5)
    done, seen = len(others), len(calls)
    eventually(lambda: len(others) > done + 20)
    assert len(calls) <= seen + 1, "one may have been due already"
    ticker.close()


def test_a_function_that_fails_is_logged_and_called_again(caplog: pytest.LogCaptureFixture) -> None:
    ticker, calls = Ticker("t"), []

    def fail() -> None:
        calls.append(1)
        raise ValueError("not today")

    with caplog.at_level(logging.ERROR, "txlayer.ticker"):
        ticker.every(0.001, fail)
        eventually(lambda: len(calls) >= 3)
        ticker.close()
    assert "not today" in caplog.text


def test_close_ends_the_thread_and_may_come_from_a_task_or_twice() -> None:
    ticker, closed = Ticker("closing"), threading.Event()

    def close() -> None:
        ticker.close()
        closed.set()

    ticker.every(0.001, close)
    assert closed.wait(DEADLINE)
    ticker.close()
    eventually(lambda: "txlayer-ticker-closing" not in [thread.name for thread in threading.enumerate()])
    ticker.every(0.001, lambda: pytest.fail("closed"))


def test_a_ticker_that_is_never_used_has_no_thread() -> None:
    ticker = Ticker("idle")
    ticker.close()
    assert ticker._thread is None
