"""The two use cases that show the API of TOPS (4.7.2 and 4.7.3), call by call.

In the first S1 publishes two events in a transaction with one member. In the second there are two publishers, a
constraint, the initiator takes part, and one subscriber only listens.
"""

from __future__ import annotations

from tests.conftest import eventually
from tests.scenarios.conftest import PATIENT, Diary
from tests.sites.conftest import Sites
from txlayer import Access, Scope, Status, at_least


def test_use_case_1_one_publisher_one_member(sites: Sites, diary: Diary) -> None:
    """Advertise, Subscribe, BeginTx, OnJoinTx, PublishTx and OnNotifyTx twice, CommitTx, OnPrepareTx, OnCommitTx."""
    et1 = sites.name("ET1")
    s1 = sites.start("S1")
    s1.advertise(et1)
    s2 = sites.member("S2", et1, diary.client("S2", joins=Scope.DISTRIBUTED))
    sites.know(s1, et1, s2)

    with s1.transaction(et1, **PATIENT) as tx:
        tx.publish("EV1")
        tx.publish("EV2")
    assert tx.outcome is not None
    assert tx.outcome.status is Status.COMMITTED

    eventually(lambda: diary.of("S2") == ["join", (et1, "EV1"), (et1, "EV2"), "prepare", "commit"])


def test_use_case_2_two_publishers_and_one_who_only_listens(sites: Sites, diary: Diary) -> None:
    """S1 and S2 both publish and take part; S3 gets both events as plain notifications and has no vote."""
    et1, et2 = sites.name("ET1"), sites.name("ET2")
    sites.start("R", hosts=True)
    s1 = sites.member("S1", et1, diary.client("S1", joins=Scope.DISTRIBUTED))
    s2 = sites.member("S2", et1, diary.client("S2", joins=Scope.DISTRIBUTED))
    s3 = sites.member("S3", et1, diary.client("S3", joins=Scope.NON_TRANSACTIONAL))
    s1.advertise(et1)
    host = sites.name("R")
    for site in (s1, s2):
        eventually(lambda site=site: host in [view.name for view in site.sites()], "the host is known")

    with s1.transaction(et1, access=Access.MULTI, settle_for=at_least(2), coordinator=host, **PATIENT) as tx:
        tx.publish("EV1")
        eventually(lambda: (et1, "EV1") in diary.of("S2"), "two publishers' events come in any order, unless one waits")
        with s2.join_transaction(id=tx.id, type=et1) as same:
            same.publish("EV2", type=et2)
    assert tx.outcome is not None
    assert (tx.outcome.status, tx.outcome.members) == (Status.COMMITTED, 2)

    inside = ["join", (et1, "EV1"), (et2, "EV2"), "prepare", "commit"]
    eventually(lambda: diary.of("S1") == diary.of("S2") == inside)
    eventually(lambda: diary.of("S3") == ["join", (et1, "EV1"), (et2, "EV2")])
    assert s3.transactions() == [] or all(view.part != "member" for view in s3.transactions())
