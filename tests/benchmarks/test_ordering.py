"""The benchmark of the order runs: small points of its parts, without looking at the clock."""

from __future__ import annotations

import pytest

from benchmarks import ordering_stamps, ordering_study
from benchmarks.ordering_world import Setting


@pytest.mark.parametrize("groups", ordering_study.GROUPS)
def test_a_point_of_the_study(groups: str) -> None:
    setting = Setting(0.901, 200, hosts=3, topics=30, per_client=5, seconds=0.5, warm_up=0.5)
    figures = ordering_study._run(setting, groups)
    assert figures.throughput > 0
    assert figures.forwarded[0] == 0.0, "nobody is above the highest host"


@pytest.mark.parametrize("way", ordering_stamps.WAYS)
def test_stamps_of_one_host(way: str) -> None:
    assert ordering_stamps.run(ordering_stamps.WAYS[way], 5, 0.01).per_second > 0
