"""What all native servers share, with a small server in place of a broker."""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from txlayer.testing import native
from txlayer.testing.native import NativeServer
from txlayer.testing.process import ServerProcess
from txlayer.testing.server import ServerFailed

SCRIPT = """
import signal, socket, sys
server = socket.create_server(("127.0.0.1", int(open("port").read())))
open("starts", "a").write("x")
print("up", flush=True)
signal.pause()
"""


class SmallServer(NativeServer):
    kind = "small"
    script = SCRIPT

    @property
    def url(self) -> str:
        return f"small://127.0.0.1:{self.port}"

    def _configure(self, ports: Mapping[str, int]) -> None:
        (self.directory / "port").write_text(str(ports["client"]))

    def _command(self) -> Sequence[str]:
        return [sys.executable, "-c", self.script]

    def _ready(self, process: ServerProcess) -> bool:
        return "up" in process.output()


class BrokenServer(SmallServer):
    kind = "broken"
    script = "raise SystemExit('bad configuration')"


def connects(server: NativeServer) -> bool:
    try:
        socket.create_connection(("127.0.0.1", server.port)).close()
    except OSError:
        return False
    return True


def test_a_started_server_is_ready_and_gone_after_close() -> None:
    with SmallServer() as server:
        assert connects(server)
    assert not connects(server)
    assert not server.directory.exists()
    server.close()


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_server_comes_back_at_its_address_with_its_data(end: str) -> None:
    with SmallServer() as server:
        url = server.url
        getattr(server, end)()
        assert not connects(server)

        server.restart()

        assert connects(server)
        assert server.url == url
        assert (server.directory / "starts").read_text() == "xx"


def test_a_port_taken_between_draw_and_bind_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = native.free_port
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = [other.getsockname()[1]]
        monkeypatch.setattr(native, "free_port", lambda: ports.pop() if ports else draw())

        with SmallServer() as server:
            assert server.port != other.getsockname()[1]
            assert connects(server)


def test_a_restart_waits_for_its_own_port(monkeypatch: pytest.MonkeyPatch) -> None:
    with SmallServer() as server:
        server.stop()
        other = socket.create_server(("127.0.0.1", server.port))
        monkeypatch.setattr(native.time, "sleep", lambda seconds: other.close())

        server.start()

        assert connects(server)


def test_a_server_that_does_not_come_up_shows_its_log_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native.tempfile, "gettempdir", lambda: str(tmp_path))

    with pytest.raises(ServerFailed, match=r"(?s)broken did not come up.*bad configuration"):
        BrokenServer()
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_end_the_server_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    with SmallServer() as server:
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            server.close()
        assert connects(server)
