"""`python -m benchmarks NAME`: each benchmark compares with the direct way in the same run and prints JSON last."""

from __future__ import annotations

import argparse
import importlib
import sys

NAMES = ("passthrough", "core", "ordering", "transactions", "xa")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(required=True, dest="name")
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in NAMES}
    for name, module in modules.items():
        module.add_arguments(commands.add_parser(name, description=module.__doc__))
    args = parser.parse_args()
    status: int = modules[args.name].run(args)
    return status


if __name__ == "__main__":
    sys.exit(main())
