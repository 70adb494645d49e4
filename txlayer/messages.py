"""What sites say to each other: frozen structs, one union, in MessagePack arrays.

Every message names its transaction and what recognises a repetition of it (an event number, a token, a cumulative
count), because a bus may lose, double and reorder anything. Coordinators speak to all subscribers of an event type at
once and never learn who listens; members, publishers and readers answer to the inbox of one site.

A new field goes at the end and has a default, so that old and new sites understand each other.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from msgspec import Struct

NAMELESS = "c:"
"""How a key begins that was made up for one call: nobody but that call asks by it."""

Asked: TypeAlias = tuple[str, int, int]
"""One creation or question of a publisher: its log, the life of that, and a serial in it."""
NOBODY: Asked = ("", 0, 0)


class TxType(Enum):
    """Whether a transaction may have members that depend on each other (TOPS 4.2)."""

    LOCAL = "local"
    DISTRIBUTED = "distributed"


class Scope(Enum):
    """How a subscriber takes part, weakest first. A follower ranks as local."""

    NONE = "none"
    NON_TRANSACTIONAL = "non-transactional"
    LOCAL = "local"
    FOLLOWER = "follower"
    DISTRIBUTED = "distributed"


class Limit(Enum):
    """The weakest scope that the initiator lets subscribers choose (TOPS 4.4.3.1)."""

    NONE = "none"
    LOCAL = "local"
    DISTRIBUTED = "distributed"


class Access(Enum):
    """Who may publish inside the transaction (TOPS 4.4.2)."""

    SINGLE = "single"
    MULTI = "multi"


class Visibility(Enum):
    """What the world outside reads on the plain topic of the type."""

    PRIVATE = "private"
    PUBLIC = "public"
    PUBLIC_ON_COMMIT = "public-on-commit"


class Status(Enum):
    """What is known of a transaction, as its caller learns it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    REFUSED = "refused"
    PENDING = "pending"
    UNKNOWN = "unknown"
    FINISHED = "finished"


class ChainKind(Enum):
    """Followers read the commits of a coordinator, durable local members its publishers' commit calls."""

    COMMITS = "commits"
    CALLS = "calls"


class TxId(Struct, frozen=True, array_like=True, order=True, cache_hash=True):
    """Names a transaction for ever: where it is coordinated, under which log, and its number there."""

    coordinator: str
    incarnation: str
    number: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.coordinator}/{self.incarnation}/{self.number}/{self.nonce}"


class Conditions(Struct, frozen=True, array_like=True):
    """Who must take part: counts, names, nobody else. An empty tuple of names asks for nothing."""

    at_least: int = 0
    at_most: int | None = None
    named: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


class Terms(Struct, frozen=True, array_like=True):
    """What the initiator fixes at creation and every subscriber sees in the census."""

    type: str
    attributes: tuple[tuple[str, str], ...] = ()
    tx_type: TxType = TxType.DISTRIBUTED
    access: Access = Access.SINGLE
    limit: Limit = Limit.NONE
    visibility: Visibility = Visibility.PRIVATE
    require: Conditions = Conditions()
    settle_for: Conditions | None = None
    one_shot: bool = False
    census_within: float = 2.0
    vote_within: float = 5.0
    complete_within: float = 60.0
    delivery_attempts: int = 8
    publishers: tuple[str, ...] = ()
    committers: tuple[str, ...] = ()


class Item(Struct, frozen=True, array_like=True):
    """One application event as a publisher hands it over."""

    type: str
    payload: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Numbered(Struct, frozen=True, array_like=True):
    """An event with the number that the event coordinator gave it."""

    number: int
    item: Item
    publisher: str


class Finisher(Struct, frozen=True, array_like=True):
    """A site that may finish the transaction in place of its coordinator, and the hashes of what it would reveal."""

    site: str
    commit: bytes
    abort: bytes


class Hashes(Struct, frozen=True, array_like=True):
    """What a coordinator promises to reveal: one of the first two, one of the next two; and who may finish for it."""

    commit: bytes
    abort: bytes
    called: bytes
    withdrawn: bytes
    finishers: tuple[Finisher, ...] = ()


class Pseudonym(Struct, frozen=True, array_like=True):
    """A member of one transaction: the hashes of the three tokens that only it can reveal."""

    yes: bytes
    no: bytes
    done: bytes


class Standing(Struct, frozen=True, array_like=True):
    """A low-water mark: all transactions below `below` are finished, those in `open` excepted."""

    below: int = 0
    open: tuple[int, ...] = ()


class Message(Struct, frozen=True, array_like=True, tag=True, tag_field="@"):
    """Root of everything that crosses the bus."""


class Create(Message, frozen=True):
    """Publisher to coordinator: open a transaction under this key, or tell me of the one that has it.

    It is good for one life of one coordinator, in which `serial` is taken once and nothing below `below` any more;
    so a copy that arrives elsewhere, or after everything was forgotten, starts nothing. Serials count within one
    life of the publisher's log, which `incarnation` names.
    """

    key: str
    publisher: str
    life: int
    terms: Terms
    items: tuple[Item, ...] = ()
    coordinator_life: int = 0
    serial: int = 0
    below: int = 0
    coordinator: str = ""
    incarnation: str = ""

    @property
    def asked(self) -> Asked:
        """Which creation of its publisher this is."""
        return (self.incarnation, self.life, self.serial)


