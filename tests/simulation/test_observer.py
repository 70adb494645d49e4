"""Which call a transaction belongs to, as the checkers of a world see it."""

from txlayer import messages as m
from txlayer.messages import Item, Numbered, Terms, TxId
from txlayer.simulation.clock import Clock
from txlayer.simulation.history import CallSeen, History
from txlayer.simulation.observer import Observer

TERMS = Terms("orders")


def test_a_transaction_belongs_to_the_try_that_asked_for_it_not_to_the_first_under_its_key() -> None:
    history = History()
    observer = Observer(history, Clock(), {})
    for serial, name in enumerate(("t", "t again"), 1):
        history.calls[name] = history.current["t"] = CallSeen("t", "p", "c", TERMS)
        observer.observe("p", m.Create("t", "p", 1, TERMS, serial=serial, coordinator="c", incarnation="log"))
    for serial, name in enumerate(("t", "t again"), 1):
        tx = TxId("c", "log", serial, "")
        observer.observe("c", m.Created("t", tx, 0, ("log", 1, serial)))
        assert history.by_tx[tx] is history.calls[name]


def test_a_one_shot_belongs_to_the_try_that_its_events_name() -> None:
    history = History()
    observer = Observer(history, Clock(), {})
    terms = Terms("orders", one_shot=True)
    for number, name in enumerate(("t", "t again"), 1):
        history.calls[name] = CallSeen("t", "p", "c", terms)
        tx = TxId("c", "log", number, "")
        event = Numbered(1, Item("orders", b"t.0", (("call", name),)), "p")
        observer.observe("c", m.Census(tx, terms, m.Hashes(b"", b"", b"", b""), m.Standing(), 0, (event,)))
        assert history.by_tx[tx] is history.calls[name]
