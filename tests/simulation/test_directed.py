"""The directed sweep, the planted bugs, the outsider and the explorer: a bounded share of each.

With `TXLAYER_WHOLE=1`, all of it, which takes half an hour on two cores. The commands are `txlayer simulate --sweep`,
`--mutants`, `--outsider` and `--explore`.
"""

import argparse
import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.conftest import whole
from txlayer.codec import KINDS
from txlayer.messages import Conditions
from txlayer.simulation import command
from txlayer.simulation.explorer import explore
from txlayer.simulation.hunt import hunt
from txlayer.simulation.mutants import MUTANTS, Mutant
from txlayer.simulation.mutations import instead
from txlayer.simulation.outsider import ADMITTED, LEVELS, NOT_SHOWN, SEEDS_TO_SHOW, UNREACHED, Attacked, attack
from txlayer.simulation.sweep import (
    ANONYMOUS,
    CONFIGURATIONS,
    NOBODY,
    PLAIN,
    Configuration,
    Disturbance,
    disturbances,
    run_one,
    terms_with,
)
from txlayer.simulation.workload import Taste
from txlayer.transactions.census import Census

PROTOCOL = Path(__file__).parents[2] / "docs" / "protocol.md"
EVERY = 15
SLOW = (
    "questions are answered while an append is pending",
    "decision sent before it is logged",
    "votes of outsiders count",
    "token of a decision is not checked",
    "presumed abort for another incarnation",
    "a deadline decides for the delegate",
    "gaps are not asked for",
    "an open transaction has no deadline",
    "a late creation starts again",
    "chain entry is not logged",
    "followers get no retransmission",
    "a follower skips gaps",
    "a follower's position is not logged",
    "chain numbers start again after a crash",
    "a restarted member trusts that it prepared",
    "an old copy of the log is not noticed",
    "a late acknowledgement leaves a reader behind for ever",
    "markers are forgotten too early",
    "a mark removes what is being undone",
    "a failed census in one shot says that nothing was called",
    "the publisher's abort after its call reaches locals",
    "a follower heeds aborts",
    "the intent has no events to undo",
    "any publisher's confirmation frees the key",
)
"""Planted bugs that take more than two seconds to find."""


