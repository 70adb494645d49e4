"""Prepared branches in a PostgreSQL database: whose they are, since when, and what becomes of them.

A site finishes its own branches. This is for what is left when its log is lost, or when it will not come back: each
branch says in its name who coordinates its transaction, and the coordinator, or a peer that repeats the coordinator's
decision, is asked. A decision to commit holds for the members on its list; a branch of one that was left out, by a vote
that came too late, is rolled back. What nobody can tell is listed and left alone. So is work of a compensatable member
that was committed under a lost log and then aborted: only its application knows how to undo it.
"""

from __future__ import annotations

import argparse
import math
import secrets
import threading
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from txlayer import messages as m
from txlayer.codec import frames_of
from txlayer.commands.options import add_security, security
from txlayer.commands.tables import show
from txlayer.delivery import Delivery
from txlayer.errors import OutcomeUnknown, ResourceError, TxLayerError, UsageError
from txlayer.messages import Status, TxId
from txlayer.ports import Standing
from txlayer.resources.postgres_prepared import PreparedBranch, PreparedBranches, Undoable
from txlayer.runtime.inbox import received
from txlayer.runtime.wires import TYPES
from txlayer.security_levels import Secret, Signed, signer
from txlayer.site import Site
from txlayer.units import UNDO, chain_of

WITHIN = 5.0
"""Seconds for a coordinator to answer."""
PEERS_WITHIN = 5.0
"""Seconds for the members of a type to answer, who are asked every second."""

BY_HAND = "if the log of its site is lost, undo it by hand, then --undone"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found out about a branch: commit, roll back, or nothing (None), and why."""

    branch: PreparedBranch
    commit: bool | None
    reason: str


@dataclass(frozen=True, slots=True)
class Undoing:
    """What was found out about committed work: whether it may be forgotten how to undo it, and why."""

    kept: Undoable
    forget: bool
    reason: str


class Inquiry:
    """Asks about branches over a bus, as a site of a passing name; where sites sign, under the name of its key."""

    def __init__(self, bus: str, security: str | Secret | Signed = "broker", types: tuple[str, ...] = ()) -> None:
        name = signer(security) if isinstance(security, Signed) else f"recover-{secrets.token_hex(4)}"
        self._site = Site(name, bus=bus, log="memory://", security=security)
        self._types = types
        self._signed = isinstance(security, Signed)

    def __enter__(self) -> Inquiry:
        self._site.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._site.close(timeout=0.0)  # a question that nobody answers is not waited for

    def ask(self, branch: PreparedBranch) -> Verdict:
        """The coordinator first, then peers."""
        if self._owned(branch.name.site, branch.name.incarnation):
            return Verdict(branch, None, "its site is there and finishes it itself")
        if branch.name.tx.nonce.endswith(UNDO):
            return Verdict(branch, None, "it undoes what its site had committed: only that site's log can tell")
        if chain_of(branch.name.tx) is not None:
            return Verdict(branch, None, "its site follows that transaction: only that site's log can tell")
        outcome = self._outcome(branch.name.tx)
        if outcome.status is Status.COMMITTED and outcome.named:
            return verdict_of(branch, outcome.named, "its coordinator has committed it")
        if outcome.status in (Status.ABORTED, Status.REFUSED):
            return _roll_back(branch, f"its coordinator has aborted it: {outcome.reason}")
        if outcome.status is Status.FINISHED:
            return _roll_back(branch, "its coordinator has finished it: who was to commit it has done so")
        return self._ask_peers(branch) or Verdict(branch, None, outcome.reason or outcome.status.value)

    def ask_undoable(self, kept: Undoable) -> Undoing | None:
        """Whether committed work is to be undone, as its coordinator says; None if its site is there and does so."""
        if self._owned(kept.name.site, kept.undo.log):
            return None
        outcome = self._outcome(kept.name.tx)
        if outcome.status is Status.COMMITTED and outcome.named:
            named = kept.undo.member in outcome.named
            told = "its coordinator has committed it"
            return Undoing(kept, named, told if named else f"{told} without {kept.name.site}: {BY_HAND}")
        if outcome.status in (Status.ABORTED, Status.REFUSED):
            return Undoing(kept, False, f"its coordinator has aborted it ({outcome.reason}): {BY_HAND}")
        return Undoing(kept, False, outcome.reason or outcome.status.value)

    def _outcome(self, tx: TxId) -> m.Outcome:
        try:
            return self._site.outcome(tx, within=WITHIN)
        except OutcomeUnknown:
            return m.Outcome(tx, "", Status.UNKNOWN, reason="its coordinator does not answer")

    def _owned(self, site: str, incarnation: str) -> bool:
        alive = [view for view in self._site.sites() if view.standing is Standing.ALIVE]
        return any((view.name, view.identity.incarnation) == (site, incarnation) for view in alive)

    def _asked_types(self) -> list[str]:
        """Those that were given; otherwise whatever somebody subscribes to: a branch does not say its type."""
        listed = {name for view in self._site.sites() for name in view.info.get(TYPES, "").split("\n") if name}
        return sorted(self._types or listed)

    def _ask_peers(self, branch: PreparedBranch) -> Verdict | None:
        """Members that hold the decision repeat the frame that brought it, on the topic of the type."""
        engine, heard = self._site._engine, threading.Event()
        decisions: list[m.Decision | m.Finish] = []
        # Without the log nothing says whom the coordinator named as finishers: a signature there proves too little.
        deciding = m.Decision if self._signed else m.Decision | m.Finish

        def hear(delivery: Delivery) -> None:
            delivery.ack()
            try:
                events = [received(engine.settings.seal, frame) for frame in frames_of(delivery.payload)]
            except TxLayerError:
                return
            for event in events:
                if event is not None and isinstance(event.message, deciding) and event.message.tx == branch.name.tx:
                    decisions.append(event.message)
                    heard.set()

        questions = {
            engine.wires.control(type): engine.settings.seal.close(m.InDoubt(branch.name.tx, type, "commitment"))
            for type in self._asked_types()
        }
        if not questions:
            return None
        subscription = engine.bus.subscribe(list(questions), hear)
        for _ in range(math.ceil(PEERS_WITHIN)):
            for topic, question in questions.items():
                engine.bus.publish(topic, question)
            if heard.wait(1.0):
                break
        subscription.close()
        if not decisions:
            return None
        told = "a peer has its coordinator's decision"
        if isinstance(decisions[0], m.Finish):
            told = f"a peer has the decision that {decisions[0].finisher} found for its coordinator"
        final = decisions[0].final
        return verdict_of(branch, final, f"{told}: commit") if final else _roll_back(branch, f"{told}: abort")


def verdict_of(branch: PreparedBranch, final: tuple[bytes, ...], reason: str) -> Verdict:
    """What a decision to commit with this list means for a branch."""
    if not branch.name.member:
        return Verdict(branch, None, f"{reason}, and its name does not say whether with {branch.name.site}")
    if branch.name.on(final):
        return Verdict(branch, True, reason)
    return _roll_back(branch, f"{reason} without {branch.name.site}")


def _roll_back(branch: PreparedBranch, reason: str) -> Verdict:
    """Not one of several: a local member or a follower with several databases decides for itself, in one of them."""
    if branch.name.of > 1:
        several = f"it is one of {branch.name.of} branches of {branch.name.site}, which may have decided alone"
        return Verdict(branch, None, f"{reason}, but {several}: --roll-back it if none of the others is committed")
    return Verdict(branch, False, reason)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `txlayer recover`."""
    parser.add_argument("--dsn", required=True, help="the database: postgresql://host/database")
    parser.add_argument("--bus", help="where coordinators are asked: mqtt://host:port, kafka://host:port")
    parser.add_argument("--site", help="only branches of this site")
    parser.add_argument("--type", action="append", default=[], help="event type whose members are asked; else all")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--commit", metavar="GID", help="commit this one, whatever its coordinator says")
    parser.add_argument("--roll-back", metavar="GID", help="roll this one back, whatever its coordinator says")
    parser.add_argument("--undone", metavar="KEY", help="committed work that was undone by hand, or needs no undoing")
    add_security(parser)


