"""What leaves an MQTT session first, and what it is counted for."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

from paho.mqtt.enums import MQTTErrorCode

from txlayer.adapters.mqtt_outbox import Outbox, Outgoing


class Wire:
    """Stands for paho's client: keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self._mids = itertools.count(1)

    def publish(self, topic: str, *_: object) -> Any:
        self.sent.append(topic)
        return SimpleNamespace(rc=MQTTErrorCode.MQTT_ERR_SUCCESS, mid=next(self._mids))


def test_a_latest_value_overtakes_the_events_that_wait() -> None:
    wire: Any = Wire()
    outbox = Outbox(wire)
    for number in range(5):
        outbox.put(Outgoing(f"event {number}", b"", None, 10))
    outbox.pump(2)
    for number in range(2):
        outbox.put(Outgoing(f"value {number}", b"", None, 3, first=True))
    outbox.acknowledge(1, None)
    outbox.pump(4)
    assert wire.sent == ["event 0", "event 1", "value 0", "value 1", "event 2"]
    assert (outbox.event_bytes, outbox.value_bytes) == (40, 6)
    for mid in range(2, 6):
        outbox.acknowledge(mid, None)
    outbox.pump(4)
    assert (outbox.event_bytes, outbox.value_bytes) == (20, 0)
    assert wire.sent[5:] == ["event 3", "event 4"]
