"""The sample of the crash matrix that every test run makes; all of it: `python -m tests.crash_matrix --json`."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.crash_matrix.__main__ import run
from tests.crash_matrix.cases import all_cases, sample
from txlayer.testing.plugin import obtain_or_skip

SAMPLE = 44


@pytest.mark.timeout(900)
def test_everyone_agrees_after_a_crash_at_any_point() -> None:
    assert obtain_or_skip(lambda: run(sample(SAMPLE), True, Counter())) == []


def test_the_sample_has_every_row_and_both_buses() -> None:
    chosen, everything = sample(SAMPLE), all_cases()
    assert len(chosen) >= 40
    assert {case.row for case in chosen} == {case.row for case in everything}
    assert {case.bus for case in chosen} == {"mqtt", "kafka"}
    assert {case.twice for case in chosen} == {True, False}
    assert len(everything) >= 200
    assert len({case.name for case in everything}) == len(everything)
