"""Every example runs, as a reader would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from txlayer.testing.server import Server

_PATIENTLY = """
import runpy, sys
from txlayer.site_base import SiteBase
plan, patient = SiteBase._plan, dict(census_within=30.0, vote_within=30.0)
SiteBase._plan = lambda self, *args, **terms: plan(self, *args, **{**patient, **terms})
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""An example leaves out who answers late; on a machine that stands still that would be anyone."""
EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PATIENTLY, example]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_stored_events_are_acknowledged_on_a_real_broker(mqtt_broker: Server, tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES[0].parent / "store_then_acknowledge.py", mqtt_broker.url]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("stored") == 3
