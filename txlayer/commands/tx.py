"""`txlayer tx`: what is open at a site, who blocks it, and a way to end what cannot end by itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from txlayer.commands import recover
from txlayer.commands.tables import show
from txlayer.commands.targets import Target, add_target, on_target
from txlayer.errors import UsageError
from txlayer.messages import TxId
from txlayer.runtime.inspection import TransactionView
from txlayer.site_base import parse_txid


def add(commands: Any) -> None:
    """Register it."""
    tx = commands.add_parser("tx", help="what is open at a site, and who blocks it")
    actions = tx.add_subparsers(required=True, metavar="action")
    for name, action, text in (
        ("list", _list, "everything that is not over"),
        ("show", _show, "all that a site knows of one"),
        ("resolve", _resolve, "end one that is in doubt, by force"),
    ):
        sub = actions.add_parser(name, help=text)
        if name == "list":
            sub.add_argument("--dsn", help="a database of the site: what is prepared there, and the age of its locks")
        else:
            sub.add_argument("id", help="as shown by `txlayer tx list`")
        if name == "resolve":
            choice = sub.add_mutually_exclusive_group(required=True)
            choice.add_argument("--commit", action="store_true", help="what the coordinator decided, or must have")
            choice.add_argument("--abort", action="store_true", help="also for parked work that was undone by hand")
        add_target(sub)
        sub.set_defaults(command=_or_database(on_target(action)))


def _or_database(command: Callable[..., int]) -> Callable[..., int]:
    def run(args: argparse.Namespace, console: Console) -> int:
        if getattr(args, "dsn", None) is not None:
            status: int = recover.module().list_prepared(args.dsn, args.site, console)
            return status
        return command(args, console)

    return run


def _list(target: Target, args: argparse.Namespace, console: Console) -> int:
    table = Table("transaction", "type", "part", "state", "for", "blocked by")
    for view in target.transactions():
        state = f"{view.state}, in doubt" if view.in_doubt else view.state
        table.add_row(str(view.tx), view.type, view.part, state, age(view.seconds), ", ".join(view.blocked_by))
    show(table, console)
    return 0


def _show(target: Target, args: argparse.Namespace, console: Console) -> int:
    tx = parse_txid(args.id)
    views = _of(target.transactions(), tx)
    for view in views:
        doubt = "yes: it can only wait, or be resolved" if view.in_doubt else "no"
        for name, value in (
            ("transaction", view.tx), ("coordinator", view.tx.coordinator), ("type", view.type),
            (f"part of {args.site}", view.part), ("state", view.state), ("for", age(view.seconds)),
            ("in doubt", doubt), ("blocked by", ", ".join(view.blocked_by) or "nobody"),
        ):  # fmt: skip
            console.print(f"{name:>20}  {value}", soft_wrap=True, highlight=False)
    return 0


def _resolve(target: Target, args: argparse.Namespace, console: Console) -> int:
    tx = parse_txid(args.id)
    target.resolve(tx, args.commit)
    word = "committed" if args.commit else "aborted"
    console.print(f"{word} at {args.site} by force, recorded as heuristic: {tx}", soft_wrap=True, highlight=False)
    return 0


def _of(views: list[TransactionView], tx: TxId) -> list[TransactionView]:
    found = [view for view in views if view.tx == tx]
    if not found:
        raise UsageError(f"{tx} is not open here; `txlayer tx list` shows what is")
    return found


def age(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
