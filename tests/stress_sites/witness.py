"""Hears what a site does, through its probe, and writes down what the checkers need."""

from __future__ import annotations

import os
import signal
import time

from tests.stress_sites import lines
from tests.stress_sites.lines import Pen
from txlayer import messages as m
from txlayer.effects import Broadcast, Notify, PublishPlain, ScopeChosen, Send, Surface
from txlayer.tokens import Keyring, reveals


class Witness:
    """The probe of one site."""

    def __init__(self, pen: Pen) -> None:
        self._pen = pen
        self.keyring: Keyring | None = None
        """Of the site; nothing leaves before it is known."""
        self.dies_after = 0
        """Steps until the process ends itself; 0 for never."""

    def __call__(self, what: str, thing: object) -> None:
        if self.dies_after:
            self.dies_after -= 1
            if not self.dies_after:
                os.kill(os.getpid(), signal.SIGKILL)
        if what == "step" and isinstance(thing, ScopeChosen):
            self._pen.write(lines.Chosen(thing.tx, thing.scope.value))
        if what != "perform":
            return
        match thing:
            case Send() | Broadcast():
                self._sent(thing.message, thing.site if isinstance(thing, Send) else "")
            case Notify():
                self._pen.write(lines.Notified(thing.tx, thing.event.number))
            case PublishPlain():
                self._pen.write(lines.Public(thing.tx, thing.event.number, time.monotonic()))
            case Surface(what="parked") if thing.tx is not None:
                self._pen.write(lines.Parked(thing.tx))

    def _sent(self, message: object, target: str) -> None:
        now, pen, keyring = time.monotonic(), self._pen, self.keyring
        assert keyring is not None
        match message:
            case m.Decision():
                commit = reveals(message.token, keyring.hashes(message.tx).commit)
                pen.write(lines.Decided(message.tx, commit, message.final if commit else (), now))
            case m.Begin():
                pen.write(lines.Begun(message.tx, message.members))
            case m.Join():
                pen.write(lines.Joined(message.tx, keyring.member(message.tx)))
            case m.Vote() | m.Delegated():
                if isinstance(message, m.Vote) and message.join is not None:
                    pen.write(lines.Joined(message.tx, message.member))
                if reveals(message.token, keyring.pseudonym(message.tx).yes):
                    pen.write(lines.Voted(message.tx, now))
            case m.Created():
                pen.write(lines.Created(message.key, message.tx))
            case m.Census() if message.terms.one_shot and message.events:
                pen.write(lines.Created(message.events[0].item.payload.decode().split(".")[0], message.tx))
            case m.Followed():
                pen.write(lines.Registered(target, message.kind.value, now))
