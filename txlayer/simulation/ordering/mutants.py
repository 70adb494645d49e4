"""Planted bugs: each switches off one repair of the published procedure, and some world must notice.

A mutant replaces one attribute of one class for as long as it is planted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from txlayer.errors import LogCorrupt
from txlayer.ordering.bounded_buffer import BoundedBuffer
from txlayer.ordering.delivery_buffer import DeliveryBuffer
from txlayer.ordering.directory import Directory
from txlayer.ordering.effects import Failed, Persist, Publish, Send
from txlayer.ordering.founding import Founding
from txlayer.ordering.host import Host
from txlayer.ordering.host_state import HostState
from txlayer.ordering.link import DownLink
from txlayer.ordering.messages import Chained, Create, Event, Fill, Void
from txlayer.ordering.publisher import Publisher
from txlayer.ordering.registry import Registry
from txlayer.ordering.searches import Searches
from txlayer.ordering.seen import Seen
from txlayer.ordering.subscriber import Subscriber
from txlayer.ordering.ticket_desk import TicketDesk
from txlayer.ordering.timestamp import GONE, WINDOW, host_of
from txlayer.ordering.topic_manager import DONE, VOID, TopicManager
from txlayer.ordering.waits import Waits
from txlayer.simulation.hunt import Found
from txlayer.simulation.ordering.nodes import HostNode
from txlayer.simulation.ordering.world import World


@dataclass(frozen=True, slots=True)
class Mutant:
    """`target.name` is replaced by what `make` makes of the original; `more` likewise."""

    target: type
    name: str
    make: Callable[[Any], Any]
    scenarios: tuple[str, ...]
    more: tuple[tuple[type, str, Callable[[Any], Any]], ...] = ()


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The bug is there as long as this is open."""
    changes = ((mutant.target, mutant.name, mutant.make), *mutant.more)
    originals = [(target, name, target.__dict__[name]) for target, name, _ in changes]
    for (target, name, make), (_, _, original) in zip(changes, originals, strict=True):
        setattr(target, name, make(original))
    try:
        yield
    finally:
        for target, name, original in originals:
            setattr(target, name, original)


def find(name: str, first: int, seeds: int) -> Found:
    """Where the bug shows first, as `scenario/seed`, and by what."""
    mutant, runs, started = MUTANTS[name], 0, time.perf_counter()
    with planted(mutant):
        for seed in range(first, first + seeds):
            for scenario in mutant.scenarios:
                runs += 1
                try:
                    violations = World(scenario, seed).run().violations
                except (AssertionError, LogCorrupt) as exc:
                    violations = [f"{type(exc).__name__}: {exc}"]
                if violations:
                    return Found(name, f"{scenario}/{seed}", violations[0], runs, time.perf_counter() - started)
    return Found(name, "", "", runs, time.perf_counter() - started)


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda original: lambda *args, **kwargs: value


def _clock_keeps_its_value(original: Any) -> Any:
    def pass_item(self: DeliveryBuffer, lane: Any, number: int, item: Any, effects: Any) -> None:
        clock = lane.clock
        original(self, lane, number, item, effects)
        lane.clock = max(clock, 1)

    return pass_item


def _strangers_compared(original: Any) -> Any:
    def blocked(self: DeliveryBuffer, lane: Any, item: Any) -> bool:
        stamp = item.stamp if isinstance(item, Event) else item
        if any(rank not in self.lanes and value > 0 for rank, value in zip(stamp.ranks, stamp.values, strict=True)):
            lane.parked = True
            return True
        return bool(original(self, lane, item))

    return blocked


def _jumping_stamps(original: Any) -> Any:
    """A stamp goes straight to the next host that has an entry, past the hosts in between."""

    def upwards(self: Host, body: Any) -> Any:
        if isinstance(body, Fill):
            target = max(host_of(rank) for rank in body.ranks if host_of(rank) < self.state.rank)
            if self.up is not None and target != self.up.host:
                name = self.directory.name_of(target)
                return [Send(name, Chained(self.state.rank, 0, 0, 0, body))] if name else []
        return original(self, body)

    return upwards


