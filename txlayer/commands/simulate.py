"""`txlayer simulate`: the protocols in a simulated world."""

from __future__ import annotations

import argparse
import importlib
from typing import Any

from rich.console import Console

_WORLDS = {
    "transactions": "txlayer.simulation.command",
    "ordering": "txlayer.simulation.ordering.command",
}


def add(commands: Any) -> None:
    """Register it."""
    simulate = commands.add_parser(
        "simulate", add_help=False, help="run the protocols in a simulated world; `simulate --help` for its options"
    )
    simulate.add_argument("--world", choices=sorted(_WORLDS), default="transactions")
    simulate.set_defaults(command=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Each world has options of its own."""
    world = importlib.import_module(_WORLDS[args.world])
    parser = argparse.ArgumentParser(prog=f"txlayer simulate --world {args.world}", description=world.__doc__)
    world.add_arguments(parser)
    status: int = world.run(parser.parse_args(args.rest))
    return status
