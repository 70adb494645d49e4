"""The edges of a world: what its applications and resources do, and what they and their callers get to see."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from txlayer.effects import Answer, Notify, Opened, PublishPlain, Resolve, RunHandler, ScopeChosen, Surface
from txlayer.messages import ChainKind, Numbered, Scope, Terms, TxId
from txlayer.runtime.unit_work import Work
from txlayer.simulation.history import Applied, Handled
from txlayer.simulation.workload import LATER, confirm_helpers
from txlayer.units import UNDO, chain_of, transaction_of, undo_of

if TYPE_CHECKING:
    from txlayer.simulation.world import World


@dataclass(slots=True, eq=False)
class Edges:
    """Draws what applications do, and writes down what is seen."""

    world: World

    def choose_scope(self, site: str, tx: TxId, terms: Terms) -> ScopeChosen:
        """The application's answer to a census."""
        taste = self.world.plan.tastes.get((site, terms.type))
        if taste is None:  # a type that nobody here subscribed to: made up
            return ScopeChosen(tx, Scope.NONE)
        choice = taste.choose(tx, terms.tx_type)
        self.world.history.scopes[site, tx] = choice.scope
        if not choice.resource and choice.scope is Scope.DISTRIBUTED:
            self.world.history.handled.setdefault((site, tx), Handled())
        return choice

    def handled(self, site: str, tx: TxId, event: Numbered, text: str) -> bool:
        """Whether the handler's work was all there is: it is written down here, since there is no resource for it."""
        handled = self.world.history.handled.get((site, tx))
        if handled is not None:
            handled.take(event.number, text, self.world.clock.now)
        return handled is not None

    def work_time(self, site: str, work: Work) -> float:
        """How long work takes."""
        seconds = 0.0005 * self.world.rng.random()
        if isinstance(work, RunHandler) and self.world.rng.random() < self.world.faults.slow_handler:
            self.world.history.faults["O4"] += 1
            seconds += 3.0 * self.world.rng.random()
        return seconds

    def handler_fails(self, site: str, tx: TxId, event: Numbered) -> bool:
        """Whether a handler is drawn to fail."""
        first = (site, tx) not in self.world.history.delivered
        self.world.history.delivered[site, tx] = None
        if site == (self.world.plan.refuser if first else self.world.plan.refuser_again):
            return True
        rate = self.world.faults.failing_handler
        return rate > 0 and self.world.rng.random() < rate

    def prepares_along(self) -> bool:
        """Whether a handler's thread prepares as well, where it may."""
        return self.world.rng.random() < 0.5

    def compensation_fails(self, site: str, tx: TxId) -> bool:
        """Whether an undo is drawn to fail."""
        return (
            self.world.faults.failing_compensation > 0
            and self.world.rng.random() < self.world.faults.failing_compensation
        )

    def prepare_fails(self, site: str, tx: TxId) -> bool:
        """Whether a resource is drawn to refuse."""
        rate = self.world.faults.failing_prepare
        return rate > 0 and self.world.rng.random() < rate

    def sync_time(self, site: str) -> tuple[float, float]:
        """How long appends wait for company, and how long a sync takes."""
        slow = self.world.rng.random() < self.world.faults.slow_disk
        return 0.0002, 0.0004 + self.world.plan.sync_seconds + (0.3 * self.world.rng.random() if slow else 0.0)

    def committed(self, site: str, tx: TxId, values: list[tuple[str, object]]) -> None:
        """A resource committed a unit, or the unit that undoes it."""
        texts = tuple(str(value) for _, value in values)
        self.world.note(site, f"commits {tx} {texts}")
        if not tx.nonce.endswith(UNDO):
            history, follows = self.world.history, chain_of(tx) is ChainKind.COMMITS
            applied = Applied(site, transaction_of(tx), self.world.clock.now, texts)
            (history.followed if follows else history.applied).append(applied)
            return
        for applied in reversed(self.world.history.applied):
            if applied.site == site and undo_of(applied.tx) == tx:
                if applied.undone is not None:
                    self.world.history.violation(f"compensated twice: {tx} at {site}")
                applied.undone = texts
                return
        self.world.history.violation(f"compensated without a commit: {tx} at {site}")

    def opened(self, site: str, effect: Opened) -> None:
        """A caller's transaction is open."""
        script = self.world.scripts.get(effect.call)
        if script is not None:
            script.on_opened(effect)

    def resolved(self, site: str, effect: Resolve) -> None:
        """A caller hears an outcome."""
        self.world.note(site, f"call {effect.call} resolves to {effect.outcome}")
        script = self.world.scripts.get(effect.call)
        if script is not None:
            script.on_resolved(effect.outcome)
        elif effect.outcome.final:
            if effect.call.endswith(LATER):
                self.world.history.told_later.append(effect.outcome)
            self.world.clock.after(0.01, lambda: confirm_helpers(self.world, effect, site))

    def surfaced(self, site: str, effect: Surface) -> None:
        """Something an operator or a caller should see."""
        self.world.note(site, f"surfaces {effect}")
        if effect.what == "parked" and effect.tx is not None:
            self.world.history.parked[site, effect.tx] = None
            self.world.history.faults["K3"] += 1
        if effect.what == "stale":
            self._on_stale(site, effect.detail)
        script = self.world.scripts.get(effect.detail)
        if script is not None:
            script.on_surface(effect)

    def _on_stale(self, site: str, detail: str) -> None:
        """A reader fell behind retention: it loads a snapshot, which costs time, and follows anew."""
        for kind in ChainKind:
            for name in self.world.nodes:
                if f"{kind.value} of {name}:" in detail:
                    self.world.observer.fell_behind(site, name, kind.value)
        self.world.history.faults["F1"] += 1
        self.world.clock.after(0.3, partial(self.world.follow, self.world.nodes[site]))

    def published(self, site: str, effect: PublishPlain) -> None:
        """An event on the plain topic, for the world outside."""
        self.world.history.public.setdefault(effect.tx, {})[effect.event.number] = self.world.clock.now

    def relayed(self, site: str, effect: Answer) -> None:
        """A member repeats the coordinator's own words to a peer in doubt."""
        self.world.history.faults["P10"] += 1

    def notified(self, site: str, effect: Notify) -> None:
        """A plain notification."""
        self.world.history.notified.append((site, effect.tx, effect.event.number))

    def broken(self, site: str, text: str) -> None:
        """A resource was asked for what it cannot do."""
        self.world.history.violation(f"impossible work at {site}: {text}")
