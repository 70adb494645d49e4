"""A private PostgreSQL server for contract tests, where its binaries are at hand."""

import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def _binaries() -> Path | None:
    found = shutil.which("initdb")
    if found:
        return Path(found).parent
    for version in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (version / "initdb").exists():
            return version
    return None


def _as_user() -> dict[str, str]:
    """PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": name}
    pytest.skip("PostgreSQL does not run as root and there is no other user")


@pytest.fixture(scope="session")
def postgres_dsn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if given := os.environ.get("TXLAYER_POSTGRES"):
        yield given
        return
    binaries = _binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL binaries; set TXLAYER_POSTGRES to use a server")
    user = _as_user()
    folder = Path("/tmp") / f"txlayer-pg-{os.getpid()}"
    folder.mkdir(mode=0o755)
    if user:
        shutil.chown(folder, user["user"])
    data = folder / "data"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/", **user}
    subprocess.run([binaries / "initdb", "-D", data, "-A", "trust", "-U", "txlayer", "--no-sync"], check=True, **quiet)
    command = [binaries / "postgres", "-D", data, "-p", str(port), "-c", "listen_addresses=127.0.0.1"]
    server = subprocess.Popen([*command, "-c", f"unix_socket_directories={folder}"], **quiet)
    dsn = f"host=127.0.0.1 port={port} user=txlayer dbname=postgres"
    try:
        _wait(dsn)
        yield dsn
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(dsn: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(dsn, connect_timeout=2).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
