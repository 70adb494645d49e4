"""`txlayer recover` where its driver is missing, and where what it wants to do fails."""

from __future__ import annotations

import argparse
import io
import subprocess
import sys

import pytest
from rich.console import Console

from txlayer import recover
from txlayer.errors import ResourceError
from txlayer.messages import TxId
from txlayer.resources.postgres_names import ReadName
from txlayer.resources.postgres_prepared import PreparedBranch, Undoable

_WITHOUT_PSYCOPG = """
import sys
sys.modules["psycopg"] = None
from txlayer import cli
sys.exit(cli.main(sys.argv[1:]))
"""
BRANCH = PreparedBranch("gid", ReadName("s", "r", TxId("c", "log", 1, "abcd")), 1.0, ())


@pytest.mark.parametrize("command", [["recover"], ["tx", "list", "--site", "x", "--dsn", "postgresql://localhost/x"]])
def test_a_missing_driver_is_named_with_the_pip_command(command: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _WITHOUT_PSYCOPG, *command], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr == 'txlayer: psycopg is not installed: pip install "txlayer[postgres]"\n'


class Refusing:
    """A database that lets nobody finish."""

    def __init__(self, dsn: str) -> None: ...

    def find(self, site: str | None) -> list[PreparedBranch]:
        return [BRANCH]

    def undoable(self, site: str | None) -> list[Undoable]:
        return []

    def finish(self, branch: PreparedBranch, commit: bool) -> bool:
        raise ResourceError("permission denied to finish prepared transaction")

    def close(self) -> None: ...


def test_a_branch_that_could_not_be_finished_is_left_and_the_exit_status_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recover, "PreparedBranches", Refusing)
    parser, out = argparse.ArgumentParser(), io.StringIO()
    recover.add_arguments(parser)
    assert recover.run(parser.parse_args(["--dsn", "x", "--commit", "gid"]), Console(file=out)) == 1
    assert "left, it could not be committed (permission denied" in " ".join(out.getvalue().split())
    assert "1 prepared, 0 to undo perhaps, 1 left" in out.getvalue()


def test_a_secret_is_read_from_a_file_and_never_given_as_an_argument() -> None:
    parser = argparse.ArgumentParser()
    recover.add_arguments(parser)
    assert parser.parse_args(["--dsn", "x", "--secret-file", "file"]).secret_file == "file"
    assert "--secret " not in parser.format_help()
