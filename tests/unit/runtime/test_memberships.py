"""Who of a site does which unit of work."""

from __future__ import annotations

import msgspec

from txlayer.event_types import EventTypes
from txlayer.messages import ChainKind, Scope, Terms, TxId
from txlayer.participant import make_subscriber
from txlayer.payloads import JSON, Payloads
from txlayer.records import MemberDecided, decode_record
from txlayer.runtime.membership import Application
from txlayer.runtime.memberships import Left, Memberships
from txlayer.units import chain_of, entry_of, transaction_of, undo_of, undone_by

TX = TxId("c", "log", 7, "ab")


def memberships() -> Memberships:
    """A site with a subscriber for x, one for y, and one of each kind that reads a chain."""
    application = Application(Payloads.of(JSON, ()), EventTypes(False))
    for name, options in {
        "x": {"where": {"subject": "x"}},
        "y": {"where": {"subject": "y"}},
        "follower": {"scope": Scope.FOLLOWER},
        "durable": {"scope": Scope.LOCAL, "durable": True, "where": {"subject": "y"}},
    }.items():
        application.subscribers.append(make_subscriber("t", _handler(name), **options))  # type: ignore[arg-type]
    return Memberships(application)


def _handler(name: str):  # type: ignore[no-untyped-def]
    def handle(tx: object, event: object) -> None: ...

    handle.__qualname__ = name
    return handle


def names(members: Memberships, unit: TxId, terms: Terms | None = None) -> list[str]:
    return [part.subscriber.name for part in members.of(unit, terms).participants]


def test_an_entry_of_a_chain_goes_to_those_who_read_it_and_want_it() -> None:
    members, terms = memberships(), Terms("t", (("subject", "x"),))
    assert names(members, entry_of(TX, ChainKind.COMMITS), terms) == ["follower"]
    assert names(members, entry_of(TX, ChainKind.CALLS), terms) == []
    assert members.of(entry_of(TX, ChainKind.CALLS)).id == TX


def test_who_reads_an_entry_is_found_also_after_something_of_it_was_rolled_back() -> None:
    members, unit, terms = memberships(), entry_of(TX, ChainKind.COMMITS), Terms("t", (("subject", "x"),))
    assert not names(members, unit), "what a former life left is finished by everyone's resources"
    assert names(members, unit, terms) == ["follower"]


def test_an_entry_that_nobody_here_could_read_waits_for_its_subscriber() -> None:
    members, unit = memberships(), entry_of(TX, ChainKind.COMMITS)
    assert members.unserved(unit, Terms("t")) == ""
    assert members.unserved(unit, Terms("other")) == "other"
    members.application.subscribers = [s for s in members.application.subscribers if s.name != "follower"]
    assert members.unserved(unit, Terms("t")) == "t"


def test_after_a_restart_those_take_part_whom_the_log_names() -> None:
    members, terms = memberships(), Terms("t", (("subject", "x"),))
    members.application.subscribers.append(make_subscriber("t", _handler("z")))
    members.left = {TX: Left("t", terms, ("x",))}
    assert names(members, TX) == ["x"]
    assert members.of(TX).terms == terms
    assert members.of(TX).attributes == {"subject": "x"}


def test_what_an_older_log_left_may_belong_to_anybody_of_the_type() -> None:
    old = msgspec.msgpack.encode(["MemberDecided", TX, "t", False, b"", True, [], False, False])
    record = decode_record(old)
    assert isinstance(record, MemberDecided)
    members = memberships()
    members.left = {TX: Left(record.type, record.terms, record.parts)}
    assert names(members, TX) == ["x", "y"]


def test_units_of_one_transaction_have_names_of_their_own() -> None:
    units = [TX, undo_of(TX), *(entry_of(TX, kind) for kind in ChainKind)]
    assert len(set(units)) == 4
    assert {transaction_of(unit) for unit in units} == {TX}
    assert [chain_of(unit) for unit in units] == [None, None, *ChainKind]
    assert undone_by(undo_of(TX)) == TX
