"""`txlayer recover`: finish database branches that a site has left."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console

from txlayer.errors import MissingExtra


def add(commands: Any) -> None:
    """Register it; its options come with its module, which needs the PostgreSQL driver."""
    recover = commands.add_parser("recover", add_help=False, help="finish database branches that a site has left")
    recover.set_defaults(command=run)


def run(args: argparse.Namespace, console: Console) -> int:
    recover = module()
    parser = argparse.ArgumentParser(prog="txlayer recover", description=recover.__doc__)
    recover.add_arguments(parser)
    status: int = recover.run(parser.parse_args(args.rest), console)
    return status


def module() -> Any:
    """What works on the database, or an error that names the extra."""
    try:
        from txlayer import recover
    except ModuleNotFoundError as exc:
        if exc.name != "psycopg":
            raise
        raise MissingExtra("postgres", "psycopg") from exc
    return recover
