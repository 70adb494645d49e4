"""Attribute filters: what a subscriber asks of an event's, or a transaction's, attributes.

`where={"subject": "DSOnline", "room": one_of("B1", "B2"), "seats": between(10, 50), "city": starts_with("New")}`.
Attributes are text, truth values `true` and `false`; where a filter is given numbers, an attribute is compared as a
number, and one that is none does not match. All conditions must hold; an attribute that is missing matches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from txlayer.errors import UsageError


@dataclass(frozen=True, slots=True)
class Test:
    """One condition on one attribute. Made by the functions below."""

    holds: Callable[[Any], bool]
    shown: str

    def __repr__(self) -> str:
        return self.shown


Where: TypeAlias = Mapping[str, "str | int | float | bool | Test"]


def equals(value: str | int | float | bool) -> Test:
    """The same text, or the same number."""
    if isinstance(value, bool):
        return Test(lambda found: text(found) == text(value), f"equals({value!r})")
    if isinstance(value, int | float):
        return Test(lambda found: _number(found) == value, f"equals({value!r})")
    return Test(lambda found: text(found) == value, f"equals({value!r})")


def one_of(*values: str | int | float) -> Test:
    """Any of these."""
    tests = [equals(value) for value in values]
    return Test(lambda found: any(test.holds(found) for test in tests), f"one_of{values!r}")


def between(least: float, most: float) -> Test:
    """A number from `least` to `most`, both included."""
    if not least <= most:
        raise UsageError(f"between({least}, {most}) matches nothing: the smaller bound comes first")
    return Test(lambda found: (number := _number(found)) is not None and least <= number <= most, f"{least}..{most}")


def above(least: float) -> Test:
    """A number greater than this."""
    return Test(lambda found: (number := _number(found)) is not None and number > least, f"above({least})")


def below(most: float) -> Test:
    """A number smaller than this."""
    return Test(lambda found: (number := _number(found)) is not None and number < most, f"below({most})")


def starts_with(prefix: str) -> Test:
    """A text that begins so."""
    return Test(lambda found: text(found).startswith(prefix), f"starts_with({prefix!r})")


@dataclass(frozen=True, slots=True)
class Filter:
    """All conditions of one subscriber."""

    tests: tuple[tuple[str, Test], ...] = ()

    @classmethod
    def of(cls, where: Where | None) -> Filter:
        """Plain values stand for equality."""
        tests = []
        for name, wanted in (where or {}).items():
            if not isinstance(wanted, Test | str | int | float):
                raise UsageError(f"where[{name!r}] takes a text, a number or a test such as one_of(...)")
            tests.append((name, wanted if isinstance(wanted, Test) else equals(wanted)))
        return cls(tuple(tests))

    def matches(self, attributes: Mapping[str, Any]) -> bool:
        """Whether every condition holds."""
        return all(name in attributes and test.holds(attributes[name]) for name, test in self.tests)


def text(value: Any) -> str:
    """An attribute as it travels and as filters see it."""
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
