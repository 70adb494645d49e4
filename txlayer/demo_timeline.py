"""A timeline in the terminal: a column for each site, a line for each thing that happens, as it happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

_PAUSE = 0.08
"""Between two lines, so that a person can follow; none where nobody looks."""


class Timeline:
    """Sites call `say` from their own threads; lines are shown in the order of the calls."""

    def __init__(self, console: Console, sites: Sequence[str]) -> None:
        self._console = console
        self._columns = {name: column for column, name in enumerate(sites)}
        self._width = max(12, (min(console.width, 110) - 9) // len(sites))
        self._lock = threading.Lock()
        self._waiting: list[tuple[float, str, str, str]] = []
        self._said: set[tuple[str, str]] = set()
        self._began = time.monotonic()

    def scene(self, title: str, text: str) -> None:
        """A new part of the story."""
        self.show()
        self._console.print(f"\n[bold]{title}[/bold]\n[dim]{text}[/dim]", highlight=False)
        heads = "".join(name.ljust(self._width) for name in self._columns)
        self._console.print(Text(" " * 9 + heads, "bold cyan"), soft_wrap=True)
        self._said.clear()
        self._began = time.monotonic()

    def say(self, site: str, text: str, style: str = "") -> None:
        """Something happened at a site."""
        with self._lock:
            if (site, text) not in self._said:  # messages may be sent again
                self._said.add((site, text))
                self._waiting.append((time.monotonic() - self._began, site, text, style))

    def end(self, text: str, style: str) -> None:
        """What the caller of the transaction learns."""
        self.show()
        self._console.print(Text(f"{'':9}=> {text}", f"bold {style}"), soft_wrap=True)

    def show(self) -> None:
        """Print what has been said."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for at, site, text, style in waiting:
            gap = " " * (self._columns[site] * self._width)
            line = Text(f"{at * 1000:5.0f} ms ", "dim").append(gap).append(text, style or "default")
            self._console.print(line, soft_wrap=True)
            if self._console.is_terminal:
                time.sleep(_PAUSE)
