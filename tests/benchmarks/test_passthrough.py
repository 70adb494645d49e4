"""The benchmark commands run and print one JSON line last; their figures are for people, not for tests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from txlayer.testing.server import Server


@pytest.mark.parametrize("bus", ["mqtt", "kafka"])
def test_passthrough_prints_its_ratio(bus: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(f"{bus}_broker")
    command = [sys.executable, "-m", "benchmarks", "passthrough", "--bus", bus, "--url", server.url, "--events", "500"]
    done = subprocess.run(
        [*command, "--repetitions", "1"], capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=240
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["ratio"] > 0
    assert result["raw"]["events_per_second"] > 0
    assert result["txlayer"]["p99_ms"] >= result["txlayer"]["p50_ms"] > 0
    assert result["subscribe_to_first_event_ms"] > 0
