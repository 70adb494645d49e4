"""The callers of a site: each lives through one transaction, and takes it up again when the site was killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from tests.stress_sites import lines, orders
from tests.stress_sites.lines import AnyLine, Pen
from txlayer import Draft, Outcome, Site, Status, Transaction, TxId
from txlayer.errors import Closed, OutcomeUnknown, TransactionError, UsageError
from txlayer.messages import Terms, TxType


@dataclass(slots=True)
class Callers:
    """All callers of one process."""

    site: Site
    pen: Pen
    rng: Random
    say: Callable[[orders.AnyAnswer], None]

    def run(self, order: orders.Run) -> None:
        """A transaction from begin to end."""
        self.pen.write(lines.Asked(order.call, order.coordinator, order.terms, order.items, order.keyed))
        try:
            self._one_shot(order) if order.terms.one_shot else self._in_steps(order)
        except OutcomeUnknown as exc:
            self._ask_on(order.call, order.coordinator, order.keyed, exc.outcome.tx if exc.outcome else None)
            return
        except TransactionError as exc:
            self._told(order.call, exc.outcome)
        except Closed:
            return
        self._done(order.call)

    def _one_shot(self, order: orders.Run) -> None:
        self.pen.write(lines.Called(order.call, time.monotonic()))
        for item in order.items:
            self.pen.write(lines.Published(order.call, item))
        events = [Draft(item.payload, item.type) for item in order.items]
        terms = terms_of(order.terms)
        key = order.call if order.keyed else None
        self._told(
            order.call, self.site.send(order.terms.type, events, coordinator=order.coordinator, key=key, **terms)
        )

    def _in_steps(self, order: orders.Run) -> None:
        tx = self.site.transaction(
            order.terms.type, coordinator=order.coordinator, key=order.call if order.keyed else None,
            access=order.terms.access, publishers=order.terms.publishers,
            on_votes_missing=lambda missing: self.rng.choice([0.0, 1.0]), **terms_of(order.terms),
        )  # fmt: skip
        tx.start()
        self.pen.write(lines.Opened(order.call, tx.id))
        self.say(orders.Open(order.call, tx.id))
        for item in order.items:
            self.pen.write(lines.Published(order.call, item))
            tx.publish(item.payload, item.type)
            time.sleep(self.rng.choice([0.0, 0.0, 0.02, 0.2]))
        self._end(tx, order)

    def _end(self, tx: Transaction, order: orders.Run) -> None:
        if order.abort:
            tx.abort("changed its mind")
        else:
            self.pen.write(lines.Called(order.call, time.monotonic()))
            tx.commit(within=5.0)
        assert tx.outcome is not None
        self._told(order.call, tx.outcome)

    def help(self, order: orders.Help) -> None:
        """Publish in a transaction of another; perhaps that is refused."""
        try:
            with self.site.join_transaction(id=order.tx, type="orders", within=3.0) as tx:
                for number in range(2):
                    payload = f"{order.call}.{number}".encode()
                    self.pen.write(lines.Helped(order.tx, lines.Item("orders", payload)))
                    tx.publish(payload)
        except (TransactionError, UsageError, Closed):
            return

    def take_up(self, before: Iterable[AnyLine]) -> list[Callable[[], None]]:
        """What the callers of earlier lives have still to do."""
        asked: dict[str, lines.Asked] = {}
        opened: dict[str, TxId] = {}
        told: set[str] = set()
        for line in before:
            if isinstance(line, lines.Asked):
                asked[line.call] = line
            elif isinstance(line, lines.Opened):
                opened[line.call] = line.tx
            elif isinstance(line, lines.Told):
                told.add(line.call)
            elif isinstance(line, lines.Done):
                asked.pop(line.call, None)
        return [
            # Who was told has nothing left to ask: repeated after an abort, the same key would begin another one.
            lambda line=line: self._done(line.call) if line.call in told else self._take_up(line, opened.get(line.call))
            for line in asked.values()
        ]

    def _take_up(self, line: lines.Asked, tx: TxId | None) -> None:
        repeat = line.terms.one_shot and line.keyed and self.rng.random() < 0.4
        if repeat:
            self._repeat(line)
        else:
            self._ask_on(line.call, line.coordinator, line.keyed, tx)

    def _repeat(self, line: lines.Asked) -> None:
        events = [Draft(item.payload, item.type) for item in line.items]
        try:
            outcome = self.site.send(
                line.terms.type, events, coordinator=line.coordinator, key=line.call, **terms_of(line.terms)
            )
            self._told(line.call, outcome)
        except OutcomeUnknown as exc:
            self._ask_on(line.call, line.coordinator, True, exc.outcome.tx if exc.outcome else None)
            return
        except TransactionError as exc:
            self._told(line.call, exc.outcome)
        except Closed:
            return
        self._done(line.call)

    def _ask_on(self, call: str, coordinator: str, keyed: bool, tx: TxId | None) -> None:
        """Ask until there is an answer: by id where it is known, or by key."""
        if not keyed and tx is None:
            self._done(call)  # it never learned a name to ask by
            return
        while True:
            by_id = tx is not None and (not keyed or self.rng.random() < 0.5)
            try:
                outcome = (
                    self.site.outcome(tx, within=3.0)
                    if by_id
                    else self.site.outcome(key=call, coordinator=coordinator, within=3.0)
                )
            except OutcomeUnknown:
                continue
            except Closed:
                return
            self._told(call, outcome)
            self._done(call)
            return

    def _told(self, call: str, outcome: Outcome | None) -> None:
        assert outcome is not None, "an error of a transaction says what is known of it"
        if outcome.status is not Status.PENDING:
            self.pen.write(lines.Told(call, outcome, time.monotonic()))

    def _done(self, call: str) -> None:
        self.pen.write(lines.Done(call))
        self.say(orders.Finished(call))


def terms_of(terms: Terms) -> dict[str, object]:
    """Terms as a caller writes them."""
    return {
        "local": terms.tx_type is TxType.LOCAL,
        "require": terms.require,
        "settle_for": terms.settle_for,
        "limit": terms.limit,
        "visibility": terms.visibility,
        "census_within": terms.census_within,
        "vote_within": terms.vote_within,
        "complete_within": terms.complete_within,
        "delivery_attempts": terms.delivery_attempts,
        "within": 10.0,
    }
