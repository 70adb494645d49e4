"""Who else is on the bus, as far as this site has heard, and which transactions of theirs are open to others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from txlayer.ports import Bus, SiteView, Standing, Watch
from txlayer.runtime import directory
from txlayer.runtime.wires import HOSTS, TYPES

_T = TypeVar("_T")


class Neighbours:
    """The sites that were seen. The one that asks is among them."""

    def __init__(self) -> None:
        self.views: dict[str, SiteView] = {}
        self._open: Watch | None = None
        self._lock = threading.Lock()

    def alive(self) -> list[SiteView]:
        """Those that are present."""
        return [view for view in list(self.views.values()) if view.standing is Standing.ALIVE]

    def hosts(self) -> list[str]:
        """Sites that offer to coordinate for others."""
        return sorted(view.name for view in self.alive() if view.info.get(HOSTS) == "yes")

    def await_hosts(self, seconds: float) -> list[str]:
        """The same; if there is none, wait a while for one."""
        return _await(self.hosts, seconds)

    def subscribed(self, event_type: str) -> list[str]:
        """Sites that are present and subscribe to the type."""
        return sorted(view.name for view in self.alive() if event_type in types_of(view))

    def find_open(
        self, bus: Bus, event_type: str, attributes: dict[str, str], seconds: float
    ) -> directory.OpenTransaction | None:
        """An open transaction that others may publish in; waits a while for one.

        The directory is watched from the first time that it is asked for.
        """
        with self._lock:
            watch = self._open = self._open or bus.watch(directory.OPEN)
        entries = _await(lambda: directory.found(watch, event_type, attributes), seconds)
        return entries[0] if entries else None

    def close(self) -> None:
        """Watch no more."""
        if self._open is not None:
            self._open.close()


def types_of(view: SiteView) -> tuple[str, ...]:
    """What a site subscribes to."""
    types = view.info.get(TYPES, "")
    return tuple(types.split("\n")) if types else ()


def _await(look: Callable[[], list[_T]], seconds: float) -> list[_T]:
    """Look until there is something, for so many seconds."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not (found := look()) and time.monotonic() < deadline:
        pause.wait(0.01)
    return found