def _jumped_stamps_taken(original: Any) -> Any:
    def on_chained(self: Host, frame: Chained, now: float) -> Any:
        if frame.epoch == 0 and isinstance(frame.body, Fill):
            return self._on_fill(frame.body)
        return original(self, frame, now)

    return on_chained


def _second_number(original: Any) -> Any:
    """A repeated request takes another number, and the first one is forgotten."""

    def create(self: TicketDesk, message: Create, manager: TopicManager, now: float, effects: Any) -> Any:
        line = manager.lines.get(message.publisher)
        if line is not None and message.seq < line.expected and message.generation == line.generation:
            self.state.counters.values[manager.slot] += message.count
        return original(self, message, manager, now, effects)

    return create


def _counter_raised(original: Any) -> Any:
    def store(self: Registry, message: Any, now: float) -> Any:
        if not message.refresh:
            for manager in self.concerned(message):
                if manager is not None:
                    self.state.counters.values[manager.slot] += 1
        return original(self, message, now)

    return store


def _whole_clock_overwritten(original: Any) -> Any:
    def on_registered(self: Subscriber, message: Any, now: float) -> Any:
        if not message.refresh:
            for rank, value in zip(message.ranks, message.values, strict=False):
                if rank in self.buffer.lanes:
                    self.buffer.lanes[rank].clock = max(value, self.buffer.lanes[rank].clock)
        return original(self, message, now)

    return on_registered


def _groups_of_two(original: Any) -> Any:
    return lambda self: [rank for rank, count in self.partners.items() if count > 1 or rank == self.rank]


def _equality(original: Any) -> Any:
    return lambda self, other, value: other.clock != value


def _no_restart_gap(original: Any) -> Any:
    return lambda self, record: record.closed + 1


def _own_entry_only(original: Any) -> Any:
    return lambda self, item: []


def _nothing_remembered(original: Any) -> Any:
    def skip(self: BoundedBuffer, lane: Any, upto: int) -> None:
        lane.clock = max(lane.clock, upto)

    return skip


def _late_again(original: Any) -> Any:
    def take(self: BoundedBuffer, event: Event, now: float) -> Any:
        lane, effects = self.lanes[event.stamp.rank], []  # type: ignore[var-annotated]
        if event.stamp.number <= lane.clock:
            self.seen.tracks.clear()
            self.deliver(lane, event, effects, out_of_order=True)
            return effects
        return original(self, event, now)

    return take


def _base_not_before(original: Any) -> Any:
    return lambda self, ticket: (
        self.mark < self.base != ticket.first
        and ticket.first - self.base <= WINDOW
        and ticket.ranks is self.base_ranks
        and not self.whole
    )


def _base_before_the_mark(original: Any) -> Any:
    def usable_base(self: TopicManager, ticket: Any) -> bool:
        mark, self.mark = self.mark, 0
        usable = bool(original(self, ticket))
        self.mark = mark
        return usable

    return usable_base


def _never_stops(original: Any) -> Any:
    def extend(self: Subscriber, sent: float, now: float) -> None:
        original(self, sent, now)
        self.valid_until = None

    return extend


def _lost_anywhere(original: Any) -> Any:
    def lost(self: Searches, subscriber: str, manager: TopicManager, number: int) -> Any:
        return Send(subscriber, Void(manager.rank, number, number, self.state.epoch, lost=True))

    return lost


def _voids_go_with_tickets(original: Any) -> Any:
    def retire_topic(self: TicketDesk, manager: TopicManager, tickets: Any) -> Any:
        manager.voided.forget_below(tickets[-1].first)
        return original(self, manager, tickets)

    return retire_topic


def _doubt_is_failure(original: Any) -> Any:
    return lambda self, lane, items, reason: [
        Failed(effect.topic, effect.serial, effect.reason) for effect in original(self, lane, items, reason)
    ]


def _base_unconfirmed(original: Any) -> Any:
    def answer(self: TicketDesk, ticket: Any) -> Any:
        effect = original(self, ticket)
        ticket.manager.rebase(ticket)
        return effect

    return answer


