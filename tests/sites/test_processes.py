"""Every site a process of its own, killed and restarted, its broker too: what they wrote passes the checkers.

The same by command, longer: `python -m tests.stress_sites --bus kafka --transactions 500 --kills 40 --json`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.stress_sites.driver import Driver, Wishes
from txlayer.testing.server import Server


@pytest.fixture(params=["mqtt", "kafka"])
def broker(request: pytest.FixtureRequest) -> Server:
    """A broker of this test's own, which keeps what it acknowledged."""
    settings: dict[str, Any] = {"persistence": True} if request.param == "mqtt" else {}
    server: Server = request.getfixturevalue(f"private_{request.param}_broker")(**settings)
    return server


def test_killed_sites_agree_on_every_transaction(broker: Server, tmp_path: Path) -> None:
    found = Driver(Wishes(transactions=40, kills=5, pauses=1, seed=7), broker, tmp_path).run()
    assert found["violations"] == []
    assert found["kills"] >= 5
    assert found["committed"] > 0
    assert found["applied"] > 0


def test_a_killed_broker_changes_nothing(broker: Server, tmp_path: Path) -> None:
    found = Driver(Wishes(transactions=30, kills=2, broker_kills=1, seed=8), broker, tmp_path).run()
    assert found["violations"] == []
    assert found["broker_kills"] == 1
    assert found["committed"] > 0


def test_a_planted_bug_is_found(private_mqtt_broker: Any, tmp_path: Path) -> None:
    wishes = Wishes(transactions=20, kills=0, seed=2, mutant="a local member commits without a call", rest_within=20.0)
    found = Driver(wishes, private_mqtt_broker(persistence=True), tmp_path).run()
    assert any("different events" in violation for violation in found["violations"])
