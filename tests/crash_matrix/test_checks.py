"""What counts as right after a case, and where second lives end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash_matrix.cases import MULTI, SPLIT, Case, all_cases
from tests.crash_matrix.run import _wrong, recheck

Rows = dict[str, list[tuple[int, bool]]]
INTERESTING = {"work InspectUnit", "write MemberDecided", "work FinishUnit", "sent COMMIT PREPARED", "work Compensate"}


class Databases:
    """What the members have, and how much of it the first publisher has published."""

    def __init__(self, rows: Rows, published: int = 2) -> None:
        self._rows = rows
        self._published = published
        self.done: list[Any] = []

    def rows(self, name: str, key: str) -> list[tuple[int, bool]]:
        return self._rows.get(name, [])

    def published(self, name: str, key: str, publisher: str) -> int:
        return self._published

    def prepared(self) -> list[str]:
        return []


def wrong(case: Case, rows: Rows, seen: str, published: int = 2) -> str:
    return _wrong(Databases(rows, published), case, "key", seen)  # type: ignore[arg-type]


def events(count: int) -> list[tuple[int, bool]]:
    return [(number, False) for number in range(1, count + 1)]


def case_of(row: str, victim: str) -> Case:
    return next(case for case in all_cases() if (case.row, case.victim) == (row, victim))


@pytest.mark.parametrize(
    ("counts", "published", "right"),
    [((4, 4, 4), 2, True), ((2, 2, 2), 2, True), ((0, 0, 0), 0, False), ((2, 4, 0), 2, False), ((3, 3, 3), 1, False)],
)
def test_members_have_the_same_events_of_two_publishers_and_all_of_the_first(
    counts: tuple[int, int, int], published: int, right: bool
) -> None:
    case = case_of("H3", "q")
    assert case.scenario is MULTI
    rows = {name: events(count) for name, count in zip("abc", counts, strict=True)}
    assert (wrong(case, rows, "COMMITTED", published) == "") is right


def test_a_local_member_has_acted_on_a_call_that_was_logged_whoever_died_and_whatever_became_of_the_rest() -> None:
    for victim in ("p", "l"):
        case = case_of("F2", victim)
        assert case.scenario is SPLIT
        assert wrong(case, {"l": events(2)}, "ABORTED") == ""
        assert "local member" in wrong(case, {}, "ABORTED")


def test_what_goes_wrong_after_its_case_is_found_in_the_end() -> None:
    databases = Databases({"l": events(2)})
    databases.done = [(case_of("F2", "p"), "key", "ABORTED")]
    assert recheck(databases) == []  # type: ignore[arg-type]
    databases._rows["a"] = events(2)
    (found,) = recheck(databases)  # type: ignore[arg-type]
    assert "a has [(1, False), (2, False)] of one that did not commit" in found


def test_second_lives_end_at_the_points_that_matter_in_recovery() -> None:
    assert {case.second[0] for case in all_cases() if case.twice} >= INTERESTING
