"""`txlayer tx`: what is open at a site, who blocks it, and a way to end what cannot end by itself."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from txlayer.commands import recover
from txlayer.commands.options import add_bus, add_security, security
from txlayer.commands.tables import show
from txlayer.connect import connect
from txlayer.errors import UsageError
from txlayer.messages import TxId
from txlayer.operator import RunningSite, StoppedSite
from txlayer.runtime.inspection import TransactionView
from txlayer.site_base import parse_txid

Target = RunningSite | StoppedSite


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
        sub.add_argument("--site", required=True, metavar="NAME")
        add_bus(sub, required=False)
        sub.add_argument("--log", help="the log of a site that does not run: sqlite:///file.db")
        sub.add_argument("--within", type=float, default=10.0, help="seconds to wait for a running site")
        add_security(sub)
        sub.set_defaults(command=_on_target(action))


def _on_target(act: Callable[[Target, argparse.Namespace, Console], int]) -> Callable[..., int]:
    def run(args: argparse.Namespace, console: Console) -> int:
        if getattr(args, "dsn", None) is not None:
            status: int = recover.module().list_prepared(args.dsn, args.site, console)
            return status
        if (args.log is None) == (args.bus is None):
            raise UsageError("give --bus for a site that runs, or --log for one that does not")
        if args.log is not None:
            with StoppedSite(args.site, args.log) as stopped:
                return act(stopped, args, console)
        with connect(args.bus) as bus:
            return act(RunningSite(args.site, bus, security(args), args.within), args, console)

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
