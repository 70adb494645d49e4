"""The published study again (TNO 5, figures 7 to 14), in virtual time, and against one sequencer for everything.

For the published procedure (groups of topics that share two subscriptions, stamps that jump over hosts which they do
not need) and for ours (one subscription, host by host; docs/ordering.md says why). Each point is the mean over a few
draws of all subscriptions; the draws are the same for every rate and every number of hosts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from random import Random
from statistics import mean
from typing import Any

from benchmarks.ordering_law import SHAPES, stamp_sizes
from benchmarks.ordering_world import SERVICE, Figures, GeoWorld, Setting
from txlayer.ordering import effects as fx
from txlayer.ordering.filling import fill_in
from txlayer.ordering.host import Host
from txlayer.ordering.messages import Complete, Fill
from txlayer.ordering.timestamp import host_of
from txlayer.simulation.ordering import mutants

GROUPS = ("published", "ours")
RATES = (1000, 2500, 5000, 10_000)
PER_CLIENT = (1, 5, 10, 20)
TOPICS_PER_CLIENT = (1, 2, 5, 10, 20, 50, 100, 200)
SAMPLED_CLIENTS = 10_000
HOSTS = (1, 2, 5)
TOPICS = (10, 100, 1000)
DRAWS = 3
_SHORT = {"seconds": 1.0, "warm_up": 1.0}
_OVERLOAD = 8000


def _unchecked(original: Any) -> Any:
    """Stamps that take different paths overtake each other, which the published procedure does not notice."""

    def on_fill(self: Host, fill: Fill) -> list[fx.Effect]:
        values = fill_in(self.state, fill)
        home = self.directory.name_of(fill.home)
        assert home is not None
        if host_of(fill.ranks[0]) >= self.state.rank:
            return [fx.Send(home, Complete(fill.epoch, fill.rank, fill.first, values))]
        return self._upwards(Fill(fill.home, fill.epoch, fill.rank, fill.first, fill.last, fill.ranks, values))

    return on_fill


_AS_PUBLISHED = (
    mutants.MUTANTS["groups from two subscriptions"],
    mutants.MUTANTS["stamps jump over hosts"],
    mutants.Mutant(Host, "_on_fill", _unchecked, ()),
)

PUBLISHED: dict[str, Any] = {
    "7": {"0.901": {"100k": 17}, "0.349": {"100k": 46}},
    "9": "small for 0.901, below 300 ms up to 10000 requests/s; higher for 0.349",
    "10": {"0.901": {"5000": "more than 4000, the peak"}, "0.349": {"5000": "the peak"}},
    "11": "servers 1 and 2: none, server 3: negligible, servers 4 and 5 forward",
    "12": "considerably higher than in 11, except for server 1",
    "13": "does not grow with the subscriptions for 0.901, does for 0.349",
}
"""What the text of the study says of its figures."""


def study(tell: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """All figures."""
    return {
        "published": PUBLISHED,
        "sampling": f"{SAMPLED_CLIENTS:,} clients, one draw of distinct topics for each, over all 1,000 topics",
        "stamp_size": _sizes(tell),
        "rate": _geo("rate", RATES, tell),
        "subscriptions": _geo("per_client", PER_CLIENT, tell),
        "one_sequencer": _against_one(tell),
        "draws": DRAWS,
        "links_ms": {"near": [10, 2], "far": [100, 10]},
        "service_us": round(SERVICE * 1e6),
    }


def _sizes(tell: Callable[[str], None]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for shape in SHAPES:
        points = result[str(shape)] = {}
        for per_client in TOPICS_PER_CLIENT:
            published, ours = stamp_sizes(shape, per_client, SAMPLED_CLIENTS, Random(f"{shape}/{per_client}"))
            points[f"{per_client * SAMPLED_CLIENTS // 1000}k"] = {"published": asdict(published), "ours": asdict(ours)}
            tell(f"stamp size, shape {shape}, {per_client} topics per client: {published.mean} and {ours.mean}")
    return result


def _geo(what: str, values: tuple[int, ...], tell: Callable[[str], None]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for shape in SHAPES:
        for groups in GROUPS:
            points = result.setdefault(str(shape), {})[groups] = {}
            for value in values:
                setting = replace(Setting(shape, 5000, **_SHORT), **{what: value})  # type: ignore[arg-type]
                points[str(value)] = asdict(_run(setting, groups))
                tell(f"{what} {value}, shape {shape}, {groups} groups: {points[str(value)]}")
    return result


def _against_one(tell: Callable[[str], None]) -> dict[str, Any]:
    """Throughput and latency under more than the hosts can take: everything through one, and the chain."""
    result: dict[str, Any] = {"offered": _OVERLOAD, "hosts": {}, "topics": {}}
    setting = Setting(0.901, _OVERLOAD, **_SHORT)  # type: ignore[arg-type]
    for name, base, groups in (
        ("ours", setting, "ours"),
        ("published", setting, "published"),
        ("ours, all local", replace(setting, local=True), "ours"),
    ):
        points = result["hosts"][name] = {}
        for hosts in HOSTS:
            points[str(hosts)] = asdict(_run(replace(base, hosts=hosts), groups))
            tell(f"{name}, {hosts} hosts: {points[str(hosts)]}")
    for topics in TOPICS:
        per_client = min(10, topics)
        for hosts in (1, 5):
            found = _run(replace(setting, hosts=hosts, topics=topics, per_client=per_client), "ours")
            result["topics"].setdefault(str(topics), {})[str(hosts)] = asdict(found)
            tell(f"{topics} topics, {hosts} hosts: {found}")
    return result


def _run(setting: Setting, groups: str) -> Figures:
    with ExitStack() as stack:
        for mutant in _AS_PUBLISHED if groups == "published" else ():
            stack.enter_context(mutants.planted(mutant))
        return _mean([GeoWorld(setting, draw).run() for draw in range(DRAWS)])


def _mean(runs: list[Figures]) -> Figures:
    return Figures(
        round(mean(run.latency_ms for run in runs), 1),
        round(mean(run.throughput for run in runs)),
        [round(mean(shares), 3) for shares in zip(*(run.forwarded for run in runs), strict=True)],
    )
