"""Several resources of one member behind the port of one: the site is their interposed coordinator (HTS 5.4, 5.5).

One resource is used as it is. Several are committed at once by a small two-phase commit of their own: all prepare,
then all commit; a crash in between leaves marks from which `state` tells what to do. A member without resources has
nothing that could be prepared: its intent in the log stands for the work of its handlers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from txlayer.errors import ResourceError
from txlayer.messages import TxId
from txlayer.resources.port import Resource

UNDO = "~undo"


@dataclass(slots=True)
class Attempt:
    """One try at a piece of work. One that was given up must not touch a resource any more."""

    given_up: bool = False

    def check(self) -> None:
        """Stop a thread that comes back too late."""
        if self.given_up:
            raise ResourceError("this attempt was given up: it took too long")


class NoBranch:
    """A member without resources. `state` answers what the asker has to assume of handlers that have run."""

    def __init__(self, assumed: str) -> None:
        self._assumed = assumed

    def work(self, tx: TxId) -> Any:
        return None

    def savepoint(self, tx: TxId) -> None: ...

    def undo_to_savepoint(self, tx: TxId) -> None: ...

    def prepare(self, tx: TxId) -> None: ...

    def commit_prepared(self, tx: TxId) -> None: ...

    def commit(self, tx: TxId) -> None: ...

    def roll_back(self, tx: TxId) -> None: ...

    def state(self, tx: TxId) -> str:
        return "none" if tx.nonce.endswith(UNDO) else self._assumed

    def markers(self) -> tuple[TxId, ...]:
        return ()

    def forget(self, tx: TxId) -> None: ...

    def close(self) -> None: ...


class Branches:
    """One or more resources. Without `savepoints` a failed handler spoils the whole unit, which is then rolled back."""

    def __init__(self, resources: Sequence[Resource], savepoints: bool, attempt: Attempt | None = None) -> None:
        self._all = tuple(resources)
        self._savepoints = savepoints
        self._attempt = attempt or Attempt()

    @property
    def _resources(self) -> tuple[Resource, ...]:
        self._attempt.check()
        return self._all

    def work(self, tx: TxId) -> Any:
        """Handlers ask each resource by itself."""
        return None

    def savepoint(self, tx: TxId) -> None:
        if self._savepoints:
            for resource in self._resources:
                resource.savepoint(tx)

    def undo_to_savepoint(self, tx: TxId) -> None:
        if self._savepoints:
            for resource in self._resources:
                resource.undo_to_savepoint(tx)

    def prepare(self, tx: TxId) -> None:
        try:
            for resource in self._resources:
                resource.prepare(tx)
        except ResourceError:
            self.roll_back(tx)
            raise

    def commit_prepared(self, tx: TxId) -> None:
        if len(self._resources) == 1:
            self._resources[0].commit_prepared(tx)
            return
        held = [resource for resource in self._resources if resource.state(tx) != "none"]
        if not held:
            raise ResourceError(f"{tx} is neither prepared nor committed in any resource")
        for resource in held:
            resource.commit_prepared(tx)

    def commit(self, tx: TxId) -> None:
        if len(self._resources) == 1:
            self._resources[0].commit(tx)
            return
        if self.state(tx) == "committed":
            return
        self.prepare(tx)
        self.commit_prepared(tx)

    def roll_back(self, tx: TxId) -> None:
        self._each(lambda resource: resource.roll_back(tx))

    def state(self, tx: TxId) -> str:
        """Committed anywhere is committed: then all had prepared, and the rest is committed now."""
        states = [resource.state(tx) for resource in self._resources]
        if "committed" in states:
            for resource, state in zip(self._resources, states, strict=True):
                if state == "prepared":
                    resource.commit_prepared(tx)
            return "committed"
        return "prepared" if set(states) == {"prepared"} else "none"

    def markers(self) -> tuple[TxId, ...]:
        return tuple(dict.fromkeys(tx for resource in self._resources for tx in resource.markers()))

    def forget(self, tx: TxId) -> None:
        self._each(lambda resource: resource.forget(tx))

    def close(self) -> None:
        self._each(lambda resource: resource.close())

    def _each(self, act: Callable[[Resource], None]) -> None:
        """All of them, also if one fails; its error comes last."""
        failed: ResourceError | None = None
        for resource in self._resources:
            try:
                act(resource)
            except ResourceError as exc:
                failed = failed or exc
        if failed is not None:
            raise failed
