"""`python -m tests.crash_matrix`: every case; one JSON line last."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.crash_matrix.cases import Case, all_cases, sample
from tests.crash_matrix.cluster import Cluster
from tests.crash_matrix.run import recheck, run_case
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
    second_ends: Counter[str] = Counter()
    failures = run(cases, args.json, second_ends)
    for failure in failures:
        sys.stdout.write(f"FAILED {failure}\n")
    result = {
        "cases": len(cases), "failures": len(failures), "seconds": round(time.monotonic() - start, 1),
        "second_ends": dict(sorted(second_ends.items())),
    }  # fmt: skip
    sys.stdout.write(json.dumps(result) + "\n")
    return 1 if failures else 0


def run(cases: list[Case], quiet: bool, second_ends: Counter[str]) -> list[str]:
    """Run them, bus by bus; what failed. After a failure everything is started anew."""
    failures: list[str] = []
    with ExitStack() as stack:
        postgres = stack.enter_context(Postgres(max_prepared_transactions=100))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txlayer-crash-")))
        for bus in dict.fromkeys(case.bus for case in cases):
            with servers.kafka() if bus == "kafka" else servers.mqtt() as broker:
                clusters = _Clusters(broker, postgres, folder, second_ends)
                failures += _on_bus(clusters, [case for case in cases if case.bus == bus], quiet)
    return failures


@dataclass
class _Clusters:
    """One after the other."""

    broker: Server
    postgres: Postgres
    folder: Path
    second_ends: Counter[str]
    now: Cluster | None = None

    def get(self) -> Cluster:
        if self.now is None:
            self.now = Cluster(self.broker.url, self.postgres.url, self.folder, f"m{time.monotonic_ns()}")
        return self.now

    def close(self) -> None:
        if self.now is not None:
            self.second_ends.update(self.now.second_ends)
            self.now.close()
        self.now = None


def _on_bus(clusters: _Clusters, cases: list[Case], quiet: bool) -> list[str]:
    failures: list[str] = []
    try:
        for case in cases:
            start, said = time.monotonic(), f"ok {case.name}"
            try:
                run_case(clusters.get(), case)
            except (AssertionError, OSError) as exc:
                failures.append(f"{case.name}: {exc}")
                said = f"FAILED {failures[-1]}"
                clusters.close()
            if not quiet:
                sys.stdout.write(f"{time.monotonic() - start:5.1f} s {said}\n")
                sys.stdout.flush()
        return failures + (recheck(clusters.now) if clusters.now is not None else [])
    finally:
        clusters.close()


if __name__ == "__main__":
    sys.exit(main())