def run(args: argparse.Namespace, console: Console) -> int:
    """`txlayer recover`. Exit status 1 if something is left."""
    database = PreparedBranches(args.dsn)
    try:
        branches, undoable = database.find(args.site), database.undoable(args.site)
        verdicts, undoings = _verdicts(args, branches, undoable)
        left = 0
        for verdict in verdicts:
            done, word = _apply(database, verdict, args.dry_run)
            left += not done
            console.print(f"{verdict.branch.gid}: {word}: {verdict.reason}", soft_wrap=True)
        for undoing in undoings:
            left += not undoing.forget
            if undoing.forget and not args.dry_run:
                database.forget(undoing.kept)
            word = "left" if not undoing.forget else "would be forgotten" if args.dry_run else "forgotten"
            console.print(f"{undoing.kept.key}: {word}: {undoing.reason}", soft_wrap=True)
    finally:
        database.close()
    console.print(f"{len(branches)} prepared, {len(undoings)} to undo perhaps, {left} left")
    return 1 if left else 0


def _verdicts(
    args: argparse.Namespace, branches: list[PreparedBranch], undoable: list[Undoable]
) -> tuple[list[Verdict], list[Undoing]]:
    said = "the operator says so"
    forced = {args.commit: True, args.roll_back: False}
    if args.commit or args.roll_back or args.undone:
        chosen = [Verdict(branch, forced[branch.gid], said) for branch in branches if branch.gid in forced]
        undone = [Undoing(kept, True, said) for kept in undoable if kept.key == args.undone]
        if not chosen and not undone:
            raise UsageError("nothing of that name; without --commit, --roll-back and --undone all are listed")
        return chosen, undone
    if not args.bus:
        raise UsageError("--bus is needed to ask coordinators; `txlayer tx list --dsn` only lists")
    with Inquiry(args.bus, security(args), tuple(args.type)) as inquiry:
        undoings = (inquiry.ask_undoable(kept) for kept in undoable)
        return [inquiry.ask(branch) for branch in branches], [one for one in undoings if one is not None]


def _apply(database: PreparedBranches, verdict: Verdict, dry: bool) -> tuple[bool, str]:
    """Whether the branch is not left behind, and what to say."""
    if verdict.commit is None:
        return False, "left"
    word = "committed" if verdict.commit else "rolled back"
    if dry:
        return True, f"would be {word}"
    try:
        return True, word if database.finish(verdict.branch, verdict.commit) else "finished meanwhile"
    except ResourceError as exc:
        return False, f"left, it could not be {word} ({exc})"


def list_prepared(dsn: str, site: str | None, console: Console) -> int:
    """`txlayer tx list --dsn`: what is prepared, for how long it has held its locks, and what `recover` calls it."""
    database = PreparedBranches(dsn)
    try:
        branches = database.find(site)
    finally:
        database.close()
    table = Table("transaction", "site", "resource", "coordinator", "prepared for", "locks", "gid")
    for branch in branches:
        name, age, locks = branch.name, f"{branch.age:.0f} s", ", ".join(branch.locks)
        table.add_row(str(name.tx), name.site, name.resource, name.tx.coordinator, age, locks, branch.gid)
    show(table, console)
    return 0
