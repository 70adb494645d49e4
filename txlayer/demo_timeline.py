"""A timeline in the terminal: a column for each site, a line for each thing that happens, as it happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from queue import Queue

from rich.console import Console, RenderableType
from rich.text import Text

_PAUSE = 0.08
"""Between two lines, so that a person can follow; none where nobody looks."""


class Timeline:
    """Sites call `say` from their own threads and go on; a thread prints the lines in the order of the calls."""

    def __init__(self, console: Console, sites: Sequence[str]) -> None:
        self._console = console
        self._columns = {name: column for column, name in enumerate(sites)}
        self._width = max(12, (min(console.width, 110) - 9) // len(sites))
        self._lock = threading.Lock()
        self._lines: Queue[RenderableType | None] = Queue()
        self._said: set[tuple[str, str]] = set()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._print, name="txlayer-timeline", daemon=True)
        self._thread.start()

    def scene(self, title: str, text: str) -> None:
        """A new part of the story."""
        heads = "".join(name.ljust(self._width) for name in self._columns)
        with self._lock:
            self._lines.put(Text.from_markup(f"\n[bold]{title}[/bold]\n[dim]{text}[/dim]"))
            self._lines.put(Text(" " * 9 + heads, "bold cyan"))
            self._said.clear()
            self._began = time.monotonic()

    def say(self, site: str, text: str, style: str = "") -> None:
        """Something happened at a site."""
        gap = " " * (self._columns[site] * self._width)
        with self._lock:
            if (site, text) in self._said:  # messages may be sent again
                return
            self._said.add((site, text))
            at = time.monotonic() - self._began
            self._lines.put(Text(f"{at * 1000:5.0f} ms ", "dim").append(gap).append(text, style or "default"))

    def end(self, text: str, style: str) -> None:
        """What the caller of the transaction learns."""
        self._lines.put(Text(f"{'':9}=> {text}", f"bold {style}"))

    def show(self) -> None:
        """Wait until everything that has been said is printed."""
        self._lines.join()

    def close(self) -> None:
        """The story is over."""
        self._lines.put(None)
        self._thread.join()

    def _print(self) -> None:
        while (line := self._lines.get()) is not None:
            self._console.print(line, soft_wrap=True)
            self._lines.task_done()
            if self._console.is_terminal:
                time.sleep(_PAUSE)
        self._lines.task_done()
