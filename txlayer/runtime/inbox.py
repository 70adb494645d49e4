"""From frames to events: open the seal, and unwrap what a peer repeats."""

from __future__ import annotations

from txlayer import messages as m
from txlayer.effects import Received
from txlayer.security import Seal

_REPEATED = m.Begin | m.Prepare | m.Decision | m.CensusFailed | m.Finish


def received(seal: Seal, data: bytes) -> Received | None:
    """The event that a frame stands for; `DecodeError` if it is no message, None if a relay carries no proof."""
    opened = seal.open(data)
    message = opened.message
    if not isinstance(message, m.Relay):
        return Received(message, data)
    inner = seal.open(message.frame)
    if not isinstance(inner.message, _REPEATED) or inner.message.tx != message.tx:
        return None
    return Received(inner.message, message.frame)
