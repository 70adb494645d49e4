"""`txlayer coordinator serve`: a site that coordinates for publishers that may die, and for several of them."""

from __future__ import annotations

import argparse
import logging
import signal
import threading
from typing import Any

from rich.console import Console

from txlayer.commands.options import add_bus, add_security, security
from txlayer.errors import SiteStalled
from txlayer.site import Site

_logger = logging.getLogger(__name__)


def add(commands: Any) -> None:
    """Register it."""
    coordinator = commands.add_parser("coordinator", help="host transactions for publishers that ask for it")
    serve = coordinator.add_subparsers(required=True, metavar="action").add_parser("serve", help="until it is ended")
    serve.add_argument("--name", required=True, help="the name of the site; one log, one name")
    add_bus(serve)
    serve.add_argument("--log", required=True, help="sqlite:///file.db, postgresql://host/database")
    serve.add_argument("--drain", type=float, default=10.0, metavar="SECONDS", help="how long to finish what is open")
    add_security(serve)
    serve.set_defaults(command=run)


def check(site: Site) -> None:
    """Raises if the site has stopped by itself; one that only stands still may go on."""
    try:
        site.transactions()
    except SiteStalled as exc:
        _logger.warning("%s", exc)


def run(args: argparse.Namespace, console: Console) -> int:
    """Serve until SIGTERM or SIGINT, then let what runs finish."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    site = Site(args.name, bus=args.bus, log=args.log, security=security(args), hosts=True)
    site.start()
    try:
        console.print(f"{args.name} coordinates on {args.bus}; end it with Ctrl-C", soft_wrap=True)
        while not ended.wait(0.5):
            check(site)
    finally:
        site.close(args.drain)
    console.print(f"{args.name} has ended")
    return 0
