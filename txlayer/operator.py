"""A site as its operator holds it: one that runs, asked over the bus, or one that does not, by its log."""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from txlayer import messages as m
from txlayer.codec import frames_of
from txlayer.delivery import Delivery
from txlayer.errors import DecodeError, UsageError
from txlayer.logs.record_log import Identity, open_log
from txlayer.messages import TxId
from txlayer.ports import Ack, Bus, Standing
from txlayer.presence import Roster
from txlayer.runtime.inspection import TransactionView
from txlayer.runtime.log_url import open_disk
from txlayer.runtime.operations import ABORT, COMMIT, LIST, READERS, REMOVE, decode_views, force_in, views_of
from txlayer.runtime.readers import ReaderView, chains_of, decode_readers, readers_of, remove_in
from txlayer.runtime.wires import Wires
from txlayer.security_levels import Secret, Signed, make_seal


@dataclass(slots=True)
class RunningSite:
    """Asked over the bus, under the security level of the sites; with signatures, by the key of the site itself."""

    name: str
    bus: Bus
    security: str | Secret | Signed = "broker"
    within: float = 10.0

    def transactions(self) -> list[TransactionView]:
        """What is open there, oldest first, and what was forced."""
        return decode_views(self._ask(LIST))

    def resolve(self, tx: TxId, commit: bool) -> None:
        """Force an outcome there; `UsageError` unless it is in doubt."""
        self._ask(COMMIT if commit else ABORT, tx)

    def readers(self) -> list[ReaderView]:
        """Who follows it, or is a durable local member of it."""
        return decode_readers(self._ask(READERS))

    def remove_reader(self, name: str) -> None:
        """Keep nothing there any more for a reader that is gone for good. If it comes back, it is told to be stale."""
        self._ask(REMOVE, name=name)

    def _ask(self, action: str, tx: TxId | None = None, name: str = "") -> bytes:
        with Roster(self.bus) as roster:
            if not any(site.name == self.name and site.standing is Standing.ALIVE for site in roster.sites()):
                raise UsageError(f"site {self.name!r} is not present on this bus: start it, or read its log by --log")
        seal = make_seal(self.security, self.name)
        id, answered, answers = secrets.token_hex(8), threading.Event(), list[m.Operated]()

        def on_delivery(delivery: Delivery) -> None:
            try:
                messages = [seal.open(frame).message for frame in frames_of(delivery.payload)]
            except DecodeError:
                return
            for message in messages:
                if isinstance(message, m.Operated) and (message.id, message.site) == (id, self.name):
                    answers.append(message)
                    answered.set()

        me = Wires(self.bus, f"operator-{id}")
        subscription = self.bus.subscribe(me.inbox(me.site), on_delivery, ack=Ack.AUTO)
        try:
            self.bus.publish(me.inbox(self.name), seal.close(m.Operate(self.name, me.site, id, action, tx, name)))
            if not answered.wait(self.within):
                raise UsageError(f"site {self.name!r} did not answer within {self.within} s: is the security the same?")
        finally:
            subscription.close()
        if answers[0].refused:
            raise UsageError(answers[0].refused)
        return answers[0].views


class StoppedSite:
    """The log of a site that does not run. Opening it counts as a life, so a copy that still runs is fenced."""

    def __init__(self, name: str, log: str) -> None:
        self.name = name
        disk = open_disk(log, name)
        try:
            if disk.load().header is None:
                raise UsageError(f"{log} is no log of a site: nothing was ever written there")
            self._log = open_log(disk, name, Identity(secrets.token_hex(8), secrets.token_bytes(32)))
        except BaseException:
            disk.close()
            raise

    def transactions(self) -> list[TransactionView]:
        """What is open there, oldest first, and what was forced."""
        return views_of(self._log)

    def resolve(self, tx: TxId, commit: bool) -> None:
        """Force an outcome; the site applies it when it starts."""
        force_in(self._log, tx, commit)

    def readers(self) -> list[ReaderView]:
        """Who follows it, or is a durable local member of it."""
        return readers_of(chains_of(self._log))

    def remove_reader(self, name: str) -> None:
        """Keep nothing there any more for a reader that is gone for good. If it comes back, it is told to be stale."""
        remove_in(self._log, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._log.close()
