"""The directed sweep: small configurations, every crash point, every message lost or late, one after the other.

Some bugs show once in a hundred thousand random runs. Here each configuration is run once undisturbed to count its
crash points and messages, and then once for every single disturbance, and for crashes combined with a late message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace

from txlayer.messages import NAMELESS, Access, Conditions, Item, Limit, Scope, Status, Terms, TxId, TxType, Visibility
from txlayer.simulation.history import CallSeen, History
from txlayer.simulation.plan import Plan
from txlayer.simulation.workload import TYPES, Taste
from txlayer.simulation.world import World

PLAIN = Taste(Scope.DISTRIBUTED, True, False, False, False, 1)
ALONE = replace(PLAIN, one_phase=True)
UNDOABLE = replace(PLAIN, compensatable=True)
EMPTY = replace(PLAIN, waits=False, resource=False)
HOOKED = replace(PLAIN, resource=False)
ANONYMOUS = replace(PLAIN, identity=False)
LOCAL = replace(PLAIN, scope=Scope.LOCAL)
DURABLE = replace(LOCAL, durable=True)
FOLLOWER = replace(PLAIN, scope=Scope.FOLLOWER)
BESIDE = replace(PLAIN, follows=True)
BESIDE_DURABLE = replace(DURABLE, follows=True)
NOBODY = replace(PLAIN, scope=Scope.NONE)
LISTENER = replace(PLAIN, scope=Scope.NON_TRANSACTIONAL)


@dataclass(frozen=True, slots=True)
class Configuration:
    """A small world: who takes part, where it is coordinated, under which terms."""

    name: str
    tastes: tuple[Taste, ...]
    terms: Terms
    coordinator: str = "s0"
    publisher: str = "s0"
    helpers: tuple[str, ...] = ()
    abort: bool = False
    refuser: str = ""
    refuser_again: str = ""
    finishers: bool = False
    abort_after_call: bool = False
    events: int = 2
    nameless: bool = False
    """The caller gives no key of its own, so none is remembered."""

    def plan(self) -> Plan:
        """Two transactions, one after the other."""
        plan = Plan(sites=len(self.tastes), span=4.0, heal_for=200.0, refuser=self.refuser)
        plan.refuser_again = self.refuser_again
        plan.finishers = self.finishers
        plan.abort_after_call = float(self.abort_after_call)
        for number, taste in enumerate(self.tastes):
            for event_type in TYPES:
                plan.tastes[f"s{number}", event_type] = taste
        for number in range(2):
            key = f"{NAMELESS if self.nameless else ''}t{number}"
            call = CallSeen(key, self.publisher, self.coordinator, self.terms)
            items = [Item("orders", f"{key}.{event}".encode(), (("call", key),)) for event in range(self.events)]
            plan.scripts.append((0.1 + 0.3 * number, call, items, self.abort and number == 0, self.helpers))
        return plan


def terms_with(**changes: object) -> Terms:
    """Terms of a small world, with short deadlines."""
    base: dict[str, object] = {"census_within": 1.0, "vote_within": 1.0, "complete_within": 4.0}
    return Terms("orders", **{**base, **changes})  # type: ignore[arg-type]


AT_LEAST_ONE = Conditions(at_least=1)
CONFIGURATIONS = (
    Configuration("two phases", (PLAIN, PLAIN, PLAIN), terms_with(limit=Limit.DISTRIBUTED)),
    Configuration("settle for one", (NOBODY, ANONYMOUS, PLAIN), terms_with(settle_for=AT_LEAST_ONE)),
    Configuration("one shot", (PLAIN, PLAIN, ANONYMOUS), terms_with(one_shot=True, settle_for=AT_LEAST_ONE)),
    Configuration("one shot, hosted", (NOBODY, PLAIN, PLAIN), terms_with(one_shot=True), coordinator="s1"),
    Configuration(
        "one shot, hosted, no key", (NOBODY, PLAIN, PLAIN), terms_with(one_shot=True), coordinator="s1", nameless=True
    ),
    Configuration("one phase", (NOBODY, ALONE, NOBODY), terms_with(limit=Limit.DISTRIBUTED)),
    Configuration("one phase at home", (ALONE, NOBODY, NOBODY), terms_with(), coordinator="s1"),
    Configuration("one phase, refused", (NOBODY, ALONE, NOBODY), terms_with(limit=Limit.DISTRIBUTED), refuser="s1"),
    Configuration("one shot, refused", (NOBODY, PLAIN, UNDOABLE), terms_with(one_shot=True), refuser="s1"),
    Configuration("settle for two, refused", (PLAIN, PLAIN, PLAIN), terms_with(settle_for=Conditions(2)), refuser="s1"),
    Configuration("two phases, nothing kept", (PLAIN, EMPTY, EMPTY), terms_with(limit=Limit.DISTRIBUTED)),
    Configuration("one shot, nothing kept", (NOBODY, EMPTY, EMPTY), terms_with(one_shot=True)),
    Configuration(
        "one shot, nothing kept, settle for one",
        (EMPTY, EMPTY, replace(EMPTY, identity=False)),
        terms_with(one_shot=True, settle_for=AT_LEAST_ONE),
        coordinator="s1",
        refuser="s2",
    ),
    Configuration(
        "one shot, nothing kept, refused by the next life",
        (NOBODY, EMPTY, EMPTY),
        terms_with(one_shot=True),
        refuser_again="s2",
        events=1,
    ),
    Configuration(
        "one phase, nothing kept",
        (NOBODY, replace(EMPTY, one_phase=True), NOBODY),
        terms_with(limit=Limit.DISTRIBUTED),
    ),
    Configuration("two phases, no resource", (PLAIN, HOOKED, HOOKED), terms_with(limit=Limit.DISTRIBUTED)),
    Configuration("one shot, no resource", (NOBODY, HOOKED, HOOKED), terms_with(one_shot=True)),
    Configuration("one phase, no resource", (NOBODY, replace(HOOKED, one_phase=True), NOBODY), terms_with()),
    Configuration("compensation", (PLAIN, UNDOABLE, UNDOABLE), terms_with(), abort=True),
    Configuration("one shot, compensation", (NOBODY, UNDOABLE, PLAIN), terms_with(one_shot=True, require=AT_LEAST_ONE)),
    Configuration("follower", (PLAIN, PLAIN, FOLLOWER, FOLLOWER), terms_with()),
    Configuration("follower beside a member", (PLAIN, BESIDE, BESIDE), terms_with()),
    Configuration(
        "follower beside a member, refused", (PLAIN, BESIDE, PLAIN), terms_with(settle_for=AT_LEAST_ONE), refuser="s1"
    ),
    Configuration("follower beside a durable local", (NOBODY, PLAIN, BESIDE_DURABLE), terms_with(one_shot=True)),
    Configuration("durable local", (PLAIN, PLAIN, DURABLE), terms_with()),
    Configuration("durable local, one shot", (NOBODY, PLAIN, DURABLE), terms_with(one_shot=True)),
    Configuration("local by chance", (PLAIN, LOCAL, PLAIN), terms_with(), abort=True),
    Configuration("local by chance, refused", (NOBODY, LOCAL, PLAIN), terms_with(), refuser="s2"),
    Configuration("purely local", (LOCAL, LOCAL, DURABLE), terms_with(tx_type=TxType.LOCAL)),
    Configuration("purely local, one shot", (LOCAL, LOCAL, LISTENER), terms_with(tx_type=TxType.LOCAL, one_shot=True)),
    Configuration("hosted", (NOBODY, NOBODY, PLAIN), terms_with(), coordinator="s1"),
    Configuration("public on commit", (NOBODY, PLAIN, NOBODY), terms_with(visibility=Visibility.PUBLIC_ON_COMMIT)),
    Configuration("finisher", (NOBODY, ANONYMOUS, PLAIN), terms_with(limit=Limit.DISTRIBUTED), finishers=True),
    Configuration("finisher, one shot", (PLAIN, PLAIN, FOLLOWER), terms_with(one_shot=True), finishers=True),
    Configuration("finisher, compensation", (PLAIN, UNDOABLE, ANONYMOUS), terms_with(), finishers=True),
    Configuration(
        "one phase, aborted after the call",
        (NOBODY, NOBODY, ALONE),
        terms_with(limit=Limit.DISTRIBUTED),
        "s1",
        abort_after_call=True,
    ),
    Configuration(
        "local by chance, aborted after the call",
        (NOBODY, NOBODY, PLAIN, LOCAL),
        terms_with(),
        "s1",
        abort_after_call=True,
    ),
    Configuration(
        "hosted, two publishers", (NOBODY, PLAIN, PLAIN), terms_with(access=Access.MULTI), "s1", "s0", ("s2",)
    ),
)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What goes wrong in one run: a crash at a point, a message lost, a message late."""

    crash: tuple[str, int] | None = None
    drop: int | None = None
    late: int | None = None
    restart_after: float = 1.0
    sync_seconds: float = 0.0
    replay: bool = False
    wipe: bool = False


