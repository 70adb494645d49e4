"""The general world, a bounded share of it; the same seed is the same everywhere."""

import json
import os
import subprocess
import sys

import pytest

from txlayer.simulation.command import run_seed

SEEDS = int(os.environ.get("TXLAYER_SEEDS", "60"))


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_no_seed_breaks_an_invariant(first: int) -> None:
    results = [run_seed(seed) for seed in range(first, first + 20)]
    assert [(result["seed"], result["violations"]) for result in results if result["violations"]] == []
    share = sum(result["committed"] for result in results) / sum(result["transactions"] for result in results)
    assert share > 0.4, "faults abort some, not most"


def test_same_seed_gives_the_same_trace_under_any_hash_seed() -> None:
    hashes = set()
    for hash_seed in ("0", "1", "4711"):
        command = [sys.executable, "-m", "txlayer.simulation.command", "--seed", "42", "--json"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
        hashes.add(json.loads(done.stdout.splitlines()[-1])["hash"])
    assert len(hashes) == 1


def test_command_prints_the_contract_as_its_last_line() -> None:
    command = [sys.executable, "-m", "txlayer.simulation.command", "--seeds", "2", "--from", "7", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    result = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0
    names = {"seeds", "transactions", "committed", "events", "crashes", "faults", "violations", "seconds"}
    assert names <= set(result)
    assert result["seeds"] == 2