def simulate(*arguments: str) -> dict:
    """The last line of the command, which ran on both cores."""
    command = [sys.executable, "-m", "txlayer.simulation.command", "--processes", "2", "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return {"status": done.returncode, **json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize("configuration", CONFIGURATIONS, ids=lambda configuration: configuration.name)
def test_no_crash_point_and_no_lost_or_late_message_breaks_an_invariant(configuration: Configuration) -> None:
    for number, disturbance in enumerate(islice(disturbances(configuration, 10**9), 0, None, EVERY)):
        violations = run_one(configuration, disturbance, number).history.violations
        assert violations == [], disturbance


@pytest.mark.parametrize("refuser", [PLAIN, ANONYMOUS], ids=["named", "anonymous"])
@pytest.mark.parametrize("settle_for", [None, Conditions(2)], ids=["all", "two"])
def test_a_member_that_died_with_its_no_says_it_as_soon_as_it_is_back(
    refuser: Taste, settle_for: Conditions | None
) -> None:
    """Nobody waits for the window of the census, wherever it died."""
    terms = terms_with(one_shot=True, census_within=100.0, settle_for=settle_for)
    refused = Configuration("one shot, refused", (NOBODY, refuser, PLAIN), terms, refuser="s1")
    for point in range(1, run_one(refused, Disturbance()).points()["s1"] + 1):
        world = run_one(refused, Disturbance(crash=("s1", point), restart_after=0.1))
        assert world.history.violations == []
        assert world.history.calls["t0"].told_at[0] < 10.0, point


@whole
@pytest.mark.timeout(3000)
def test_the_whole_sweep() -> None:
    result = simulate("--sweep")
    assert result["violations"] == []
    assert result["status"] == 0
    assert result["runs"] > 12_000


@pytest.mark.parametrize("mutant", [one for one in MUTANTS if one.name not in SLOW], ids=lambda one: one.name)
def test_planted_bug_is_found(mutant: Mutant) -> None:
    assert hunt(mutant, seeds=30, first_seeds=30).where


def test_a_world_that_fails_without_the_planted_bug_is_no_proof_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txlayer.simulation.world.check", lambda world: world.history.violation("always"))
    harmless = Mutant("harmless", (instead(Census, "failure", Census.failure),))
    monkeypatch.setattr("txlayer.simulation.hunt.disturbances", lambda configuration, pairs: [Disturbance()])
    assert not hunt(harmless, seeds=1, first_seeds=1).where


@whole
@pytest.mark.timeout(3000)
def test_every_planted_bug_is_found() -> None:
    result = simulate("--mutants")
    assert result["missed"] == []
    assert result["status"] == 0
    assert result["found"] == result["mutants"] == len(MUTANTS)


def test_there_are_enough_planted_bugs_and_each_has_a_name() -> None:
    assert len(MUTANTS) >= 35
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_replaces_what_is_there_and_is_gone_when_the_hunt_is_over(mutant: Mutant) -> None:
    before = [owner.__dict__.get(name) for owner, name, _ in mutant.patches]
    with mutant.planted():
        assert all(owner.__dict__[name] is new for owner, name, new in mutant.patches)
    assert before == [owner.__dict__.get(name) for owner, name, _ in mutant.patches]


def test_a_mutant_that_would_replace_nothing_is_an_error() -> None:
    mutant = Mutant("of nothing", (instead(Census, "no such method", lambda self: None),))
    with pytest.raises(AssertionError, match="Census has no no such method to replace"), mutant.planted():
        pass


@pytest.mark.timeout(900)
def test_outsider_without_the_secret_forges_replays_and_alters_every_kind_and_causes_nothing_but_delay() -> None:
    attacked = attack("secret", range(2))
    assert attacked.harmed == {}
    assert set(KINDS) - set(attacked.seen) == UNREACHED, "what never passed by was not replayed or altered"
    assert set(KINDS) - set(attacked.forged) == UNREACHED


@pytest.mark.timeout(900)
def test_outsider_without_a_key_causes_nothing_but_delay() -> None:
    assert attack("signed", range(1)).harmed == {}


@pytest.mark.timeout(900)
def test_outsider_without_a_seal_does_what_the_docs_admit_and_no_more() -> None:
    harmed = set(attack("broker", range(1)).harmed)
    assert harmed <= ADMITTED - NOT_SHOWN
    assert {"Decision", "Outcome", "Follow"} <= harmed, "an outsider who does no harm proves nothing"


def test_outsider_by_command_tries_a_bounded_number_of_seeds_and_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tried: list[tuple[str, int]] = []
    monkeypatch.setattr(command, "attack_one", lambda work: tried.append(work) or Attacked({"Census": 1}, runs=10))
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(["--outsider", "--json"])) == 1, "harm under a seal"
    assert tried == [(level, seed) for level in LEVELS for seed in range(SEEDS_TO_SHOW)]
    out, err = capsys.readouterr()
    assert json.loads(out)["runs"] == 10 * len(tried)
    assert len(err.splitlines()) == len(tried)


@whole
@pytest.mark.timeout(900)
def test_outsider_without_a_seal_does_all_that_the_docs_admit_but_for_what_is_listed() -> None:
    assert set(attack("broker", range(SEEDS_TO_SHOW)).harmed) == ADMITTED - NOT_SHOWN


def test_docs_admit_exactly_what_the_outsider_can_do_without_a_seal() -> None:
    text = PROTOCOL.read_text().split("<!-- outsider -->")[1]
    admitted, kept_out = text.split("With a secret")[0].split("Harmless")
    assert {kind for kind in KINDS if f"`{kind}`" in admitted} == ADMITTED
    assert {kind for kind in KINDS if f"`{kind}`" in admitted.split("Not shown")[1]} == NOT_SHOWN
    assert {kind for kind in KINDS if f"`{kind}`" in kept_out} == set(KINDS) - ADMITTED


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("members", "one_shot"), [(2, True), pytest.param(2, False, marks=whole), pytest.param(3, True, marks=whole)]
)
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
    explored = explore(members, crashes, losses, duplicates, one_shot, limit=20_000)
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
