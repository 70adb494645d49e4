"""Event types: names, perhaps declared with a class and a parent.

A declared type is a `msgspec.Struct` or a dataclass; publishing checks the value against it, subscribers get an
instance. Whoever subscribes to a parent gets the events of its children: advertisements tell every site which types
there are and whose children they are, so a subscriber need not have the class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from txlayer.errors import UsageError

_MARK = "__txlayer_type__"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EventType:
    """A type as its declaration gives it."""

    name: str
    parent: str | None = None
    cls: Any = Any


def event_type(name: str, *, parent: str | type | None = None) -> Callable[[type[T]], type[T]]:
    """Declare a Struct or dataclass as an event type. A declared base class is its parent."""

    def declare(cls: type[T]) -> type[T]:
        if not (dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct)):
            raise UsageError(f"{cls.__name__} is no event type: make it a msgspec.Struct or a dataclass")
        above = parent if parent is not None else next((base for base in cls.__mro__[1:] if _declared(base)), None)
        parent_name = declared(above).name if isinstance(above, type) else above
        setattr(cls, _MARK, EventType(check_type_name(name), parent_name, cls))
        return cls

    return declare


def declared(cls: type) -> EventType:
    """The declaration of a class; a usage error if it has none."""
    found = _declared(cls)
    if found is None:
        raise UsageError(f"{cls.__name__} is not declared: put @event_type(...) on it, or give type=...")
    return found


def _declared(cls: type) -> EventType | None:
    found = cls.__dict__.get(_MARK)
    return found if isinstance(found, EventType) else None


class _LeftToCodec(Exception):
    """A field of a kind that only the user's own codec knows: that one checks it."""


def _leave_to_codec(value: Any) -> Any:
    raise _LeftToCodec


def check_type_name(name: str) -> str:
    """A name of a type becomes part of topics, on every bus."""
    if not isinstance(name, str) or not name or len(name.encode()) > 200 or not name.isprintable():
        raise UsageError(f"event type {name!r}: 1 to 200 printable bytes of text")
    return name


@dataclass(slots=True)
class EventTypes:
    """The types that one site knows: its own declarations, and what others advertise."""

    strict: bool = False
    """Publish only what is advertised."""
    own: dict[str, EventType] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    advertised: dict[str, dict[str, None]] = field(default_factory=dict)

    def declare(self, declaration: EventType) -> None:
        """Know a type by its class."""
        known = self.own.get(declaration.name)
        if known is not None and known.cls is not declaration.cls:
            raise UsageError(f"event type {declaration.name!r} is declared twice, by different classes")
        self.own[declaration.name] = declaration
        if declaration.parent is not None:
            self.parents.setdefault(declaration.name, declaration.parent)

    def class_of(self, name: str) -> Any:
        """What values of this type are decoded as."""
        known = self.own.get(name)
        return known.cls if known is not None else Any

    def check_advertised(self, name: str) -> None:
        """Refuse a type that nobody advertises, if this site is strict."""
        if self.strict and not self.advertised.get(name):
            raise UsageError(f"event type {name!r} is not advertised, and this site is strict: site.advertise(...)")

    def check(self, name: str, value: Any) -> None:
        """Refuse a value that is not of the declared class, or whose fields are not of their declared types."""
        self.check_advertised(check_type_name(name))
        known = self.own.get(name)
        if known is None:
            return
        try:
            if isinstance(value, known.cls):
                msgspec.convert(msgspec.to_builtins(value, enc_hook=_leave_to_codec), value.__class__)
            else:
                msgspec.convert(value, known.cls)
        except _LeftToCodec:
            return
        except (msgspec.ValidationError, TypeError) as exc:
            raise UsageError(f"not an event of type {name!r}: {exc}") from exc

    def ancestors(self, name: str) -> Iterator[str]:
        """The type and its parents, nearest first."""
        seen: set[str] = set()
        current: str | None = name
        while current is not None and current not in seen:
            seen.add(current)
            yield current
            current = self.parents.get(current)

    def descendants(self, name: str) -> tuple[str, ...]:
        """The type and all types below it that are known."""
        return (name, *sorted(other for other in list(self.parents) if other != name and name in self.ancestors(other)))
