"""`txlayer recover` where its driver is missing."""

from __future__ import annotations

import subprocess
import sys

_WITHOUT_PSYCOPG = """
import sys
sys.modules["psycopg"] = None
from txlayer import cli
sys.exit(cli.main(["recover"]))
"""


def test_a_missing_driver_is_named_with_the_pip_command() -> None:
    ended = subprocess.run([sys.executable, "-c", _WITHOUT_PSYCOPG], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr == 'txlayer: psycopg is not installed: pip install "txlayer[postgres]"\n'
