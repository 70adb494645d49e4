"""`txlayer recover`: finish database branches that a site has left."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console


def add(commands: Any) -> None:
    """Register it; its options come with its module, which needs the PostgreSQL driver."""
    recover = commands.add_parser("recover", add_help=False, help="finish database branches that a site has left")
    recover.set_defaults(command=run)


def run(args: argparse.Namespace, console: Console) -> int:
    from txlayer import recover

    parser = argparse.ArgumentParser(prog="txlayer recover", description=recover.__doc__)
    recover.add_arguments(parser)
    return recover.run(parser.parse_args(args.rest), console)
