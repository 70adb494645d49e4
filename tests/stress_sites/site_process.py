"""One site in a process of its own: `python -m tests.stress_sites.site_process CONFIG`, orders on standard input."""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import assert_never

import msgspec

from tests.stress_sites import lines, orders
from tests.stress_sites.callers import Callers
from tests.stress_sites.database import Database
from tests.stress_sites.lines import Pen
from tests.stress_sites.members import HANDLER_WITHIN, Faults, join
from tests.stress_sites.tastes import Config
from tests.stress_sites.witness import Witness
from txlayer import RAW, Patience, Site
from txlayer.simulation.mutants import MUTANTS
from txlayer.transactions.executor import Executor, State

QUICK = Patience(retry=0.2, in_doubt=0.6, gap=0.1, linger=1.0, mark=0.5, longest=3.0)
_decode = msgspec.json.Decoder(orders.AnyOrder).decode


class SiteProcess:
    """Does what it is told, each order in a thread of its own."""

    def __init__(self, config: Config) -> None:
        folder = Path(config.folder)
        self._before = list(lines.read(folder / f"{config.name}.history"))
        self._pen = Pen(folder / f"{config.name}.history")
        self._out = threading.Lock()
        witness = Witness(self._pen)
        witness.dies_after = config.dies_after
        self._faults = Faults(f"{config.seed} {config.name} {len(self._before)}", config.failing, config.slow)
        self._site = Site(
            config.name, bus=config.bus, log=f"sqlite:///{folder / config.name}.log", hosts=True, codec=RAW,
            patience=QUICK, handler_within=HANDLER_WITHIN, probe=witness,
        )  # fmt: skip
        self._databases: list[Database] = []
        for event_type, liking in config.tastes.items():
            self._databases += join(self._site, event_type, liking, folder, self._pen, self._faults)
        rng = Random(f"{config.seed} {config.name}")
        self._callers = Callers(self._site, self._pen, rng, self._say)
        self._witness = witness

    def run(self) -> None:
        """Until the driver says close, or goes away."""
        self._start()
        for line in sys.stdin.buffer:
            order = _decode(line)
            match order:
                case orders.Run():
                    self._thread(lambda order=order: self._callers.run(order))
                case orders.Help():
                    self._thread(lambda order=order: self._callers.help(order))
                case orders.Die():
                    self._witness.dies_after = order.after
                case orders.Heal():
                    self._faults.heal()
                case orders.Rest():
                    self._say(self._left())
                case orders.Close():
                    self._close()
                    return
                case _:
                    assert_never(order)

    def _start(self) -> None:
        engine = self._site._engine
        assemble = engine._assemble

        def assemble_and_tell() -> None:
            assemble()
            self._witness.keyring = engine.participant.seat.keyring

        engine._assemble = assemble_and_tell  # type: ignore[method-assign]
        self._site.start()
        life = engine.identity.life
        self._pen.write(lines.Started(life))
        self._say(orders.Ready(life))
        for act in self._callers.take_up(self._before):
            self._thread(act)

    def _left(self) -> orders.Left:
        engine = self._site._engine
        roles, ahead = engine.participant, engine.loop._ahead

        def look() -> orders.Left:
            desk = roles.coordinator
            work = [f"coordinates {tx} ({c.phase.value})" for tx, c in desk.transactions.items() if not c.settled()]
            work += [
                f"has {len(c.entries)} entries for readers of {k.value}" for k, c in desk.chains.items() if c.entries
            ]
            work += [f"holds {len(ahead.held)} outputs"] if ahead.held else []
            work += [f"works on {tx}" for tx in engine.workshop.busy()]
            work += [f"waits for call {call}" for call, one in roles.publishers.items() if one.outcome is None]
            members = [one for of in roles.subscriber.members.values() for one in of.items()]
            work += [f"is in doubt about {tx}" for tx, one in members if getattr(one, "state", None) is State.PREPARED]
            remembered = tuple(tx for tx, one in members if not _parked(one))
            return orders.Left(tuple(work), remembered, tuple(desk.settled))

        left = engine.ask(look)
        in_databases = [f"{line} in a database" for database in self._databases for line in database.unfinished()]
        return msgspec.structs.replace(left, work=(*left.work, *in_databases))

    def _close(self) -> None:
        self._site.close()
        for database in self._databases:
            database.close()
        main = threading.main_thread()
        mine = [thread for thread in threading.enumerate() if thread is not main]
        for thread in mine:
            thread.join(10.0)
        self._say(orders.Closed(tuple(thread.name for thread in mine if thread.is_alive())))

    def _thread(self, act: Callable[[], None]) -> None:
        threading.Thread(target=act, name="caller", daemon=True).start()

    def _say(self, answer: orders.AnyAnswer) -> None:
        with self._out, contextlib.suppress(BrokenPipeError):
            os.write(1, msgspec.json.encode(answer) + b"\n")


def _parked(member: object) -> bool:
    """Whether only an operator can end it."""
    return isinstance(member, Executor) and member.compensation is not None and member.compensation.parked


def main() -> None:
    faulthandler.enable()
    logging.basicConfig(
        level=logging.INFO, format="%(relativeCreated)d %(threadName)s %(levelname)s %(name)s %(message)s"
    )
    config = msgspec.json.decode(sys.argv[1], type=Config)
    mutant = next((mutant for mutant in MUTANTS if mutant.name == config.mutant), None)
    with mutant.planted() if mutant is not None else contextlib.nullcontext():
        SiteProcess(config).run()


if __name__ == "__main__":
    main()
