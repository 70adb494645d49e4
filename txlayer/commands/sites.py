"""`txlayer sites`: who is present on a bus."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table

from txlayer.commands.options import add_bus
from txlayer.commands.tables import show
from txlayer.connect import connect
from txlayer.presence import Roster
from txlayer.runtime.wires import HOSTS, TYPES


def add(commands: Any) -> None:
    """Register it."""
    sites = commands.add_parser("sites", help="who is present on a bus")
    add_bus(sites)
    sites.add_argument("--remove", metavar="NAME", help="delete the entry of a dead site")
    sites.set_defaults(command=run)


def run(args: argparse.Namespace, console: Console) -> int:
    """Show them, or remove one."""
    with connect(args.bus) as bus, Roster(bus) as roster:
        if args.remove is not None:
            roster.remove(args.remove)
            console.print(f"removed {args.remove}")
            return 0
        table = Table("site", "standing", "incarnation", "life", "subscribes to", "hosts", "info")
        for site in roster.sites():
            info = ", ".join(
                f"{name}={value}" for name, value in sorted(site.info.items()) if name not in (TYPES, HOSTS)
            )
            table.add_row(
                site.name, site.standing.value, site.identity.incarnation, str(site.identity.life),
                ", ".join(site.info.get(TYPES, "").split("\n")), site.info.get(HOSTS, ""), info,
            )  # fmt: skip
    show(table, console)
    return 0
