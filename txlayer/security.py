"""Seals: what keeps strangers out, at three levels.

`BrokerSeal` seals nothing: whoever may publish on the control topics may speak; tokens still settle votes, decision
values and acknowledgements. `SecretSeal` puts HMAC-SHA256 with an enrolment secret on every message, so only those
who know the secret can speak, to each other's harm if they wish. `SignedSeal` puts an Ed25519 signature of the
sending site on every message and checks that the site may say such a thing at all: a member cannot speak as
coordinator or as another publisher. The price of the last is that frames name their sender.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from txlayer import messages as m
from txlayer.codec import VERSION, Frame, decode_body, decode_frame, encode_body, encode_frame
from txlayer.errors import MissingExtra, SealBroken, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


class Opened(Struct, frozen=True):
    """A message whose seal was good. `sender` is known only where frames are signed."""

    message: m.AnyMessage
    sender: str
    frame: bytes


class Seal(Protocol):
    """Makes frames of messages and checks frames. `open` raises `DecodeError` and nothing else."""

    def close(self, message: m.AnyMessage) -> bytes: ...

    def open(self, data: bytes) -> Opened: ...


class BrokerSeal:
    """No seal: the broker's access lists keep strangers out."""

    def close(self, message: m.AnyMessage) -> bytes:
        return encode_frame(Frame(VERSION, "", encode_body(message)))

    def open(self, data: bytes) -> Opened:
        return Opened(decode_body(decode_frame(data)), "", data)


class SecretSeal:
    """HMAC with an enrolment secret. While it is rotated two are accepted and the first is used."""

    def __init__(self, secrets: Sequence[bytes]) -> None:
        if not 1 <= len(secrets) <= 2 or not all(len(secret) >= 8 for secret in secrets):
            raise UsageError("an enrolment secret has at least 8 bytes; give one, or two while it is rotated")
        self._secrets = tuple(secrets)

    def close(self, message: m.AnyMessage) -> bytes:
        body = encode_body(message)
        return encode_frame(Frame(VERSION, "", body, self._seal(self._secrets[0], VERSION, body)))

    def open(self, data: bytes) -> Opened:
        frame = decode_frame(data)
        if not any(
            hmac.compare_digest(frame.seal, self._seal(secret, frame.version, frame.body)) for secret in self._secrets
        ):
            raise SealBroken("not sealed with the enrolment secret")
        return Opened(decode_body(frame), "", data)

    @staticmethod
    def _seal(secret: bytes, version: int, body: bytes) -> bytes:
        return hmac.digest(secret, b"txlayer %d " % version + body, "sha256")


class SignedSeal:
    """Ed25519 with a key per site and a list of the sites that are allowed."""

    def __init__(self, site: str, key: Ed25519PrivateKey, allowed: Mapping[str, Ed25519PublicKey]) -> None:
        self._site = site
        self._key = key
        self._allowed = dict(allowed)

    def close(self, message: m.AnyMessage) -> bytes:
        body = encode_body(message)
        return encode_frame(Frame(VERSION, self._site, body, self._key.sign(self._covered(self._site, VERSION, body))))

    def open(self, data: bytes) -> Opened:
        try:
            from cryptography.exceptions import InvalidSignature
        except ImportError as exc:
            raise MissingExtra("signed", "cryptography") from exc
        frame = decode_frame(data)
        key = self._allowed.get(frame.sender)
        if key is None:
            raise SealBroken(f"{frame.sender[:40]!r} is not on the list of allowed sites")
        try:
            key.verify(frame.seal, self._covered(frame.sender, frame.version, frame.body))
        except InvalidSignature as exc:
            raise SealBroken(f"not signed by {frame.sender!r}") from exc
        message = decode_body(frame)
        speaker = speaks_for(message)
        if speaker is not None and speaker != frame.sender:
            raise SealBroken(f"{frame.sender!r} may not send {type(message).__name__} for {speaker!r}")
        return Opened(message, frame.sender, data)

    @staticmethod
    def _covered(sender: str, version: int, body: bytes) -> bytes:
        return b"txlayer %d %d " % (version, len(sender.encode())) + sender.encode() + body


_BY_COORDINATOR = (
    m.Created | m.Accepted | m.VotesMissing | m.Census | m.Begin | m.CensusFailed | m.Event | m.Prepare
    | m.Delegate | m.Decision | m.Unknown | m.Called | m.Withdrawn
)  # fmt: skip
_BY_PUBLISHER = m.Create | m.Submit | m.CommitRequest | m.Abort | m.ExtendDeadline | m.Inquire | m.Confirm
_BY_CHAIN = m.Hello | m.Followed | m.Commit | m.Stale | m.Mark


def speaks_for(message: m.AnyMessage) -> str | None:
    """The one site that may sign this message; None where tokens or the content itself prove it."""
    if isinstance(message, _BY_COORDINATOR):
        return message.tx.coordinator
    if isinstance(message, _BY_PUBLISHER):
        return message.publisher
    if isinstance(message, _BY_CHAIN):
        return message.coordinator
    if isinstance(message, m.Follow | m.ChainAck):
        return message.reader
    if isinstance(message, m.Finish):
        return message.finisher
    if isinstance(message, m.Outcome | m.Refused):
        return message.coordinator or (message.tx.coordinator if message.tx is not None else "")
    if isinstance(message, m.Operate | m.Operated):
        return message.site  # an operator speaks with the key of the site that he operates
    if isinstance(message, m.Join | m.Decline):
        return message.identity or None
    if isinstance(message, m.Vote) and message.join is not None:
        return message.join.identity or None
    return None
