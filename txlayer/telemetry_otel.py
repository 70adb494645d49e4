"""OpenTelemetry: what a site's calls and steps become.

Spans: `transaction` (the publisher, from begin to outcome), `census` and `decision` (the coordinator), `event` (a
member's handler; current while it runs), `vote` (a member) and `finish` (one that has something to finish). Metrics:
`txlayer.transactions` by outcome, `txlayer.transaction.duration`, `txlayer.votes`.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, TypeVar

from msgspec.structs import replace
from opentelemetry import context as contexts
from opentelemetry import metrics, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from txlayer import messages as m
from txlayer.effects import (
    BeginCall,
    Broadcast,
    CommitUnit,
    FinishUnit,
    Input,
    Opened,
    PrepareUnit,
    PublishCall,
    Received,
    Resolve,
    RunHandler,
    Send,
    Surface,
)
from txlayer.messages import Item, TxId

_MOST = 10_000
K = TypeVar("K")
V = TypeVar("V")


def is_set_up() -> bool:
    """Whether an SDK is there: without one the API does nothing, at some cost."""
    meters = type(metrics.get_meter_provider()).__name__
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider) or "Proxy" not in meters


class _Kept(OrderedDict[K, V]):
    """The latest so many: what never ends must not pile up here."""

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > _MOST:
            self.popitem(last=False)


class OtelTelemetry:
    """Of one site."""

    def __init__(self, site: str) -> None:
        self._site = site
        self._tracer = trace.get_tracer("txlayer")
        meter = metrics.get_meter("txlayer")
        self._transactions = meter.create_counter("txlayer.transactions", description="by outcome, at the publisher")
        self._duration = meter.create_histogram("txlayer.transaction.duration", "s", "from begin to outcome")
        self._votes = meter.create_counter("txlayer.votes", description="by value, at the member, or ignored")
        self._calls: _Kept[str, tuple[Span, str, float]] = _Kept()
        self._contexts: _Kept[TxId, Context] = _Kept()
        self._handlers: _Kept[tuple[TxId, int], tuple[Span, Any]] = _Kept()
        self._begun: _Kept[tuple[str, TxId], tuple[int, str]] = _Kept()
        self._ended: _Kept[TxId, list[tuple[str, int, int, dict[str, Any]]]] = _Kept()

    # The publisher

    def call(self, call: Input) -> Input:
        """Begin a span with the caller's context, and put the context on the events."""
        if isinstance(call, BeginCall):
            span = self._tracer.start_span(
                f"transaction {call.terms.type}", kind=SpanKind.PRODUCER, attributes=self._attributes(call.terms.type)
            )
            self._calls[call.call] = (span, call.terms.type, time.monotonic())
            return replace(call, items=tuple(self._with_context(item, span) for item in call.items))
        if isinstance(call, PublishCall) and call.call in self._calls:
            return replace(call, item=self._with_context(call.item, self._calls[call.call][0]))
        return call

    @staticmethod
    def _with_context(item: Item, span: Span) -> Item:
        carrier = dict(item.headers)
        propagate.inject(carrier, trace.set_span_in_context(span))
        return replace(item, headers=tuple(sorted(carrier.items())))

    def _on_resolve(self, resolve: Resolve) -> None:
        outcome = resolve.outcome
        known = self._calls.pop(resolve.call, None) if outcome.final else None
        if known is None:
            return
        span, type, began = known
        span.set_attribute("txlayer.tx", str(outcome.tx))
        span.set_attribute("txlayer.outcome", outcome.status.value)
        span.set_attribute("txlayer.members", outcome.members)
        if outcome.reason:
            span.set_status(Status(StatusCode.ERROR, outcome.reason))
        span.end()
        labels = {"txlayer.outcome": outcome.status.value, "txlayer.type": type}
        self._transactions.add(1, labels)
        self._duration.record(time.monotonic() - began, labels)

    # Steps

    def probe(self, what: str, thing: object) -> None:
        """One step of the site."""
        if what == "step" and isinstance(thing, Received):
            self._on_received(thing.message)
        elif what == "performed":
            self._on_performed(thing)
        elif what in ("work", "worked"):
            self._on_work(what == "work", thing)

    def _on_received(self, message: object) -> None:
        match message:
            case m.Census() if message.events:
                self._remember(message.tx, [event.item for event in message.events])
            case m.Event():
                self._remember(message.tx, [message.event.item])
            case m.Submit():
                self._remember(message.tx, [message.item])
            case _:
                pass

    def _remember(self, tx: TxId, items: Iterable[Item]) -> None:
        """The context of a transaction is that of its first event."""
        if tx in self._contexts:
            return
        for item in items:
            context = propagate.extract(dict(item.headers), Context())
            if context:
                self._contexts[tx] = context
                self._emit(tx)
                return

    def _on_performed(self, effect: object) -> None:
        match effect:
            case Resolve():
                self._on_resolve(effect)
            case Opened():
                known = self._calls.get(effect.call)
                if known is not None:
                    self._contexts[effect.tx] = trace.set_span_in_context(known[0], Context())
                    self._emit(effect.tx)
            case Broadcast():
                self._on_broadcast(effect.message)
            case Send() if isinstance(effect.message, m.Vote):
                self._on_vote(effect.message)
            case Send() if isinstance(effect.message, m.Delegated):
                self._on_delegated(effect.message)
            case Surface() if effect.what == "vote ignored":
                self._votes.add(1, {"txlayer.vote": "ignored"})
            case _:
                pass

    def _on_broadcast(self, message: object) -> None:
        match message:
            case m.Census():
                self._remember(message.tx, [event.item for event in message.events])
                self._begin("census", message.tx, message.terms.type)
            case m.Begin() | m.CensusFailed():
                self._end("census", message.tx)
            case m.Prepare():
                self._end("census", message.tx)
                self._begin("decision", message.tx, "")
            case m.Decision():
                self._end("census", message.tx)
                self._begin("decision", message.tx, "")
                self._end("decision", message.tx, {"txlayer.commit": bool(message.final)})
            case _:
                pass

    def _on_delegated(self, decision: m.Delegated) -> None:
        """The only member votes and finishes in one."""
        self._begin("vote", decision.tx, "")
        self._begun["finish", decision.tx] = self._begun["vote", decision.tx]
        self._on_vote(decision)
        self._end("finish", decision.tx, {"txlayer.commit": not decision.reason})

    def _on_vote(self, vote: m.Vote | m.Delegated) -> None:
        value = "no" if vote.reason else "yes"
        self._begin("vote", vote.tx, "")
        self._end("vote", vote.tx, {"txlayer.vote": value})
        self._votes.add(1, {"txlayer.vote": value})

    def _on_work(self, begins: bool, task: object) -> None:
        match task:
            case RunHandler():
                self._on_handler(begins, task)
            case PrepareUnit() | CommitUnit() if begins:
                self._begin("vote", task.tx, "")
            case FinishUnit():
                if begins:
                    self._begin("finish", task.tx, "")
                else:
                    self._end("finish", task.tx, {"txlayer.commit": task.commit})
            case _:
                pass

    def _on_handler(self, begins: bool, task: RunHandler) -> None:
        """The span is current while the handler runs, so that the application's own spans become its children."""
        key = (task.tx, task.event.number)
        if begins:
            item = task.event.item
            parent = propagate.extract(dict(item.headers), Context())
            attributes = {**self._attributes(item.type, task.tx), "txlayer.number": task.event.number}
            span = self._tracer.start_span(f"event {item.type}", parent, SpanKind.CONSUMER, attributes)
            self._handlers[key] = (span, contexts.attach(trace.set_span_in_context(span, parent)))
            return
        known = self._handlers.pop(key, None)
        if known is not None:
            contexts.detach(known[1])
            known[0].end()

    def _begin(self, name: str, tx: TxId, type: str) -> None:
        if (name, tx) not in self._begun:
            self._begun[name, tx] = (time.time_ns(), type)

    def _end(self, name: str, tx: TxId, attributes: dict[str, Any] | None = None) -> None:
        """A coordinator may learn the context only after its census: spans wait for it."""
        begun = self._begun.pop((name, tx), None)
        if begun is None:
            return
        ended = self._ended.get(tx)
        if ended is None:
            ended = self._ended[tx] = []
        ended.append((name, begun[0], time.time_ns(), {**self._attributes(begun[1], tx), **(attributes or {})}))
        self._emit(tx)

    def _emit(self, tx: TxId) -> None:
        context = self._contexts.get(tx)
        if context is not None:
            for name, begun, ended, attributes in self._ended.pop(tx, ()):
                span = self._tracer.start_span(name, context, attributes=attributes, start_time=begun)
                span.end(ended)

    def _attributes(self, type: str, tx: TxId | None = None) -> dict[str, Any]:
        known = {"messaging.system": "txlayer", "txlayer.site": self._site, "txlayer.type": type, "txlayer.tx": tx}
        return {name: str(value) for name, value in known.items() if value}
