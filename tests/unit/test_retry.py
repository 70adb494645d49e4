"""What is tried again."""

from __future__ import annotations

import pytest

from txlayer.errors import CensusUnfulfilled, OutcomeUnknown, TransactionAborted, TransactionError, TransactionRefused
from txlayer.retry import retrying


@pytest.mark.parametrize(
    ("error", "again"),
    [(TransactionAborted, True), (CensusUnfulfilled, True), (TransactionRefused, False), (OutcomeUnknown, False)],
)
def test_what_is_definite_and_may_pass_is_tried_again(error: type[TransactionError], again: bool) -> None:
    calls: list[int] = []

    def send() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise error("not this time")
        return "sent"

    if again:
        assert retrying(first=0.001)(send) == "sent"
    else:
        with pytest.raises(error):
            retrying(first=0.001)(send)
    assert len(calls) == 1 + again