def run_one(configuration: Configuration, disturbance: Disturbance, seed: int = 0) -> World:
    """One run with one disturbance."""
    plan = deepcopy(configuration.plan())
    plan.crash, plan.drop, plan.late = disturbance.crash or ("", 0), disturbance.drop, disturbance.late
    plan.restart_after, plan.sync_seconds = disturbance.restart_after, disturbance.sync_seconds
    plan.replay, plan.wipe = disturbance.replay, disturbance.wipe
    world = World(seed, plan)
    world.run()
    if disturbance.crash is None and disturbance.late is None:
        resilience_checker(world, configuration, disturbance)
    if configuration.finishers and disturbance.restart_after >= 8.0:
        finisher_checker(world)
    return world


def finisher_checker(world: World) -> None:
    """With a finisher nobody waits for a dead coordinator: when it comes back, no member has prepared work of it."""
    for site, tx in world.history.blocked:
        world.history.violation(f"{site} waited with prepared work for the coordinator of {tx}")


def resilience_checker(world: World, configuration: Configuration, disturbance: Disturbance) -> None:
    """One lost message costs time, not the transaction, and not what a local member that is there was called to do."""
    for script in world.scripts.values():
        committed = any(outcome.status is Status.COMMITTED for outcome in script.call.outcomes)
        excused = script.abort or configuration.refuser or configuration.abort_after_call
        if not committed and not excused:
            world.history.violation(f"one lost message aborted {script.call.key}")
        _check_locals(world, configuration, [o.tx for o in script.call.outcomes if o.called])


