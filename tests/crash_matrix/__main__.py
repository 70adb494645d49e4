"""`python -m tests.crash_matrix`: every case; one JSON line last."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from tests.crash_matrix.cases import Case, all_cases, sample
from tests.crash_matrix.cluster import Cluster
from tests.crash_matrix.run import run_case
from txlayer.testing import servers
from txlayer.testing.postgres import Postgres
from txlayer.testing.server import Server


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash_matrix", description=__doc__)
    parser.add_argument("--json", action="store_true", help="nothing but the JSON line")
    parser.add_argument("--bus", choices=["mqtt", "kafka"])
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--sample", type=int, default=0, help="so many of them, spread")
    args = parser.parse_args()
    cases = sample(args.sample) if args.sample else all_cases()
    cases = [case for case in cases if args.only in case.name and args.bus in (None, case.bus)]
    start = time.monotonic()
    failures = run(cases, quiet=args.json)
    for failure in failures:
        sys.stdout.write(f"FAILED {failure}\n")
    result = {"cases": len(cases), "failures": len(failures), "seconds": round(time.monotonic() - start, 1)}
    sys.stdout.write(json.dumps(result) + "\n")
    return 1 if failures else 0


def run(cases: list[Case], quiet: bool) -> list[str]:
    """Run them, bus by bus; what failed. After a failure everything is started anew."""
    failures: list[str] = []
    with ExitStack() as stack:
        postgres = stack.enter_context(Postgres(max_prepared_transactions=100))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txlayer-crash-")))
        for bus in dict.fromkeys(case.bus for case in cases):
            with servers.kafka() if bus == "kafka" else servers.mqtt() as broker:
                failures += _on_bus(broker, postgres, folder, [case for case in cases if case.bus == bus], quiet)
    return failures


def _on_bus(broker: Server, postgres: Postgres, folder: Path, cases: list[Case], quiet: bool) -> list[str]:
    failures: list[str] = []
    cluster: Cluster | None = None
    try:
        for case in cases:
            if cluster is None:
                cluster = Cluster(broker.url, postgres.url, folder, f"m{time.monotonic_ns()}")
            start = time.monotonic()
            try:
                run_case(cluster, case)
            except (AssertionError, OSError) as exc:
                failures.append(f"{case.name}: {exc}")
                cluster.close()
                cluster = None
            if not quiet:
                said = f"FAILED {failures[-1]}" if cluster is None else f"ok {case.name}"
                sys.stdout.write(f"{time.monotonic() - start:5.1f} s {said}\n")
                sys.stdout.flush()
    finally:
        if cluster is not None:
            cluster.close()
    return failures


if __name__ == "__main__":
    sys.exit(main())
