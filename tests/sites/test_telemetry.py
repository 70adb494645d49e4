"""One trace from publisher to members, counts of outcomes and votes; lines in a log where there is no SDK."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.metrics import _internal as metrics_internal
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.conftest import eventually
from tests.sites.conftest import Notes, Sites
from txlayer import Event, MemberTransaction, Participant, Site
from txlayer import messages as m
from txlayer.errors import TransactionAborted
from txlayer.security import BrokerSeal


class Seen:
    """What was exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name.split()[0] == name]

    def counted(self, name: str) -> dict[Any, int]:
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        found = [one for scope in data.resource_metrics[0].scope_metrics for one in scope.metrics if one.name == name]
        return {
            tuple(sorted(point.attributes.values())): point.value for one in found for point in one.data.data_points
        }


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """The SDK, set up for one test: the API allows it once in a process."""
    seen = Seen()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", seen.tracers)
    monkeypatch.setattr(metrics_internal, "_METER_PROVIDER", seen.meters)
    yield seen
    seen.tracers.shutdown()
    seen.meters.shutdown()


def started(sites: Sites, type: str, *handlers: Any) -> Site:
    members = [sites.member(f"m{number}", type, handler) for number, handler in enumerate(handlers)]
    publisher = sites.start("p")
    sites.know(publisher, type, *members)
    return publisher


def test_one_trace_goes_through_publisher_and_members(seen: Seen, memory_sites: Sites) -> None:
    type = memory_sites.name("orders")
    mine = trace.get_tracer("application")

    def handle(tx: MemberTransaction, event: Event) -> None:
        with mine.start_as_current_span("booking"):
            assert event.attributes["traceparent"]

    class Told(Participant):
        def on_event(self, tx: MemberTransaction, event: Event) -> None: ...

        def on_commit(self, tx: MemberTransaction) -> None: ...

    publisher = started(memory_sites, type, handle, Told)
    with mine.start_as_current_span("request") as request:
        with publisher.transaction(type) as tx:
            tx.publish("one")
            tx.publish("two")
        publisher.send(type, ["three"])
    trace_id = request.get_span_context().trace_id
    eventually(lambda: len(seen.spans("finish")) == 2, "who has something to finish finished both")
    eventually(lambda: len(seen.spans("transaction")) == 2, "the caller is answered before it is written down")
    for name, count in {"transaction": 2, "census": 2, "event": 6, "booking": 3, "vote": 4, "decision": 2}.items():
        spans = seen.spans(name)
        assert len(spans) == count, name
        assert {span.context.trace_id for span in spans} == {trace_id}, name
    transactions = {span.context.span_id for span in seen.spans("transaction")}
    events = seen.spans("event")
    assert {span.parent.span_id for span in events if span.parent} == transactions
    assert {span.parent.span_id for span in seen.spans("booking") if span.parent} <= {s.context.span_id for s in events}
    assert {span.attributes["txlayer.outcome"] for span in seen.spans("transaction") if span.attributes} == {
        "committed"
    }
    eventually(lambda: seen.counted("txlayer.transactions") == {("committed", type): 2})
    assert seen.counted("txlayer.votes") == {("yes",): 4}


def test_an_only_member_that_decides_alone_is_seen_to_vote_and_to_finish(
    seen: Seen, memory_sites: Sites, notes: Notes
) -> None:
    type = memory_sites.name("orders")
    publisher = started(memory_sites, type, notes.handler("a"))
    with publisher.transaction(type) as tx:
        tx.publish("one")
    eventually(lambda: len(seen.spans("vote")) == len(seen.spans("finish")) == 1)
    (finish,) = seen.spans("finish")
    assert finish.attributes is not None
    assert finish.attributes["txlayer.commit"] is True
    eventually(lambda: seen.counted("txlayer.votes") == {("yes",): 1})


def test_votes_of_strangers_are_counted(seen: Seen, memory_sites: Sites, notes: Notes) -> None:
    type = memory_sites.name("orders")
    publisher = started(memory_sites, type, notes.handler("a"), notes.handler("b"))
    with publisher.transaction(type) as tx:
        wires = publisher._engine.wires
        for name in (b"one", b"another"):
            publisher._engine.bus.publish(
                wires.inbox(publisher.name), BrokerSeal().close(m.Vote(tx.id, name, b"token", 0, b""))
            )
        eventually(lambda: seen.counted("txlayer.votes").get(("ignored",)) == 2)
    eventually(lambda: seen.counted("txlayer.votes") == {("ignored",): 2, ("yes",): 2})


def test_an_abort_is_an_error_of_the_transaction(seen: Seen, memory_sites: Sites, notes: Notes) -> None:
    type = memory_sites.name("orders")

    def refuse(tx: MemberTransaction, event: Event) -> None:
        raise ValueError("no")

    publisher = started(memory_sites, type, refuse, notes.handler("b"))
    with pytest.raises(TransactionAborted):
        publisher.send(type, ["one"])
    eventually(lambda: seen.spans("transaction"), "the caller is answered before it is written down")
    (span,) = seen.spans("transaction")
    assert not span.status.is_ok
    assert "ValueError: no" in str(span.status.description)
    eventually(lambda: seen.counted("txlayer.transactions") == {("aborted", type): 1})


def test_without_an_sdk_steps_are_logged(
    memory_sites: Sites, notes: Notes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    assert metrics.get_meter_provider() is not None
    caplog.set_level(logging.DEBUG, "txlayer.trace")
    type = memory_sites.name("orders")
    publisher = started(memory_sites, type, notes.handler("a"), notes.handler("b"))
    publisher.send(type, [{"secret": "payload"}])
    lines = [record.getMessage() for record in caplog.records if record.name == "txlayer.trace"]
    for kind in ("Census", "Vote", "Decision"):
        assert any(kind in line for line in lines), kind
    assert not any("payload" in line for line in lines)