def _leases_end_quietly(original: Any) -> Any:
    def expire(self: TicketDesk, now: float) -> Any:
        while self._leases and self._leases[0].until <= now:
            self._leases.popleft()
        self.unsure_until = None
        return []

    return expire


def _void_wins(original: Any) -> Any:
    def take_void(self: DeliveryBuffer, void: Void, now: float) -> Any:
        lane = self.lanes[void.rank]
        for number in range(void.first, void.last + 1):
            if lane.items.pop(number, None) is not None:
                self.size -= 1
        return original(self, void, now)

    return take_void


def _new_identity(original: Any) -> Any:
    def start_over(self: Publisher, lane: Any, now: float, again: Any = None) -> Any:
        for item in again or ():
            lane.serial += 1
            item.serial = lane.serial + 1000
        return original(self, lane, now, again)

    return start_over


def _no_republishing(original: Any) -> Any:
    def on_voided(self: Publisher, message: Any, now: float) -> Any:
        lane = self._lanes.get(message.topic)
        release = lane.releases.pop(message.first, None) if lane else None
        if release is not None:
            self.buffered -= len(release.items)
            return []
        return original(self, message, now)

    return on_voided


def _no_write_ahead(original: Any) -> Any:
    def take(self: HostNode, effects: Any) -> None:
        original(self, [e for e in effects if isinstance(e, Persist)])
        for effect in effects:
            if not isinstance(effect, Persist) and not hasattr(effect, "key"):
                self.perform(self, effect)

    return take


def _rank_not_durable(original: Any) -> Any:
    def new_topic(self: Host, topic: str) -> Any:
        self.state.add_topic(topic)
        return []

    return new_topic


def _owners_forgotten(original: Any) -> Any:
    def restore(self: Host, records: Any, now: float) -> None:
        original(self, records, now)
        for manager in self.state.places:
            manager.forgotten = 0

    return restore


def _chain_forgotten(original: Any) -> Any:
    return lambda self, records, shown, retired: shown


def _serves_at_once(original: Any) -> Any:
    def start(self: Host, *given: Any) -> Any:
        effects = original(self, *given)
        self.behind = False
        return effects

    return start


def _nothing_heard_of_welcome(original: Any) -> Any:
    def on_welcome(self: Host, welcome: Any) -> Any:
        self._hello_at, self.behind = None, False
        return []

    return on_welcome


def _link_reorders(original: Any) -> Any:
    def takes(self: DownLink, frame: Any, own_epoch: int) -> bool:
        self.seq = min(self.seq, frame.seq - 1)
        return bool(original(self, frame, own_epoch))

    return takes


def _never_asks(original: Any) -> Any:
    return lambda self, rank, now: []


def _clock_forgotten(original: Any) -> Any:
    def resume(self: Subscriber, cursor: Any, now: float) -> Any:
        effects = original(self, cursor, now)
        for lane in self.buffer.lanes.values():
            lane.clock = 0
        self.buffer.seen = Seen()
        return effects

    return resume


def _published_ignored_by_void(original: Any) -> Any:
    """The host voids also what is confirmed."""

    def expire(self: TicketDesk, now: float) -> Any:
        effects: list[Any] = []
        for ticket in self._leases:
            if ticket.until <= now and ticket.state == DONE:
                ticket.state = VOID
                void = Void(ticket.manager.rank, ticket.first, ticket.last, self.state.epoch)
                effects.append(Publish(ticket.manager.name, void))
                effects.append(self._nack(ticket))
        return [*effects, *original(self, now)]

    return expire


def _settled_in_silence(original: Any) -> Any:
    """Numbers in doubt below a baseline are taken for void."""

    def settle_former(self: DeliveryBuffer, void: Void) -> Any:
        gaps = original(self, void)
        return [] if void.doubtful else gaps

    return settle_former


def _nothing_when_full(original: Any) -> Any:
    """A full buffer does not even take the event that the others wait for."""

    def take(self: DeliveryBuffer, event: Event, now: float) -> Any:
        return [] if self.size >= self.capacity else original(self, event, now)

    return take


