"""The resources of one member that vote as one (HTS 5.4, 5.5): the site is their interposed coordinator.

Only the resources that a transaction has worked on take part; each is told of how many it is one, so that recovery,
which finds some of them prepared, knows whether that is all of them.

A commit in one phase over several resources is a local two-phase commit without a log of its own: all but the first
prepare, then the first commits, and its marker is the decision. Recovery finds it there or makes sure that it can
never come, before it rolls any of the others back. Work that must be done in the end is then tried again; until all
others are prepared once more, the first stays closed to whatever is left of the former try.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from txlayer.errors import ResourceError, ResourceUnavailable, UsageError
from txlayer.messages import TxId
from txlayer.resources.port import Branch, Member, Resource, nobody


class ResourceGroup:
    """One or more resources behind the port of one.

    Without `savepoints` a failed handler spoils the whole unit, which is then rolled back. `check` is called before
    any resource is touched. `taking_part` is kept by the caller from one piece of work to the next: of units that are
    prepared or being committed, who they are made of. After a restart it is found out again. `handed` is kept
    likewise: the resources that handlers were given. One that has lost their work since is not prepared as if it had
    none.
    """

    early = False

    def __init__(
        self,
        resources: Sequence[Resource],
        savepoints: bool = True,
        check: Callable[[], None] = lambda: None,
        taking_part: dict[TxId, list[Resource]] | None = None,
        handed: dict[TxId, list[Resource]] | None = None,
    ) -> None:
        if not resources:
            raise UsageError("a group needs a resource")
        self._all = sorted(resources, key=lambda resource: resource.name)
        names = [resource.name for resource in self._all]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UsageError(f"two resources are called {twice!r}: give one of them another name=")
        self.name = "+".join(names)
        self._savepoints = savepoints
        self._check = check
        self._taking_part = taking_part if taking_part is not None else {}
        self._handed = handed if handed is not None else {}
        self._reopened: set[TxId] = set()

    @property
    def _resources(self) -> list[Resource]:
        self._check()
        return self._all

    def open(self, site: str, incarnation: str, member: Member = nobody) -> None:
        opened: list[Resource] = []
        try:
            for resource in self._resources:
                resource.open(site, incarnation, member)
                opened.append(resource)
        except BaseException:
            with contextlib.suppress(ResourceError):
                self._each(opened, lambda resource: resource.close())
            raise

    def work(self, tx: TxId) -> Any:
        """Handlers ask each resource by itself; those that cannot wait then are asked now."""
        for resource in self._resources:
            if resource.early:
                resource.work(tx)

    def lend(self, tx: TxId) -> None:
        for resource in self._resources:
            resource.lend(tx)

    def returned(self, tx: TxId) -> None:
        for resource in self._resources:
            resource.returned(tx)

    def add(self, tx: TxId, batch: Any) -> None:
        batch.resource.add(tx, batch)

    def has_work(self, tx: TxId) -> bool:
        return any(resource.has_work(tx) for resource in self._resources)

    def savepoint(self, tx: TxId) -> None:
        if self._savepoints:
            for resource in self._resources:
                resource.savepoint(tx)

    def undo_to_savepoint(self, tx: TxId) -> None:
        if self._savepoints:
            for resource in self._resources:
                resource.undo_to_savepoint(tx)
            self._handed[tx] = [resource for resource in self._handed.get(tx, []) if resource.has_work(tx)]

    def prepare(self, tx: TxId, of: int = 1) -> None:
        taking_part = self._working(tx)
        self._prepare(tx, taking_part, len(taking_part))
        self._taking_part[tx] = taking_part

    def _prepare(self, tx: TxId, resources: Sequence[Resource], of: int) -> None:
        done: list[Resource] = []
        try:
            for resource in resources:
                resource.prepare(tx, of)
                done.append(resource)
        except ResourceError:
            # Nothing else: what is prepared under the same name may be a later life's, which has voted for it.
            ours = [r for r in self._resources if r.has_work(tx) or any(r is one for one in done)]
            with contextlib.suppress(ResourceUnavailable):  # the vote is no; recovery finds what is left
                self._each(ours, lambda resource: resource.roll_back(tx))
            raise

    def commit_prepared(self, tx: TxId) -> None:
        taking_part = self._taking_part.get(tx) or self._found(tx)
        if not taking_part:
            raise ResourceError(f"{tx} is neither prepared nor committed")
        self._each(taking_part, lambda resource: resource.commit_prepared(tx))
        self._taking_part.pop(tx, None)

    def commit(self, tx: TxId, undo: bytes = b"") -> None:
        first, *others = self._taking_part.get(tx) or self._working(tx)
        if others and tx not in self._taking_part:
            if tx in self._reopened:
                self._each(others, lambda resource: resource.reopen(tx))
            self._prepare(tx, others, len(others) + 1)
            self._taking_part[tx] = [first, *others]
        try:
            if tx in self._reopened:
                first.reopen(tx)
            first.commit(tx, undo)
        except ResourceUnavailable:
            raise
        except ResourceError:
            self._each(others, lambda resource: resource.roll_back(tx))
            self._taking_part.pop(tx, None)
            raise
        self._each(others, lambda resource: resource.commit_prepared(tx))
        self._taking_part.pop(tx, None)

    def roll_back(self, tx: TxId) -> None:
        """What an earlier life has left is committed where the decision of a local two-phase commit is found."""
        self._handed.pop(tx, None)
        known = tx in self._taking_part or self.has_work(tx) or len(self._resources) == 1
        if not known and self.state(tx) == "committed":
            self.commit_prepared(tx)
            return
        self._each(self._resources, lambda resource: resource.roll_back(tx))
        self._taking_part.pop(tx, None)

    def abandon(self, tx: TxId) -> None:
        for resource in self._resources:
            resource.abandon(tx)

    def state(self, tx: TxId) -> str:
        states = {resource.state(tx) for resource in self._resources}
        return next((state for state in ("committed", "prepared") if state in states), "none")

    def settle(self, tx: TxId) -> str:
        """All prepared is prepared. Committed anywhere is committed, and the rest is committed now."""
        if len(self._resources) == 1:
            return self._resources[0].settle(tx)
        branches = self._branches(tx)
        if branches and len(branches) == max(branches.values()):
            return "prepared"
        states = [resource.settle(tx) for resource in self._resources if resource.name not in branches]
        if "committed" in states:
            self._each(self._found(tx), lambda resource: resource.commit_prepared(tx))
            return "committed"
        branches = self._branches(tx)
        if branches and len(branches) == max(branches.values()):
            return "prepared"
        self._each(self._resources, lambda resource: resource.roll_back(tx))
        return "none"

    def _branches(self, tx: TxId) -> dict[str, int]:
        """The resources where `tx` is prepared, and of how many each says it is one."""
        return {r.name: branch.of for r in self._resources for branch in r.branches() if branch.tx == tx}

    def reopen(self, tx: TxId) -> None:
        self._reopened.add(tx)

    def branches(self) -> tuple[Branch, ...]:
        return tuple(branch for resource in self._resources for branch in resource.branches())

    def undo_record(self, tx: TxId) -> bytes:
        return next(filter(None, (resource.undo_record(tx) for resource in self._resources)), b"")

    def markers(self) -> tuple[TxId, ...]:
        return tuple(dict.fromkeys(tx for resource in self._resources for tx in resource.markers()))

    def forget(self, tx: TxId) -> None:
        for resource in self._resources:
            resource.forget(tx)

    def close(self) -> None:
        self._each(self._resources, lambda resource: resource.close())

    def _working(self, tx: TxId) -> list[Resource]:
        """Those that take part; where there is no work at all, the first keeps the marker."""
        lost = [resource.name for resource in self._handed.get(tx, ()) if not resource.has_work(tx)]
        if lost:
            raise ResourceError(f"the work of {tx} in {', '.join(lost)} was lost before it was prepared")
        return [resource for resource in self._resources if resource.has_work(tx)] or self._resources[:1]

    def _found(self, tx: TxId) -> list[Resource]:
        return [resource for resource in self._resources if resource.state(tx) != "none"]

    def _each(self, resources: Sequence[Resource], act: Callable[[Resource], None]) -> None:
        """Try every one; the first error is raised in the end."""
        errors: list[ResourceError] = []
        for resource in resources:
            try:
                act(resource)
            except ResourceError as exc:
                errors.append(exc)
        if errors:
            raise errors[0]
