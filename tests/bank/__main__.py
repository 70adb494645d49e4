"""`python -m tests.bank`: one JSON line last."""

from __future__ import annotations

import argparse
import json
import logging
import sys

from tests.bank.workload import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bank", description=__doc__)
    parser.add_argument("--transfers", type=int, default=5000)
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    result = run(args.transfers, args.faults, args.seed)
    sys.stdout.write(json.dumps(result) + "\n")
    return 1 if result["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
