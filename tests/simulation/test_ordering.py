"""The ordering layer under one seed: every scenario, planted bugs, and the same trace in any process."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import pytest

from txlayer.simulation.command import Totals
from txlayer.simulation.ordering import command, mutants
from txlayer.simulation.ordering.plan import SCENARIOS
from txlayer.simulation.ordering.world import World

SEEDS = 125
"""Of each scenario, and of no other: 5,000 in all."""
COMMAND = "txlayer.simulation.ordering.command"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_seed_violates_the_order(scenario: str) -> None:
    result = command.run_many((scenario,), list(SCENARIOS).index(scenario) * SEEDS, SEEDS)
    assert result["violations"] == []
    assert result["seeds"] == SEEDS


def test_there_are_enough_seeds() -> None:
    assert len(SCENARIOS) * SEEDS >= 3000


def test_every_kind_of_fault_strikes() -> None:
    struck: set[str] = set()
    for scenario in SCENARIOS:
        for seed in range(5):
            struck |= set(World(scenario, seed).run().faults)
    assert struck >= {"S1", "S2", "S4", "B2", "B3", "M1", "M2", "M3", "M4", "M5", "M6", "M8"}


@pytest.mark.parametrize("name", mutants.MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    assert mutants.find(name, 0, 120).where


def test_there_are_enough_planted_bugs_and_they_leave_nothing_behind() -> None:
    assert len(mutants.MUTANTS) >= 15
    for mutant in mutants.MUTANTS.values():
        before = dict(mutant.target.__dict__)
        with mutants.planted(mutant):
            assert dict(mutant.target.__dict__) != before
        assert dict(mutant.target.__dict__) == before


def test_a_seed_has_the_same_trace_in_any_process() -> None:
    lines = []
    for hash_seed in ("1", "2"):
        arguments = [sys.executable, "-m", COMMAND, "--scenario", "mixed", "--seed", "3", "--json"]
        environment = {"PYTHONHASHSEED": hash_seed}
        done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=120, check=True)
        lines.append(json.loads(done.stdout.splitlines()[-1]))
    assert lines[0] == lines[1]
    assert lines[0]["hash"] == _hash("mixed", 3) != _hash("mixed", 4)


def _hash(scenario: str, seed: int) -> str:
    world = World(scenario, seed)
    world.run()
    return world.trace_hash()


def test_the_command_fails_when_there_is_a_violation(capsys: pytest.CaptureFixture[str]) -> None:
    mutant = mutants.MUTANTS["topics of others compared"]
    with mutants.planted(mutant):
        assert _run("--scenario", "static", "--seeds", "5", "--json") == 1
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["violations"][0]["scenario"] == "static"
    assert result["seeds"] == 5
    assert _run("--scenario", "static", "--seeds", "2", "--json") == 0


def test_the_command_keeps_the_contract_of_the_general_world_in_any_number_of_processes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = []
    for processes in ("1", "2"):
        assert _run("--seeds", "1", "--json", "--processes", processes) == 0
        results.append(json.loads(capsys.readouterr().out))
        assert set(results[-1]) >= {*Totals().result(), "seconds"}
        del results[-1]["seconds"]
    assert results[0] == results[1]
    assert (results[0]["seeds"], results[0]["worlds"]) == (1, len(SCENARIOS))
    assert min(results[0]["events"], results[0]["crashes"]) > 0


def test_the_command_prints_a_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--scenario", "static", "--seed", "1", "--trace") == 0
    assert "Create(" in capsys.readouterr().out


def _run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(arguments))
