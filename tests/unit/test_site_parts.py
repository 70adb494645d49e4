"""Small parts of the API that need no bus."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from txlayer import Conditions, TxId, all_of, at_least, at_most, named, only
from txlayer.errors import CensusUnfulfilled, OutcomeUnknown, TransactionAborted, TransactionRefused, UsageError
from txlayer.messages import Outcome, Status
from txlayer.runtime.calls import Call
from txlayer.site_base import choose_host, parse_txid
from txlayer.transacting import Transacting, raise_for

TX = TxId("site", "log", 7, "nonce")


def test_everyone_chooses_the_same_host_and_types_spread_over_hosts() -> None:
    hosts = [f"host-{number}" for number in range(4)]
    chosen = Counter(choose_host(f"type-{number}", hosts) for number in range(400))
    assert set(chosen) == set(hosts)
    for number in range(50):
        there = choose_host(f"type-{number}", hosts)
        assert choose_host(f"type-{number}", hosts[::-1]) == there
        others = [host for host in hosts if host != "host-0"]
        assert there == "host-0" or choose_host(f"type-{number}", others) == there, "only what was there moves"


def test_a_transaction_id_is_read_back_from_its_text() -> None:
    assert parse_txid(str(TX)) == TX
    for text in ("", "a/b/c/d", "a/b/1"):
        with pytest.raises(UsageError, match="no transaction id"):
            parse_txid(text)


def test_conditions_are_joined() -> None:
    joined = all_of(at_least(2), at_most(5), at_most(3), named("a", "b", "c"), only("a", "b", "c", "d"), only("b", "a"))
    assert joined == Conditions(3, 3, ("a", "b", "c"), ("a", "b"))
    for wrong in (at_least, at_most):
        with pytest.raises(UsageError, match="not negative"):
            wrong(-1)


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (Outcome(TX, "k", Status.ABORTED, reason="no", by="a"), TransactionAborted),
        (Outcome(TX, "k", Status.REFUSED, reason="1 of at least 2 members"), CensusUnfulfilled),
        (Outcome(TX, "k", Status.REFUSED, reason="x may not commit this transaction", by="c"), TransactionRefused),
        (Outcome(None, "k", Status.REFUSED, reason="more than 3 open transactions", by="c"), TransactionRefused),
        (Outcome(TX, "k", Status.PENDING, final=False), OutcomeUnknown),
        (Outcome(TX, "k", Status.UNKNOWN, reason="the log is gone"), OutcomeUnknown),
        (Outcome(TX, "k", Status.FINISHED, reason="finished and forgotten"), OutcomeUnknown),
    ],
)
def test_every_outcome_but_a_commit_has_its_error(outcome: Outcome, error: type[Exception]) -> None:
    with pytest.raises(error) as caught:
        raise_for(outcome)
    assert type(caught.value) is error
    assert caught.value.outcome is outcome  # type: ignore[attr-defined]


def test_a_commit_is_returned() -> None:
    outcome = Outcome(TX, "k", Status.COMMITTED, 3)
    assert raise_for(outcome) is outcome


def test_a_publisher_hears_of_an_abort_that_its_work_has_felt_first() -> None:
    """Its own abort comes second then: the answer to it names the member that was first."""
    engine: Any = SimpleNamespace(settings=SimpleNamespace(name="p"))
    tx = TxId("c", "log", 1, "abcd")
    felt = Transacting(engine, Call("c:1", tx), None, "orders", worked=True)
    assert felt.taken_away() is None
    felt.call.outcome = Outcome(tx, "c:1", Status.ABORTED, reason="no", by="m")
    assert "aborted by m: no" in str(felt.taken_away(by_others=True))
    felt.call.outcome = Outcome(tx, "c:1", Status.ABORTED, reason="its own", by="p")
    assert felt.taken_away(by_others=True) is None
