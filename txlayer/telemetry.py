"""Spans and metrics for OpenTelemetry where its API is installed and set up; the log `txlayer.trace` otherwise.

One trace goes from the publisher through all members: the context travels as `traceparent` in the headers of each
event, as W3C Trace Context has it, so consumers outside txlayer can go on with it too. Set the SDK up before the site
is started. Nothing here touches the protocol: it listens to the calls and to the probe of a site.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from typing import Protocol

from txlayer.effects import Input

Probe = Callable[[str, object], None]
_trace_log = logging.getLogger("txlayer.trace")


class Telemetry(Protocol):
    """Hears of what a site does."""

    def call(self, call: Input) -> Input:
        """A call of the application, on its own thread; may put a context on the events."""

    def probe(self, what: str, thing: object) -> None:
        """A step on its way, on any thread."""


class LogTelemetry:
    """Every step as a line at DEBUG, without payloads."""

    def __init__(self, site: str) -> None:
        self._site = site

    def call(self, call: Input) -> Input:
        return call

    def probe(self, what: str, thing: object) -> None:
        inner = getattr(thing, "message", thing)
        tx = getattr(inner, "tx", None)
        _trace_log.debug("%s %s %s %s %s", self._site, what, type(thing).__name__, type(inner).__name__, tx or "")


def both(probe: Probe | None, telemetry: Telemetry | None) -> Probe | None:
    """One probe of the site's own and of what listens."""
    if telemetry is None:
        return probe
    if probe is None:
        return telemetry.probe
    own, listening = probe, telemetry.probe

    def hear(what: str, thing: object) -> None:
        listening(what, thing)
        own(what, thing)

    return hear


def open_telemetry(site: str) -> Telemetry | None:
    """What listens to a site; None if nobody does."""
    if importlib.util.find_spec("opentelemetry") is not None and importlib.util.find_spec("opentelemetry.trace"):
        from txlayer.telemetry_otel import OtelTelemetry, is_set_up

        if is_set_up():
            return OtelTelemetry(site)
    return LogTelemetry(site) if _trace_log.isEnabledFor(logging.DEBUG) else None
