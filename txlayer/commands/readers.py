"""`txlayer readers`: who follows a site, or is a durable local member of it, and how far each has come."""

from __future__ import annotations

import argparse
from typing import Any

from rich.console import Console
from rich.table import Table

from txlayer.commands.tables import show
from txlayer.commands.targets import Target, add_target, on_target


def add(commands: Any) -> None:
    """Register it."""
    readers = commands.add_parser("readers", help="who follows a site, and how far each has come")
    actions = readers.add_subparsers(required=True, metavar="action")
    for name, action, text in (
        ("list", _list, "show them"),
        ("remove", _remove, "keep nothing any more for one that is gone for good"),
    ):
        sub = actions.add_parser(name, help=text)
        if name == "remove":
            sub.add_argument("name", help="as shown by `txlayer readers list`")
        add_target(sub)
        sub.set_defaults(command=on_target(action))


def _list(target: Target, args: argparse.Namespace, console: Console) -> int:
    table = Table("site", "reads", "types", "behind by", "stale")
    for view in target.readers():
        table.add_row(
            view.name, view.chain, ", ".join(view.types), str(view.behind), "yes" if view.stale else ""
        )  # fmt: skip
    show(table, console)
    return 0


def _remove(target: Target, args: argparse.Namespace, console: Console) -> int:
    target.remove_reader(args.name)
    console.print(f"{args.site} keeps nothing any more for {args.name}", soft_wrap=True, highlight=False)
    return 0
