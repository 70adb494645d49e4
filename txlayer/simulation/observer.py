"""What is seen on the wire of a world: decisions, lists, joins, by whoever sends them. It only writes down."""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer import messages as m
from txlayer.messages import Asked, TxId
from txlayer.simulation.clock import Clock
from txlayer.simulation.history import CallSeen, History
from txlayer.simulation.node import Node
from txlayer.tokens import Keyring, reveals


@dataclass(slots=True)
class Observer:
    """Reads every message that leaves a role. It knows the secrets of all sites, so it can name pseudonyms."""

    history: History
    clock: Clock
    nodes: dict[str, Node]
    _sites_of: dict[tuple[TxId, bytes], str] = field(default_factory=dict)
    _asked: dict[Asked, CallSeen] = field(default_factory=dict)
    _follows: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """The latest registration that a reader asked for, by the log of its coordinator."""
    _registrations: dict[tuple[str, str, str], int] = field(default_factory=dict)

    def observe(self, source: str, message: m.AnyMessage) -> None:
        """A message leaves a role, for the bus or for a role beside it."""
        history = self.history
        match message:
            case m.Decision():
                hashes = self.keyring(message.tx.coordinator).hashes(message.tx)
                self._decided(message.tx, reveals(message.token, hashes.commit), message.final)
            case m.Finish():
                history.finished[message.tx] = None
                key = Keyring(self.keyring(message.tx.coordinator).key_for(source))
                self._decided(message.tx, message.token == key.token(message.tx, "commit"), message.final)
            case m.Begin():
                members = tuple(self.site_of(message.tx, member) for member in message.members)
                history.begun.setdefault(message.tx, members)
            case m.Join():
                history.joined.setdefault(message.tx, {})[source] = None
            case m.Vote() if message.join is not None:
                history.joined.setdefault(message.tx, {})[source] = None
            case m.Create() | m.Inquire() if message.key in history.current:
                self._asked.setdefault(message.asked, history.current[message.key])
            case m.Created() if message.answers in self._asked:
                history.by_tx.setdefault(message.tx, self._asked[message.answers])
            case m.Census() if message.events and message.terms.one_shot:
                call = history.calls.get(dict(message.events[0].item.headers).get("call", ""))
                if call is not None:
                    history.by_tx.setdefault(message.tx, call)
            case m.Follow():
                where = (message.reader, message.incarnation, message.kind.value)
                self._follows[where] = max(message.registration, self._follows.get(where, 0))
            case _:
                pass

    def registered(self, reader: str, followed: m.Followed) -> None:
        """A reader hears that it is registered, anew if it had fallen behind: from now on it may count on it."""
        where = (reader, followed.coordinator, followed.kind.value)
        if followed.registration > max(self._registrations.get(where, 0), self.history.stale.get(where, 0)):
            self._registrations[where] = followed.registration
            self.history.stale.pop(where, None)
            self.history.registered[where] = self.clock.now

    def fell_behind(self, reader: str, coordinator: str, kind: str) -> None:
        """A reader hears that it missed something: the registration that it asked for last is worth nothing."""
        log = self.nodes[coordinator].identity.incarnation
        self.history.stale[reader, coordinator, kind] = self._follows.get((reader, log, kind), 0)

    def _decided(self, tx: TxId, commit: bool, members: tuple[bytes, ...]) -> None:
        final = tuple(sorted(self.site_of(tx, member) for member in members)) if commit else ()
        seen = self.history.decisions.setdefault(tx, {})
        if (commit, final) in seen:
            return
        seen[commit, final] = self.clock.now
        for site in final:
            node = self.nodes.get(site)
            if (site, tx) in self.history.handled:
                continue  # it prepares nothing; whether it had handled everything by now is checked in the end
            if commit and node is not None and node.resource.state(tx) == "none":
                gone = any(a.site == site and a.tx == tx for a in self.history.applied)
                if not gone:
                    self.history.violation(f"unjustified commit: {tx} names {site}, which is not prepared")

    def site_of(self, tx: TxId, member: bytes) -> str:
        """Whose pseudonym this is."""
        if (tx, member) not in self._sites_of:
            for name in self.nodes:
                self._sites_of[tx, self.keyring(name).member(tx)] = name
        return self._sites_of.get((tx, member), member.hex())

    def keyring(self, name: str) -> Keyring:
        """The secrets of a site; of a name that was altered on the way there are none."""
        node = self.nodes.get(name)
        return Keyring(node.identity.secret if node is not None else b"of nobody")
