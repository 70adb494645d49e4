"""The two ends of a chain link. A frame out of turn is dropped: a way that reorders becomes one that loses.

The receiver opens: its hello names its epoch, which is the session of the link. The sender's first frame is its
welcome, with every counter it knows; what it sent before is no longer taken. So a receiver that has lost what had
passed by hears it again before anything new comes.
"""

from __future__ import annotations

from dataclasses import dataclass

from txlayer.ordering.messages import Chained, Fill, Register, Welcome


@dataclass(slots=True)
class UpLink:
    """To the next higher host."""

    host: int
    name: str
    session: int = 0
    seq: int = 0

    def open(self, session: int) -> bool:
        """The receiver said hello. False if that is old news."""
        if session < self.session:
            return False
        self.session = session
        return True

    def frame(self, host: int, epoch: int, body: Fill | Register | Welcome) -> Chained:
        """The next frame."""
        self.seq += 1
        return Chained(host, epoch, self.session, self.seq, body)


@dataclass(slots=True)
class DownLink:
    """From the next lower host."""

    host: int
    name: str
    welcomed: bool = False
    epoch: int = 0
    seq: int = 0

    def outdated(self, frame: Chained, own_epoch: int) -> bool:
        """Whether the frame shows that the two ends do not mean the same link."""
        return frame.host == self.host and (frame.session < own_epoch or frame.epoch > self.epoch)

    def takes(self, frame: Chained, own_epoch: int) -> bool:
        """Whether the frame is of this link and in turn."""
        if frame.host != self.host or frame.session != own_epoch or (frame.epoch, frame.seq) <= (self.epoch, self.seq):
            return False
        if isinstance(frame.body, Welcome):
            self.welcomed = True
        elif not self.welcomed or frame.epoch != self.epoch:
            return False
        self.epoch, self.seq = frame.epoch, frame.seq
        return True
