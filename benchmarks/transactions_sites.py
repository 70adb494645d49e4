"""A publisher here and members elsewhere, each a site with the shipped defaults."""

from __future__ import annotations

import itertools
import multiprocessing
import tempfile
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.transactions_load import Calls, Load
from txlayer import Limit, Secret, Signed, Site, all_of, named, only
from txlayer.errors import CensusUnfulfilled

LEVELS = ("broker", "secret", "signed")
PAYLOAD = {"order": 4711, "text": "x" * 170}
_START_SECONDS = 60.0
_count = itertools.count(1)


class Sites:
    """One publisher and its members, for one security level."""

    def __init__(self, url: str, members: int, level: str, *, in_processes: bool, within: float | None = None) -> None:
        prefix = f"bench{time.monotonic_ns()}-{next(_count)}"
        self.type = f"{prefix}/orders"
        self.names = [f"{prefix}-m{number}" for number in range(members)]
        self._members = all_of(only(*self.names), named(*self.names))
        self._publisher = f"{prefix}-p"
        self._url = url
        self._in_processes = in_processes
        self._terms: dict[str, Any] = {"census_within": within, "vote_within": within} if within is not None else {}
        self._securities = _securities(level, [self._publisher, *self.names])
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="txlayer-bench-")))
            for name in self.names:
                self._start_member(stack, name, folder)
            site = Site(
                self._publisher, bus=self._url, log=_log(folder, self._publisher), security=self._key(self._publisher)
            )
            self.publisher = stack.enter_context(site)
            self._await_members()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def loads(self) -> dict[str, Load]:
        """What is measured: in one shot, and with census, events and prepare as rounds of their own."""
        return {
            "one_shot": Calls(self.one_shot),
            "plain_send": Calls(self.plain_send),
            "rounds": Calls(self.rounds),
        }

    def one_shot(self) -> None:
        """To a closed list of members, none of them local."""
        self.publisher.send(
            self.type, [PAYLOAD], limit=Limit.DISTRIBUTED, require=self._members, **self._terms
        )  # fmt: skip

    def plain_send(self) -> None:
        """As it is called without any option: local members may listen, so the call is in the log before it is sent."""
        outcome = self.publisher.send(self.type, [PAYLOAD], **self._terms)
        if outcome.members != len(self.names):
            raise CensusUnfulfilled(f"{outcome.members} of {len(self.names)} members in time")

    def rounds(self) -> None:
        """A transaction as in a `with` block."""
        terms = {"limit": Limit.DISTRIBUTED, "require": self._members, **self._terms}
        with self.publisher.transaction(self.type, **terms) as tx:
            tx.publish(PAYLOAD)

    def _key(self, name: str) -> Any:
        return _security(self._securities, name)

    def _start_member(self, stack: ExitStack, name: str, folder: Path) -> None:
        if not self._in_processes:
            stack.enter_context(_member(name, self._url, _log(folder, name), self._key(name), self.type))
            return
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (name, self._url, _log(folder, name), self._securities, self.type, theirs)
        process = context.Process(target=_run_member, args=arguments, daemon=True)
        process.start()
        theirs.close()
        stack.callback(process.join, _START_SECONDS)
        stack.callback(ours.close)

    def _await_members(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while self.publisher.subscribed(self.type) != sorted(self.names):
            if time.monotonic() > deadline:
                raise RuntimeError(f"members did not start within {_START_SECONDS} s")
            time.sleep(0.02)


def _log(folder: Path, name: str) -> str:
    return f"sqlite:///{folder / name}.db"


def _member(name: str, url: str, log: str, security: Any, type: str) -> Site:
    site = Site(name, bus=url, log=log, security=security)
    site.subscribe(type, _handle)
    return site


def _handle(tx: Any, event: Any) -> None:
    """No resource."""


def _run_member(name: str, url: str, log: str, securities: Any, type: str, parent: Connection) -> None:
    with _member(name, url, log, _security(securities, name), type):
        parent.poll(None)  # until the other end is closed


def _securities(level: str, names: list[str]) -> Any:
    """Something that travels to another process."""
    if level != "signed":
        return level
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    keys = {name: Ed25519PrivateKey.generate() for name in names}
    return {name: (key.private_bytes_raw(), key.public_key().public_bytes_raw()) for name, key in keys.items()}


def _security(securities: Any, name: str) -> str | Secret | Signed:
    if securities == "broker":
        return "broker"
    if securities == "secret":
        return Secret("an enrolment secret")
    return Signed(securities[name][0], {other: public for other, (_, public) in securities.items()})
