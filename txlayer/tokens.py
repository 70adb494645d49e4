"""One-time tokens and pseudonyms (HTS 4.1, hashed membership taken one step further).

A site has one durable secret. For each transaction it derives tokens by HMAC over the transaction's id; what it
publishes beforehand are their hashes. Revealing a token later settles one bit: a vote, an acknowledgement, a
decision. Anyone can check it, nobody else can make it, a restarted site derives the same ones again, and nothing in
the tokens links two transactions.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

import msgspec

from txlayer.messages import Finisher, Hashes, Numbered, Pseudonym, TxId

_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Keyring:
    """The secret of one site, and all that is derived from it."""

    secret: bytes

    def token(self, tx: TxId, word: str) -> bytes:
        """The token that says `word` about `tx`. One HMAC for each transaction, one hash for each word."""
        return sha256(self._seed(tx) + word.encode()).digest()

    def pseudonym(self, tx: TxId) -> Pseudonym:
        """This site as a member of `tx`."""
        return _pseudonym(self.secret, tx)

    def member(self, tx: TxId) -> bytes:
        """This site as the list of members names it."""
        return _member(self.secret, tx)

    def hashes(self, tx: TxId, finishers: tuple[str, ...] = ()) -> Hashes:
        """What this site promises as coordinator of `tx`, and what its finishers could reveal."""
        seed = self._seed(tx)
        words = (b"commit", b"abort", b"called", b"withdrawn")
        commit, abort, called, withdrawn = (sha256(sha256(seed + word).digest()).digest() for word in words)
        return Hashes(commit, abort, called, withdrawn, tuple(self._finisher(tx, site) for site in finishers))

    def key_for(self, finisher: str) -> bytes:
        """The secret that this site leaves for one of its finishers: good for finishing, and for nothing else."""
        return hmac.digest(self.secret, f"finisher {finisher}".encode(), "sha256")

    def _finisher(self, tx: TxId, site: str) -> Finisher:
        key = Keyring(self.key_for(site))
        return Finisher(site, digest(key.token(tx, "commit")), digest(key.token(tx, "abort")))

    def nonce(self, incarnation: str, number: int) -> str:
        """A few bytes that nobody can foresee, the same after a restart."""
        return hmac.digest(self.secret, f"nonce {incarnation} {number}".encode(), "sha256")[:4].hex()

    def _seed(self, tx: TxId) -> bytes:
        return _seed(self.secret, tx)


# What is derived is asked for several times in every transaction, and soon after each other.


@lru_cache(maxsize=512)
def _seed(secret: bytes, tx: TxId) -> bytes:
    return hmac.digest(secret, f"tx {tx}".encode(), "sha256")


@lru_cache(maxsize=512)
def _pseudonym(secret: bytes, tx: TxId) -> Pseudonym:
    seed = _seed(secret, tx)
    return Pseudonym(*(sha256(sha256(seed + word).digest()).digest() for word in (b"yes", b"no", b"done")))


@lru_cache(maxsize=512)
def _member(secret: bytes, tx: TxId) -> bytes:
    return member_hash(_pseudonym(secret, tx))


def digest(token: bytes) -> bytes:
    """The one-way function."""
    return sha256(token).digest()


def member_hash(pseudonym: Pseudonym) -> bytes:
    """How `Begin` and `Decision` name a member."""
    return sha256(pseudonym.yes + pseudonym.no + pseudonym.done).digest()[:16]


def reveals(token: bytes, expected: bytes) -> bool:
    """Whether `token` is the one whose hash was published."""
    return hmac.compare_digest(digest(token), expected)


EMPTY_DIGEST = b""


def extend_digest(previous: bytes, event: Numbered) -> bytes:
    """The digest of a sequence of events, one further. Numbers, types, payloads and publishers all count."""
    return sha256(previous + _encode(event)).digest()[:16]


def digest_of(events: tuple[Numbered, ...]) -> bytes:
    """The digest of a whole sequence."""
    value = EMPTY_DIGEST
    for event in events:
        value = extend_digest(value, event)
    return value
