"""What an outsider can make up: a message of any kind, of what it has read on the bus, without any secret of others."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import msgspec

from txlayer import messages as m
from txlayer.messages import ChainKind, Item, Numbered, Standing, Status, TxId
from txlayer.security import BrokerSeal
from txlayer.tokens import Keyring, member_hash

NOBODY = "s9"
FAR = 1000


@dataclass(slots=True)
class Read:
    """Everything that it has read and can use: the latest census, lists, keys, and tokens that were revealed."""

    rng: Random
    own: Keyring = field(default_factory=lambda: Keyring(b"the outsider's own secret"))
    census: m.Census | None = None
    members: tuple[bytes, ...] = ()
    key: str = ""
    publisher: str = NOBODY
    reader: str = NOBODY
    chain: m.Followed | None = None
    asked: m.Asked = m.NOBODY
    token: bytes = b""
    decision: m.Decision | None = None
    serial: int = 0

    def read(self, message: m.AnyMessage) -> None:
        """One more message went by."""
        match message:
            case m.Census():
                self.census = message
            case m.Begin() | m.Prepare():
                self.members = message.members
            case m.Create():
                self.key, self.publisher, self.asked = message.key, message.publisher, message.asked
            case m.Created() | m.Outcome():
                self.key = message.key
            case m.Submit() | m.CommitRequest():
                self.publisher = message.publisher
            case m.Follow():
                self.reader = message.reader
            case m.Followed():
                self.chain = message
            case m.Vote() | m.Ack() | m.Delegated():
                self.token = message.token
                self.members = tuple(dict.fromkeys((*self.members, message.member)))
            case m.Decision():
                self.decision = message
            case _:
                pass

    def invent(self, kind: str) -> list[m.AnyMessage]:
        """Messages of this kind that could do harm, if they were believed."""
        if self.census is None:
            return []
        tx, terms = self.census.tx, self.census.terms
        return [
            *self._of_publisher(kind, tx, terms),
            *self._of_coordinator(kind, tx, terms),
            *self._of_member(kind, tx),
        ]

    def _of_publisher(self, kind: str, tx: TxId, terms: m.Terms) -> list[m.AnyMessage]:
        self.serial += 1
        evil = Item(terms.type, b"evil.0")
        match kind:
            case "Create":
                key = f"evil{self.serial}"
                return [m.Create(key, NOBODY, 1, terms, (evil,), 1, self.serial, coordinator=tx.coordinator)]
            case "Submit":
                return [m.Submit(tx, self.publisher, number, evil) for number in (1, 2, 3)]
            case "CommitRequest":
                return [m.CommitRequest(tx, self.publisher, 0)]
            case "Abort":
                return [m.Abort(tx, self.publisher, "evil")]
            case "ExtendDeadline":
                return [m.ExtendDeadline(tx, self.publisher, 0.001), m.ExtendDeadline(tx, self.publisher, 1e8)]
            case "Inquire":
                return [m.Inquire(self.publisher, tx, self.key), m.Inquire(NOBODY, None, self.key)]
            case "Confirm":
                return [m.Confirm(tx, self.publisher)]
            case _:
                return []

    def _of_coordinator(self, kind: str, tx: TxId, terms: m.Terms) -> list[m.AnyMessage]:
        assert self.census is not None
        another = msgspec.structs.replace(tx, number=tx.number + FAR)
        event = Numbered(1, Item(terms.type, b"evil.0"), self.publisher)
        fake = self.rng.randbytes(32)
        match kind:
            case "Hello":
                return [m.Hello(self.key, tx.coordinator, FAR)]
            case "Created":
                return [m.Created(self.key, another, answers=self.asked)]
            case "Refused":
                return [m.Refused(self.key, of, "evil", tx.coordinator, self.asked) for of in (tx, None)]
            case "Accepted":
                return [m.Accepted(tx, self.publisher, FAR)]
            case "VotesMissing":
                return [m.VotesMissing(tx, 1, 0)]
            case "Outcome":
                values = (Status.ABORTED, Status.COMMITTED)
                return [m.Outcome(tx, self.key, status, answers=self.asked) for status in values]
            case "Census":
                return [m.Census(tx, terms, self.own.hashes(tx), Standing(10**6), 0, self.census.events)]
            case "Begin":
                return [m.Begin(tx, self.members[:1], terms.type)]
            case "CensusFailed":
                return [m.CensusFailed(tx, fake, "evil")]
            case "Event":
                return [m.Event(tx, msgspec.structs.replace(event, number=number)) for number in (1, 2, 3)]
            case "Prepare":
                return [m.Prepare(tx, self.members, 0, b"", terms.type)]
            case "Delegate":
                return [m.Delegate(tx, member, 0, b"", terms.type) for member in self.members]
            case "Decision":
                revealed = self.decision.token if self.decision is not None else fake
                return [m.Decision(tx, fake, self.members), m.Decision(tx, revealed, self.members[:1])]
            case "Finish":
                return [m.Finish(tx, f"s{site}", fake, self.members) for site in range(4)]
            case "Unknown":
                return [m.Unknown(tx)]
            case "Called":
                return [m.Called(tx, terms, fake, 0, b"")]
            case "Withdrawn":
                return [m.Withdrawn(tx, fake)]
            case "Relay":
                forged = BrokerSeal().close(m.Decision(tx, self.own.token(tx, "commit"), self.members))
                return [m.Relay(tx, forged)]
            case _:
                return self._of_chain(kind, tx, terms, event)

    def _of_chain(self, kind: str, tx: TxId, terms: m.Terms, event: Numbered) -> list[m.AnyMessage]:
        site, log = tx.coordinator, tx.incarnation
        chain = self.chain.kind if self.chain is not None else ChainKind.COMMITS
        match kind:
            case "Follow":
                readers = (NOBODY, self.reader)
                return [m.Follow(who, chain, log, (terms.type,), upto, FAR) for who in readers for upto in (-1, 1)]
            case "Followed":
                return [m.Followed(site, log, chain, FAR, number) for number in (1, 2)]
            case "Commit":
                another = msgspec.structs.replace(tx, number=tx.number + FAR)
                return [m.Commit(site, log, chain, number, another, terms, (event,)) for number in (1, 2)]
            case "ChainAck":
                return [m.ChainAck(self.reader, chain, log, upto) for upto in (1, 2, FAR)]
            case "Stale":
                return [m.Stale(site, log, chain, FAR)]
            case "AskMark":
                return [m.AskMark(terms.type, log)]
            case "Mark":
                return [m.Mark(site, log, Standing(10**6))]
            case _:
                return []

    def _of_member(self, kind: str, tx: TxId) -> list[m.AnyMessage]:
        assert self.census is not None
        fake, digest, last = self.rng.randbytes(32), self.census.digest, len(self.census.events)
        join = m.Join(tx, self.own.pseudonym(tx), self.census.hashes, NOBODY)
        mine = member_hash(join.pseudonym)
        match kind:
            case "Join":
                return [join]
            case "Decline":
                return [m.Decline(tx, self.rng.randbytes(16)) for _ in range(4)]
            case "Resend":
                return [m.Resend(tx, 1, FAR)]
            case "Vote":
                forged = [m.Vote(tx, member, t, last, digest) for member in self.members for t in (fake, self.token)]
                return [*forged, m.Vote(tx, mine, self.own.token(tx, "yes"), last, digest, "", join)]
            case "Delegated":
                return [m.Delegated(tx, member, token) for member in self.members for token in (fake, self.token)]
            case "Ack":
                return [m.Ack(tx, member, token) for member in self.members for token in (fake, self.token)]
            case "Compensated":
                return [m.Compensated(tx, member, True) for member in self.members]
            case "InDoubt":
                states = ("census", "transaction", "commitment", "local")
                asked = [m.InDoubt(tx, self.census.terms.type, state) for state in states]
                return [*asked, m.InDoubt(tx, self.census.terms.type, "commitment", "s1")]
            case _:
                return []
