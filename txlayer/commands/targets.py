"""The site that an operator means: one that runs, by its bus, or one that does not, by its log."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeAlias

from rich.console import Console

from txlayer.commands.options import add_bus, add_security, security
from txlayer.connect import connect
from txlayer.errors import UsageError
from txlayer.operator import RunningSite, StoppedSite

Target: TypeAlias = RunningSite | StoppedSite


def add_target(parser: argparse.ArgumentParser) -> None:
    """Which site."""
    parser.add_argument("--site", required=True, metavar="NAME")
    add_bus(parser, required=False)
    parser.add_argument("--log", help="the log of a site that does not run: sqlite:///file.db")
    parser.add_argument("--within", type=float, default=10.0, help="seconds to wait for a running site")
    add_security(parser)


def on_target(act: Callable[[Target, argparse.Namespace, Console], int]) -> Callable[..., int]:
    """The command that does this to the site that the options name."""

    def run(args: argparse.Namespace, console: Console) -> int:
        if (args.log is None) == (args.bus is None):
            raise UsageError("give --bus for a site that runs, or --log for one that does not")
        if args.log is not None:
            with StoppedSite(args.site, args.log) as stopped:
                return act(stopped, args, console)
        with connect(args.bus) as bus:
            return act(RunningSite(args.site, bus, security(args), args.within), args, console)

    return run