def _check_locals(world: World, configuration: Configuration, called: list[TxId | None]) -> None:
    """Those that are there by chance: a durable one is owed what is called once it has registered, see the checkers."""
    applied = {(applied.site, applied.tx) for applied in world.history.applied}
    for number, taste in enumerate(configuration.tastes):
        for tx in called:
            there = tx is not None and (f"s{number}", tx) in world.history.scopes
            if taste.scope is Scope.LOCAL and not taste.durable and there and (f"s{number}", tx) not in applied:
                world.history.violation(f"local member s{number} did not do what was called: {tx}")


def disturbances(configuration: Configuration, pairs: int = 1) -> Iterator[Disturbance]:
    """Every single disturbance of a configuration; then every `pairs`-th combination of a crash and a message."""
    quiet = run_one(configuration, Disturbance())
    yield Disturbance()
    points = [(site, k) for site, count in sorted(quiet.points().items()) for k in range(1, count + 1)]
    messages = range(1, quiet.network.carried + 1)
    for point in points:
        yield Disturbance(crash=point)
        yield Disturbance(crash=point, restart_after=0.1)
        yield Disturbance(crash=point, sync_seconds=0.9)
        if configuration.finishers:
            yield Disturbance(crash=point, restart_after=8.0)
        yield Disturbance(crash=point, restart_after=0.1, replay=True)
        if point[0] == configuration.coordinator:
            yield Disturbance(crash=point, wipe=True)
    for message in messages:
        yield Disturbance(drop=message)
        yield Disturbance(late=message)
    combined = [(point, message) for point in points for message in messages]
    for number, (point, message) in enumerate(combined):
        if number % pairs == pairs - 1:
            late = number % 2 == 0
            yield Disturbance(point, None if late else message, message if late else None)


def sweep(
    pairs: int,
    found: Callable[[Configuration, Disturbance, History], bool],
    configurations: tuple[Configuration, ...] = CONFIGURATIONS,
) -> int:
    """Run the sweep until `found` says stop; how many runs there were."""
    runs = 0
    for configuration in configurations:
        for number, disturbance in enumerate(disturbances(configuration, pairs)):
            runs += 1
            history = run_one(configuration, disturbance, number).history
            if history.violations and found(configuration, disturbance, history):
                return runs
    return runs


def sweep_number(work: tuple[int, int]) -> tuple[int, list[str]]:
    """One configuration, as numbers: how many runs, and what was violated."""
    number, pairs = work
    evidence: list[str] = []

    def found(configuration: Configuration, disturbance: Disturbance, history: History) -> bool:
        evidence.append(f"{configuration.name}: {disturbance}: {history.violations[0]}")
        return len(evidence) >= 10

    return sweep(pairs or 10**9, found, (CONFIGURATIONS[number],)), evidence