class Hello(Message, frozen=True):
    """Coordinator to publisher: I am in this life; say it again for this one."""

    key: str
    coordinator: str
    life: int


class Created(Message, frozen=True):
    """Coordinator to publisher: the transaction is open for events.

    `answers`, here and below: the creation or question that this answers. One key may have several transactions one
    after the other; a publisher that does not know yet which is its own goes by this.
    """

    key: str
    tx: TxId
    members: int = 0
    answers: Asked = NOBODY


class Refused(Message, frozen=True):
    """Coordinator to publisher: not done, and repeating it will not help. `event`: which submission, if it is one."""

    key: str
    tx: TxId | None
    reason: str
    coordinator: str = ""
    answers: Asked = NOBODY
    event: int = 0
    publisher: str = ""


class Submit(Message, frozen=True):
    """Publisher to coordinator: its `number`-th event for the transaction."""

    tx: TxId
    publisher: str
    number: int
    item: Item


class Accepted(Message, frozen=True):
    """Coordinator to publisher: its events up to `upto` are in the transaction. Who joins by id learns its type."""

    tx: TxId
    publisher: str
    upto: int
    type: str = ""


class CommitRequest(Message, frozen=True):
    """Publisher to coordinator. It can overtake events, so it says how many there are."""

    tx: TxId
    publisher: str
    submitted: int


class Abort(Message, frozen=True):
    """Publisher to coordinator: undo it as far as that still goes."""

    tx: TxId
    publisher: str
    reason: str = ""


class VotesMissing(Message, frozen=True):
    """Coordinator to publisher: the vote is overdue; wait longer or abort."""

    tx: TxId
    missing: int
    attempt: int


class ExtendDeadline(Message, frozen=True):
    """Publisher to coordinator: wait so much longer for votes."""

    tx: TxId
    publisher: str
    seconds: float
    attempt: int = 0


class Inquire(Message, frozen=True):
    """Caller to coordinator: what became of this transaction (by id, or by the caller's key)?"""

    publisher: str
    tx: TxId | None
    key: str
    asked: Asked = NOBODY
    below: int = 0


class Outcome(Message, frozen=True):
    """Coordinator to publisher. `called`: what local members do, `status`: what distributed members do."""

    tx: TxId | None
    key: str
    status: Status
    members: int = 0
    called: bool = False
    reason: str = ""
    by: str = ""
    final: bool = True
    coordinator: str = ""
    named: tuple[bytes, ...] = ()
    """The final list of a commit, for who asks: it holds for those alone."""
    answers: Asked = NOBODY


class Confirm(Message, frozen=True):
    """Publisher to coordinator: the caller has the outcome."""

    tx: TxId
    publisher: str


class Census(Message, frozen=True):
    """Coordinator to all: who takes part? In one shot the events are in it and the answer is a vote."""

    tx: TxId
    terms: Terms
    hashes: Hashes
    standing: Standing
    attempt: int = 0
    events: tuple[Numbered, ...] = ()
    digest: bytes = b""


class Join(Message, frozen=True):
    """Member to coordinator. It repeats the coordinator's hashes, so a census under a stranger's is noticed."""

    tx: TxId
    pseudonym: Pseudonym
    hashes: Hashes
    identity: str = ""
    one_phase: bool = False
    attributes: tuple[tuple[str, str], ...] = ()
    waits: bool = True
    """Whether a resource, or code of the application, waits for the decision."""


class Decline(Message, frozen=True):
    """Subscriber to coordinator: present, and no distributed member. `answer` tells two anonymous ones apart.

    With its `identity`: it does not subscribe to the type any more and is not to be counted on.
    """

    tx: TxId
    answer: bytes
    identity: str = ""


class Begin(Message, frozen=True):
    """Coordinator to all: the members, as hashes of their pseudonyms."""

    tx: TxId
    members: tuple[bytes, ...]
    type: str


class CensusFailed(Message, frozen=True):
    """Coordinator to all: not enough members; nothing was begun."""

    tx: TxId
    token: bytes
    reason: str


class Event(Message, frozen=True):
    """Coordinator to all members: the next event of the transaction."""

    tx: TxId
    event: Numbered


class Resend(Message, frozen=True):
    """Member to coordinator: these events are missing here."""

    tx: TxId
    first: int
    last: int


class Prepare(Message, frozen=True):
    """Coordinator to all members: that was the last event; vote."""

    tx: TxId
    members: tuple[bytes, ...]
    last: int
    digest: bytes
    type: str


class Vote(Message, frozen=True):
    """Member to coordinator: reveals one token. In one shot it carries the join."""

    tx: TxId
    member: bytes
    token: bytes
    last: int
    digest: bytes
    reason: str = ""
    join: Join | None = None


