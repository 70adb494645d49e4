"""`txlayer dead`: events that a handler kept failing on."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from txlayer import dead_letters
from txlayer.commands.options import add_bus
from txlayer.connect import connect
from txlayer.errors import UsageError


def add(commands: Any) -> None:
    """Register it."""
    dead = commands.add_parser("dead", help="events that a handler kept failing on")
    actions = dead.add_subparsers(required=True, metavar="action")
    for name, action, text in (
        ("list", _list, "show them"),
        ("replay", _replay, "publish one again, for the subscription that failed on it"),
        ("remove", _remove, "delete one for good"),
    ):
        sub = actions.add_parser(name, help=text)
        add_bus(sub)
        if name == "list":
            sub.add_argument("--subscription", metavar="NAME", help="only those of one durable name")
        else:
            sub.add_argument("id", nargs="+", help="as shown by `txlayer dead list`")
        sub.set_defaults(command=action)


def _list(args: argparse.Namespace, console: Console) -> int:
    with connect(args.bus) as bus:
        letters = dead_letters.letters(bus, args.subscription)
    table = Table(Column("id", no_wrap=True))  # whole on every terminal and in a pipe: `replay` takes it
    for name in ("subscription", "topic", "bytes", "attempts", "when", "reason"):
        table.add_column(name, overflow="fold")
    for letter in letters:
        size = "-" if letter.payload is None else str(len(letter.payload))
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(letter.time))
        table.add_row(letter.id, letter.subscription, letter.topic, size, str(letter.attempts), when, letter.reason)
    console.print(table)
    return 0


def _replay(args: argparse.Namespace, console: Console) -> int:
    return _for_each(args, console, dead_letters.replay, "replayed")


def _remove(args: argparse.Namespace, console: Console) -> int:
    return _for_each(args, console, dead_letters.remove, "removed")


def _for_each(args: argparse.Namespace, console: Console, action: Callable[..., None], done: str) -> int:
    with connect(args.bus) as bus:
        letters = {letter.id: letter for letter in dead_letters.letters(bus)}
        unknown = [id for id in args.id if id not in letters]
        if unknown:
            raise UsageError(f"no dead letter {', '.join(unknown)}; `txlayer dead list` shows them")
        for id in args.id:
            action(bus, letters[id])
            console.print(f"{done} {id}")
    return 0
