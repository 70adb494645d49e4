"""`python -m tests.stress_sites --bus mqtt --transactions 500 --kills 40 --json`."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.stress_sites.driver import Driver, Wishes
from txlayer.testing.server import Server
from txlayer.testing.servers import Kafka, Mosquitto

BROKERS: dict[str, Callable[[], Server]] = {
    "mqtt": lambda: Mosquitto(persistence=True),
    "kafka": Kafka,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress_sites", description=__doc__)
    parser.add_argument("--bus", choices=sorted(BROKERS), default="mqtt")
    parser.add_argument("--transactions", type=int, default=300)
    parser.add_argument("--kills", type=int, default=20, help="sites ended by SIGKILL and restarted")
    parser.add_argument("--broker-kills", type=int, default=0, help="the broker likewise")
    parser.add_argument("--pauses", type=int, default=0, help="sites that stand still for a while")
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--at-once", type=int, default=6, help="transactions at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--mutant", default="", help="a planted bug of the simulation, by name")
    parser.add_argument("--folder", help="where histories, logs and databases are kept; else they are removed")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    wishes = Wishes(
        given.transactions,
        given.kills,
        given.broker_kills,
        given.pauses,
        given.sites,
        given.at_once,
        given.seed,
        given.mutant,
    )
    with tempfile.TemporaryDirectory() as temporary, BROKERS[given.bus]() as server:
        folder = Path(given.folder or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        result = Driver(wishes, server, folder).run()
    if given.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:16} {value}")
    return 1 if result["violations"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
