"""Sites for the stories, and what their clients do and note down."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sites.conftest import Sites, sites, world  # noqa: F401
from txlayer import Event, MemberTransaction, Participant, Scope

PATIENT: dict[str, Any] = {"census_within": 30.0, "vote_within": 60.0, "complete_within": 120.0, "within": 120.0}
"""Deadlines for a busy machine. A census closes when everyone present has answered, so nobody waits for them."""


class Diary:
    """What clients of one story lived through, in the order in which each of them did."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Any]] = []

    def note(self, who: str, what: Any) -> None:
        self.entries.append((who, what))

    def of(self, who: str) -> list[Any]:
        """The entries of one client."""
        return [what for name, what in self.entries if name == who]

    def client(
        self,
        who: str,
        joins: Scope | None = None,
        rejects: Any = None,
        fails_to_prepare: bool = False,
    ) -> type[Participant]:
        """A client that notes every call of the middleware; it may choose a scope, reject an event, or not prepare."""
        diary = self

        class Client(Participant):
            def on_join(self, tx: MemberTransaction) -> Scope | None:
                diary.note(who, "join")
                return joins

            def on_event(self, tx: MemberTransaction, event: Event) -> None:
                if event.data == rejects:
                    raise ValueError(f"{who} cannot accept {event.data}")
                diary.note(who, (event.type, event.data))

            def on_prepare(self, tx: MemberTransaction) -> None:
                if fails_to_prepare:
                    raise ValueError(f"{who} cannot prepare")
                diary.note(who, "prepare")

            def on_commit(self, tx: MemberTransaction) -> None:
                diary.note(who, "commit")

            def on_abort(self, tx: MemberTransaction) -> None:
                diary.note(who, "abort")

            def on_plain(self, event: Event) -> None:
                diary.note(who, ("plain", event.data))

        return Client


@pytest.fixture
def diary() -> Diary:
    return Diary()
