"""Plots of recipes/sweep.py: one panel per data set or quantity, quality as lines."""

from __future__ import annotations

import importlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

Point = Mapping[str, Any]
Lines = Mapping[str, Sequence[tuple[float, float]]]
"""Label of each line -> its points (x, y), and for several seeds several points of one x."""


def draw(panels: Mapping[str, Lines], path: Path, *, x: str, y: str | Sequence[str] = "nDCG@10", log: str = "") -> None:
    """Draw one panel per title: the mean of the points of one x, and a band from the least to the greatest.

    Args:
        panels: title -> lines.
        path: SVG file to write.
        x: label of the horizontal axes.
        y: label of the vertical axes, one for all or one for each panel.
        log: axes with a logarithmic scale: "x", "y", "xy" or none.
    """
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(3.4 * len(panels), 3.4), layout="constrained")
    handles: dict[str, Any] = {}
    labels = [y] * len(panels) if isinstance(y, str) else y
    all_axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, lines), label in zip(all_axes, panels.items(), labels, strict=True):
        for name, points in lines.items():
            color = handles[name].get_color() if name in handles else f"C{len(handles)}"
            values: dict[float, list[float]] = defaultdict(list)
            for at, value in points:
                values[at].append(value)
            xs = sorted(values)
            (line,) = axes.plot(xs, [fmean(values[at]) for at in xs], marker=".", label=name, color=color)
            axes.fill_between(
                xs, [min(values[at]) for at in xs], [max(values[at]) for at in xs], alpha=0.2, color=color
            )
            handles.setdefault(name, line)
        if "x" in log:
            axes.set_xscale("log")
        if "y" in log:
            axes.set_yscale("log")
        axes.set_title(title)
        axes.set_xlabel(x)
        axes.set_ylabel(label)
    if len(handles) > len(panels) + 1:  # a row above the panels would be wider than they are
        figure.set_figwidth(figure.get_figwidth() + 2.2)
        figure.legend(handles.values(), handles.keys(), loc="outside right upper", frameon=False)
    else:
        figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles), frameon=False)
    figure.savefig(path, metadata={"Date": None})


def by_dataset(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Group points by their data set."""
    groups: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        groups[point["dataset"]].append(point)
    return groups


def sizes(points: Sequence[Point], path: Path) -> None:
    """Draw a line per width over the bytes of all vectors of a document, and the two branches alone."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for dataset, own in by_dataset(points).items():
        lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for point in own:
            size, quality = point["bytes"], point["quality"]
            lines[f"{point['dim']} columns + terms"].append((size["dense"] + size["sparse"], quality["hybrid"]))
            lines["dense alone"].append((size["dense"], quality["dense"]))
            lines["sparse alone"].append((size["sparse"], quality["sparse"]))
        panels[dataset] = lines
    draw(panels, path, x="bytes per document", log="x")


def widths(points: Sequence[Point], path: Path) -> None:
    """Draw a line per variant over the number of columns."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for dataset, own in by_dataset(points).items():
        lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for point in own:
            lines[point["variant"]] += [(float(dim), value) for dim, value in point["quality"].items()]
        panels[dataset] = lines
    draw(panels, path, x="columns", log="x")


def caching(points: Sequence[Point], path: Path) -> None:
    """Draw the time of a query by its number of words, a line per model and kind of query."""
    lines = {
        f"{point['model']}, {name}": [(float(n), value) for n, value in times.items()]
        for point in points
        for name, times in point.get("microseconds", {}).items()
    }
    draw({"one query, one thread": lines}, path, x="words of the query", y="µs of processor time", log="xy")


def late(points: Sequence[Point], path: Path) -> None:
    """Draw a line per model over the number of documents that are encoded for a query; the last point is all."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for dataset, own in by_dataset(points).items():
        lines = {}
        for point in own:
            depths = {m: point["documents"] if m == "all" else max(int(m), 1) for m in point["quality"]}
            name = f"{point['first'].replace('tokens', 'BM25')}, then {point['model']}"
            lines[name] = [(float(depths[m]), value) for m, value in point["quality"].items()]
        panels[dataset] = lines
    draw(panels, path, x="m (left: first stage alone; right: all)", log="x")


def corruption(points: Sequence[Point], path: Path) -> None:
    """Draw re-ranking through [E], and the log likelihood on the development set, over the share of hidden words."""
    panels = {
        f"{points[0]['dataset']}, BM25's top 20": {
            "through [E]": [(point["ratio"], point["quality"]) for point in points],
        },
        "development set": {"through [E]": [(p["ratio"], p["development"]) for p in points if p["development"]]},
    }
    draw(panels, path, x="share of hidden words", y=("nDCG@10", "log likelihood of a query token"))


def sparsity(points: Sequence[Point], path: Path) -> None:
    """Draw quality over the number of a document's terms, a line for each kind of control; one panel per data set."""
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    settings: dict[tuple[str, float], list[Point]] = defaultdict(list)
    for point in points:
        settings[point["kind"], point["value"]].append(point)
    for dataset in points[0]["quality"]:
        lines: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for (kind, _), seeds in settings.items():
            terms = fmean(point["terms"][dataset] for point in seeds)
            name = {"weight": "weight of FLOPS", "target": "target of terms"}[kind]
            lines[name] += [(max(terms, 1.0), point["quality"][dataset]) for point in seeds]
        panels[dataset] = lines
    draw(panels, path, x="non-zero terms of a document", log="x")


PLOTS: Mapping[str, Callable[[Sequence[Point], Path], None]] = {
    "sizes": sizes,
    "widths": widths,
    "caching": caching,
    "late": late,
    "corruption": corruption,
    "sparsity": sparsity,
}
