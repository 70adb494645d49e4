"""A running site: bus, log, roles, loop and workshop put together, started, and taken apart again."""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from txlayer.connect import connect
from txlayer.delivery import Delivery
from txlayer.effects import (
    Broadcast,
    Closing,
    FollowCall,
    Input,
    PresenceChanged,
    Send,
    UnfollowCall,
)
from txlayer.errors import BusError, Closed, SiteStalled, TxLayerError, UsageError
from txlayer.logs.memory import MemoryDisk
from txlayer.logs.port import Disk
from txlayer.logs.record_log import Identity as LogIdentity
from txlayer.logs.record_log import RecordLog, open_log
from txlayer.logs.register import Register
from txlayer.messages import Census, ChainKind, Operate, TxId
from txlayer.participant import Subscriber
from txlayer.ports import Bus, Identity, SiteView, Standing
from txlayer.records import Intent, LocalIntent, MemberDecided, VotedNo
from txlayer.resources.group import ResourceGroup
from txlayer.resources.port import Resource
from txlayer.runtime import directory
from txlayer.runtime.calls import Calls, fulfil
from txlayer.runtime.inspection import TransactionView, inspect, inspect_records
from txlayer.runtime.log_url import open_disk, open_register
from txlayer.runtime.loop import Loop, Probe
from txlayer.runtime.membership import Application
from txlayer.runtime.memberships import Left, Memberships
from txlayer.runtime.neighbours import Neighbours, types_of
from txlayer.runtime.operations import Operations, answer_to
from txlayer.runtime.pool import Job, Pool
from txlayer.runtime.recovery import Recovery
from txlayer.runtime.settling import Registrar
from txlayer.runtime.surfacing import Surfacing
from txlayer.runtime.unit_work import Marked
from txlayer.runtime.wires import HOSTS, TYPES, Wires, remembered_head
from txlayer.runtime.workshop import Lend, Workshop
from txlayer.security import BrokerSeal, Seal
from txlayer.telemetry import both, open_telemetry
from txlayer.tokens import Keyring
from txlayer.transactions.coordinated import UNDECIDED, Phase
from txlayer.transactions.event_coordinator import Limits
from txlayer.transactions.executor import Executor, State
from txlayer.transactions.local_executor import LocalExecutor
from txlayer.transactions.participant import Participant
from txlayer.transactions.seat import Bounds, Patience, Seat

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")
MOST_WAITING = 50_000
"""Messages that a site may be behind."""
_SWEEP_SECONDS = 1.0
_SHOWN_SECONDS = 30.0
_NOTHING = {TYPES: "", HOSTS: "no"}
"""What a site shows that takes part in nothing: it comes, or goes."""
_FRAME_ROOM = 4096
"""Bytes that a message needs beside its events."""
_MEMBER_ROOM = 40
"""Bytes that a member takes on the list that is sent to all of them."""


@dataclass(frozen=True, slots=True)
class Threads:
    """How many threads run application code, vote (prepare), and finish; how many more may replace stuck ones."""

    handlers: int = 8
    finishers: int = 4
    spare: int = 8
    voters: int = 8
    """They prepare and send batches with it: who waits for a lock there keeps nobody from finishing."""


@dataclass(slots=True)
class Settings:
    """What a site was given."""

    name: str
    bus: object
    log: str | Disk
    seal: Seal = field(default_factory=BrokerSeal)
    hosts: bool = False
    patience: Patience = field(default_factory=Patience)
    bounds: Bounds = field(default_factory=Bounds)
    limits: Limits = field(default_factory=Limits)
    threads: Threads = field(default_factory=Threads)
    handler_within: float = 30.0
    probe: Probe | None = None
    register: str | Register | None = None
    finishers: tuple[str, ...] = ()


