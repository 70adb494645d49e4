"""The command `txlayer`: formats what the library answers and decides nothing."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from rich.console import Console

from txlayer.commands import coordinator, dead, demo, readers, recover, simulate, sites, tx
from txlayer.errors import TxLayerError, UsageError
from txlayer.sequencing import command as sequencing

Command = Callable[[argparse.Namespace, Console], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point. Exit status 0: done; 1: it failed; 2: the call was wrong."""
    parser = _parser()
    args, rest = parser.parse_known_args(arguments)
    args.rest = rest
    command: Command = args.command
    if rest and command not in (simulate.run, recover.run):
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
    demo.add(commands)
    coordinator.add(commands)
    tx.add(commands)
    recover.add(commands)
    readers.add(commands)
    sites.add(commands)
    dead.add(commands)
    simulate.add(commands)
    sequencing.add_commands(commands.add_parser("sequencer", help="hosts of the total order"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
