"""Three members, each a site in a process of its own with a log and a database, and a publisher that coordinates."""

from __future__ import annotations

_SECONDS = 60.0


class Layer:
    def __init__(self, broker: str, urls: list[str]) -> None:
        pass

    def transaction(self) -> None:
        pass

    def close(self) -> None:
        pass
