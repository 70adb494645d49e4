"""Every error that this package raises.

TxLayerError
├── UsageError                the caller's bug; the message says what to change
│   ├── UnknownScheme         no adapter for the URL's scheme
│   ├── MalformedUrl
│   ├── MissingExtra          a driver is not installed; names the pip command
│   ├── TopicForbidden        the bus does not allow this topic or pattern
│   ├── PayloadTooLarge       over the limit of the bus
│   └── Closed                used after close
├── ProtocolError             the other side's bug
│   └── DecodeError           bytes that are no message of ours
│       ├── UnknownKind       well-formed, of a kind that this release does not know
│       ├── NewerVersion      a known kind in a version that this release cannot read
│       └── SealBroken        not sealed as the security level asks
├── BusError                  the edge to the broker
│   ├── BrokerUnreachable     (retriable)
│   ├── AuthenticationFailed
│   ├── Backpressure          (retriable) a bounded buffer is full; nothing was taken
│   ├── PublishFailed         the broker refused, or the event could not be handed over in time
│   ├── PublishInDoubt        an ordered event is on the bus, and whether it keeps its place is not known
│   ├── SubscribeFailed
│   └── NameTaken             a durable name or a site name has another live holder
├── TransactionError          how a transaction ended, when it did not commit
│   ├── TransactionAborted    definite
│   ├── TransactionRefused    definite; the coordinator did not take it, or not this call of it
│   │   └── CensusUnfulfilled nothing was begun
│   └── OutcomeUnknown        in doubt: ask again later, never a failure in disguise
├── LogError                  a durable log that cannot be trusted or written
│   ├── LogCorrupt            a record or the list of records does not add up
│   ├── LogForeign            the log of another site, or another log of this one
│   ├── LogRolledBack         older than what others have seen of it
│   ├── LogTooNew             written by a later release
│   └── LogFailed             a write or sync failed; the process must stop
├── SiteStalled               (retriable) the site's own thread did not answer in time
└── ResourceError             what a member prepares and commits; definite
    └── ResourceUnavailable   (retriable) it cannot be reached: nothing is known, ask again
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txlayer.messages import Outcome, TxId


class TxLayerError(Exception):
    """Root of all errors of this package. `retriable`: the same call may succeed later, unchanged."""

    retriable = False


class UsageError(TxLayerError):
    """The call is wrong; repeating it will not help."""


class UnknownScheme(UsageError):
    """No installed adapter opens URLs of this scheme."""


class MalformedUrl(UsageError):
    """The URL cannot be read."""


class MissingExtra(UsageError):
    """An optional driver is not installed."""

    def __init__(self, extra: str, module: str) -> None:
        super().__init__(f'{module} is not installed: pip install "txlayer[{extra}]"')
        self.extra = extra


class TopicForbidden(UsageError):
    """The bus does not allow this topic name or pattern."""


class PayloadTooLarge(UsageError):
    """The event is larger than the bus accepts."""


class Closed(UsageError):
    """The object was closed before this call."""


class ProtocolError(TxLayerError):
    """The other side did something that the protocol does not allow."""


class DecodeError(ProtocolError):
    """These bytes are not a message of ours."""


class UnknownKind(DecodeError):
    """A well-formed message of a kind that this release does not know."""


class NewerVersion(DecodeError):
    """A known kind of message or log in a version that this release cannot read."""


class SealBroken(DecodeError):
    """The message is not sealed as the security level asks."""


class BusError(TxLayerError):
    """The broker, or the way to it, failed."""


class BrokerUnreachable(BusError):
    """No connection within the connect timeout."""

    retriable = True


class AuthenticationFailed(BusError):
    """The broker refused the credentials."""


class Backpressure(BusError):
    """A bounded buffer is full. Nothing was taken: wait, then call again."""

    retriable = True


class PublishFailed(BusError):
    """The broker refused the event, or it could not be handed over in time."""


class PublishInDoubt(BusError):
    """The ordered event was handed to the bus, and whether it has its place was not learnt in time.

    Subscribers may have it or get it. Publishing it again is another event: they may get both.
    """


class SubscribeFailed(BusError):
    """The broker refused the subscription."""


class NameTaken(BusError):
    """Another live process holds this name."""


class TransactionError(TxLayerError):
    """A transaction did not commit, as far as is known. `outcome` is all that is known."""

    def __init__(self, message: str, outcome: Outcome | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome

    @property
    def tx(self) -> TxId | None:
        """Which transaction; None if it never got an id."""
        return self.outcome.tx if self.outcome is not None else None

    @property
    def reason(self) -> str:
        """Why, in the words of whoever vetoed it."""
        return self.outcome.reason if self.outcome is not None else ""

    @property
    def by(self) -> str:
        """Who vetoed it, where that is known."""
        return self.outcome.by if self.outcome is not None else ""


class TransactionAborted(TransactionError):
    """Definitely aborted."""


class TransactionRefused(TransactionError):
    """The coordinator refused: over a limit, or this site may not do that."""


class CensusUnfulfilled(TransactionRefused):
    """The census did not find the members that were asked for; nothing was begun."""


class OutcomeUnknown(TransactionError):
    """In doubt: the outcome exists or will exist, but is not known here yet."""

    retriable = True


class LogError(TxLayerError):
    """A durable log that cannot be trusted or written."""


class LogCorrupt(LogError):
    """A record or the list of records does not add up; nothing was changed."""


class LogForeign(LogError):
    """The log belongs to another site, or is another log of this one."""


class LogRolledBack(LogError):
    """The log is older than what the bus remembers of it: a restored or copied file."""


class LogTooNew(LogError):
    """The log was written by a later release."""


class LogFailed(LogError):
    """A write or sync failed. What is on disk is unknown: stop, start again, recover."""


class SiteStalled(TxLayerError):
    """The site's thread did not answer in time: it waits for its disk, or the machine stands still."""

    retriable = True


class ResourceError(TxLayerError):
    """A resource could not do or prepare its work."""


class ResourceUnavailable(ResourceError):
    """The resource cannot be reached, or has not answered: what became of the work is unknown. Do the same again."""

    retriable = True
