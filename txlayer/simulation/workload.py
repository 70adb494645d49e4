"""What the applications of a world want: drawn from its seed, and lived through by one script per transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from txlayer.effects import (
    AbortCall,
    AskCall,
    BeginCall,
    CommitCall,
    ConfirmCall,
    JoinCall,
    Opened,
    PublishCall,
    Resolve,
    ScopeChosen,
    Surface,
    WaitLonger,
)
from txlayer.messages import (
    Access,
    ChainKind,
    Conditions,
    Item,
    Limit,
    Outcome,
    Scope,
    Status,
    Terms,
    TxId,
    TxType,
    Visibility,
)
from txlayer.simulation.history import CallSeen
from txlayer.transactions.scope import chain_for, one_shot_allowed

if TYPE_CHECKING:
    from txlayer.simulation.world import World

TYPES = ("orders", "stock")
LATER = "?"
"""At the end of the name of a call that asks about a transaction which is over."""
OUTCOMES = (Status.COMMITTED, Status.ABORTED, Status.REFUSED)


@dataclass(frozen=True, slots=True)
class Taste:
    """How the application of one site likes to take part in transactions of one type."""

    scope: Scope
    identity: bool
    compensatable: bool
    one_phase: bool
    durable: bool
    attempts: int
    follows: bool = False
    """Another subscriber of the site follows, beside this one."""
    waits: bool = True
    """A resource, or code of its own, waits for the decision."""
    resource: bool = True

    def reads(self) -> ChainKind | None:
        """Which chain brings transactions to such a subscriber."""
        return chain_for(self.scope, self.durable)

    def chains(self) -> tuple[ChainKind, ...]:
        """Which chains such a site reads."""
        beside = ChainKind.COMMITS if self.follows else None
        return tuple(kind for kind in ChainKind if kind in (self.reads(), beside))

    def answer(self, tx_type: TxType) -> Scope:
        """Its answer to a census; in a local transaction nobody can be distributed or follow."""
        if tx_type is TxType.LOCAL and self.scope in (Scope.DISTRIBUTED, Scope.FOLLOWER):
            return Scope.LOCAL if self.scope is Scope.DISTRIBUTED else Scope.NONE
        return self.scope

    def votes_by_name(self) -> bool:
        """Whether a condition can name such a site."""
        return self.scope is Scope.DISTRIBUTED and self.identity

    def choose(self, tx: TxId, tx_type: TxType) -> ScopeChosen:
        """The answer of its site."""
        scope = Scope.NONE if self.reads() is not None else self.answer(tx_type)
        chains = tuple(kind for kind in self.chains() if kind is ChainKind.CALLS or tx_type is TxType.DISTRIBUTED)
        return ScopeChosen(
            tx, scope, self.identity, self.compensatable, self.one_phase, self.attempts, reads=chains, waits=self.waits,
            resource=self.resource,
        )  # fmt: skip


def draw_taste(rng: Random) -> Taste:
    """One of many."""
    draw = rng.random()
    scope = Scope.DISTRIBUTED
    durable = False
    if draw > 0.58:
        scope = rng.choice([Scope.LOCAL, Scope.LOCAL, Scope.FOLLOWER, Scope.NON_TRANSACTIONAL, Scope.NONE])
        durable = scope is Scope.LOCAL and rng.random() < 0.5
    compensatable = rng.random() < 0.25
    resource = scope is not Scope.DISTRIBUTED or compensatable or rng.random() < 0.7
    waits = resource or rng.random() < 0.4
    identity, one_phase, attempts = rng.random() < 0.5, rng.random() < 0.7, rng.choice([1, 1, 2])
    return Taste(scope, identity, compensatable, one_phase, durable, attempts, waits=waits, resource=resource)


def draw_terms(rng: Random, sites: list[str], members: dict[str, list[str]]) -> Terms:
    """Terms that are legal, and not impossible to meet. `members`: who votes under its own name, for each type."""
    event_type = rng.choice(TYPES)
    tx_type = TxType.LOCAL if rng.random() < 0.12 else TxType.DISTRIBUTED
    limits = [Limit.NONE, Limit.LOCAL] + ([Limit.DISTRIBUTED] if tx_type is TxType.DISTRIBUTED else [])
    limit = rng.choice(limits)
    require, settle_for = Conditions(), None
    if tx_type is TxType.DISTRIBUTED:
        require, settle_for = _draw_conditions(rng, sites, members[event_type], limit)
    multi = rng.random() < 0.2
    terms = Terms(
        event_type, (), tx_type, Access.MULTI if multi else Access.SINGLE, limit, rng.choice(list(Visibility)),
        require, settle_for, False, 1.0, 2.0, 15.0, rng.choice([1, 8, 8]),
        tuple(rng.sample(sites, 2)) if multi and rng.random() < 0.4 else (),
        tuple(rng.sample(sites, 2)) if multi and rng.random() < 0.5 else (),
    )  # fmt: skip
    shot = not multi and one_shot_allowed(terms) and rng.random() < 0.35
    return replace(terms, one_shot=True) if shot else terms


def _draw_conditions(
    rng: Random, sites: list[str], members: list[str], limit: Limit
) -> tuple[Conditions, Conditions | None]:
    least, most = rng.choice([0, 0, 1, 1, 2]), rng.choice([None, None, None, 1, 3])
    if most is not None and most < least:
        least, most = 1, None
    named = (rng.choice(members),) if members and rng.random() < 0.2 else ()
    require = Conditions(least, most, named)
    if limit is Limit.DISTRIBUTED and rng.random() < 0.3:
        require = Conditions(1, None, (), tuple(sites))
    elif members and rng.random() < 0.1:
        chosen = tuple(rng.sample(members, rng.choice(range(1, len(members) + 1))))
        require = Conditions(1, None, chosen[:1] if named else (), chosen)
    settle_for = None
    if rng.random() < 0.35:
        settle_for = Conditions(rng.choice([1, 1, 2]), named=require.named if rng.random() < 0.5 else ())
    return require, settle_for


@dataclass(slots=True)
class Script:
    """One caller and its transaction, from begin to confirmed, across crashes of the caller's site."""

    world: World
    call: CallSeen
    items: list[Item]
    abort: bool
    seconds: tuple[str, ...] = ()
    tx: TxId | None = None
    started: bool = False
    published: int = 0
    life: int = 0
    helpers: list[str] = field(default_factory=list)
    again: bool = False

    @property
    def site(self) -> str:
        """Where the caller lives."""
        return self.call.publisher

    def begin(self) -> None:
        """Open the transaction, or try again later if the site is down."""
        if not self.world.node(self.site).up:
            self._later(1.0, self.begin)
            return
        self.started = True
        self.world.history.current[self.call.key] = self.call
        self.life = self.world.node(self.site).last_life
        terms = self.call.terms
        items = tuple(self.items) if terms.one_shot else ()
        if terms.one_shot:
            self.call.published = list(self.items)
            self._called()
        self.world.node(self.site).take(BeginCall(self.call.key, terms, self.call.coordinator, items))

    def on_opened(self, effect: Opened) -> None:
        """Open for events."""
        self.tx = self.call.tx = effect.tx
        self.world.history.by_tx[effect.tx] = self.call
        self.published = 0
        self.call.published = []
        self._later(0.002, self._go_on)
        for number, site in enumerate(self.seconds):
            self.helpers.append(f"{self.call.key}/{number}")
            self._later(0.001, partial(self._help, site, f"{self.call.key}/{number}"))

    def _go_on(self) -> None:
        node = self.world.node(self.site)
        if not node.up or node.last_life != self.life or self.call.done or self.tx is None or self.call.outcomes:
            return
        if self.published < len(self.items):
            item = self.items[self.published]
            self.published += 1
            self.call.published.append(item)
            node.take(PublishCall(self.call.key, item))
            self._later(self.world.rng.choice([0.0, 0.002, 0.05, 0.5]), self._go_on)
        elif self.abort:
            self.call.withdrawn_at = self.world.clock.now
            node.take(AbortCall(self.call.key, "changed its mind"))
        else:
            self._called()
            node.take(CommitCall(self.call.key))
            rate = self.world.plan.abort_after_call
            if rate and self.world.rng.random() < rate:
                self._later(self.world.rng.choice([0.0, 0.001, 0.003, 0.01, 0.5]), self._abort_late)

    def _called(self) -> None:
        """The first call counts, whoever makes it."""
        if self.call.called_at is None:
            self.call.called_at = self.world.clock.now

    def _abort_late(self) -> None:
        """Too late for local members, perhaps in time for the others."""
        node = self.world.node(self.site)
        if node.up and node.last_life == self.life and not self.call.outcomes:
            node.take(AbortCall(self.call.key, "changed its mind after the call"))

    def _help(self, site: str, call: str) -> None:
        """A second publisher, or a stranger who may not publish."""
        node = self.world.node(site)
        if not node.up or self.tx is None:
            return
        node.take(JoinCall(call, self.tx))
        for number in range(2):
            item = Item(self.call.terms.type, f"{call}.{number}".encode())
            self.world.history.other_published.setdefault(self.tx, []).append((site, item))
            node.take(PublishCall(call, item))
        draw = self.world.rng.random()
        if draw < 0.2:
            if self.call.terms.access is Access.MULTI and site in self.call.terms.committers:
                self.call.called_by_another = True
                self._called()
            node.take(CommitCall(call))
        elif draw < 0.25:
            node.take(AbortCall(call, "of a second publisher"))

    def on_surface(self, effect: Surface) -> None:
        """Votes are missing, or the distributed part is gone."""
        if effect.what != "votes missing":
            return
        if self.world.rng.random() < 0.5:
            self.world.node(self.site).take(WaitLonger(self.call.key, 2.0))
        else:
            self.world.node(self.site).take(AbortCall(self.call.key, "votes are missing"))

    def on_resolved(self, outcome: Outcome) -> None:
        """The outcome, or that it is pending."""
        if outcome.status is Status.PENDING or self.call.done:
            return
        self.call.outcomes.append(outcome)
        self.call.told_at.append(self.world.clock.now)
        if outcome.tx is not None:
            self.world.history.by_tx.setdefault(outcome.tx, self.call)
            self.call.attempts.append(outcome.tx)
        self._later(self.world.rng.choice([0.0, 0.01, 1.0]), self._confirm)

    def _confirm(self) -> None:
        node = self.world.node(self.site)
        if node.up and self.call.key in (node.participant.publishers if node.participant else {}):
            node.take(ConfirmCall(self.call.key))
            self.call.done = True
            self._try_again(self.call.outcomes[-1])

    def _try_again(self, outcome: Outcome) -> None:
        """What came to nothing is sometimes tried once more under the same key: for the checkers that is a new call."""
        nothing = outcome.tx is not None and outcome.status in (Status.ABORTED, Status.REFUSED) and not outcome.called
        if not nothing or self.again or self.abort or self.world.rng.random() >= self.world.plan.try_again:
            return
        call = self.call
        anew = CallSeen(call.key, call.publisher, call.coordinator, call.terms)
        self.world.history.calls[f"{call.key} again"] = anew
        items = [replace(item, headers=(("call", f"{call.key} again"),)) for item in self.items]
        script = self.world.scripts[call.key] = Script(self.world, anew, items, abort=False, again=True)
        self._later(self.world.rng.choice([0.0, 0.01, 1.0]), script.begin)

    def on_restart(self) -> None:
        """The caller's site came back: ask by key or by id, or simply do it again under the same key."""
        node = self.world.node(self.site)
        if self.call.done or not self.started or not node.up or node.last_life == self.life:
            return  # down again: the next start asks, and it alone
        self.life = node.last_life
        if self.call.terms.one_shot and not self.call.outcomes and self.world.rng.random() < 0.4:
            self.begin()
        else:
            self.ask()

    def ask(self) -> None:
        """By id, where it is known, or by key."""
        by_id = self.tx is not None and self.world.rng.random() < 0.5
        tx, key = (self.tx, "") if by_id else (None, self.call.key)
        self.world.node(self.site).take(AskCall(self.call.key, self.call.coordinator, tx, key))

    def ask_later(self) -> None:
        """All is over: whoever asks by id must hear the same."""
        call = AskCall(f"{self.call.key}{LATER}", self.call.coordinator, self.call.outcomes[-1].tx)
        self.world.node(self.site).take(call)

    def _later(self, seconds: float, action: object) -> None:
        assert callable(action)
        self.world.clock.after(seconds, action)


def confirm_helpers(world: World, effect: Resolve, site: str) -> None:
    """A second publisher that asked, or was refused, lets go."""
    world.node(site).take(ConfirmCall(effect.call))
