"""What must be true of a history, read from what the subscribers' applications saw."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from txlayer.ordering.publisher import Publisher
from txlayer.ordering.subscriber import Subscriber
from txlayer.ordering.subscriber_config import Mode
from txlayer.ordering.timestamp import host_of
from txlayer.simulation.ordering.history import History, Id, Seen, SubscriberHistory
from txlayer.simulation.ordering.nodes import HostNode

BOUND = 0.35
"""An event may be on the bus for so long: less than the lease without the guard time of the worlds."""

if TYPE_CHECKING:
    from txlayer.simulation.ordering.world import World


def check(world: World) -> None:
    """All checkers; violations go into the history."""
    plan = world.plan
    order(world.history, plan.mode)
    fifo(world.history, plan.mode)
    duplicates(world.history)
    nothing_missing(world.history, plan.mode, bool(plan.bus_loss))
    if plan.bus_spread <= BOUND and not plan.cut_offs and plan.mode is not Mode.UNRELIABLE:
        no_split(world.history)
    at_rest(world)
    same_sets(world)
    all_told(world.history)
    one_home(world)
    if plan.causal:
        causes(world.history)


def order(history: History, mode: Mode = Mode.TOTAL) -> None:
    """Two events that two subscribers got, neither flagged, came in the same order (per topic, where that is all)."""
    lists = {name: _in_order(seen.delivered) for name, seen in history.subscribers.items()}
    names = list(lists)
    for at, one in enumerate(names):
        places = {seen.id: place for place, seen in enumerate(lists[one])}
        for other in names[at + 1 :]:
            common = [seen.id for seen in lists[other] if seen.id in places]
            topics = sorted({id.topic for id in common}) if mode is Mode.PER_TOPIC else [None]
            for topic in topics:
                _compare(history, one, other, places, [id for id in common if topic in (None, id.topic)])


def _compare(history: History, one: str, other: str, places: dict[Id, int], common: list[Id]) -> None:
    for before, after in pairwise(common):
        if places[before] > places[after]:
            history.violation(f"order: {other} got {before} before {after}, {one} the other way round")
            return


def _in_order(delivered: list[Seen]) -> list[Seen]:
    first: dict[Id, Seen] = {}
    for seen in delivered:
        if not seen.out_of_order:
            first.setdefault(seen.id, seen)
    return list(first.values())


def fifo(history: History, mode: Mode = Mode.TOTAL, numbers_known: bool = True) -> None:
    """Events of one publisher on one topic come in the order of publication, unless they are flagged.

    `numbers_known`: the history has all numbers of an event, also those that were voided before anybody got it.
    """
    for name, seen in history.subscribers.items():
        last: dict[tuple[str, str], int] = {}
        for one in seen.delivered:
            key = (one.id.publisher, one.id.topic)
            if not one.out_of_order and one.id.serial < last.get(key, 0):
                history.violation(f"fifo: {name} got {one.id} after {last[key]}")
            last[key] = max(last.get(key, 0), one.id.serial)
        for one in seen.delivered:
            # Outside the unreliable mode only what was published again under another number may be flagged.
            again = len(set(history.numbers_of[one.id])) > 1
            if one.out_of_order and not again and numbers_known and mode is not Mode.UNRELIABLE:
                history.violation(f"{name} got {one.id} out of order")


def duplicates(history: History) -> None:
    """Nothing comes twice during one subscription."""
    for name, seen in history.subscribers.items():
        got: dict[Id, None] = {}
        for place, one in enumerate(seen.delivered):
            if one.id not in history.offered:
                history.violation(f"{name} got {one.id}, which nobody published")
                continue
            if one.id in got and place >= seen.starts.get(one.id.topic, 0):
                history.violation(f"{name} got {one.id} twice")
            if place >= seen.starts.get(one.id.topic, 0):
                got[one.id] = None


def nothing_missing(history: History, mode: Mode = Mode.TOTAL, bus_loses: bool = False) -> None:
    """Who was subscribed before an event was published, and still is, has got it or was told of the gap.

    Of a publisher that died this holds for what was accepted, and otherwise for all or none of the subscribers; but of
    what was not accepted and the bus lost for some, nobody can know.
    """
    got_by = {name: {seen.id for seen in one.delivered} for name, one in history.subscribers.items()}
    for id, offered in history.offered.items():
        if offered.failed and any(id in got for got in got_by.values()):
            history.violation(f"{id} was delivered, and its publisher was told that it failed")
        if offered.failed or offered.in_doubt:
            continue
        seen_by_nobody = not any(id in got for got in got_by.values())
        if id.publisher in history.dead and not offered.accepted and (bus_loses or seen_by_nobody):
            continue
        for name, one in history.subscribers.items():
            since = one.since.get(id.topic)
            if since is None or since > offered.at or id in got_by[name]:
                continue
            if mode is Mode.UNRELIABLE and bus_loses:
                continue
            numbers = history.numbers_of.get(id, ())
            doubt_counts = bus_loses and id.publisher in history.dead
            baseline = one.baselines.get(id.topic, 0)  # below it nobody knows what was published before it was told
            gaps = [gap for gap in one.gaps if gap[0] == id.topic and (gap[3] or doubt_counts or gap[2] <= baseline)]
            told = any(first <= number <= last for _, first, last, _ in gaps for number in numbers)
            if not (told or _was_of_a_former_log(history, one, id)):
                history.violation(f"missing: {name} has not got {id} (numbers {numbers})")


def _was_of_a_former_log(history: History, one: SubscriberHistory, id: Id) -> bool:
    """Whether the subscriber was told that its host has another log, and from where on it may have missed something.

    How far the former log had come nobody knows; of the new one it missed what is below its baseline. Of a log that
    has come and gone while it was about to begin anew it need not say a number.
    """
    doubts = [gap for gap in one.gaps if gap[0] == id.topic and not gap[3]]
    places = [place for place, other in history.numbers.items() if other == id]
    return any(
        (first <= number or len(history.logs.get(host_of(rank), ())) > 2)
        if history.is_former(rank)
        else (first == 1 and number <= last and len(history.logs.get(host_of(rank), ())) > 1)
        for rank, number in places
        for _, first, last, _ in doubts
    )


def one_home(world: World) -> None:
    """A topic has one rank, whoever claims it; another only under another log."""
    ranks: dict[str, set[int]] = {}
    for (rank, _), id in world.history.numbers.items():
        ranks.setdefault(id.topic, set()).add(rank)
    for node in world.nodes.values():
        if isinstance(node, HostNode):
            for manager in node.host.state.places:
                ranks.setdefault(manager.name, set()).add(manager.rank)
    for topic, several in ranks.items():
        if sum(not world.history.is_former(rank) for rank in several) > 1:
            world.history.violation(f"topic {topic} has the ranks {sorted(several)}")


def all_told(history: History) -> None:
    """Every application that lives has learnt what became of each of its events that had a deadline."""
    for id, offered in history.offered.items():
        told = offered.accepted or offered.failed or offered.in_doubt
        if offered.deadline is not None and not told and id.publisher not in history.dead:
            history.violation(f"nobody was told what became of {id}")


def no_split(history: History) -> None:
    """Within the bound on the bus, who was there gets an event in its first place if anybody does."""
    first: dict[Id, str] = {}
    for name, one in history.subscribers.items():
        first.update((seen.id, name) for seen in one.delivered if not seen.out_of_order)
    for name, one in history.subscribers.items():
        for seen in one.delivered:
            offered = history.offered.get(seen.id)
            there = offered is not None and one.since.get(seen.id.topic, seen.at) <= offered.at
            if seen.out_of_order and there and seen.id in first:
                history.violation(f"split: {name} got {seen.id} late, {first[seen.id]} in its first place")


def at_rest(world: World) -> None:
    """Nothing waits any more."""
    for name, node in world.nodes.items():
        role = node.role
        if isinstance(role, Subscriber):
            unsettled = any(lane.former for lane in role.buffer.lanes.values())
            if role.buffer.size or unsettled or not role.at_rest:
                halts = [(lane.topic, lane.clock, sorted(lane.items)[:3]) for lane in role.buffer.lanes.values()]
                world.history.violation(f"{name} is not at rest: {role.buffer.size} buffered, {halts}")
        elif isinstance(role, Publisher):
            if node.alive and role.buffered:
                world.history.violation(f"{name} still has {role.buffered} events")
        elif isinstance(node, HostNode) and not node.host.serving:
            world.history.violation(f"{name} does not serve")


def same_sets(world: World) -> None:
    """When no operation is under way, the hosts have a subscriber's set as it has it itself."""
    for name in world.history.subscribers:
        subscriber = world.nodes[name].role
        assert isinstance(subscriber, Subscriber)
        own = tuple(sorted(subscriber.topics.values()))
        for node in world.nodes.values():
            if not isinstance(node, HostNode) or not subscriber.at_rest:
                continue
            known = node.host.registry.known.get(name)
            concerned = own if any(node.host.state.owns(rank) for rank in own) else ()
            if (known.ranks if known else ()) != concerned:
                world.history.violation(f"{node.name} has {known} of {name}, which has {own}")


def causes(history: History) -> None:
    """No subscriber gets an event before one that its publisher had published or seen before."""
    for name, seen in history.subscribers.items():
        places: dict[Id, int] = {}
        for place, one in enumerate(seen.delivered):
            places.setdefault(one.id, place)
        for id, place in places.items():
            for cause in history.offered[id].after:
                if places.get(cause, -1) > place:
                    history.violation(f"cause: {name} got {id} before {cause}")
                    return
