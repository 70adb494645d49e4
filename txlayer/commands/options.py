"""Options that several commands take."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from txlayer.errors import UsageError
from txlayer.security_levels import Secret, Signed


def add_bus(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """Which broker."""
    parser.add_argument("--bus", required=required, help="mqtt://host:port, kafka://host:port")


def add_security(parser: argparse.ArgumentParser) -> None:
    """How the sites keep strangers out. Files, because other users see the arguments of a process."""
    group = parser.add_argument_group("security, as the sites have it (default: the broker's access lists alone)")
    group.add_argument("--secret-file", metavar="FILE", help="enrolment secret; a second line while it is rotated")
    group.add_argument("--key-file", metavar="FILE", help="Ed25519 key of the site, 64 hexadecimal digits")
    group.add_argument("--allowed-file", metavar="FILE", help="JSON: public key of each allowed site, hexadecimal")


def security(args: argparse.Namespace) -> str | Secret | Signed:
    """What the options name."""
    if args.secret_file and (args.key_file or args.allowed_file):
        raise UsageError("either --secret-file, or --key-file and --allowed-file")
    if args.secret_file:
        return Secret(*_read(args.secret_file).split())
    if not args.key_file and not args.allowed_file:
        return "broker"
    if not args.key_file or not args.allowed_file:
        raise UsageError("signed sites need both --key-file and --allowed-file")
    try:
        allowed = msgspec.json.decode(_read(args.allowed_file), type=dict[str, str])
        return Signed(bytes.fromhex(_read(args.key_file)), {name: bytes.fromhex(key) for name, key in allowed.items()})
    except (ValueError, msgspec.MsgspecError) as exc:
        raise UsageError(f"a key cannot be read: {exc}") from exc


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path} cannot be read: {exc}") from exc
