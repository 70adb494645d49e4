"""`txlayer sequencer`: run a host of topic managers, or give its rank up for good."""

from __future__ import annotations

import argparse
import logging
import signal
import threading

from rich.console import Console

from txlayer.adapters.base import check_label
from txlayer.connect import connect
from txlayer.errors import UsageError
from txlayer.ordering.host_state import HostConfig
from txlayer.ordering.publisher import PublisherConfig
from txlayer.ordering.timestamp import LOWEST_HOST
from txlayer.ports import Bus
from txlayer.sequencing import claims
from txlayer.sequencing.bus_exchange import BusExchange
from txlayer.sequencing.exchange import Exchange
from txlayer.sequencing.open_log import open_disk
from txlayer.sequencing.sequencer import Sequencer
from txlayer.sequencing.tcp_server import HostExchange

_WAIT = 10.0
_BUS_HELP = "mqtt://host:port/chain, kafka://host:port/chain; the chain is `seq` if none is named"


def add_commands(parser: argparse.ArgumentParser) -> None:
    """`serve` and `retire`."""
    actions = parser.add_subparsers(required=True, metavar="action")
    serve = actions.add_parser("serve", help="run a host of topic managers until it is ended")
    serve.add_argument("--name", required=True, help="of the host; its log belongs to it")
    serve.add_argument("--rank", type=int, required=True, help="its place in the chain, 0 is the highest")
    serve.add_argument(
        "--topics", action="append", metavar="PATTERN", help="topics or prefixes with * that are its own (default: *)"
    )
    serve.add_argument("--log", required=True, help="sqlite:///file.db")
    serve.add_argument("--bus", required=True, help=_BUS_HELP)
    serve.add_argument("--listen", metavar="URL", help="also take clients at tcp://address:port")
    serve.add_argument("--lease", type=float, default=HostConfig().lease, help="seconds until a number is void")
    serve.set_defaults(command=_serve)
    retire = actions.add_parser("retire", help="give up the rank of a host that is gone for good, log and all")
    retire.add_argument("--rank", type=int, required=True)
    retire.add_argument("--bus", required=True, help=_BUS_HELP)
    retire.set_defaults(command=_retire)


def _serve(args: argparse.Namespace, console: Console) -> int:
    check_label(args.name)
    if not 0 <= args.rank <= LOWEST_HOST:
        raise UsageError(f"--rank {args.rank}: 0 is the highest, {LOWEST_HOST} the lowest")
    guard = PublisherConfig().guard
    if not args.lease > guard:
        raise UsageError(
            f"--lease {args.lease}: more than the publishers' guard time of {guard} s and the longest time on the bus"
        )
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    url, chain = claims.split_chain(args.bus)
    stop = threading.Event()
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, lambda *_: stop.set())
    with connect(url) as bus:
        exchange: Exchange = BusExchange(bus, chain)
        if args.listen:
            exchange = HostExchange(args.listen, exchange)
        try:
            return _run(args, console, bus, exchange, chain, stop)
        finally:
            exchange.close()


def _run(
    args: argparse.Namespace,
    console: Console,
    bus: Bus,
    exchange: Exchange,
    chain: str,
    stop: threading.Event,
) -> int:
    address = exchange.address if isinstance(exchange, HostExchange) else ""
    host = Sequencer(
        bus,
        exchange,
        open_disk(args.log),
        name=args.name,
        rank=args.rank,
        patterns=args.topics or ["*"],
        chain=chain,
        config=HostConfig(lease=args.lease, durable_tickets=True),
        address=address,
        know=exchange.know if isinstance(exchange, HostExchange) else None,
    )
    where = f" at {address}" if address else ""
    console.print(f"host {args.name}, rank {args.rank}, epoch {host.epoch}, serves chain {chain}{where}")
    while not stop.wait(0.1) and not host.ended.is_set():
        pass
    host.close()
    if host.error is not None:
        raise host.error
    return 0


def _retire(args: argparse.Namespace, console: Console) -> int:
    url, chain = claims.split_chain(args.bus)
    with connect(url) as bus:
        claims.retire(bus, chain, args.rank).wait(_WAIT)
    console.print(f"rank {args.rank} of chain {chain} is free")
    return 0
