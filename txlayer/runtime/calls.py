"""Calls of the application: what each of them waits for."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from txlayer.effects import Opened, Resolve
from txlayer.messages import Outcome, Status, TxId

T = TypeVar("T")
Answer = Opened | Outcome
REMEMBERED = 4096


def fulfil(future: Future[T], value: T) -> None:
    """Answer who waits, unless that was cancelled: a task may be, at any moment."""
    if future.set_running_or_notify_cancel():
        future.set_result(value)


def await_answer(future: Future[T], seconds: float) -> T | None:
    """What is answered within so many seconds; then nobody waits for it any more. Others who do are left alone."""
    try:
        return future.result(seconds)
    except TimeoutError:
        return None if future.cancel() else future.result()


@dataclass(slots=True, eq=False)
class Call:
    """One transaction that the application began, joined or asks about, as its threads see it."""

    name: str
    tx: TxId | None = None
    members: int = 0
    type: str = ""
    """Of a transaction that was joined."""
    in_steps: bool = False
    """Its first answer is that it is open, which is no answer to others under its key."""
    publishing: bool = False
    """It was begun here and is not to end yet: nothing is known of its outcome."""
    outcome: Outcome | None = None
    """The final one."""
    aborting: Outcome | None = None
    """How the distributed part has ended, while local members still wait for the publisher."""
    waiting: list[Future[Answer]] = field(default_factory=list)


@dataclass(slots=True)
class Calls:
    """All calls of one site. The turn answers, application threads ask."""

    open: dict[str, Call] = field(default_factory=dict)
    known: dict[TxId, Outcome] = field(default_factory=dict)
    """The last outcomes that this site was told: their coordinators may have forgotten them."""
    naming: threading.Lock = field(default_factory=threading.Lock)
    """Held from the look at `open` until what follows from it is posted: the roles hear of the calls under one key in
    the order in which they came and went."""
    promises: list[Future[None]] = field(default_factory=list)
    """What else application threads wait for."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _error: Exception | None = None

    def add(self, name: str, tx: TxId | None = None) -> Call:
        """A new call, or the one that has this name."""
        with self._lock:
            return self.open.setdefault(name, Call(name, tx))

    def ask(self, name: str, tx: TxId | None) -> tuple[Call, Future[Answer], bool]:
        """A question about a transaction: the answer is there if this site knows it. Last, whether the call is new."""
        known = self.known.get(tx) if tx is not None else None
        own = self.of(tx) if tx is not None else self.open.get(name)
        call = own or self.add(name, tx)
        if known is not None:
            call.outcome = known
        if call.publishing and call.outcome is None:
            answer: Future[Answer] = Future()
            fulfil(answer, Outcome(tx, name, Status.PENDING, final=False))
            return call, answer, False
        return call, self.wait(call), own is None

    def wait(self, call: Call) -> Future[Answer]:
        """The next answer to this call; at once if it is final already."""
        answer: Future[Answer] = Future()
        with self._lock:
            if self._error is not None:
                answer.set_exception(self._error)
            elif call.outcome is not None:
                answer.set_result(call.outcome)
            else:
                call.waiting = [*(one for one in call.waiting if not one.cancelled()), answer]
        return answer

    def promise(self) -> Future[None]:
        """Something that the turn will keep, unless the site stops."""
        promised: Future[None] = Future()
        with self._lock:
            if self._error is not None:
                promised.set_exception(self._error)
            else:
                self.promises = [*(one for one in self.promises if not one.done()), promised]
        return promised

    def keep(self, promised: Future[None]) -> None:
        """In the turn: it is so. Unless `fail` has been first."""
        with self._lock:
            if promised not in self.promises:
                return
            self.promises.remove(promised)
        fulfil(promised, None)

    def remove(self, call: Call) -> bool:
        """Nobody asks any more. False if that was known: another call may have its name by now."""
        with self._lock:
            known = self.open.get(call.name) is call
            if known:
                del self.open[call.name]
            return known

    def of(self, tx: TxId) -> Call | None:
        """The call that this site made for a transaction."""
        with self._lock:
            return next((call for call in self.open.values() if call.tx == tx), None)

    def on_opened(self, effect: Opened) -> None:
        """A transaction takes events."""
        call = self.open.get(effect.call)
        if call is not None:
            call.tx, call.members, call.type = effect.tx, effect.members, effect.type
            self._answer(call, effect)

    def on_resolve(self, effect: Resolve) -> None:
        """What became of it, or that this is not known yet."""
        call = self.open.get(effect.call)
        if call is None:
            return
        call.tx = call.tx or effect.outcome.tx
        if effect.outcome.final:
            call.outcome = effect.outcome
            self._remember(effect.outcome)
        self._answer(call, effect.outcome)

    def fail(self, error: Exception) -> None:
        """The site stops: whoever waits, or will wait, hears why."""
        with self._lock:
            self._error = error
            waiting: list[Future[Any]] = [answer for call in self.open.values() for answer in call.waiting]
            waiting += self.promises
            self.promises = []
            for call in self.open.values():
                call.waiting = []
        for answer in waiting:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(error)

    def _remember(self, outcome: Outcome) -> None:
        if outcome.tx is None or is_refusal(outcome):
            return
        self.known.setdefault(outcome.tx, outcome)
        if len(self.known) > REMEMBERED:
            del self.known[next(iter(self.known))]

    def _answer(self, call: Call, answer: Answer) -> None:
        with self._lock:
            waiting, call.waiting = call.waiting, []
        for one in waiting:
            fulfil(one, answer)


def is_refusal(outcome: Outcome) -> bool:
    """Whether a coordinator has refused what this site said: that tells nothing of what becomes of the transaction."""
    return outcome.status is Status.REFUSED and bool(outcome.by)
