"""The invariants, computed from what was seen at the edges: resources, handlers, callers, the wire."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from txlayer.messages import Access, ChainKind, Conditions, Outcome, Scope, Status, TxId, TxType, Visibility
from txlayer.simulation.history import Applied, CallSeen, History
from txlayer.transactions.scope import has_locals

if TYPE_CHECKING:
    from txlayer.simulation.world import World


def check(world: World) -> None:
    """Run every checker."""
    history = world.history
    history.applied += _without_resource(history)
    decision_checker(history)
    outcome_checker(history)
    applied_checker(world)
    sequence_checker(history)
    privacy_checker(world)
    constraint_checker(history)
    local_checker(world)
    follower_checker(world)
    duplicate_checker(history)
    visibility_checker(history)
    liveness_checker(world)


def _without_resource(history: History) -> list[Applied]:
    """What members without a resource had handled before a commit that names them counts as applied."""
    commits = {tx: (final, at) for tx, seen in history.decisions.items() for (yes, final), at in seen.items() if yes}
    nobody: tuple[tuple[str, ...], float] = ((), 0.0)
    applied = [Applied(site, tx, one.at, one.most) for (site, tx), one in history.handled.items()]
    return [a for a in applied if a.site in commits.get(a.tx, nobody)[0] and a.at <= commits[a.tx][1]]


def lost_log_checker(world: World) -> None:
    """A coordinator lost its log: nobody is told a second decision, and prepared work waits for an operator."""
    history = world.history
    history.applied += _without_resource(history)
    decision_checker(history)
    for tx in history.decisions:
        for site in _final(history, tx) or ():
            applied = any(a.site == site and a.tx == tx for a in history.applied)
            if not applied and tx not in world.nodes[site].resource.prepared:
                history.violation(f"prepared work was given up without a decision: {tx} at {site}")


def decision_checker(history: History) -> None:
    """One decision: a value and a final list for each transaction, for ever."""
    for tx, seen in history.decisions.items():
        commits = [final for commit, final in seen if commit]
        if len(commits) > 1:
            history.violation(f"two final lists: {tx} {commits}")
        if commits and any(not commit for commit, _ in seen) and not _told_after_forgetting(history, tx):
            history.violation(f"two decisions: {tx}")


def _told_after_forgetting(history: History, tx: TxId) -> bool:
    """A late question about a forgotten commit is answered with an abort that everyone ignores: all had applied."""
    commit_list = next(final for commit, final in history.decisions[tx] if commit)
    aborted_at = next(at for (commit, _), at in history.decisions[tx].items() if not commit)
    applied = {a.site: a.at for a in history.applied if a.tx == tx}
    return all(site in applied and applied[site] <= aborted_at for site in commit_list)


def outcome_checker(history: History) -> None:
    """What callers are told is what was decided, every time they are told, by id and by key."""
    for call in history.calls.values():
        for number, (outcome, at) in enumerate(zip(call.outcomes, call.told_at, strict=True)):
            _check_told(history, call, outcome, at)
            if outcome.status is Status.FINISHED and not call.outcomes[:number]:
                history.violation(f"forgotten before its caller was told: {outcome.tx} of {call.key}")
    for outcome in history.told_later:
        call_of = history.by_tx.get(outcome.tx) if outcome.tx is not None else None
        if call_of is None:
            history.violation(f"a question by id was not answered by id: {outcome}")
        else:
            _check_told(history, call_of, outcome)


def _check_told(history: History, call: CallSeen, outcome: Outcome, at: float = math.inf) -> None:
    """No log is lost and no outcome retired in these worlds: nobody may be told that nothing is known of an id.

    Of a key it may be said as long as nothing has committed under it: which keys committed and were confirmed, a
    coordinator does not remember over a crash.
    """
    committed = _committed(history, call, outcome.tx, math.inf if outcome.tx is not None else at)
    what = f"{outcome.tx} under {call.key}"
    excused = outcome.tx is None and call.coordinator in history.crashed and not _committed(history, call, None, at)
    if outcome.status is Status.UNKNOWN and not excused:
        history.violation(f"told unknown: {what}")
    if outcome.status is Status.COMMITTED and not committed and call.terms.tx_type is TxType.DISTRIBUTED:
        history.violation(f"told committed, was not: {what}")
    called = call.called_at is not None and has_locals(call.terms)
    if outcome.status is Status.FINISHED and not committed and not called:
        history.violation(f"told finished, took no effect anywhere: {what}")
    later = outcome.tx is None and any(_final(history, tx) is not None for tx in _tries(history, call))
    if outcome.status in (Status.ABORTED, Status.REFUSED) and (committed or later):
        history.violation(f"told {outcome.status.value}, was committed: {what}")
    if outcome.status is Status.COMMITTED and not outcome.called and has_locals(call.terms):
        history.violation(f"committed without a call: {what}")


def _committed(history: History, call: CallSeen, tx: TxId | None, before: float = math.inf) -> bool:
    """Whether this transaction committed; of an answer that names none, whether any under the key of the call did."""
    tried = [one for one, of in history.by_tx.items() if of.key == call.key] if tx is None else [tx]
    seen = [(commit, at) for one in tried for (commit, _), at in history.decisions.get(one, {}).items()]
    return any(commit and at <= before for commit, at in seen)


def _tries(history: History, call: CallSeen) -> list[TxId]:
    """The transactions of this very call; tried again, it is another call under the same key."""
    return [tx for tx, of in history.by_tx.items() if of is call]


def applied_checker(world: World) -> None:
    """Every distributed member ends as the decision says; everything undone is undone in reverse."""
    history = world.history
    net: dict[tuple[str, TxId], list[Applied]] = {}
    for applied in history.applied:
        net.setdefault((applied.site, applied.tx), []).append(applied)
        if applied.undone is not None and applied.undone != tuple(reversed(applied.values)):
            history.violation(f"not undone in reverse: {applied.tx} at {applied.site}")
    for (site, tx), several in net.items():
        if len(several) > 1:
            history.violation(f"applied twice: {tx} at {site}")
        final = _final(history, tx)
        stands = any(applied.undone is None for applied in several)
        if _scope(world, site, tx) is not Scope.DISTRIBUTED or (site, tx) in history.parked:
            continue
        if stands and (final is None or site not in final):
            history.violation(f"applied although not committed there: {tx} at {site}")
        if stands and site not in history.joined.get(tx, {}):
            history.violation(f"applied by no member: {tx} at {site}")
        if not stands and final is not None and site in final:
            history.violation(f"undone although committed: {tx} at {site}")
    for tx in history.decisions:
        for site in _final(history, tx) or ():
            if (site, tx) not in net:
                history.violation(f"committed but never applied: {tx} at {site}")


def sequence_checker(history: History) -> None:
    """Same events, same order, no gap, and nothing lost that its publisher handed over before it called."""
    by_tx: dict[TxId, tuple[str, ...]] = {}
    for applied in [*history.applied, *history.followed]:
        known = by_tx.setdefault(applied.tx, applied.values)
        if known != applied.values:
            history.violation(f"different events: {applied.tx} {known} / {applied.values} at {applied.site}")
    for tx, values in by_tx.items():
        call = history.by_tx.get(tx)
        numbers = [int(value.split(":")[0]) for value in values]
        if numbers != list(range(1, len(values) + 1)):
            history.violation(f"a gap: {tx} {values}")
        if call is None:
            continue
        own = [value.split(":", 2)[2] for value in values if value.split(":")[1] == call.publisher]
        mine = [payload for payload in own if payload.startswith(f"{call.key}.")]
        published = [item.payload.decode() for item in call.published]
        if call.called_by_another:
            published = published[: len(mine)]
        if (call.tx in (None, tx) or call.terms.one_shot) and mine != published:
            history.violation(f"lost events: {tx} applied {mine}, published {published}")
        _check_others(history, call, tx, values)


def _check_others(history: History, call: CallSeen, tx: TxId, values: tuple[str, ...]) -> None:
    for value in values:
        _, site, payload = value.split(":", 2)
        if payload.startswith(f"{call.key}."):
            continue
        several = call.terms.access is Access.MULTI
        allowed = several and (not call.terms.publishers or site in call.terms.publishers)
        known = any(s == site and i.payload.decode() == payload for s, i in history.other_published.get(tx, []))
        if not allowed or not known:
            history.violation(f"an event of nobody who may publish: {tx} {value}")


def privacy_checker(world: World) -> None:
    """A subscriber that asked to be a member and is not on the list is given no event."""
    history = world.history
    for site, tx in history.delivered:
        begun = history.begun.get(tx)
        if begun is not None and site not in begun and _scope(world, site, tx) is Scope.DISTRIBUTED:
            history.violation(f"an event was delivered to no member: {tx} at {site}")


def constraint_checker(history: History) -> None:
    """A commit satisfies its constraints; without `settle_for` it has every member of the list."""
    for tx in history.decisions:
        final = _final(history, tx)
        call = history.by_tx.get(tx)
        if final is None or call is None:
            continue
        require, settle, begun = call.terms.require, call.terms.settle_for, history.begun.get(tx)
        if broken := _broken(settle or require, final):
            history.violation(f"constraint broken: {tx} committed with {final}, {broken}")
        if begun is not None and (broken := _broken(require, begun)):
            history.violation(f"constraint broken: {tx} began with {begun}, {broken}")
        if begun is not None and not set(final) <= set(begun):
            history.violation(f"not on the list: {tx} {final} of {begun}")
        if begun is not None and settle is None and set(final) != set(begun):
            history.violation(f"a member was left out: {tx} {final} of {begun}")


def _broken(conditions: Conditions, members: tuple[str, ...]) -> str:
    if len(members) < conditions.at_least:
        return f"at least {conditions.at_least} asked"
    if conditions.at_most is not None and len(members) > conditions.at_most:
        return f"at most {conditions.at_most} asked"
    if not set(conditions.named) <= set(members):
        return f"without {conditions.named}"
    if conditions.only and not set(members) <= set(conditions.only):
        return f"only {conditions.only} allowed"
    return ""


def local_checker(world: World) -> None:
    """A local member applies only what was called; a durable one everything that was called since it registered."""
    history = world.history
    for applied in history.applied:
        call = history.by_tx.get(applied.tx)
        if call is None or _scope(world, applied.site, applied.tx) is not Scope.LOCAL:
            continue
        if call.called_at is None or call.called_at > applied.at:
            history.violation(f"local member applied without a call: {applied.tx} at {applied.site}")
    for (site, coordinator, kind), since in history.registered.items():
        if kind != ChainKind.CALLS.value:
            continue
        for call in history.calls.values():
            for outcome in call.outcomes:
                told = outcome.tx is not None and outcome.called and outcome.tx.coordinator == coordinator
                if told and _reads(world, site, call, ChainKind.CALLS) and _called_since(call, since):
                    _must_have(history.applied, history, site, outcome.tx, "durable local member")


def follower_checker(world: World) -> None:
    """A follower applies exactly what was committed since it registered, in the one order of its coordinator."""
    history = world.history
    orders: dict[str, list[tuple[str, list[TxId]]]] = {}
    for (site, coordinator, kind), since in history.registered.items():
        if kind != ChainKind.COMMITS.value:
            continue
        mine = [a.tx for a in history.followed if a.site == site and a.tx.coordinator == coordinator]
        if len(set(mine)) != len(mine):
            history.violation(f"follower {site} applied twice: {mine}")
        orders.setdefault(coordinator, []).append((site, mine))
        for tx in mine:
            if _final(history, tx) is None:
                history.violation(f"follower applied what was not committed: {tx} at {site}")
        for tx in history.decisions:
            call = history.by_tx.get(tx)
            if tx.coordinator != coordinator or call is None or _final(history, tx) is None:
                continue
            if _reads(world, site, call, ChainKind.COMMITS) and _called_since(call, since):
                _must_have(history.followed, history, site, tx, "follower")
    for several in orders.values():
        _check_order(history, several)


def _check_order(history: History, several: list[tuple[str, list[TxId]]]) -> None:
    for site, mine in several:
        for other, theirs in several:
            common = [tx for tx in mine if tx in theirs]
            if site < other and common != [tx for tx in theirs if tx in mine]:
                history.violation(f"followers {site} and {other} disagree on the order")


def _must_have(applied: list[Applied], history: History, site: str, tx: TxId | None, what: str) -> None:
    if not any(a.site == site and a.tx == tx for a in applied):
        history.violation(f"{what} {site} missed {tx}")


def _called_since(call: CallSeen, since: float) -> bool:
    return call.called_at is not None and call.called_at > since


def _reads(world: World, site: str, call: CallSeen, kind: ChainKind) -> bool:
    if not has_locals(call.terms):
        return False
    taste = world.plan.tastes[site, call.terms.type]
    return kind in taste.chains()


def visibility_checker(history: History) -> None:
    """The world outside sees nothing of a private transaction, and what it is to see on commit only then, and all."""
    for tx, call in history.by_tx.items():
        public, final = history.public.get(tx, {}), _final(history, tx)
        local = call.terms.tx_type is TxType.LOCAL
        if call.terms.visibility is Visibility.PRIVATE and public:
            history.violation(f"events of a private transaction were published: {tx}")
        if call.terms.visibility is Visibility.PUBLIC_ON_COMMIT and public and not local and final is None:
            history.violation(f"published on commit without a commit: {tx}")
        applied = next((a.values for a in [*history.applied, *history.followed] if a.tx == tx), ())
        if call.terms.visibility is Visibility.PRIVATE or final is None or not final or not applied:
            continue
        kinds = {item.payload.decode(): item.type for item in call.published}
        own = {int(v.split(":")[0]) for v in applied if kinds.get(v.split(":", 2)[2]) == call.terms.type}
        if not own <= set(public):
            history.violation(f"committed, and never published outside: {tx} {sorted(own - set(public))}")


def duplicate_checker(history: History) -> None:
    """No event of one caller counts twice at a site, under whatever transaction it was tried."""
    for several in (history.applied, history.followed):
        counts: dict[tuple[str, str], int] = {}
        for applied in several:
            if applied.undone is None and (applied.site, applied.tx) not in history.parked:
                for value in applied.values:
                    where = (applied.site, value.split(":", 2)[2])
                    counts[where] = counts.get(where, 0) + 1
        for (site, payload), count in counts.items():
            if count > 1:
                history.violation(f"{payload} counts {count} times at {site}")
    if len(set(history.notified)) != len(history.notified) and history.crashes == 0:
        history.violation("a listener was notified twice without a crash")


def liveness_checker(world: World) -> None:
    """After the faults stop everything comes to rest: every call answered, nothing prepared, open or held."""
    history = world.history
    for script in world.scripts.values():
        if not script.call.done:
            history.violation(f"never answered: call {script.call.key} of {script.call.publisher}")
    for node in world.nodes.values():
        for left in world.unfinished(node):
            history.violation(f"not at rest: {node.name} {left}")


def _final(history: History, tx: TxId) -> tuple[str, ...] | None:
    return next((final for commit, final in history.decisions.get(tx, {}) if commit), None)


def _scope(world: World, site: str, tx: TxId) -> Scope:
    call = world.history.by_tx.get(tx)
    if call is not None and world.plan.tastes[site, call.terms.type].reads() is not None:
        return world.plan.tastes[site, call.terms.type].scope
    return world.history.scopes.get((site, tx), Scope.NONE)
