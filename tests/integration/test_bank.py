"""Transfers between three banks while broker, databases and lines fail. The long run: `python -m tests.bank`."""

from __future__ import annotations

from tests.bank.faults import KINDS
from tests.bank.workload import run
from txlayer.testing.plugin import obtain_or_skip


def test_sums_are_conserved_and_callers_are_told_the_truth_through_every_kind_of_fault() -> None:
    result = obtain_or_skip(lambda: run(transfers=100, faults=len(KINDS), seed=7))
    assert result["violations"] == []
    assert result["committed"] > 0
    assert result["faults"] == len(KINDS)