class Engine:
    """Everything behind one `Site`."""

    def __init__(self, settings: Settings, application: Application) -> None:
        self.settings = settings
        self.application = application
        self.calls = Calls()
        self.surfacing = Surfacing(settings.name, self.calls)
        self.neighbours = Neighbours()
        self.on_types: Callable[[], None] = lambda: None
        self.draining = False
        self.started = False
        self.closed = False
        self._gone = threading.Event()
        self._shows = False
        self._seen = threading.Event()
        """Others can see what this site subscribes to, as it does itself."""
        self.resources: ResourceGroup | None = None
        self._types_watch: Any = None
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._since: dict[TxId, float] = {}
        self._leaving: set[str] = set()
        self._born = time.monotonic()

    # Life

    def start(self) -> None:
        """Open the bus and the log, hold the name, listen, take up what was left."""
        with self._lock:
            if self.closed:
                raise Closed(f"site {self.settings.name!r} is closed: make a new one")
            if self.started:
                return
            self._pid = os.getpid()
            self._open()
            self.started = True

    def show(self) -> None:
        """Everything here listens: tell others what this site subscribes to. They may publish at once."""
        with self._lock:
            assert self.wires.presence is not None
            self._shows = True
            if self._info() == _NOTHING:
                return
            self.wires.presence.update(self._info())
        if not self._seen.wait(_SHOWN_SECONDS):
            raise BusError(f"the bus did not show site {self.settings.name!r} within {_SHOWN_SECONDS} s")

    def _open(self) -> None:
        settings = self.settings
        self.owns_bus = isinstance(settings.bus, str)
        self.bus: Bus = _connect(settings.bus) if isinstance(settings.bus, str) else settings.bus  # type: ignore[assignment]
        try:
            self.log = self._open_log()
        except BaseException:
            self._close_bus()
            raise
        try:
            self._assemble()
        except BaseException:
            self.log.close()
            self._close_bus()
            raise
        try:
            self._connect()
            self._start_loop()
        except BaseException:
            self._take_apart(1.0)
            raise

    def _open_log(self) -> RecordLog:
        disk = open_disk(self.settings.log, self.settings.name)
        self.durable = not isinstance(disk, MemoryDisk)
        identity = LogIdentity(secrets.token_hex(8), secrets.token_bytes(32))
        try:
            remembered = remembered_head(self.bus, self.settings.name) if self.durable else None
            return open_log(disk, self.settings.name, identity, remembered)
        except BaseException:
            disk.close()
            raise

    def _assemble(self) -> None:
        settings, header = self.settings, self.log.header
        largest = self.bus.capabilities.max_payload
        limits = settings.limits
        room = max(1024, int(0.9 * largest) - _FRAME_ROOM) if largest is not None else limits.bytes
        self.limits = Limits(limits.events, min(limits.bytes, room), limits.ahead)
        keyring = Keyring(header.secret)
        most = min(settings.bounds.members, self.limits.bytes // _MEMBER_ROOM)
        seat = Seat(
            settings.name, header.incarnation, header.life, keyring, settings.patience,
            replace(settings.bounds, members=most), self.limits, settings.finishers,
        )  # fmt: skip
        self.identity = Identity(header.incarnation, header.life)
        self.participant = Participant(seat)
        self._telemetry = open_telemetry(settings.name)
        probe = both(settings.probe, self._telemetry)
        self.wires = Wires(self.bus, settings.name)
        self.loop = Loop(self.wires, settings.seal, self.log, self.participant, self.calls, probe)
        self.members = Memberships(self.application)
        self.members.left = _left_in(self.log)
        self._since = {view.tx: time.monotonic() - view.seconds for view in inspect_records(self.log)}
        threads = settings.threads
        self.workshop = Workshop(
            self.members,
            Pool(f"{settings.name}-handler", threads.handlers, threads.spare),
            Pool(f"{settings.name}-voter", threads.voters, 0),
            Pool(f"{settings.name}-finisher", threads.finishers, threads.spare),
            settings.handler_within,
            self.loop.post,
            self.loop.bring,
            self.loop.leave,
            self.loop.later,
            probe,
        )
        self.loop.workshop = self.workshop
        self.surfacing.start(self.participant, self.workshop.handlers, self.loop.post)
        self.loop.on_surface = self.surfacing.take
        self.loop.on_said = self._on_said
        self.loop.on_stopped = self._on_stopped
        self.operations = Operations.of(self.loop)
        self.loop.on_operate = self._on_operate
        self.application.give_up = self.loop.post
        self.application.surface = lambda surface: self.loop.post(partial(self.surfacing.take, surface))
        if settings.register is not None:
            opener = partial(open_register, settings.register)
            self.loop.registrar = Registrar(opener, seat, self.workshop.finishers, self.loop.post, self.loop.later)
            self.loop.registrar.start()
        self.recovery = Recovery(self)
        self.open_transactions = directory.OpenTransactions(self.bus, self.participant.coordinator)

    def _connect(self) -> None:
        self._types_watch = directory.watch_types(self.bus, self._on_type)
        self.wires.enter(self.identity, self._info())
        self._open_all_resources()  # not before: while another holds the name, they are its own
        if self.settings.hosts:
            directory.forget_former(self.bus, self.settings.name)
        self.wires.listen(self._types(), self.durable, self.identity, self._on_deliveries, self._on_presence)

    def _open_all_resources(self) -> None:
        self.resources = None
        if resources := self.application.resources():
            group = ResourceGroup(resources)
            group.open(self.settings.name, self.log.header.incarnation, self.participant.seat.keyring.member)
            self.resources = group

    def _start_loop(self) -> None:
        if isinstance(self.settings.seal, BrokerSeal):
            _logger.warning(
                "site %s: security is the broker's access lists alone; give a secret to keep others out",
                self.settings.name,
            )
        incarnation = self.log.header.incarnation
        marked = Marked.of(self.resources, incarnation) if self.resources is not None else Marked()
        self.loop.start(marked.ours, self.recovery.first_look())
        self.recovery.keep(marked.orphans)
        self.loop.post(self._sweep)
        self.recovery.start()

    def close(self, timeout: float) -> None:
        """Take no new work, let what runs finish, leave the rest to the log."""
        if self.elsewhere():
            return  # the threads are the parent's
        with self._lock:
            if not self.started:
                self.closed = True
                return
            first = not self.draining
            self.draining = self.members.closing = True
        if not first:
            self._gone.wait(timeout)  # another thread is at it
            return
        deadline = time.monotonic() + timeout
        try:
            self._drain(deadline)
            with self._lock:
                self.closed = True
            self.calls.fail(Closed(f"site {self.settings.name!r} was closed before the outcome was known"))
            self._take_apart(max(1.0, deadline - time.monotonic()))
        finally:
            self._seen.set()  # who is about to start it
            self._gone.set()

    def _drain(self, deadline: float) -> None:
        if self.loop.error is None and self.wires.presence is not None:
            self._shows = False
            self.wires.presence.update(self._info())
            self.loop.post(Closing())
        patient = min(deadline, time.monotonic() + 2.0)
        pause = threading.Event()
        while self.loop.error is None and time.monotonic() < deadline:
            try:
                undecided, unacknowledged = self.ask(self._busy, max(0.01, deadline - time.monotonic()))
            except TxLayerError:
                return
            if not undecided and (not unacknowledged or time.monotonic() > patient):
                return
            pause.wait(0.01)

    def _busy(self) -> tuple[bool, bool]:
        """Whether something is undecided or being applied here; whether members have yet to acknowledge."""
        coordinated = self.participant.coordinator.transactions.values()
        members = [one for of in self.participant.subscriber.members.values() for one in of.values()]
        undecided = (
            any(one.phase in (*UNDECIDED, Phase.DELEGATED) for one in coordinated)
            or any(isinstance(one, Executor) and one.state not in (State.DONE, State.REFUSED) for one in members)
            or any(isinstance(one, LocalExecutor) and not one.done for one in members)
            or any(one.outcome is None for one in self.participant.publishers.values())
            or not self.workshop.idle()
        )
        return undecided, any(one.unacknowledged for one in coordinated)

    def _take_apart(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        self.loop.stop(timeout)
        if self.durable and self.loop.error is None:
            self.wires.remember(self.log.head())
        self.wires.close()
        if self._types_watch is not None:
            self._types_watch.close()
        self.neighbours.close()
        for pool in (self.workshop.handlers, self.workshop.voters, self.workshop.finishers):
            pool.close()
        if self.resources is not None:
            self.workshop.forget_now()
            self.resources.close()
        if self.loop.registrar is not None:
            self.loop.registrar.close()
        self.log.close()
        self._close_bus(max(1.0, deadline - time.monotonic()))

    def _close_bus(self, timeout: float = 5.0) -> None:
        if self.owns_bus:
            self.bus.close(timeout)

    # From any thread

    def check(self, new: bool = True) -> None:
        """Refuse what cannot work any more, and say why. While the site drains, only what is `new` is refused."""
        self.check_process()
        if self.closed or (self.draining and new):
            raise Closed(f"site {self.settings.name!r} is closed")
        if not self.started:
            raise UsageError(f"site {self.settings.name!r} is not started: `with site:` or `site.start()`")
        if self.loop.error is not None:
            raise Closed(f"site {self.settings.name!r} has stopped: {self.loop.error}") from self.loop.error

    def elsewhere(self) -> bool:
        """Whether everything behind this site is in another process, from which this one was forked."""
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """Refuse to work after a fork."""
        if self.elsewhere():
            raise UsageError(
                f"site {self.settings.name!r} was made in another process and does not work after a fork: "
                "make a site of its own name in each process"
            )

    def post(self, event: Input) -> None:
        """Hand an event to the roles."""
        self.loop.post(self._traced(event))

    def note(self, event: Input) -> None:
        """The same, of something that nobody waits for."""
        self.loop.leave(self._traced(event))

    def _traced(self, event: Input) -> Input:
        return event if self._telemetry is None else self._telemetry.call(event)

    def ask(self, question: Callable[[], _T], timeout: float = 10.0) -> _T:
        """Run a function in the turn and return what it returns; `SiteStalled` if that takes too long."""
        answer: Future[_T] = Future()

        def run() -> None:
            try:
                answer.set_result(question())
            except Exception as exc:
                answer.set_exception(exc)

        self.loop.post(run)
        try:
            return answer.result(timeout)
        except TimeoutError:
            if answer.done():  # the question's own
                raise
            raise SiteStalled(f"site {self.settings.name!r} did not answer within {timeout} s") from None

    def lends(self, lend: Lend, resource: Resource) -> None:
        """In the turn: a publisher works on a resource of the member that this site is, if it may.

        Whatever ends the unit comes after it. From now on the member has work to undo.
        """
        role, member = self.participant.subscriber._member(lend.tx), self.members.known.get(lend.tx)
        known = member is not None and any(resource is one for one in member.resources)
        if known and isinstance(role, Executor) and role.state in (State.JOINED, State.ACTIVE):
            role.started = True
            self.workshop.take(lend)
        else:
            fulfil(lend.turn, None)

    def transactions(self) -> list[TransactionView]:
        """What is open here."""
        return self.ask(self._views)

    def _views(self) -> list[TransactionView]:
        return [*self.recovery.views(), *inspect(self.participant, self._known_since)]

    def subscribe(self, subscriber: Subscriber) -> None:
        """Another subscriber; in force when it returns."""
        with self._lock:
            before = set(self._types())
            known = self.application.resources()
            self.application.subscribers.append(subscriber)
            if self.started:
                self._open_resources(known)
                self._listen_to(before)
                self.loop.post(self.workshop.on_subscriber)

    def unsubscribe(self, event_type: str) -> list[Subscriber]:
        """No subscriber of the type takes part in anything new; those who did until now."""
        with self._lock:
            gone = [s for s in self.application.active() if s.type == event_type]
            if not gone:
                raise UsageError(f"nobody here subscribes to {event_type!r}")
            before, read = set(self._types()), self._read_types(*ChainKind)
            if not self.started:
                kept = [s for s in self.application.subscribers if not any(s is one for one in gone)]
                self.application.subscribers[:] = kept
                return gone
            self.application.retired += gone
            left = before - set(self._types())
            self._leaving |= left
            assert self.wires.presence is not None
            self.wires.presence.update(self._info())
        self.loop.post(UnfollowCall(tuple(sorted(left | (read - self._read_types(*ChainKind))))))
        return gone

    def _leave_types(self) -> None:
        """Stop listening to what was unsubscribed, once nothing of it runs here."""
        roles = [one for of in self.participant.subscriber.members.values() for one in of.values()]
        running = {member.type for member in self.members.known.values()}
        running |= {one.terms.type for one in roles if isinstance(one, Executor)}
        idle = sorted(self._leaving - running)
        if idle:
            self._leaving -= set(idle)
            self.workshop.finishers.submit(Job(partial(self._leave_now, idle), lambda job: None))

    def _leave_now(self, types: list[str]) -> None:
        with self._lock:
            now = set(self._types())
            if not self.closed:
                self.wires.remove_types([name for name in types if name not in now])

    def _open_resources(self, known: Sequence[Resource]) -> None:
        resources = self.application.resources()
        if len(resources) > len(known):
            self.resources = ResourceGroup(resources)
            for resource in resources[len(known) :]:
                resource.open(self.settings.name, self.log.header.incarnation, self.participant.seat.keyring.member)

    def _listen_to(self, before: set[str]) -> None:
        new = [name for name in self._types() if name not in before]
        if new:
            self.wires.add_types(new, self._info())
        for view in self.neighbours.alive():
            self._read_chains(view, anew=False)

    # What a site is

    def _types(self) -> list[str]:
        names = dict.fromkeys(s.type for s in self.application.active())
        return sorted({below for name in names for below in self.application.types.descendants(name)})

    def _info(self) -> dict[str, str]:
        if not self._shows:
            return _NOTHING
        return {TYPES: "\n".join(self._types()), HOSTS: "yes" if self.settings.hosts else "no"}

    def _on_type(self, key: str, entry: directory.AdvertisedType | None) -> None:
        types = self.application.types
        with self._lock:
            before = set(self._types())
            for name, holders in list(types.advertised.items()):
                if entry is None and holders.pop(key, 0) is None and not holders:
                    del types.advertised[name]
            if entry is None:
                return
            types.advertised.setdefault(entry.type, {})[key] = None
            if entry.parent is not None:
                types.parents.setdefault(entry.type, entry.parent)
            if self.started and not self.closed and set(self._types()) != before:
                self.on_types()  # whoever sees that this site subscribes may publish plain events at once
                self._listen_to(before)

    # What comes in, on threads of the bus

    def _on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Over the limit they are lost, as on the way they might be: their senders say them again."""
        room = max(0, MOST_WAITING - self.loop.waiting())
        self.loop.bring(*deliveries[:room])
        for delivery in deliveries[room:]:
            delivery.ack()
            self.wires.lost += 1
            if self.wires.lost % 1000 == 1:
                _logger.warning("site %s is behind: more than %d messages wait", self.settings.name, MOST_WAITING)

    def _on_presence(self, view: SiteView) -> None:
        alive = view.standing is Standing.ALIVE
        life, log = view.identity.life, view.identity.incarnation
        self.loop.post(PresenceChanged(view.name, life, alive, types_of(view), log))
        self.neighbours.views[view.name] = view  # last: whoever sees it here may begin, and the roles must know of it
        if view.name == self.settings.name and view.identity == self.identity and view.info != _NOTHING:
            self._seen.set()
        if alive:
            self._read_chains(view, anew=False)

    def follow_anew(self, view: SiteView) -> None:
        """From now on, whatever was missed; also what a subscriber chose to follow in `on_join`."""
        self._read_chains(view, anew=True)

    def _read_chains(self, view: SiteView, anew: bool) -> None:
        """Sites that follow, or are durable local members, read every coordinator that they hear of."""
        for kind in ChainKind:
            types = sorted(self._read_types(kind))
            if types or anew:
                self.loop.post(FollowCall(view.name, view.identity.incarnation, kind, tuple(types), anew))

    def _read_types(self, *kinds: ChainKind) -> set[str]:
        names = [s.type for s in self.application.active() if s.chain in kinds]
        return {below for name in names for below in self.application.types.descendants(name)}

    # In the turn

    def _on_said(self, effect: Send | Broadcast) -> None:
        if type(effect.message) is Census:
            self._since.setdefault(effect.message.tx, time.monotonic())
        self.open_transactions.on_said(effect)

    def _on_stopped(self, error: Exception) -> None:
        threading.Thread(target=self._leave, args=(error,), name="txlayer-leave", daemon=True).start()

    def _leave(self, error: Exception) -> None:
        """A site that stopped by itself receives nothing any more and says that it is gone."""
        try:
            self.wires.close()
        except TxLayerError as exc:
            _logger.warning("site %s could not leave after %s: %s", self.settings.name, error, exc)

    def _on_operate(self, asked: Operate) -> None:
        if asked.site == self.settings.name:
            answer = answer_to(asked, self.settings.name, self.operations, self._views())
            self.loop.answer(answer, asked.reply_to)

    def _sweep(self) -> None:
        """What is not needed any more is forgotten; the bus learns how far the log is."""
        desk, subscriber = self.participant.coordinator, self.participant.subscriber
        busy = self.workshop.busy()
        self.members.keep(lambda tx: tx in busy or tx in subscriber.asked or subscriber._member(tx) is not None)
        for tx in [tx for tx in self._since if tx not in desk.transactions and subscriber._member(tx) is None]:
            del self._since[tx]
        for tx in [tx for tx in self.open_transactions.announced if tx not in desk.transactions]:
            self.open_transactions.withdraw(tx)
        if self._leaving:
            self._leave_types()
        if self.durable:
            self.wires.remember(self.log.head())
        self.loop.later(_SWEEP_SECONDS, self._sweep)

    def _known_since(self, tx: TxId) -> float:
        member = self.members.known.get(tx)
        return self._since.get(tx, member.since if member is not None else self._born)


def _connect(url: str) -> Bus:
    """A bus for messages that somebody waits for: Kafka's producer does not linger for company, unless the URL says so.

    Under load it fills batches all the same, with what comes in while a request is on its way.
    """
    prompt = {"linger.ms": 0} if url.startswith("kafka:") and "linger.ms" not in url else {}
    return connect(url, **prompt)


def _left_in(log: RecordLog) -> dict[TxId, Left]:
    """Transactions that an earlier life left, with what is known of them."""
    found = {}
    for record in log.records.values():
        if isinstance(record, Intent):
            found[record.tx] = Left(record.terms.type, record.terms, record.parts)
        elif isinstance(record, VotedNo | MemberDecided | LocalIntent):
            found[record.tx] = Left(record.type, record.terms, record.parts)
    return found
