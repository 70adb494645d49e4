"""A handler that keeps what it gets."""

from __future__ import annotations

from tests.conftest import eventually
from txlayer import Delivery


class Inbox(list[Delivery]):
    """Events in the order in which the handler was called."""

    def __call__(self, delivery: Delivery) -> None:
        self.append(delivery)

    @property
    def payloads(self) -> list[bytes]:
        return [delivery.payload for delivery in self]

    def wait(self, count: int) -> None:
        eventually(lambda: len(self) >= count, f"{count} events, {len(self)} came")
