"""The command runs on every bus and prints its ratio; its figures are for people, not for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.transactions_load import percentile


@pytest.mark.parametrize("bus", ["memory", "mqtt", "kafka"])
def test_transactions_prints_figures_and_their_floor(bus: str, request: pytest.FixtureRequest) -> None:
    command = [sys.executable, "-m", "benchmarks", "transactions", "--bus", bus, "--members", "3", "--level", "secret"]
    if bus != "memory":
        command += ["--url", request.getfixturevalue(f"{bus}_broker").url]
    done = subprocess.run(
        [*command, "--level", "broker", "--seconds", "0.1", "--repetitions", "1", "--within", "60", "--json"],
        capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["latency_ratio"] > 0
    for ways in result["members"]["3"].values():
        for way in ("floor", "floor_two_rounds", "one_shot", "plain_send", "rounds"):
            for load in ("sequential", "32_at_once"):
                figures = ways[way][load]
                assert figures["per_second"] > 0
                assert figures["p99_ms"] >= figures["p50_ms"] > 0
                assert figures["samples"] > 0


def test_a_percentile_of_few_is_none_that_did_not_happen() -> None:
    assert percentile([1.0], 99) == 1.0
    assert percentile([1.0, 2.0], 99) <= 2.0
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0
