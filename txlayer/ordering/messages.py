"""What publishers, subscribers and hosts of topic managers say to each other; one union, MessagePack arrays.

Only `Chained` needs a link, and makes one: a frame that comes out of turn is dropped by the receiver, so that a way
that reorders is at worst a way that loses. Everything else may be lost, doubled and reordered: each kind names what
recognises a repetition.

Numbers that cannot be are refused where they are read, so that the roles need not fear to add to them.

A new field goes at the end and has a default, so that old and new hosts understand each other.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import Struct

from txlayer.errors import DecodeError
from txlayer.ordering.timestamp import Number, Seconds, Stamp


class _Message(Struct, frozen=True, tag=True, array_like=True, gc=False):
    pass


class Locate(_Message, frozen=True):
    """Client to host: which ranks have these topics? A topic that is new is given one."""

    sender: str
    topics: tuple[str, ...]


class Located(_Message, frozen=True):
    """Host to client. `ranks[i]` is that of `topics[i]`."""

    host: Number
    epoch: Number
    topics: tuple[str, ...]
    ranks: tuple[Number, ...]


class Create(_Message, frozen=True):
    """Publisher to home host: `count` numbers for the requests from `seq` on; all below `low` were released."""

    publisher: str
    topic: str
    generation: Number
    seq: Number
    count: Number
    low: Number


class Stamped(_Message, frozen=True):
    """Host to publisher: numbers `stamp.number` to `stamp.number + count - 1`, all with the same entries."""

    topic: str
    generation: Number
    seq: Number
    count: Number
    stamp: Stamp


class Published(_Message, frozen=True):
    """Publisher to host: the bus has these events."""

    publisher: str
    topic: str
    seq: Number
    first: Number
    count: Number


class Acknowledged(_Message, frozen=True):
    """Host to publisher: the ticket is closed, nobody will void it."""

    topic: str
    seq: Number
    first: Number
    epoch: Number


class Voided(_Message, frozen=True):
    """Host to publisher: these numbers are void; publish the same events again under new ones."""

    topic: str
    generation: Number
    seq: Number
    first: Number
    epoch: Number


class Resend(_Message, frozen=True):
    """Host to publisher: a subscriber has not got this number."""

    topic: str
    number: Number


class Gone(_Message, frozen=True):
    """Publisher to host: I no longer have this number."""

    publisher: str
    topic: str
    number: Number


class Register(_Message, frozen=True):
    """A subscriber's whole subscription, before and after: subscribe, unsubscribe and sign of life alike.

    Sent to the lowest-ranked host concerned, and from there up the chain. `refresh` changes nothing and tells the
    counters. `related`: order across topics is wanted. `whole`: stamps must not rest on a base. `anew`: the subscriber
    knows that it was removed, and takes new baselines for everything. `lasting`: it may be away for long, and returns.
    `unsure`: (rank, first, last) of numbers below a counter that the host's former holder may still be giving.
    """

    subscriber: str
    version: Number
    new: tuple[Number, ...]
    old: tuple[Number, ...]
    refresh: bool = False
    related: bool = True
    whole: bool = False
    sent: Seconds = 0.0
    ranks: tuple[Number, ...] = ()
    values: tuple[Number, ...] = ()
    anew: bool = False
    lasting: bool = False
    unsure: tuple[tuple[Number, Number, Number], ...] = ()


class Registered(_Message, frozen=True):
    """The last host to the subscriber. `sent` is the subscriber's own clock, returned. `unsure`: as collected."""

    version: Number
    refresh: bool
    sent: Seconds
    ranks: tuple[Number, ...]
    values: tuple[Number, ...]
    unsure: tuple[tuple[Number, Number, Number], ...] = ()


class Missing(_Message, frozen=True):
    """Subscriber to home host: I wait for these numbers."""

    subscriber: str
    rank: Number
    first: Number
    last: Number


class Refused(_Message, frozen=True):
    """Host to whoever asked for something that cannot be. `about` is the kind of the message.

    `current`: for a registration, the version that is in force here; 0 if there is none. `number`: for a
    confirmation, its first number.
    """

    about: str
    topic: str
    version: Number
    host: Number
    epoch: Number
    reason: str
    current: Number = 0
    number: Number = 0


class Hail(_Message, frozen=True):
    """A host that has started, to the next higher one: tell me your epoch."""

    host: Number
    epoch: Number


class Hello(_Message, frozen=True):
    """A host to the next lower one: begin a new link to me, with the counters that I may have missed."""

    host: Number
    epoch: Number


class Seek(_Message, frozen=True):
    """A host to another that claims the topic too: have you got it? I am about to create it."""

    host: int
    epoch: int
    topic: str


class Sought(_Message, frozen=True):
    """The answer. `rank`: that of the topic; -1 if it does not exist here, -2 if it is about to."""

    host: int
    epoch: int
    topic: str
    rank: int


class Beat(_Message, frozen=True):
    """A host to itself, over the bus: when it comes back, the bus works."""


class Welcome(_Message, frozen=True):
    """First frame of a link: all counters that the sender knows."""

    ranks: tuple[Number, ...]
    values: tuple[Number, ...]


class Fill(_Message, frozen=True):
    """A stamp on its way up the chain; entries of higher hosts are blank (0)."""

    home: Number
    epoch: Number
    rank: Number
    first: Number
    last: Number
    ranks: tuple[Number, ...]
    values: tuple[Number, ...]


class Complete(_Message, frozen=True):
    """A filled stamp, straight to its home host."""

    epoch: Number
    rank: Number
    first: Number
    values: tuple[Number, ...]


class Chained(_Message, frozen=True):
    """A frame on the link from a host to the next higher one. `session` is the receiver's epoch."""

    host: Number
    epoch: Number
    session: Number
    seq: Number
    body: Fill | Register | Welcome


class Beside(Struct, frozen=True, array_like=True):
    """What an application sends beside a payload."""

    headers: dict[str, str] = {}
    key: bytes | None = None
    type: str = ""


class Event(_Message, frozen=True):
    """On the bus: (publisher, serial) on its topic is the identity of the event, whatever its number.

    `again`: it was published before under a number that was voided then; some subscribers may have it from that time.
    """

    publisher: str
    serial: Number
    stamp: Stamp
    payload: bytes
    again: bool = False
    beside: Beside | None = None


class Void(_Message, frozen=True):
    """On the bus, or straight to a subscriber that asks: these numbers are no events.

    `lost`: they were, and nobody has them any more. Then the entries, if it is `placed`, say what comes before.
    `doubtful`: a host that has forgotten what it gave cannot tell.
    """

    rank: Number
    first: Number
    last: Number
    epoch: Number
    lost: bool = False
    placed: bool = False
    ranks: tuple[Number, ...] = ()
    values: tuple[Number, ...] = ()
    doubtful: bool = False


AnyMessage: TypeAlias = (
    Locate
    | Located
    | Create
    | Stamped
    | Published
    | Acknowledged
    | Voided
    | Resend
    | Gone
    | Register
    | Registered
    | Missing
    | Refused
    | Hail
    | Hello
    | Seek
    | Sought
    | Beat
    | Complete
    | Chained
    | Event
    | Void
)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyMessage).decode


def encode(message: AnyMessage) -> bytes:
    """To bytes."""
    return _encode(message)


def decode(frame: bytes) -> AnyMessage:
    """From bytes; raises `DecodeError` and nothing else."""
    try:
        message: AnyMessage = _decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
        raise DecodeError(f"not a message of the ordering layer: {exc}") from exc
    return message
