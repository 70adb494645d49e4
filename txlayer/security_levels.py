"""How a site keeps strangers out: by the broker's access lists, a secret, or signatures (docs/protocol.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from txlayer.errors import MissingExtra, UsageError
from txlayer.security import BrokerSeal, Seal, SecretSeal, SignedSeal

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


class Secret:
    """An enrolment secret that all sites share; two while it is rotated, the first is used."""

    def __init__(self, *secrets: str | bytes) -> None:
        self.seal: Seal = SecretSeal([one.encode() if isinstance(one, str) else one for one in secrets])

    def __repr__(self) -> str:
        return "Secret(...)"


@dataclass(frozen=True, slots=True)
class Signed:
    """An Ed25519 key of this site, and the public keys of all sites that are allowed: key objects, or 32 raw bytes."""

    key: Ed25519PrivateKey | bytes = field(repr=False)
    allowed: Mapping[str, Ed25519PublicKey | bytes]


def make_seal(security: str | Secret | Signed, site: str) -> Seal:
    """The seal of a level."""
    if isinstance(security, Secret):
        return security.seal
    if isinstance(security, Signed):
        return _signed(security, site)
    if security != "broker":
        raise UsageError(f"security={security!r}: use 'broker', Secret('...') or Signed(key, allowed)")
    return BrokerSeal()


def signer(security: Signed) -> str:
    """The name under which the list of allowed sites holds the public key of this key."""
    key, allowed = _keys(security)
    mine = key.public_key().public_bytes_raw()
    for name, one in allowed.items():
        if one.public_bytes_raw() == mine:
            return name
    raise UsageError("the list of allowed sites must hold the public key of this key, under some name")


def _signed(security: Signed, site: str) -> SignedSeal:
    key, allowed = _keys(security)
    mine = allowed.get(site)
    if mine is None or mine.public_bytes_raw() != key.public_key().public_bytes_raw():
        raise UsageError(f"the list of allowed sites must hold {site!r} with the public key of this site's own key")
    return SignedSeal(site, key, allowed)


def _keys(security: Signed) -> tuple[Ed25519PrivateKey, dict[str, Ed25519PublicKey]]:
    """As key objects."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as exc:
        raise MissingExtra("signed", "cryptography") from exc

    def private(key: Any) -> Ed25519PrivateKey:
        return ed25519.Ed25519PrivateKey.from_private_bytes(key) if isinstance(key, bytes) else key

    def public(key: Any) -> Ed25519PublicKey:
        return ed25519.Ed25519PublicKey.from_public_bytes(key) if isinstance(key, bytes) else key

    try:
        return private(security.key), {name: public(one) for name, one in security.allowed.items()}
    except ValueError as exc:
        raise UsageError(f"an Ed25519 key has 32 bytes: {exc}") from exc
