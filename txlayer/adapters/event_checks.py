"""What is given to `publish` and `announce`, before a driver sees it: the same refusals on every bus."""

from __future__ import annotations

from collections.abc import Mapping

from txlayer.adapters.base import as_bytes
from txlayer.errors import UsageError
from txlayer.metadata import HEADER


def check_event(topic: object, payload: object, headers: object, key: object, type: object) -> bytes:
    """The payload of an event of which every part is what it has to be; `UsageError` says which is not."""
    check_text("a topic", topic)
    check_text("an event type", type)
    if key is not None and not isinstance(key, bytes):
        raise UsageError(f"a key is bytes or None, not {_kind(key)}: encode it first")
    if headers is not None:
        _check_headers(headers)
    return as_bytes(payload)


def _check_headers(headers: object) -> None:
    if not isinstance(headers, Mapping):
        raise UsageError(f"headers are a mapping of text to text, not {_kind(headers)}")
    if HEADER in headers:
        raise UsageError(f"a header named {HEADER!r} is the layer's own: take another name")
    for name, value in headers.items():
        check_text("the name of a header", name)
        check_text(f"header {name!r}", value)


def check_text(what: str, text: object) -> None:
    """Refuse anything but text."""
    if not isinstance(text, str):
        raise UsageError(f"{what} is text, not {_kind(text)}")


def _kind(thing: object) -> str:
    """The name of its class."""
    return type(thing).__name__
