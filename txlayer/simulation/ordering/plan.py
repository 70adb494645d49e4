"""What one world is like: drawn from its seed and its scenario, about half of the scenario's faults off (swarm)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from txlayer.ordering.subscriber_config import Mode


@dataclass(slots=True)
class Plan:
    """Sizes, rates (0 is off) and counts of things that happen. Times are in seconds of the world."""

    hosts: int = 2
    topics: int = 5
    publishers: int = 3
    subscribers: int = 4
    events: int = 30
    length: float = 1.5
    batch: int = 1
    changes: int = 0
    removals_only: bool = False
    client_loss: float = 0.0
    answers_lost: float = 0.0
    chain_loss: float = 0.0
    chain_reorder: bool = False
    chain_delay: float = 0.02
    burst: bool = False
    duplicate: float = 0.0
    bus_loss: float = 0.0
    bus_duplicate: float = 0.0
    bus_spread: float = 0.25
    publisher_crashes: int = 0
    freezes: int = 0
    toggles: bool = False
    mutes: int = 0
    cut_offs: int = 0
    host_crashes: int = 0
    durable_tickets: bool = False
    subscriber_crashes: int = 0
    silences: int = 0
    silence_all: bool = False
    zombies: int = 0
    zombies_at_once: bool = False
    replaced_logs: int = 0
    overlapping: bool = False
    claim_delay: float = 0.02
    forgetful: bool = False
    new_topics: int = 0
    forged: float = 0.0
    mode: Mode = Mode.TOTAL
    causal: bool = False
    gaps_allowed: bool = False
    placed_gaps: bool = False
    wire: bool = False
    retention: float = 20.0
    deadlines: bool = False
    capacity: int = 100_000
    block: int = 4
    arrival: float = 0.1
    apart: bool = False
    orphans: int = 0
    settle: float = 0.0


SCENARIOS = (
    "static",
    "chain",
    "subscribe",
    "unsubscribe",
    "pairs",
    "asked-again",
    "storm",
    "loss",
    "chain-loss",
    "publisher-crash",
    "stall",
    "mute",
    "unbounded",
    "retention-ends",
    "deadlines",
    "host-crash",
    "lost-tail",
    "restarts",
    "duplicates",
    "mixed",
    "causal",
    "time-to-live",
    "lost-events",
    "per-topic",
    "subscriber-restart",
    "new-topics",
    "expiry",
    "all-silent",
    "fencing",
    "fencing-losses",
    "fencing-unheard",
    "fencing-orphans",
    "all-fenced",
    "forged",
    "forgetful-directory",
    "replaced-logs",
    "replaced-unheard",
    "overlapping-claims",
    "lost-owners",
    "small-buffers",
)


def draw(scenario: str, rng: Random) -> Plan:
    """The plan of one world."""
    plan = Plan(
        hosts=rng.choice((1, 2, 2, 3, 4)),
        topics=rng.randint(3, 6),
        publishers=rng.randint(2, 4),
        subscribers=rng.randint(3, 6),
        events=rng.randint(15, 45),
        batch=rng.choice((1, 1, 2, 5)),
        chain_reorder=rng.random() < 0.2,
        bus_spread=rng.choice((0.02, 0.1, 0.25)),
        wire=rng.random() < 0.1,
        durable_tickets=rng.random() < 0.3,
    )
    _SHAPES[scenario](plan, rng)
    return plan


def _rate(rng: Random, most: float) -> float:
    return most * rng.random() if rng.random() < 0.6 else 0.0


def _static(plan: Plan, rng: Random) -> None:
    plan.chain_reorder = False


def _chain(plan: Plan, rng: Random) -> None:
    """Many stamps under way at once, on links of different length."""
    plan.hosts, plan.topics, plan.batch, plan.chain_reorder = 4, rng.randint(4, 5), 1, False
    plan.subscribers, plan.publishers = rng.randint(4, 6), rng.randint(4, 6)
    plan.events, plan.burst, plan.chain_delay = rng.randint(40, 70), True, 0.1


def _subscribe(plan: Plan, rng: Random) -> None:
    plan.changes = rng.randint(1, 6)


def _unsubscribe(plan: Plan, rng: Random) -> None:
    plan.changes, plan.removals_only = rng.randint(1, 6), True


def _pairs(plan: Plan, rng: Random) -> None:
    """Two subscribers share a few topics, come and go, and events are long under way."""
    plan.hosts, plan.topics, plan.subscribers = rng.randint(1, 2), 2, 2
    plan.changes, plan.toggles, plan.events, plan.bus_spread = 8, True, rng.randint(20, 40), 0.3
    plan.duplicate = rng.choice((0.0, 0.4))


def _asked_again(plan: Plan, rng: Random) -> None:
    """Answers to subscriptions are lost and come again with later baselines, while many events are confirmed."""
    plan.hosts, plan.topics, plan.subscribers, plan.publishers, plan.batch = 1, 3, 3, 4, 1
    plan.changes, plan.toggles, plan.answers_lost = 10, True, 0.6
    plan.events, plan.length, plan.bus_spread = rng.randint(90, 140), 2.0, 0.34


def _storm(plan: Plan, rng: Random) -> None:
    plan.changes, plan.subscribers, plan.publishers = rng.randint(10, 30), rng.randint(4, 7), rng.randint(2, 4)


def _loss(plan: Plan, rng: Random) -> None:
    plan.client_loss = 0.05 + 0.2 * rng.random()
    plan.changes = rng.choice((0, 3))


def _chain_loss(plan: Plan, rng: Random) -> None:
    plan.hosts = rng.randint(2, 4)
    plan.chain_loss, plan.chain_reorder = 0.05 + 0.2 * rng.random(), rng.random() < 0.5
    plan.changes = rng.choice((0, 4))


def _publisher_crash(plan: Plan, rng: Random) -> None:
    plan.publisher_crashes = rng.randint(1, 4)


def _stall(plan: Plan, rng: Random) -> None:
    """Publishers stand still for about as long as a lease, some heard by nobody but the bus afterwards."""
    plan.freezes, plan.mutes, plan.publishers = rng.randint(2, 6), rng.choice((0, 2, 4)), rng.randint(3, 5)
    plan.client_loss, plan.bus_spread, plan.events = _rate(rng, 0.2), 0.3, rng.randint(30, 60)


def _mute(plan: Plan, rng: Random) -> None:
    """Publishers are heard by nobody but the bus for longer than a lease."""
    plan.mutes = rng.randint(1, 4)
    plan.changes = rng.choice((0, 3))


def _unbounded(plan: Plan, rng: Random) -> None:
    """Events are longer on the bus than the leases allow for."""
    plan.bus_spread, plan.freezes, plan.mutes = 1.2, rng.randint(0, 4), rng.randint(1, 4)


def _retention_ends(plan: Plan, rng: Random) -> None:
    """Publishers are not heard for so long that the hosts have forgotten their tickets."""
    plan.retention, plan.cut_offs, plan.length = 0.05, rng.randint(2, 5), 2.5
    plan.changes, plan.host_crashes, plan.events = rng.choice((0, 3)), rng.choice((0, 0, 1)), rng.randint(40, 80)


def _deadlines(plan: Plan, rng: Random) -> None:
    """Publishers do not wait for ever: while hosts are away or do not hear them, some events fail."""
    plan.deadlines, plan.cut_offs, plan.client_loss = True, rng.randint(1, 4), _rate(rng, 0.3)
    plan.host_crashes, plan.freezes = rng.choice((0, 1, 2)), rng.choice((0, 2))
    plan.publisher_crashes = rng.choice((0, 0, 1))


def _host_crash(plan: Plan, rng: Random) -> None:
    plan.host_crashes, plan.durable_tickets = rng.randint(1, 3), True
    plan.changes = rng.choice((0, 4))


def _lost_tail(plan: Plan, rng: Random) -> None:
    plan.host_crashes, plan.durable_tickets = rng.randint(1, 3), False
    plan.changes = rng.choice((0, 4))


def _restarts(plan: Plan, rng: Random) -> None:
    """Crashes among many stamps under way."""
    _chain(plan, rng)
    plan.hosts, plan.burst, plan.length, plan.host_crashes = rng.randint(2, 4), False, 1.0, rng.randint(2, 4)


def _duplicates(plan: Plan, rng: Random) -> None:
    plan.bus_duplicate, plan.duplicate = 0.3, 0.2
    plan.changes = rng.choice((0, 4))


def _mixed(plan: Plan, rng: Random) -> None:
    plan.changes = rng.choice((0, 4, 10))
    plan.client_loss, plan.chain_loss = _rate(rng, 0.2), _rate(rng, 0.2)
    plan.duplicate, plan.bus_duplicate = _rate(rng, 0.2), _rate(rng, 0.3)
    plan.publisher_crashes = rng.choice((0, 0, 1, 3))
    plan.freezes, plan.mutes = rng.choice((0, 2)), rng.choice((0, 0, 1))
    plan.host_crashes, plan.durable_tickets = rng.choice((0, 1, 2)), rng.random() < 0.5
    plan.subscriber_crashes = rng.choice((0, 0, 2))
    plan.new_topics = rng.choice((0, 2))


def _causal(plan: Plan, rng: Random) -> None:
    plan.causal, plan.mode = True, Mode.CAUSAL
    plan.client_loss = _rate(rng, 0.1)
    plan.changes, plan.host_crashes, plan.new_topics = rng.choice((0, 4)), rng.choice((0, 0, 2)), rng.choice((0, 2))


def _time_to_live(plan: Plan, rng: Random) -> None:
    plan.mode, plan.bus_loss, plan.bus_duplicate = Mode.UNRELIABLE, _rate(rng, 0.2), _rate(rng, 0.3)
    plan.gaps_allowed, plan.capacity = True, rng.choice((3, 8, 1000))
    plan.changes = rng.choice((0, 4))


def _lost_events(plan: Plan, rng: Random) -> None:
    plan.bus_loss = 0.05 + 0.15 * rng.random()
    plan.publisher_crashes = rng.choice((0, 0, 2))
    plan.host_crashes = rng.choice((0, 0, 1))
    plan.gaps_allowed = plan.publisher_crashes > 0
    plan.placed_gaps = not plan.host_crashes  # a host that remembers says what comes before a lost event


def _lost_owners(plan: Plan, rng: Random) -> None:
    """Hosts forget whose numbers they gave, events are lost, and some of those who would have them are gone."""
    _lost_events(plan, rng)
    plan.publisher_crashes, plan.host_crashes, plan.durable_tickets = rng.randint(1, 3), rng.randint(1, 2), False
    plan.gaps_allowed, plan.placed_gaps = True, False


def _per_topic(plan: Plan, rng: Random) -> None:
    plan.mode, plan.changes, plan.client_loss = Mode.PER_TOPIC, rng.choice((0, 5)), _rate(rng, 0.1)


def _subscriber_restart(plan: Plan, rng: Random) -> None:
    plan.subscriber_crashes, plan.changes = rng.randint(1, 4), rng.choice((0, 3))
    plan.bus_duplicate = _rate(rng, 0.2)


def _new_topics(plan: Plan, rng: Random) -> None:
    plan.new_topics, plan.host_crashes = rng.randint(1, 4), rng.choice((0, 1, 2))


def _expiry(plan: Plan, rng: Random) -> None:
    plan.silences, plan.length, plan.gaps_allowed = rng.randint(1, 2), 9.0, True
    plan.events = rng.randint(60, 90)


def _all_silent(plan: Plan, rng: Random) -> None:
    """All subscribers are removed at once: from then on no stamp has the entries that would keep their order."""
    plan.hosts, plan.topics, plan.subscribers = rng.randint(1, 2), rng.randint(2, 3), 2
    plan.silences, plan.silence_all, plan.length, plan.gaps_allowed = 1, True, 9.0, True
    plan.events, plan.bus_spread, plan.chain_reorder = rng.randint(80, 120), 0.3, False


def _fencing(plan: Plan, rng: Random) -> None:
    plan.zombies = rng.randint(1, 2)


def _fencing_losses(plan: Plan, rng: Random) -> None:
    """Two holders of a rank, and events that must be asked for: the word of the former one does not count."""
    plan.zombies, plan.bus_loss, plan.durable_tickets = rng.randint(1, 2), 0.1 + 0.2 * rng.random(), False
    plan.hosts, plan.client_loss, plan.gaps_allowed = rng.randint(1, 3), _rate(rng, 0.2), True


def _fencing_unheard(plan: Plan, rng: Random) -> None:
    """Publishers stay with the former holder of a rank while others subscribe at the new one."""
    plan.zombies, plan.claim_delay, plan.arrival, plan.block, plan.apart = 2, 0.4, 1.5, 16, True
    plan.hosts, plan.durable_tickets, plan.gaps_allowed = rng.randint(1, 2), False, True
    plan.bus_loss, plan.subscriber_crashes = rng.choice((0.0, 0.2)), rng.choice((0, 0, 2))
    plan.subscribers, plan.events, plan.burst = rng.randint(4, 6), rng.randint(80, 120), False


def _fencing_orphans(plan: Plan, rng: Random) -> None:
    """Publishers that a former holder has served die before they hear of the new one, and the bus loses events."""
    _fencing_unheard(plan, rng)
    plan.orphans, plan.bus_loss, plan.subscriber_crashes = rng.randint(1, 4), 0.3, rng.choice((0, 0, 2))
    plan.changes = rng.choice((0, 4))


def _all_fenced(plan: Plan, rng: Random) -> None:
    """All hosts get a second holder at once, among many stamps under way: former ones must not link to new ones."""
    _chain(plan, rng)
    plan.hosts, plan.topics, plan.burst, plan.length = 2, rng.randint(2, 4), False, 1.0
    plan.zombies, plan.zombies_at_once, plan.durable_tickets = 1, True, False
    plan.events, plan.bus_spread, plan.chain_delay = rng.randint(100, 160), 0.3, 0.05


def _forged(plan: Plan, rng: Random) -> None:
    plan.forged, plan.changes = 0.1 + 0.2 * rng.random(), rng.choice((0, 3))


def _forgetful_directory(plan: Plan, rng: Random) -> None:
    """Several hosts restart at once beside a directory that has lost some of them for a while."""
    _restarts(plan, rng)
    plan.hosts, plan.forgetful, plan.host_crashes = rng.randint(3, 4), True, rng.randint(1, 3)


def _replaced_logs(plan: Plan, rng: Random) -> None:
    """Hosts lose their logs, come back with others and count from 1, some while the former holder still runs."""
    plan.hosts, plan.replaced_logs, plan.claim_delay = rng.randint(1, 4), rng.randint(1, 2), rng.choice((0.02, 0.3))
    plan.changes, plan.host_crashes = rng.choice((0, 3)), rng.choice((0, 0, 1))
    plan.subscriber_crashes, plan.events, plan.length = rng.choice((0, 0, 2)), rng.randint(30, 60), 2.0
    plan.gaps_allowed = True  # a former holder may have taken the subscriber in anew


def _replaced_unheard(plan: Plan, rng: Random) -> None:
    """A log is replaced among many events that are long under way, and some hear of it late."""
    plan.hosts, plan.topics, plan.subscribers, plan.batch = 2, rng.randint(2, 4), rng.randint(3, 4), 1
    plan.replaced_logs, plan.claim_delay, plan.bus_spread, plan.gaps_allowed = 1, 0.8, 0.3, True
    plan.events, plan.length, plan.chain_reorder = rng.randint(80, 120), 1.5, False


def _small_buffers(plan: Plan, rng: Random) -> None:
    """Subscribers have room for a few events only: what they drop must be asked for until it has its turn."""
    plan.capacity, plan.bus_loss, plan.gaps_allowed = rng.choice((6, 8, 16)), rng.choice((0.0, 0.1)), True
    plan.changes, plan.bus_spread, plan.settle = rng.choice((0, 3)), rng.choice((0.1, 0.25)), 20.0


def _overlapping_claims(plan: Plan, rng: Random) -> None:
    """Hosts claim the same topics, with other patterns in each life, and topics are created at run-time."""
    plan.hosts, plan.overlapping, plan.claim_delay = rng.randint(2, 4), True, rng.choice((0.02, 0.3, 0.6))
    plan.new_topics, plan.host_crashes, plan.changes = rng.randint(2, 5), rng.choice((0, 1, 3)), rng.choice((0, 4))
    plan.client_loss, plan.length = _rate(rng, 0.1), 2.0


_SHAPES = {
    "static": _static,
    "chain": _chain,
    "subscribe": _subscribe,
    "unsubscribe": _unsubscribe,
    "pairs": _pairs,
    "asked-again": _asked_again,
    "storm": _storm,
    "loss": _loss,
    "chain-loss": _chain_loss,
    "publisher-crash": _publisher_crash,
    "stall": _stall,
    "mute": _mute,
    "unbounded": _unbounded,
    "retention-ends": _retention_ends,
    "deadlines": _deadlines,
    "host-crash": _host_crash,
    "lost-tail": _lost_tail,
    "restarts": _restarts,
    "duplicates": _duplicates,
    "mixed": _mixed,
    "causal": _causal,
    "time-to-live": _time_to_live,
    "lost-events": _lost_events,
    "lost-owners": _lost_owners,
    "per-topic": _per_topic,
    "subscriber-restart": _subscriber_restart,
    "new-topics": _new_topics,
    "expiry": _expiry,
    "all-silent": _all_silent,
    "fencing": _fencing,
    "fencing-losses": _fencing_losses,
    "fencing-unheard": _fencing_unheard,
    "fencing-orphans": _fencing_orphans,
    "all-fenced": _all_fenced,
    "forged": _forged,
    "forgetful-directory": _forgetful_directory,
    "replaced-logs": _replaced_logs,
    "replaced-unheard": _replaced_unheard,
    "overlapping-claims": _overlapping_claims,
    "small-buffers": _small_buffers,
}
