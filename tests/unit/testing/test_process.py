"""Processes under the watchdog: real ones, but small."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from txlayer.testing.process import ServerProcess, free_port, run, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")

READY = "print('ready', flush=True);"
WAIT = "import signal; signal.pause()"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY} signal.pause()"
# As PostgreSQL does: a child in a session of its own, which a signal to the server's group does not reach.
WITH_CHILD = """
import os, signal
if os.fork() == 0:
    os.setsid()
    print("child", os.getpid(), flush=True)
signal.pause()
"""

Start = Callable[[str], ServerProcess]


def alive(pid: int) -> bool:
    """Zombies do not count: whoever inherits an orphan may collect it late."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the second if it is collected between open and read
        return False
    return state != "Z"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[ServerProcess] = []

    def run_script(script: str) -> ServerProcess:
        started.append(ServerProcess([sys.executable, "-c", script], tmp_path, tmp_path / "log"))
        return started[-1]

    yield run_script
    for process in started:
        process.kill()


def ready(process: ServerProcess) -> None:
    assert wait_until(lambda: "ready" in process.output(), 30)


def test_a_stopped_process_is_gone_when_stop_returns(start: Start) -> None:
    process = start(READY + WAIT)
    ready(process)

    process.stop()

    assert not process.running()
    assert not alive(process.pid)


def test_a_process_that_ignores_the_request_is_killed(start: Start) -> None:
    process = start(STUBBORN)
    ready(process)

    process.stop(seconds=0.1)

    assert not alive(process.pid)


def test_kill_ends_children_in_other_sessions_too(start: Start) -> None:
    process = start(WITH_CHILD)
    assert wait_until(lambda: "child" in process.output(), 30)
    child = int(process.output().split()[1])

    process.kill()

    assert not alive(process.pid)
    assert not alive(child)


def test_a_process_that_ends_by_itself_is_not_running(start: Start) -> None:
    process = start("raise SystemExit('cannot bind')")

    assert wait_until(lambda: not process.running(), 30)
    assert "cannot bind" in process.log_tail()
    process.kill()


def test_each_run_reads_its_own_part_of_the_log(start: Start) -> None:
    first = start("print('first')")
    assert wait_until(lambda: not first.running(), 30)
    second = start("print('second')")
    assert wait_until(lambda: not second.running(), 30)

    assert first.output() == "first\nsecond\n"
    assert second.output() == "second\n"


def test_a_missing_program_shows_in_the_log(tmp_path: Path) -> None:
    process = ServerProcess(["/nonexistent/server"], tmp_path, tmp_path / "log")

    assert wait_until(lambda: not process.running(), 30)
    assert "/nonexistent/server: No such file or directory" in process.output()


def test_the_end_of_the_thread_that_started_it_does_not_end_a_server(start: Start) -> None:
    started: list[ServerProcess] = []
    thread = threading.Thread(target=lambda: started.append(start(READY + WAIT)))
    thread.start()
    thread.join()

    (process,) = started
    ready(process)
    assert process.running()


OWNER = f"""
import json, signal, sys
from pathlib import Path
from txlayer.testing.process import ServerProcess
directory = Path(sys.argv[1])
process = ServerProcess([sys.executable, "-c", {READY + WAIT!r}], directory, directory / "log")
print(json.dumps([process.pid, process._watchdog.pid]), flush=True)
signal.pause()
"""


def test_a_server_dies_with_its_owner_and_its_directory_goes_too(tmp_path: Path) -> None:
    directory = tmp_path / "server"
    directory.mkdir()
    with subprocess.Popen([sys.executable, "-c", OWNER, str(directory)], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        server, watchdog = json.loads(owner.stdout.readline())
        owner.send_signal(signal.SIGKILL)

    assert wait_until(lambda: not alive(server) and not alive(watchdog), 30)
    assert not directory.exists()


def test_a_server_dies_with_its_watchdog(start: Start) -> None:
    process = start(READY + WAIT)
    ready(process)

    os.kill(process._watchdog.pid, signal.SIGKILL)

    assert wait_until(lambda: not alive(process.pid), 30)


def test_a_drawn_port_is_below_those_of_clients() -> None:
    assert all(1024 < free_port() < 32_768 for _ in range(20))


def test_processes_that_run_beside_each_other_never_draw_the_same_port(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[set[int]] = []
    for pid in (4711, 4712):
        monkeypatch.setattr(os, "getpid", partial(int, pid))
        drawn.append({free_port() for _ in range(500)})
    assert drawn[0].isdisjoint(drawn[1])


def test_run_gives_output_and_errors_together() -> None:
    result = run([sys.executable, "-c", "import sys; print('out', flush=True); sys.exit('err')"])

    assert not result.succeeded
    assert result.tail() == "out\nerr"
