"""The four use cases of the application simulator (TOPS 3.1.2 to 3.1.5).

A manager sets up publishers, subscribers and event types; then a transaction succeeds, one finds too few members, one
fails at commit, and two run crosswise at the same time. There a transaction has a census type and the types of its
events, and subscribers register for all of them; here the first type is enough.
"""

from __future__ import annotations

import pytest

from tests.conftest import eventually
from tests.scenarios.conftest import PATIENT, Diary
from tests.sites.conftest import Sites
from txlayer import Scope, Status, at_least
from txlayer.errors import CensusUnfulfilled, TransactionAborted


def test_use_case_1_a_successful_transaction(sites: Sites, diary: Diary) -> None:
    """Pub01 publishes two events of two types; Sub01 and Sub02 enlist, accept both and commit."""
    census, et01, et02 = (sites.name(name) for name in ("ETCensus01", "ET01", "ET02"))
    sub01 = sites.member("Sub01", census, diary.client("Sub01"))
    sub02 = sites.member("Sub02", census, diary.client("Sub02"))
    pub01 = sites.start("Pub01")
    for event_type in (census, et01, et02):
        pub01.advertise(event_type)
    sites.know(pub01, census, sub01, sub02)

    with pub01.transaction(census, **PATIENT) as tx:
        assert tx.members == 2
        tx.publish("first", type=et01)
        tx.publish("second", type=et02)

    assert tx.outcome is not None
    assert tx.outcome.status is Status.COMMITTED
    story = ["join", (et01, "first"), (et02, "second"), "prepare", "commit"]
    eventually(lambda: diary.of("Sub01") == diary.of("Sub02") == story)


def test_use_case_2_the_census_is_not_fulfilled(sites: Sites, diary: Diary) -> None:
    """Pub01 asks for two members; only Sub01 enlists. No transaction comes to be, and no event leaves."""
    census = sites.name("ETCensus01")
    sub01 = sites.member("Sub01", census, diary.client("Sub01"))
    sub02 = sites.member("Sub02", census, diary.client("Sub02", joins=Scope.NONE))
    pub01 = sites.start("Pub01")
    sites.know(pub01, census, sub01, sub02)

    with pytest.raises(CensusUnfulfilled), pub01.transaction(census, require=at_least(2), census_within=1.0) as tx:
        tx.publish("never sent")

    eventually(lambda: set(diary.of("Sub02")) == {"join"}, "it was asked, and said no")
    assert not [what for who, what in diary.entries if isinstance(what, tuple)], "nobody got an event"


def test_use_case_3_the_commit_fails(sites: Sites, diary: Diary) -> None:
    """Both enlist and accept the event; at the commit Sub02 cannot prepare. Both roll back."""
    census, et01 = sites.name("ETCensus01"), sites.name("ET01")
    sub01 = sites.member("Sub01", census, diary.client("Sub01"))
    sub02 = sites.member("Sub02", census, diary.client("Sub02", fails_to_prepare=True))
    pub01 = sites.start("Pub01")
    sites.know(pub01, census, sub01, sub02)

    with (
        pytest.raises(TransactionAborted, match="Sub02 cannot prepare") as caught,
        pub01.transaction(census, **PATIENT) as tx,
    ):
        tx.publish("first", type=et01)

    assert caught.value.by == sub02.name
    eventually(lambda: diary.of("Sub01")[-1] == diary.of("Sub02")[-1] == "abort")
    assert diary.of("Sub02") == ["join", (et01, "first"), "abort"]
    assert "commit" not in diary.of("Sub01")


def test_use_case_4_several_transactions_at_once(sites: Sites, diary: Diary) -> None:
    """Client01 and Client02 each initiate a transaction in which the other takes part, interleaved; both commit."""
    census01, census02 = sites.name("ETCensus01"), sites.name("ETCensus02")
    client01 = sites.member("Client01", census02, diary.client("Client01"))
    client02 = sites.member("Client02", census01, diary.client("Client02"))
    sites.know(client01, census01, client02)
    sites.know(client02, census02, client01)

    first = client01.transaction(census01, **PATIENT).start()
    second = client02.transaction(census02, **PATIENT).start()
    first.publish("from Client01")
    second.publish("from Client02")
    assert first.commit().status is Status.COMMITTED
    assert second.commit().status is Status.COMMITTED

    eventually(lambda: diary.of("Client02") == ["join", (census01, "from Client01"), "prepare", "commit"])
    eventually(lambda: diary.of("Client01") == ["join", (census02, "from Client02"), "prepare", "commit"])
