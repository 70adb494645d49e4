"""What is seen on the wire of a world: decisions, lists, joins, by whoever sends them. It only writes down."""

from __future__ import annotations

from dataclasses import dataclass, field

from txlayer import messages as m
from txlayer.messages import TxId
from txlayer.simulation.clock import Clock
from txlayer.simulation.history import History
from txlayer.simulation.node import Node
from txlayer.tokens import Keyring, reveals


@dataclass(slots=True)
class Observer:
    """Reads every message that leaves a role. It knows the secrets of all sites, so it can name pseudonyms."""

    history: History
    clock: Clock
    nodes: dict[str, Node]
    _sites_of: dict[tuple[TxId, bytes], str] = field(default_factory=dict)
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
            case m.Created():
                call = history.calls.get(message.key)
                if call is not None:
                    history.by_tx.setdefault(message.tx, call)
            case m.Census() if message.events and message.terms.one_shot:
                name = message.events[0].item.payload.decode(errors="replace").split(".")[0]
                if name in history.calls:
                    history.by_tx.setdefault(message.tx, history.calls[name])
            case _:
                pass

    def registered(self, reader: str, followed: m.Followed) -> None:
        """A reader hears that it is registered, anew if it had fallen behind: from now on it may count on it."""
        where = (reader, followed.coordinator, followed.kind.value)
        if followed.registration > self._registrations.get(where, 0):
            self._registrations[where] = followed.registration
            self.history.stale.pop(where, None)
            self.history.registered[where] = self.clock.now

    def _decided(self, tx: TxId, commit: bool, members: tuple[bytes, ...]) -> None:
        final = tuple(sorted(self.site_of(tx, member) for member in members)) if commit else ()
        seen = self.history.decisions.setdefault(tx, {})
        if (commit, final) in seen:
            return
        seen[commit, final] = self.clock.now
        for site in final:
            node = self.nodes.get(site)
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
