"""The general world: thousands of seeds on both cores; the same seed is the same everywhere."""

import json
import os
import subprocess
import sys

import pytest

from txlayer.errors import MissingExtra
from txlayer.simulation.command import run_seed
from txlayer.simulation.plan import draw_plan

SEEDS = int(os.environ.get("TXLAYER_SEEDS", "3000"))
COMMAND = [sys.executable, "-m", "txlayer.simulation.command"]
# Crashes of coordinators, members, publishers and readers, and what a network, a disk and an application do to them.
ROWS = {
    *(f"C{number}" for number in range(1, 11)),
    *(f"P{number}" for number in range(1, 11)),
    *(f"M{number}" for number in range(1, 9)),
    *("Q1", "Q2", "L1", "H1", "H2", "H3", "F1", "F2", "K1", "K2", "K3", "D3", "D4", "O4"),
}


@pytest.mark.timeout(1800)
def test_no_seed_breaks_an_invariant_and_a_good_share_commits(capsys: pytest.CaptureFixture[str]) -> None:
    # Other tests run beside it, and many of them wait: it takes what they leave.
    command = ["nice", "-n", "19", *COMMAND, "--seeds", str(SEEDS), "--processes", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    with capsys.disabled():
        sys.stderr.write(f"\n{done.stdout}{done.stderr}")
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["violations"] == []
    assert done.returncode == 0
    assert result["seeds"] == SEEDS
    assert result["transactions"] >= 35 * SEEDS
    assert result["committed"] > 0.6 * result["transactions"], "faults abort some, not most"
    if SEEDS >= 1000:  # fewer may miss a rare one
        assert set(result["faults"]) >= ROWS, "every row of the catalogue that a world can show is hit"


def test_same_seed_gives_the_same_trace_under_any_hash_seed() -> None:
    hashes = set()
    for hash_seed in ("0", "1", "4711"):
        command = [*COMMAND, "--seed", "42", "--json"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
        hashes.add(json.loads(done.stdout.splitlines()[-1])["hash"])
    assert len(hashes) == 1


def test_without_the_driver_of_signatures_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.ed25519", None)
    signed = next(seed for seed in range(100) if draw_plan(seed).level == "signed")
    with pytest.raises(MissingExtra, match="signed"):
        run_seed(signed)


def test_command_prints_the_contract_as_its_last_line() -> None:
    command = [*COMMAND, "--seeds", "2", "--from", "7", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    result = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0
    names = {"seeds", "transactions", "committed", "events", "crashes", "faults", "violations", "seconds"}
    assert names <= set(result)
    assert result["seeds"] == 2
