"""A certificate for a server on this machine, made on the spot; it is its own authority."""

from __future__ import annotations

import shutil
from pathlib import Path

from txlayer.testing.process import run
from txlayer.testing.server import ServerUnavailable

NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


def make(certificate: Path, key: Path) -> None:
    """Write both as PEM, the key for its owner only; valid for a day."""
    if shutil.which("openssl") is None:
        raise ServerUnavailable("a TLS server needs the openssl command to make a certificate: install openssl")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc"]
    command += ["-days", "1", "-subj", "/CN=localhost", "-addext", NAMES, "-out", str(certificate), "-keyout", str(key)]
    result = run(command)
    if not result.succeeded:
        raise ServerUnavailable(f"openssl could not make a certificate:\n{result.tail()}")
    key.chmod(0o600)
