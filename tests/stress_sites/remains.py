"""What sites wrote, as the history that the simulation's checkers read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.stress_sites import lines
from tests.stress_sites.database import read_applied
from tests.stress_sites.orders import Left
from tests.stress_sites.tastes import SiteTaste
from txlayer.messages import Scope, TxId
from txlayer.simulation.checkers import check
from txlayer.simulation.history import Applied, CallSeen, History
from txlayer.simulation.world import World


@dataclass(slots=True)
class Remains:
    """Stands for a `World` after its end."""

    folder: Path
    tastes: dict[tuple[str, str], SiteTaste]
    left: dict[str, Left]
    """What each site said last that it has still to do."""
    kills: int
    history: History = field(default_factory=History)
    _members: dict[tuple[TxId, bytes], str] = field(default_factory=dict)
    _votes: dict[tuple[str, TxId], float] = field(default_factory=dict)
    _later: list[tuple[str, lines.AnyLine]] = field(default_factory=list)

    @property
    def plan(self) -> Any:
        """What the checkers ask of a plan."""
        return SimpleNamespace(tastes={where: liking.taste for where, liking in self.tastes.items()})

    @property
    def scripts(self) -> dict[str, Any]:
        """What the checkers ask of scripts."""
        return {key: SimpleNamespace(call=call) for key, call in self.history.calls.items()}

    @property
    def nodes(self) -> dict[str, Any]:
        """What the checkers ask of nodes."""
        return {name: SimpleNamespace(name=name) for name in self.sites()}

    def sites(self) -> list[str]:
        """All of them."""
        return sorted({name for name, _ in self.tastes})

    def unfinished(self, node: Any) -> list[str]:
        """What a site still has to do; tombstones stay as long as the coordinator's caller has not confirmed."""
        left = self.left.get(node.name)
        if left is None:
            return ["did not answer"]
        remembered = [tx for tx in left.remembered if not self._may_remember(node.name, tx)]
        return [*left.work, *(f"remembers {tx}" for tx in remembered)]

    def _may_remember(self, site: str, tx: TxId) -> bool:
        coordinator = self.left.get(tx.coordinator)
        return (coordinator is not None and tx in coordinator.settled) or (site, tx) in self.history.parked

    def check(self) -> History:
        """Read everything, run every checker."""
        self.history.crashes = self.kills
        for site in self.sites():
            for line in lines.read(self.folder / f"{site}.history"):
                self._read(site, line)
        for site, line in self._later:
            self._relate(site, line)
        self._read_databases()
        self._check_votes()
        check(cast(World, self))
        return self.history

    def _read(self, site: str, line: lines.AnyLine) -> None:
        history = self.history
        match line:
            case lines.Asked():
                history.calls[line.call] = CallSeen(line.call, site, line.coordinator, line.terms)
            case lines.Opened():
                call = history.calls[line.call]
                call.tx, call.published = line.tx, []
                history.by_tx[line.tx] = call
            case lines.Published():
                history.calls[line.call].published.append(line.item)
            case lines.Helped():
                history.other_published.setdefault(line.tx, []).append((site, line.item))
            case lines.Called():
                history.calls[line.call].called_at = line.at
            case lines.Told():
                call = history.calls[line.call]
                call.outcomes.append(line.outcome)
                call.told_at.append(line.at)
                if line.outcome.tx is not None:
                    history.by_tx[line.outcome.tx] = call
                    call.attempts.append(line.outcome.tx)
            case lines.Done():
                history.calls[line.call].done = True
            case lines.Chosen():
                history.scopes[site, line.tx] = Scope(line.scope)
            case lines.Joined():
                history.joined.setdefault(line.tx, {})[site] = None
                self._members[line.tx, line.member] = site
            case lines.Voted():
                self._votes.setdefault((site, line.tx), line.at)
            case lines.Registered():
                history.registered.setdefault((line.reader, site, line.kind), line.at)
            case lines.Delivered():
                history.delivered[site, line.tx] = None
            case lines.Notified():
                history.notified.append((site, line.tx, line.number))
            case lines.Public():
                history.public.setdefault(line.tx, {}).setdefault(line.number, line.at)
            case lines.Parked():
                history.parked[site, line.tx] = None
            case lines.Begun() | lines.Decided() | lines.Created() | lines.Handled() | lines.Committed():
                self._later.append((site, line))
            case lines.Started():
                if line.life > 1:
                    history.crashed[site] = None

    def _relate(self, site: str, line: lines.AnyLine) -> None:
        """Lines that name what other sites wrote."""
        history = self.history
        match line:
            case lines.Begun():
                history.begun.setdefault(line.tx, self._sites_of(line.tx, line.members))
            case lines.Decided():
                decided = (line.commit, tuple(sorted(self._sites_of(line.tx, line.final))))
                seen = history.decisions.setdefault(line.tx, {})
                seen[decided] = min(seen.get(decided, line.at), line.at)
            case lines.Created():
                call = history.calls.get(line.call.removeprefix("k:"))
                if call is not None:
                    history.by_tx.setdefault(line.tx, call)
            case lines.Committed():
                self._committed(site, line)

    def _committed(self, site: str, line: lines.Committed) -> None:
        """A member without a resource hears of it at least once; the events it saw are in lines of their own."""
        if any(applied.site == site and applied.tx == line.tx for applied in self.history.applied):
            return
        seen = (other.value for where, other in self._later if where == site and _is_event(other, line.tx))
        values = sorted(dict.fromkeys(seen), key=lambda value: int(value.split(":")[0]))
        self.history.applied.append(Applied(site, line.tx, line.at, tuple(values)))

    def _read_databases(self) -> None:
        for (site, event_type), liking in self.tastes.items():
            paths = [self.folder / f"{site}-{event_type}-{number}.db" for number in range(liking.resources)]
            several = [read_applied(site, path) for path in paths]
            for applied in several[0] if several else []:
                if len(set(applied.values)) < len(applied.values):
                    self.history.violation(f"applied twice: {applied.tx} at {site}")
                follows = liking.taste.scope is Scope.FOLLOWER
                (self.history.followed if follows else self.history.applied).append(applied)
            for others in several[1:]:
                if _without_times(others) != _without_times(several[0]):
                    self.history.violation(f"databases of {site} for {event_type} differ")
        for listed in (self.history.applied, self.history.followed):
            listed.sort(key=lambda applied: applied.at)

    def _check_votes(self) -> None:
        """A commit comes after the votes of all whom it names."""
        for tx, seen in self.history.decisions.items():
            for (commit, final), at in seen.items():
                for site in final if commit else ():
                    voted = self._votes.get((site, tx))
                    if voted is None or voted > at:
                        self.history.violation(f"unjustified commit: {tx} names {site}, which has not voted")

    def _sites_of(self, tx: TxId, members: tuple[bytes, ...]) -> tuple[str, ...]:
        return tuple(self._members.get((tx, member), member.hex()) for member in members)


def _is_event(line: lines.AnyLine, tx: TxId) -> bool:
    return isinstance(line, lines.Handled) and line.tx == tx


def _without_times(applied: list[Applied]) -> list[tuple[TxId, tuple[str, ...], tuple[str, ...] | None]]:
    return sorted((one.tx, one.values, one.undone) for one in applied)
