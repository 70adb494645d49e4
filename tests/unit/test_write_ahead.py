"""The one rule that everything rests on."""

from txlayer.effects import Append, AwaitLog, CancelTimer, Drop, ForgetMarker, PrepareUnit, Send, SetTimer
from txlayer.logs.memory import MemoryDisk
from txlayer.logs.record_log import Identity, open_log
from txlayer.messages import Decline, Hashes, Standing, Terms, TxId
from txlayer.records import Intent, NumbersReserved, PeerMark
from txlayer.runtime.write_ahead import WriteAhead

TX = TxId("a", "i", 1, "x")
SAY = Send("b", Decline(TX, b"answer"))
SAY_MORE = Send("b", Decline(TX, b"more"))


def ahead() -> WriteAhead:
    return WriteAhead(open_log(MemoryDisk(), "a", Identity("i", b"secret")))


def sync(site: WriteAhead) -> list:
    site.log.write()
    site.log.sync()
    first, then = site.synced()
    return [*first, *then]


def test_output_after_an_append_waits_until_it_is_durable() -> None:
    site = ahead()
    assert site.admit(("c", 1), [Append("n", NumbersReserved(1)), SAY]) == []
    assert sync(site) == [SAY]


def test_answer_of_the_same_role_waits_behind_a_pending_append() -> None:
    site = ahead()
    site.admit(("c", 1), [Append("n", NumbersReserved(1))])
    assert site.admit(("c", 1), [SAY]) == []
    assert site.admit(("c", 2), [SAY]) == [SAY], "another role is not held up"
    assert sync(site) == [SAY]


def test_output_before_an_append_leaves_at_once() -> None:
    assert ahead().admit(("c", 1), [SAY, Append("n", NumbersReserved(1))]) == [SAY]


def test_barrier_holds_every_role() -> None:
    site = ahead()
    site.admit(("c", 1), [Append("n", NumbersReserved(1), barrier=True)])
    assert site.admit(("c", 2), [SAY]) == []
    assert sync(site) == [SAY]


def test_append_that_comes_after_the_write_began_is_waited_for() -> None:
    site = ahead()
    site.admit(("c", 1), [Append("n", NumbersReserved(1)), SAY])
    site.log.write()
    site.admit(("c", 1), [Append("n", NumbersReserved(2)), SAY_MORE])
    site.log.sync()
    assert site.synced() == ([SAY], [])
    assert sync(site) == [SAY_MORE]


def test_await_log_waits_for_appends_and_drops_of_others() -> None:
    site = ahead()
    site.admit(("c", 1), [Append("n", NumbersReserved(1))])
    sync(site)
    site.admit(("c", 1), [Drop("n")])
    assert site.admit(("chain", 1), [AwaitLog(), SAY]) == []
    assert sync(site) == [SAY]


def test_timers_are_no_outputs() -> None:
    site = ahead()
    timers = [SetTimer(("c", 1, "t"), 1.0), CancelTimer(("c", 1, "u"))]
    assert site.admit(("c", 1), [Append("n", NumbersReserved(1)), *timers]) == timers


def test_forgetting_asks_for_no_sync_of_its_own() -> None:
    site = ahead()
    site.admit(("c", 1), [Append("n", NumbersReserved(1))])
    assert site.soon
    assert not site.urgent, "nothing waits for it"
    sync(site)
    assert not site.soon
    mark = PeerMark("p", "log", Standing(7))
    site.admit(("marks", "p"), [Append("w/p", mark)])
    assert site.admit(("c", 1), [Drop("n"), AwaitLog(), ForgetMarker(TX)]) == []
    assert site.dirty()
    assert not site.soon
    assert not site.urgent
    assert site.admit(("c", 1), [SAY]) == []
    assert site.urgent, "an output waits"
    assert sync(site) == [ForgetMarker(TX), SAY]


def test_an_intent_is_written_while_a_resource_prepares_and_the_vote_waits_for_it() -> None:
    site = ahead()
    intent = Intent(TX, Terms("orders"), Hashes(b"", b"", b"", b""), (), 0, b"")
    assert site.admit(("m", 1), [PrepareUnit(TX), Append("m", intent)]) == [PrepareUnit(TX)]
    assert site.urgent, "the vote will wait for it"
    assert site.admit(("m", 1), [SAY]) == []
    assert sync(site) == [SAY]
