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
    by_rate, by_subscriptions = study["rate"], study["subscriptions"]
    rate, subscriptions = "requests per second", "topics per client (1,000 clients)"
    plots = [
        _lines(images / "ordering-07.png", "mean size of stamps", _sizes(study, "mean"), "subscribed topics (k)", [
            (100, 17, "0.901"), (100, 46, "0.349"),
        ]),
        _lines(images / "ordering-08.png", "deviation of size", _sizes(study, "deviation"), "subscribed topics (k)"),
        _lines(images / "ordering-09.png", "mean latency (ms)", _series(by_rate, "latency_ms"), rate),
        _lines(images / "ordering-10.png", "stamps per second", _series(by_rate, "throughput"), rate, [
            (5000, 4000, "0.901"),
        ]),
        _bars(images / "ordering-11.png", by_rate["0.901"]),
        _bars(images / "ordering-12.png", by_rate["0.349"]),
        _lines(images / "ordering-13.png", "mean latency (ms)", _series(by_subscriptions, "latency_ms"), subscriptions),
        _lines(images / "ordering-14.png", "stamps per second", _series(by_subscriptions, "throughput"), subscriptions),
        _one(images / "ordering-one-sequencer.png", study["one_sequencer"]),
    ]  # fmt: skip
    table = folder / "ordering-study.md"
    table.write_text(_table(study))
    return [*plots, table]


Series = dict[tuple[str, str], list[tuple[float, float]]]


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
    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    draw(axes)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
    return path


def _lines(
    path: Path, title: str, series: Series, label: str, reported: list[tuple[float, float, str]] | None = None
) -> Path:
    def draw(axes: Any) -> None:
        for (shape, groups), points in series.items():
            xs, ys = zip(*points, strict=True)
            style, label_of = _LINES[groups], f"shape {shape}, {groups}"
            axes.plot(xs, ys, style, color=_COLOURS[shape], marker=".", label=label_of)
        for x, y, shape in reported or []:
            axes.plot([x], [y], "x", color=_COLOURS[shape], markersize=10, label=f"reported, shape {shape}")
        axes.set(title=title, xlabel=label, ylim=(0, None))

    return _figure(path, draw)


def _bars(path: Path, by_groups: dict[str, Any]) -> Path:
    def draw(axes: Any) -> None:
        for place, (groups, points) in enumerate(by_groups.items()):
            shares = [100 * share for share in points["5000"]["forwarded"]]
            axes.bar([n + 1 + 0.4 * place - 0.2 for n in range(len(shares))], shares, 0.4, label=groups)
        axes.set(title="stamps forwarded to another host (%)", xlabel="host", ylim=(0, 100))

    return _figure(path, draw)


def _one(path: Path, found: dict[str, Any]) -> Path:
    def draw(axes: Any) -> None:
        for name, points in found["hosts"].items():
            rates = [point["throughput"] for point in points.values()]
            axes.plot([int(n) for n in points], rates, marker="o", label=f"chain, {name}")
        one = found["hosts"]["ours"]["1"]["throughput"]
        axes.axhline(one, color="grey", linestyle=":", label="one sequencer for everything")
        axes.set(title="stamps per second", xlabel="hosts", ylim=(0, None))

    return _figure(path, draw)


def _table(study: dict[str, Any]) -> str:
    lines = [
        "# The study of the multistage sequencer, again",
        "",
        "Made by `python -m benchmarks ordering --only study --docs docs`; what it means is told in",
        "[ordering.md](ordering.md#the-study). Near links 10±2 ms, far links 100±10 ms, 5 sites, 1,000 topics, 1,000",
        f"clients, a host takes {study['service_us']} µs for a message; each point is the mean over",
        f"{study['draws']} draws of all subscriptions.",
        "",
        f"Sizes of stamps: {study['sampling']}.",
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
