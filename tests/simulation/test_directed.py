"""The directed sweep, the planted bugs, the outsider and the explorer. All of it also runs by command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from txlayer.codec import KINDS
from txlayer.simulation.explorer import explore
from txlayer.simulation.mutants import MUTANTS
from txlayer.simulation.outsider import ADMITTED, attack

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"


def simulate(*arguments: str) -> dict:
    """The last line of the command, which ran on both cores."""
    command = [sys.executable, "-m", "txlayer.simulation.command", "--processes", "2", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return {"status": done.returncode, **json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.timeout(3000)
def test_no_crash_point_and_no_lost_or_late_message_breaks_an_invariant() -> None:
    result = simulate("--sweep")
    assert result["violations"] == []
    assert result["status"] == 0
    assert result["runs"] > 12_000


@pytest.mark.timeout(3000)
def test_every_planted_bug_is_found() -> None:
    result = simulate("--mutants")
    assert result["missed"] == []
    assert result["status"] == 0
    assert result["found"] == result["mutants"] == len(MUTANTS)


def test_there_are_enough_planted_bugs_and_each_has_a_name() -> None:
    assert len(MUTANTS) >= 35
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_mutant_is_gone_when_the_hunt_is_over() -> None:
    before = [[owner.__dict__.get(name) for owner, name, _ in mutant.patches] for mutant in MUTANTS]
    with MUTANTS[0].planted():
        pass
    assert before == [[owner.__dict__.get(name) for owner, name, _ in mutant.patches] for mutant in MUTANTS]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", ["secret", "signed"])
def test_outsider_causes_nothing_but_delay_where_messages_are_sealed(level: str) -> None:
    assert attack(level, range(1)) == {}


@pytest.mark.timeout(900)
def test_outsider_without_a_seal_does_what_the_docs_admit_and_no_more() -> None:
    harmed = attack("broker", range(1))
    assert set(harmed) <= ADMITTED
    assert {"Decision", "Outcome", "Follow"} <= set(harmed), "an outsider who does no harm proves nothing"


def test_docs_admit_exactly_what_the_outsider_can_do_without_a_seal() -> None:
    text = PROTOCOL.read_text().split("<!-- outsider -->")[1]
    admitted, kept_out = text.split("With a secret")[0].split("Harmless")
    assert {kind for kind in KINDS if f"`{kind}`" in admitted} == ADMITTED
    assert {kind for kind in KINDS if f"`{kind}`" in kept_out} == set(KINDS) - ADMITTED


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("members", "one_shot"), [(2, True), (2, False), (3, True)])
def test_every_interleaving_with_one_crash_and_one_lost_message(members: int, one_shot: bool) -> None:
    explored = explore(members, 1, 1, one_shot=one_shot, limit=5_000_000)
    assert explored.violations == []
    assert explored.closed
    assert explored.outcomes["committed"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("members", "crashes", "losses", "duplicates", "one_shot"),
    [(3, 1, 1, 0, False), (2, 2, 1, 1, False), (2, 2, 1, 1, True)],
)
def test_as_many_interleavings_as_there_is_time_for(
    members: int, crashes: int, losses: int, duplicates: int, one_shot: bool
) -> None:
    explored = explore(members, crashes, losses, duplicates, one_shot, limit=60_000)
    assert explored.violations == []
    assert explored.depth > 5


@pytest.mark.parametrize(
    "name",
    [
        "decision not logged",
        "intent not logged before the vote",
        "a member that is not named commits",
        "presumed commit",
        "nobody asks in doubt",
        "in doubt a member gives up by itself",
    ],
)
def test_explorer_finds_planted_bugs(name: str) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    with mutant.planted():
        assert explore(2, 1, 1, one_shot=True).violations
