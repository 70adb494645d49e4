"""Imports point one way: protocols know messages, adapters know ports, the public surface sits on top."""

from __future__ import annotations

import ast
from pathlib import Path

import txlayer

ROOT = Path(txlayer.__file__).parent
PURE = ("transactions", "ordering", "multiclient")
TOP = ("cli", "demo", "web", "site", "spark", "recover", "retry")
# What each part must not import, by the first name after `txlayer`; its own package is always allowed.
FORBIDDEN = {
    **dict.fromkeys(PURE, ("adapters", "logs", "resources", "runtime", "simulation", "testing", *TOP)),
    **dict.fromkeys(("adapters", "logs", "resources"), ("runtime", "simulation", "testing", *PURE, *TOP)),
    **dict.fromkeys(("ports", "errors", "metadata", "delivery", "receipt"), ("adapters", "runtime", *PURE, *TOP)),
    "runtime": TOP,
}
EXCEPTIONS = {"ordering/ordered_bus.py"}  # an adapter over a port, aside
DRIVERS = {"paho": "adapters/mqtt", "confluent_kafka": "adapters/kafka", "psycopg": "", "pyspark": "spark"}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_imports_point_one_way() -> None:
    for path in ROOT.rglob("*.py"):
        part = path.relative_to(ROOT).with_suffix("").parts[0]
        if str(path.relative_to(ROOT)) not in EXCEPTIONS:
            wrong = {name for name in imports(path) if name.split(".")[1:2] and name.startswith("txlayer.")}
            wrong = {name for name in wrong if name.split(".")[1] in FORBIDDEN.get(part, ())}
            assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_a_driver_is_imported_only_in_its_own_modules() -> None:
    for path in ROOT.rglob("*.py"):
        place = str(path.relative_to(ROOT))
        for driver in {name.partition(".")[0] for name in imports(path)} & {"paho", "confluent_kafka"}:
            assert place.startswith((DRIVERS[driver], "testing/")), f"{place} imports {driver}"
