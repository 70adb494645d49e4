"""What all tests share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

DEADLINE = 30.0
"""Seconds that any condition may take on a busy machine before a test gives up."""


def eventually(condition: Callable[[], object], what: str = "", deadline: float = DEADLINE) -> None:
    """Wait until `condition()` is true."""
    end = time.monotonic() + deadline
    pause = threading.Event()
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline} s: {what or condition}")
        pause.wait(0.005)
