"""`txlayer demo`: a story of five transactions, in one process."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console


def add(commands: Any) -> None:
    """Register it."""
    commands.add_parser("demo", help="transactions between sites, told live; no server").set_defaults(command=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Tell it."""
    from txlayer import demo

    return demo.run(console)
