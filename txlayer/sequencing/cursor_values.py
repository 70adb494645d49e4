"""The cursors of a durable name as latest values of the bus, one for each of its holders.

Each holder of a name has a higher epoch than those before, and so has its cursor. One that stood still while another
took the name over goes on for a moment when it wakes up: it writes over its own cursor, which nobody reads any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from txlayer.adapters.base import DURABLE, name_lost
from txlayer.errors import SubscribeFailed
from txlayer.ports import Bus, Identity
from txlayer.presence import decode
from txlayer.receipt import Receipt

KIND = "ordered"
_LOOK = 0.05


class CursorValues:
    """Of one durable name, for `holder`, under which identity the name is held at the bus."""

    def __init__(self, bus: Bus, durable: str, holder: Identity) -> None:
        self._bus = bus
        self._name = f"{DURABLE}/{durable}"
        self._prefix = f"{KIND}/{durable}/cursor"
        self._holder = holder
        self._epoch: int | None = None
        self._others: list[str] = []

    @property
    def key(self) -> str:
        """Where ours is."""
        return f"{self._prefix}/{self._epoch or 0}"

    def read(self) -> bytes | None:
        """The cursor of the holder before us, who may move it until the name is ours."""
        watch = self._bus.watch(self._prefix)
        try:
            values = watch.snapshot()
        finally:
            watch.close()
        self._others = [key for key in values if key != self.key]
        last = max(values, key=self._age, default=None)
        return values[last] if last is not None else None

    def _age(self, key: str) -> tuple[bool, int]:
        """A later epoch than ours was left under a name that was forgotten since: only if there is no other."""
        number = key.rpartition("/")[2]
        epoch = int(number) if number.isdecimal() else -1
        return self._epoch is None or epoch < self._epoch, epoch

    def take_over(self, lost: Callable[[], bool], patience: float) -> None:
        """The bus has given us the name: learn under which epoch. `lost`: whether we have it no more."""
        epochs, shown = [], threading.Event()

        def on_word(key: str, value: bytes | None) -> None:
            word = decode(value)
            if key == self._name and word is not None and word.identity == self._holder:
                epochs.append(word.epoch)
                shown.set()

        watch = self._bus.watch(self._name, on_word)
        try:
            # Until our word is repeated over it, a late one of an earlier holder may be shown.
            for _ in range(int(patience / _LOOK) + 1):
                if shown.wait(_LOOK):
                    self._epoch = max(epochs)
                    return
                if lost():
                    raise name_lost()
        finally:
            watch.close()
        raise SubscribeFailed(f"the bus did not show within {patience} s that {self._name} is ours")

    def save(self, value: bytes) -> Receipt:
        """Ours is this."""
        return self._bus.announce(self.key, value)

    def saved(self) -> None:
        """Ours is durable: those of other holders are of no use."""
        others, self._others = self._others, []
        for key in others:
            self._bus.announce(key, None)

    def remove(self) -> None:
        """Ours, and what others have left."""
        self.saved()
        self._bus.announce(self.key, None)
