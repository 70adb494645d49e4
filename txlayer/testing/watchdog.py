"""Run a server so that it cannot outlive the process that asked for it, whatever way that one dies.

    python -I -S watchdog.py '{"parent": PID, "report": FD, "remove": DIR, "uid": UID, "gid": GID}' COMMAND...

A script, not a module: it imports nothing of the package, so that it starts in some 20 ms. It stays between the test
process and the server for three reasons. PR_SET_PDEATHSIG alone fires when the *thread* that forked ends, which for a
server started from a worker thread is too early; a descriptor of the parent process itself is exact. Servers such as
PostgreSQL put their children in sessions of their own, out of reach of a signal to the group; a subreaper inherits and
ends them. And whoever waits for this process knows that nothing of the server is left: ports and shared memory are
free.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Only Linux has it; elsewhere the server is still ended by this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def become_server(command: list[str], uid: int | None, gid: int | None, watchdog: int) -> None:
    os.setsid()
    if gid is not None:
        os.setgroups([])
        os.setgid(gid)
    if uid is not None:
        os.setuid(uid)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # after setuid, which clears it
    if os.getppid() != watchdog:
        os._exit(1)
    os.execvp(command[0], command)


def start(command: list[str], uid: int | None, gid: int | None) -> int:
    watchdog = os.getpid()
    server = os.fork()
    if server:
        return server
    try:
        become_server(command, uid, gid, watchdog)
    except OSError as exc:
        print(f"{command[0]}: {exc.strerror}", file=sys.stderr, flush=True)  # noqa: T201 - goes to the server's log
    finally:
        os._exit(127)


def wait_for_either(parent: int, server: int) -> None:
    """Return once one of the two has ended."""
    if not hasattr(os, "pidfd_open"):
        while os.getppid() == parent and os.waitpid(server, os.WNOHANG) == (0, 0):
            select.select([], [], [], 0.2)
        return
    poll = select.poll()
    try:
        for pid in (parent, server):
            poll.register(os.pidfd_open(pid), select.POLLIN)
    except ProcessLookupError:
        return
    if os.getppid() == parent:  # otherwise it died before we looked, and the number may be someone else's
        poll.poll()


def children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as listing:
            return [int(pid) for pid in listing.read().split()]
    except OSError:
        return []


def end(server: int) -> int:
    """Kill what is left of the server and its orphans, collect them all, and return the server's wait status."""
    status = 0
    targets = {server, *children()}
    while True:
        for pid in targets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            ended, how = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        status = how if ended == server else status
        targets = set(children())


def main() -> None:
    order, command = json.loads(sys.argv[1]), sys.argv[2:]
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    server = start(command, order["uid"], order["gid"])
    with os.fdopen(order["report"], "w") as report:
        report.write(f"{server}\n")
    wait_for_either(order["parent"], server)
    status = end(server)
    if os.getppid() != order["parent"]:
        shutil.rmtree(order["remove"], ignore_errors=True)
    sys.exit(os.waitstatus_to_exitcode(status) & 0xFF)


if __name__ == "__main__":
    main()
