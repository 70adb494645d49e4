"""The command `txlayer`: formats what the library answers and decides nothing."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from txlayer import dead_letters
from txlayer.connect import connect
from txlayer.errors import TxLayerError, UsageError
from txlayer.presence import Roster
from txlayer.sequencing import command as sequencing

_WORLDS = {
    "transactions": "txlayer.simulation.command",
    "ordering": "txlayer.simulation.ordering.command",
}
Command = Callable[[argparse.Namespace, Console], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Exit status 0: done; 1: it failed; 2: the call was wrong."""
    parser = _parser()
    args, rest = parser.parse_known_args(arguments)
    args.rest = rest
    command: Command = args.command
    if rest and command not in (_simulate, _recover):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        return command(args, Console())
    except UsageError as exc:
        print(f"txlayer: {exc}", file=sys.stderr)
        return 2
    except TxLayerError as exc:
        print(f"txlayer: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="txlayer", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")

    demo = commands.add_parser("demo", help="events between sites, in one process, no server")
    demo.set_defaults(command=_demo)

    simulate = commands.add_parser(
        "simulate", add_help=False, help="run the protocols in a simulated world; `simulate --help` for its options"
    )
    simulate.add_argument("--world", choices=sorted(_WORLDS), default="transactions")
    simulate.set_defaults(command=_simulate)

    sequencing.add_commands(commands.add_parser("sequencer", help="hosts of the total order"))

    sites = commands.add_parser("sites", help="who is present on a bus")
    sites.add_argument("--bus", required=True, help="mqtt://host:port, kafka://host:port")
    sites.add_argument("--remove", metavar="NAME", help="delete the entry of a dead site")
    sites.set_defaults(command=_sites)

    recover = commands.add_parser("recover", add_help=False, help="finish database branches that a site has left")
    recover.set_defaults(command=_recover)

    transactions = commands.add_parser("tx", help="transactions")
    listing = transactions.add_subparsers(required=True, metavar="action").add_parser("list", help="what is prepared")
    listing.add_argument("--dsn", required=True, help="the database: postgresql://host/database")
    listing.add_argument("--site", help="only those of one site")
    listing.set_defaults(command=_tx_list)

    dead = commands.add_parser("dead", help="events that a handler kept failing on")
    actions = dead.add_subparsers(required=True, metavar="action")
    for name, action, text in (
        ("list", _dead_list, "show them"),
        ("replay", _dead_replay, "publish one again, for the subscription that failed on it"),
        ("remove", _dead_remove, "delete one for good"),
    ):
        sub = actions.add_parser(name, help=text)
        sub.add_argument("--bus", required=True, help="mqtt://host:port, kafka://host:port")
        if name == "list":
            sub.add_argument("--subscription", metavar="NAME", help="only those of one durable name")
        else:
            sub.add_argument("id", nargs="+", help="as shown by `txlayer dead list`")
        sub.set_defaults(command=action)
    return parser


def _demo(args: argparse.Namespace, console: Console) -> int:
    from txlayer import demo

    return demo.run(console)


def _simulate(args: argparse.Namespace, console: Console) -> int:
    """Each world has options of its own."""
    world = importlib.import_module(_WORLDS[args.world])
    parser = argparse.ArgumentParser(prog=f"txlayer simulate --world {args.world}", description=world.__doc__)
    world.add_arguments(parser)
    status: int = world.run(parser.parse_args(args.rest))
    return status


def _recover(args: argparse.Namespace, console: Console) -> int:
    """Its module needs the PostgreSQL driver."""
    from txlayer import recover

    parser = argparse.ArgumentParser(prog="txlayer recover", description=recover.__doc__)
    recover.add_arguments(parser)
    return recover.run(parser.parse_args(args.rest), console)


def _tx_list(args: argparse.Namespace, console: Console) -> int:
    from txlayer import recover

    return recover.list_prepared(args.dsn, args.site, console)


def _sites(args: argparse.Namespace, console: Console) -> int:
    with connect(args.bus) as bus, Roster(bus) as roster:
        if args.remove is not None:
            roster.remove(args.remove)
            console.print(f"removed {args.remove}")
            return 0
        table = Table("site", "standing", "incarnation", "life", "info")
        for site in roster.sites():
            info = ", ".join(f"{name}={value}" for name, value in sorted(site.info.items()))
            table.add_row(site.name, site.standing.value, site.identity.incarnation, str(site.identity.life), info)
    console.print(table)
    return 0


def _dead_list(args: argparse.Namespace, console: Console) -> int:
    with connect(args.bus) as bus:
        letters = dead_letters.letters(bus, args.subscription)
    table = Table("id", "subscription", "topic", "bytes", "attempts", "when", "reason")
    for letter in letters:
        size = "-" if letter.payload is None else str(len(letter.payload))
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(letter.time))
        table.add_row(letter.id, letter.subscription, letter.topic, size, str(letter.attempts), when, letter.reason)
    console.print(table)
    return 0


def _dead_replay(args: argparse.Namespace, console: Console) -> int:
    return _for_each_letter(args, console, dead_letters.replay, "replayed")


def _dead_remove(args: argparse.Namespace, console: Console) -> int:
    return _for_each_letter(args, console, dead_letters.remove, "removed")


def _for_each_letter(args: argparse.Namespace, console: Console, action: Callable[..., None], done: str) -> int:
    with connect(args.bus) as bus:
        letters = {letter.id: letter for letter in dead_letters.letters(bus)}
        unknown = [id for id in args.id if id not in letters]
        if unknown:
            raise UsageError(f"no dead letter {', '.join(unknown)}; `txlayer dead list` shows them")
        for id in args.id:
            action(bus, letters[id])
            console.print(f"{done} {id}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
