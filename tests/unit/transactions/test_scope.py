"""Table 4-A and figure 4-I of TOPS, cell by cell."""

import pytest

from txlayer.errors import UsageError
from txlayer.messages import Limit, Scope, TxType
from txlayer.transactions.scope import check_limit, granted

TABLE = {
    Scope.NONE: (Scope.NONE, Scope.NONE, Scope.NONE),
    Scope.NON_TRANSACTIONAL: (Scope.NON_TRANSACTIONAL, Scope.NONE, Scope.NONE),
    Scope.LOCAL: (Scope.LOCAL, Scope.LOCAL, Scope.NONE),
    Scope.FOLLOWER: (Scope.FOLLOWER, Scope.FOLLOWER, Scope.NONE),
    Scope.DISTRIBUTED: (Scope.DISTRIBUTED, Scope.DISTRIBUTED, Scope.DISTRIBUTED),
}


@pytest.mark.parametrize("requested", list(Scope))
@pytest.mark.parametrize(("column", "limit"), list(enumerate(Limit)))
def test_table_4a_of_a_distributed_transaction(requested: Scope, column: int, limit: Limit) -> None:
    assert granted(requested, TxType.DISTRIBUTED, limit) is TABLE[requested][column]


@pytest.mark.parametrize("limit", [Limit.NONE, Limit.LOCAL])
def test_a_local_transaction_has_no_distributed_members(limit: Limit) -> None:
    with pytest.raises(UsageError, match="too strong"):
        granted(Scope.DISTRIBUTED, TxType.LOCAL, limit)
    assert granted(Scope.LOCAL, TxType.LOCAL, limit) is Scope.LOCAL


def test_a_limit_above_the_type_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="cannot be limited"):
        check_limit(TxType.LOCAL, Limit.DISTRIBUTED)
    for tx_type, limit in [(TxType.LOCAL, Limit.LOCAL), (TxType.DISTRIBUTED, Limit.DISTRIBUTED)]:
        check_limit(tx_type, limit)


def test_a_local_transaction_cannot_be_followed() -> None:
    with pytest.raises(UsageError, match="no decision to follow"):
        granted(Scope.FOLLOWER, TxType.LOCAL, Limit.NONE)