class Delegate(Message, frozen=True):
    """Coordinator to its only member: commit or refuse, yours is the decision."""

    tx: TxId
    member: bytes
    last: int
    digest: bytes
    type: str


class Delegated(Message, frozen=True):
    """The only member's decision, by token."""

    tx: TxId
    member: bytes
    token: bytes
    reason: str = ""


class Decision(Message, frozen=True):
    """Coordinator to all members: value and final list. A prepared member that is not named rolls back."""

    tx: TxId
    token: bytes
    final: tuple[bytes, ...] = ()
    reason: str = ""


class Ack(Message, frozen=True):
    """Member to coordinator: applied and durable here."""

    tx: TxId
    member: bytes
    token: bytes


class Compensated(Message, frozen=True):
    """Member to coordinator: committed work was undone, or could not be and is parked for an operator."""

    tx: TxId
    member: bytes
    parked: bool = False


class InDoubt(Message, frozen=True):
    """Member to coordinator and peers: nothing was heard for long. `state`: census, transaction, commitment, local.

    With `finisher` it is a request to that site to finish what the coordinator cannot.
    """

    tx: TxId
    type: str
    state: str
    finisher: str = ""


class Finish(Message, frozen=True):
    """A finisher to all members, in place of a dead coordinator: the decision that stands in the shared register."""

    tx: TxId
    finisher: str
    token: bytes
    final: tuple[bytes, ...] = ()
    reason: str = ""


class Relay(Message, frozen=True):
    """A peer repeats the coordinator's own frame, which proves itself; nobody gives an opinion."""

    tx: TxId
    frame: bytes


class Unknown(Message, frozen=True):
    """Coordinator to an in-doubt member: that log is gone, an operator must resolve."""

    tx: TxId


class Called(Message, frozen=True):
    """Coordinator to local members: the publisher called commit; these are all events."""

    tx: TxId
    terms: Terms
    token: bytes
    last: int
    digest: bytes


class Withdrawn(Message, frozen=True):
    """Coordinator to local members: the publisher never called commit and never will."""

    tx: TxId
    token: bytes


class Follow(Message, frozen=True):
    """Reader to coordinator: enter me in the registry of this chain. `upto` < 0: I start anew.

    `registration` counts how often it started anew or wanted other types, so that a late copy changes nothing.
    """

    reader: str
    kind: ChainKind
    incarnation: str
    types: tuple[str, ...]
    upto: int = -1
    registration: int = 1


class Followed(Message, frozen=True):
    """Coordinator to reader: you are registered; your chain continues after `upto`."""

    coordinator: str
    incarnation: str
    kind: ChainKind
    upto: int
    registration: int = 1
    reader: str = ""


class Commit(Message, frozen=True):
    """Coordinator to reader: entry `number` of the chain. Without a transaction it concerns other types."""

    coordinator: str
    incarnation: str
    kind: ChainKind
    number: int
    tx: TxId | None
    terms: Terms | None = None
    events: tuple[Numbered, ...] = ()
    reader: str = ""


class ChainAck(Message, frozen=True):
    """Reader to coordinator: all entries up to `upto` are applied and durable."""

    reader: str
    kind: ChainKind
    incarnation: str
    upto: int


class Stale(Message, frozen=True):
    """Coordinator to reader: what you miss is beyond retention; load a snapshot and follow anew."""

    coordinator: str
    incarnation: str
    kind: ChainKind
    low: int
    registration: int = 1
    reader: str = ""


class AskMark(Message, frozen=True):
    """Member to coordinator: how far are you? There is something to forget here."""

    type: str
    incarnation: str


class Mark(Message, frozen=True):
    """Coordinator to all: its low-water mark."""

    coordinator: str
    incarnation: str
    standing: Standing


class Operate(Message, frozen=True):
    """Operator to a site: tell what is open (`list`), or end one in doubt by force (`commit`, `abort`).

    `readers`: tell who follows; `remove reader`: keep nothing any more for the one that `name` names.
    """

    site: str
    reply_to: str
    id: str
    action: str
    tx: TxId | None = None
    name: str = ""


class Operated(Message, frozen=True):
    """The site's answer: what is open, or who follows, afterwards; or why it was not done."""

    site: str
    id: str
    views: bytes = b""
    refused: str = ""


AnyMessage: TypeAlias = (
    Create
    | Hello
    | Created
    | Refused
    | Submit
    | Accepted
    | CommitRequest
    | Abort
    | VotesMissing
    | ExtendDeadline
    | Inquire
    | Outcome
    | Confirm
    | Census
    | Join
    | Decline
    | Begin
    | CensusFailed
    | Event
    | Resend
    | Prepare
    | Vote
    | Delegate
    | Delegated
    | Decision
    | Ack
    | Compensated
    | InDoubt
    | Finish
    | Relay
    | Unknown
    | Called
    | Withdrawn
    | Follow
    | Followed
    | Commit
    | ChainAck
    | Stale
    | AskMark
    | Mark
    | Operate
    | Operated
)
