"""`Site`: what an application holds. One name, one log, any number of transactions at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from txlayer.messages import Outcome, TxId
from txlayer.runtime.calls import await_answer
from txlayer.site_base import SiteBase
from txlayer.transacting import Transacting, raise_for
from txlayer.transaction import Transaction, settled


class Site(SiteBase):
    """A site whose calls wait. `with Site(...) as site:` starts and closes it."""

    def start(self) -> Self:
        """Connect, open the log, take up what an earlier run left, and begin to receive."""
        self._start()
        return self

    def close(self, timeout: float = 10.0) -> None:
        """Take no new work, let running transactions finish up to `timeout`, leave the rest in the log."""
        self._close(timeout)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def transaction(self, type: str | type, attributes: Mapping[str, Any] | None = None, **terms: Any) -> Transaction:
        """A transaction for a `with` block.

        `require=` is tested at the census, `settle_for=` until the decision; `limit=` is the weakest scope that may
        take part, `access=` who may publish, `visibility=` what the world outside sees, `coordinator=` `"self"`,
        `"hosted"` or a site's name, `key=` the caller's own idempotency key, `local=True` a transaction without
        distributed members. `census_within`, `vote_within`, `complete_within` are its deadlines in seconds, `within`
        how long `commit` waits; `on_votes_missing` may return seconds to wait longer for votes, else it aborts.
        """
        begin, within = self._beginning(type, attributes, terms)
        return Transaction(begin, within)

    def send(
        self, type: str | type, events: Sequence[Any], attributes: Mapping[str, Any] | None = None, **terms: Any
    ) -> Outcome:
        """A whole transaction in one shot: all events are known, one round trip and the decision."""
        plan = self._plan(type, attributes, one_shot=True, **terms)
        items = self._items(plan.terms, events)
        core, answer = Transacting.begin(self._engine, self._placed(plan), items)
        return raise_for(settled(core, answer, plan.within))

    def join_transaction(
        self,
        type: str | type | None = None,
        attributes: Mapping[str, Any] | None = None,
        *,
        id: TxId | str | None = None,
        within: float = 10.0,
    ) -> Transaction:
        """Publish in an open transaction of another site, found by type and attributes or by id.

        Leaving the block hands the events in; it commits only where `commit()` is called by a site that may.
        """
        return Transaction(self._joining(type, attributes, id, within), within)

    def outcome(
        self,
        tx: TxId | str | None = None,
        *,
        key: str | None = None,
        coordinator: str | None = None,
        within: float = 10.0,
    ) -> Outcome:
        """What became of a transaction, by id or by the caller's key; `OutcomeUnknown` if nobody answers in time.

        For a caller that does not know. Once a caller was told of a commit its coordinator may forget it, and then says
        `FINISHED`; this site still knows for a while. Under a key it is kept, by the coordinator that had it: without
        `coordinator=` this site alone is asked, and says `UNKNOWN` of a key that another one may have had.
        """
        question = self._ask(tx, key, coordinator)
        return question.note(await_answer(question.answer, within))
