"""Tables that cut nothing: names and ids are copied from them into the next command."""

from __future__ import annotations

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

_ANY_WIDTH = 100_000


def show(table: Table, console: Console) -> None:
    """Print it as wide as what is in it, also where the terminal is narrower."""
    needed = Measurement.get(console, console.options.update(max_width=_ANY_WIDTH), table).maximum
    console.width = max(console.width, needed)
    console.print(table)
