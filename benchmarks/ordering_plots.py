"""PNG plots and a table of the study, for docs/. Needs matplotlib: pip install "txlayer[study]"."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from txlayer.errors import MissingExtra

_LINES = {"published": "--", "ours": "-"}
_COLOURS = {"0.901": "tab:blue", "0.349": "tab:red"}


def write(study: dict[str, Any], folder: Path) -> list[Path]:
    """All plots, and `ordering-study.md` with the numbers."""
    try:
        importlib.import_module("matplotlib").use("Agg")
    except ModuleNotFoundError as exc:
        raise MissingExtra("study", "matplotlib") from exc
    images = folder / "images"
    images.mkdir(parents=True, exist_ok=True)
    plots = [*_of_sizes(study, images), *_of_rates(study["rate"], images), *_of_subscriptions(study, images)]
    plots += _against_one(study["one_sequencer"], images)
    table = folder / "ordering-study.md"
    table.write_text(_table(study))
    return [*plots, table]


Series = dict[tuple[str, str], list[tuple[float, float]]]
Reported = list[tuple[float, float, str]]
"""Where, what, and of which shape."""


def _of_sizes(study: dict[str, Any], images: Path) -> list[Path]:
    label = f"subscribed topics (k)\n{study['sampling']}"
    mean, deviation = _sizes(study, "mean"), _sizes(study, "deviation")
    reported = [
        (float(at[:-1]), float(n), shape) for shape, of in study["published"]["7"].items() for at, n in of.items()
    ]
    return [
        _lines(images / "ordering-07.png", "7: mean entries of a stamp", mean, label, reported, ("log", "log")),
        _lines(images / "ordering-08.png", "8: deviation of the entries", deviation, label, scales=("log", "linear")),
    ]


def _of_rates(found: dict[str, Any], images: Path) -> list[Path]:
    label = "requests per second"
    latency, throughput = _series(found, "latency_ms"), _series(found, "throughput")
    return [
        _lines(
            images / "ordering-09.png", "9: mean latency (ms)", latency, label, [(10_000, 300, "0.901")], said="below"
        ),
        _lines(
            images / "ordering-10.png",
            "10: stamps per second",
            throughput,
            label,
            [(5000, 4000, "0.901")],
            said="above",
        ),
        _bars(images / "ordering-11.png", "11", "0.901", found, (1, 2, 3)),
        _bars(images / "ordering-12.png", "12", "0.349", found, (1,)),
    ]


def _of_subscriptions(study: dict[str, Any], images: Path) -> list[Path]:
    found, label = study["subscriptions"], "topics per client (1,000 clients, 5,000 requests per second)"
    latency, throughput = _series(found, "latency_ms"), _series(found, "throughput")
    return [
        _lines(images / "ordering-13.png", "13: mean latency (ms)", latency, label),
        _lines(images / "ordering-14.png", "14: stamps per second", throughput, label),
    ]


def _sizes(study: dict[str, Any], what: str) -> Series:
    return {
        (shape, groups): [(float(size[:-1]), point[groups][what]) for size, point in points.items()]
        for shape, points in study["stamp_size"].items()
        for groups in _LINES
    }


def _series(found: dict[str, Any], what: str) -> Series:
    return {
        (shape, groups): [(float(value), point[what]) for value, point in points.items()]
        for shape, by_groups in found.items()
        for groups, points in by_groups.items()
    }


def _figure(path: Path, draw: Callable[[Any], None]) -> Path:
    pyplot = importlib.import_module("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(6.4, 4), layout="constrained")
    axes.set_axisbelow(True)
    axes.grid(alpha=0.3)
    draw(axes)
    if axes.get_yscale() == "linear":
        axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return path


def _lines(
    path: Path,
    title: str,
    series: Series,
    label: str,
    reported: Reported | None = None,
    scales: tuple[str, str] = ("linear", "linear"),
    said: str = "",
) -> Path:
    def draw(axes: Any) -> None:
        axes.set(title=title, xlabel=label, xscale=scales[0], yscale=scales[1])
        for (shape, groups), points in series.items():
            xs, ys = zip(*points, strict=True)
            axes.plot(xs, ys, _LINES[groups], color=_COLOURS[shape], marker=".", label=f"shape {shape}, {groups}")
        for x, y, shape in reported or []:
            mark = {"color": _COLOURS[shape], "markersize": 10, "markeredgewidth": 2, "zorder": 3}
            axes.plot([x], [y], "x", label=f"reported{said and f', {said}'}, shape {shape}", **mark)
        _mark(axes, sorted({x for points in series.values() for x, _ in points}))

    return _figure(path, draw)


def _mark(axes: Any, values: list[float]) -> None:
    """A mark at each value that was tried, and none between."""
    axes.set_xticks(values, [f"{value:,.0f}" for value in values])
    axes.set_xticks([], minor=True)


def _bars(path: Path, figure: str, shape: str, found: dict[str, Any], none: tuple[int, ...]) -> Path:
    """`none`: the hosts of which the study says that they forward nothing, or hardly anything."""

    def draw(axes: Any) -> None:
        for place, (groups, points) in enumerate(found[shape].items()):
            shares = [100 * share for share in points["5000"]["forwarded"]]
            axes.bar([n + 1 + 0.4 * place - 0.2 for n in range(len(shares))], shares, 0.4, label=groups)
        axes.plot(none, [0] * len(none), "x", color="black", markersize=9, clip_on=False, label="reported: none")
        title = f"{figure}: stamps forwarded to another host (%), shape {shape}"
        axes.set(title=title, xlabel="host, at 5,000 requests per second")
        axes.set_ylim(0, 100)
        axes.set_yticks(range(0, 101, 20))

    return _figure(path, draw)


def _against_one(found: dict[str, Any], images: Path) -> list[Path]:
    def hosts(axes: Any) -> None:
        for name, points in found["hosts"].items():
            rates = [point["throughput"] for point in points.values()]
            axes.plot([int(n) for n in points], rates, marker="o", label=f"chain, {name}")
        one = found["hosts"]["ours"]["1"]["throughput"]
        axes.axhline(one, color="grey", linestyle=":", label="one sequencer for everything")
        _mark(axes, [float(n) for n in found["hosts"]["ours"]])
        axes.set(title="stamps per second, 1,000 topics", xlabel="hosts")

    def topics(axes: Any) -> None:
        for name, label in (("1", "one sequencer for everything"), ("5", "chain of 5 hosts, ours")):
            rates = [points[name]["throughput"] for points in found["topics"].values()]
            axes.plot([int(n) for n in found["topics"]], rates, marker="o", label=label)
        axes.set(title="stamps per second", xlabel="topics", xscale="log")
        _mark(axes, [float(n) for n in found["topics"]])

    return [
        _figure(images / "ordering-one-sequencer.png", hosts),
        _figure(images / "ordering-one-sequencer-topics.png", topics),
    ]


def _table(study: dict[str, Any]) -> str:
    lines = [
        "# The study of the multistage sequencer, again",
        "",
        "Made by `python -m benchmarks ordering --only study --docs docs`; what it means is told in",
        "[ordering.md](ordering.md#the-study). Near links 10±2 ms, far links 100±10 ms, 5 sites, 1,000 topics, 1,000",
        f"clients, a host takes {study['service_us']} µs for a message; each point is the mean over",
        f"{study['draws']} draws of all subscriptions.",
        "",
        f"Sizes of stamps (figures 7 and 8): {study['sampling']}.",
        "",
        "| subscribed topics | shape | published groups: mean, deviation | ours: mean, deviation | reported mean |",
        "| --- | --- | --- | --- | --- |",
    ]
    for shape, points in study["stamp_size"].items():
        for size, point in points.items():
            reported = study["published"]["7"][shape].get(size, "")
            cells = [f"{point[groups]['mean']}, {point[groups]['deviation']}" for groups in _LINES]
            lines.append(f"| {size} | {shape} | {cells[0]} | {cells[1]} | {reported} |")
    for name, heading in (("rate", "requests per second"), ("subscriptions", "topics per client, at 5,000 requests/s")):
        lines += [
            "",
            f"| {heading} | shape | procedure | latency (ms) | stamps per second | forwarded by hosts 1 to 5 (%) |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for shape, by_groups in study[name].items():
            for groups, points in by_groups.items():
                for value, point in points.items():
                    shares = ", ".join(f"{100 * share:.0f}" for share in point["forwarded"])
                    cells = [value, shape, groups, str(point["latency_ms"]), str(point["throughput"]), shares]
                    lines.append(f"| {' | '.join(cells)} |")
    one = study["one_sequencer"]
    lines += [
        "",
        f"Against one sequencer for all, {one['offered']} requests/s offered:",
        "",
        "| topics | procedure | hosts | stamps per second | latency (ms) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, points in one["hosts"].items():
        lines += [f"| 1000 | {name} | {n} | {p['throughput']} | {p['latency_ms']} |" for n, p in points.items()]
    for topics, points in one["topics"].items():
        lines += [f"| {topics} | ours | {n} | {p['throughput']} | {p['latency_ms']} |" for n, p in points.items()]
    lines += ["", "What the text of the published study says of its figures:", ""]
    lines += [f"- {number}: {_said(said)}" for number, said in study["published"].items()]
    return "\n".join(lines) + "\n"


def _said(said: Any) -> str:
    if isinstance(said, str):
        return said
    return "; ".join(f"shape {shape}: {at}: {value}" for shape, points in said.items() for at, value in points.items())