def _base_not_checked(original: Any) -> Any:
    def remember(self: DeliveryBuffer, lane: Any, first: int, last: int) -> None:
        return None

    return remember


def _gone_is_nothing(original: Any) -> Any:
    """An entry of a log that is gone holds nobody back, also who still reads that log."""
    return lambda self, other, value: value < GONE and original(self, other, value)


def _expected_for_ever(original: Any) -> Any:
    """What a broken operation waited for is waited for still."""

    def break_off(self: Subscriber, effects: Any) -> Any:
        left = original(self, [])
        for rank in left:
            self.buffer.expect(rank)
        return left

    return break_off


def _never_gives_way(original: Any) -> Any:
    return lambda self, topic, now: topic in self._asked


def _no_dedupe(original: Any) -> Any:
    return lambda self, lane, number: number in lane.items


_ALL_STATIC = ("static", "subscribe")
_DYNAMIC = ("subscribe", "unsubscribe", "storm")

MUTANTS: dict[str, Mutant] = {
    "clock updated with its own value": Mutant(DeliveryBuffer, "pass_item", _clock_keeps_its_value, ("static",)),
    "topics of others compared": Mutant(DeliveryBuffer, "blocked", _strangers_compared, ("static",)),
    "stamps jump over hosts": Mutant(
        Host, "_upwards", _jumping_stamps, ("chain",), ((Host, "_on_chained", _jumped_stamps_taken),)
    ),
    "a retry takes a second number": Mutant(TicketDesk, "create", _second_number, ("loss", "duplicates")),
    "no void after the lease": Mutant(TicketDesk, "expire", _leases_end_quietly, ("publisher-crash", "loss")),
    "a subscription raises counters": Mutant(Registry, "store", _counter_raised, _DYNAMIC),
    "a subscription overwrites the clock": Mutant(Subscriber, "_on_registered", _whole_clock_overwritten, _DYNAMIC),
    "pending baselines are not awaited": Mutant(DeliveryBuffer, "expect", _constant(None), _DYNAMIC),
    "groups from two subscriptions": Mutant(TopicManager, "group", _groups_of_two, ("pairs",)),
    "equality for other topics": Mutant(DeliveryBuffer, "unmet", _equality, _ALL_STATIC),
    "numbers given twice after a restart": Mutant(Host, "_first_free", _no_restart_gap, ("lost-tail", "host-crash")),
    "duplicates are taken": Mutant(DeliveryBuffer, "repeated", _no_dedupe, ("duplicates",)),
    "causal publisher asks for all topics at once": Mutant(
        Publisher,
        "_take_turns",
        lambda original: _all_at_once,
        ("causal",),
    ),
    "forced delivery advances its own entry only": Mutant(BoundedBuffer, "befores", _own_entry_only, ("time-to-live",)),
    "skipped numbers are not remembered": Mutant(BoundedBuffer, "_skip", _nothing_remembered, ("time-to-live",)),
    "late duplicates are delivered again": Mutant(BoundedBuffer, "take", _late_again, ("time-to-live",)),
    "versions are not compared": Mutant(Registry, "outdated", _constant(False), ("pairs",)),
    "base not before this number": Mutant(TopicManager, "usable_base", _base_not_before, ("loss", "duplicates")),
    "base before the last subscription": Mutant(TopicManager, "usable_base", _base_before_the_mark, ("asked-again",)),
    "base not confirmed": Mutant(TicketDesk, "_answer", _base_unconfirmed, ("stall", "publisher-crash", "loss")),
    "a void takes what is buffered": Mutant(DeliveryBuffer, "take_void", _void_wins, ("stall",)),
    "no guard time": Mutant(Publisher, "_too_late", _constant(False), ("stall",)),
    "published again under a new identity": Mutant(Publisher, "_start_over", _new_identity, ("mute",)),
    "not published again after a void": Mutant(Publisher, "_on_voided", _no_republishing, ("unbounded", "mute")),
    "numbers leave before they are durable": Mutant(HostNode, "take", _no_write_ahead, ("lost-tail", "host-crash")),
    "a topic's rank is not durable": Mutant(Host, "_new_topic", _rank_not_durable, ("new-topics", "host-crash")),
    "a restarted host has missed counters": Mutant(
        Host, "_on_welcome", _nothing_heard_of_welcome, ("restarts", "lost-tail")
    ),
    "a restarted host serves at once": Mutant(Host, "start", _serves_at_once, ("restarts",)),
    "a restarted host forgets the chain": Mutant(Host, "_remembered", _chain_forgotten, ("forgetful-directory",)),
    "links take frames out of turn": Mutant(DownLink, "takes", _link_reorders, ("chain-loss", "storm")),
    "lost events are not asked for": Mutant(Waits, "ask_for", _never_asks, ("lost-events",)),
    "nobody declares what is lost": Mutant(Searches, "_declare", lambda original: _nothing_declared, ("lost-events",)),
    "a restarted host takes what it has forgotten for lost": Mutant(
        Host, "_restore", _owners_forgotten, ("lost-events",)
    ),
    "a restarted subscriber forgets its clock": Mutant(Subscriber, "resume", _clock_forgotten, ("subscriber-restart",)),
    "confirmed numbers are voided": Mutant(TicketDesk, "expire", _published_ignored_by_void, ("static", "lost-events")),
    "a lost event has no place": Mutant(Searches, "_lost", _lost_anywhere, ("lost-events",)),
    "voids are forgotten with their tickets": Mutant(
        TicketDesk, "_retire_topic", _voids_go_with_tickets, ("retention-ends",)
    ),
    "a subscriber does not stop when nobody answers": Mutant(Subscriber, "_extend", _never_stops, ("all-silent",)),
    "a subscriber that was removed keeps its clock": Mutant(
        Subscriber, "_renew", lambda original: lambda self, values: [], ("all-silent",)
    ),
    "a former host's acknowledgement counts": Mutant(Publisher, "_former", _constant(False), ("fencing-losses",)),
    "what a former host still numbers is not reported": Mutant(
        Subscriber, "_expect_former", _constant(None), ("fencing-unheard",)
    ),
    "what a former host may have numbered is settled in silence": Mutant(
        DeliveryBuffer, "settle_former", _settled_in_silence, ("fencing-orphans",)
    ),
    "former hosts link to new ones": Mutant(Host, "_former", _constant(False), ("all-fenced",)),
    "an event on the bus has no deadline": Mutant(
        Publisher, "_in_doubt", lambda original: lambda self, lane, items, reason: [], ("deadlines",)
    ),
    "what is in doubt is called a failure": Mutant(Publisher, "_in_doubt", _doubt_is_failure, ("deadlines",)),
    "another log has the same ranks": Mutant(
        HostState, "log", lambda original: property(lambda self: 0), ("replaced-logs",)
    ),
    "a log that is gone holds nobody back": Mutant(DeliveryBuffer, "unmet", _gone_is_nothing, ("replaced-unheard",)),
    "stamps of a log that is gone are used": Mutant(
        Directory, "is_gone", _constant(False), ("replaced-logs",), ((Publisher, "_of_former", _constant(False)),)
    ),
    "a broken operation is awaited": Mutant(Subscriber, "_break_off", _expected_for_ever, ("replaced-logs",)),
    "a topic is created without asking who has it": Mutant(Founding, "ask", _constant(None), ("overlapping-claims",)),
    "who has asked once never gives way": Mutant(Founding, "_waits", _never_gives_way, ("overlapping-claims",)),
    "a full buffer takes nothing": Mutant(DeliveryBuffer, "take", _nothing_when_full, ("small-buffers",)),
    "a delta is placed without its base": Mutant(DeliveryBuffer, "_remember", _base_not_checked, ("lost-owners",)),
}


def _all_at_once(self: Publisher, now: float) -> Any:
    effects: list[Any] = []
    while self._held:
        topic, item = self._held.popleft()
        self._lanes[topic].waiting.append(item)
        effects.extend(self._ask(self._lanes[topic], now))
    return effects


def _nothing_declared(self: Searches, manager: TopicManager, number: int) -> Any:
    self._end(manager, number)
    return []
