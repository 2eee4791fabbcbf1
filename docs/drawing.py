"""Draws the flowchart of a page as SVG, for the documentation site: GitHub draws it itself (docs/build_site.py).

A chart is in lines of Mermaid: `name --> name & name`, between `subgraph name [title]` and `end` for a group. A row has
the names from which the longest way down is equally long, so every arrow points down. An arrow that passes a row has
a place of its own there, between the names.
"""

from __future__ import annotations

import html
import itertools
import re
from dataclasses import dataclass, field

CHART = re.compile(r"^```mermaid\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
ROW, HEIGHT, GAP, LETTER = 78, 32, 18, 9
"""Pixels between rows; height of a box; pixels between boxes; width of a letter."""

Node = tuple[str, ...]
"""A box (its name), or where an arrow passes a row (both ends, and the row)."""


@dataclass
class Chart:
    """The arrows from each name, the group of each name that has one, and the title of each group."""

    arrows: dict[str, list[str]] = field(default_factory=dict)
    group_of: dict[str, str] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)


def parse(text: str) -> Chart:
    """Return the chart of some lines; ValueError for a line that is not understood, or arrows in a circle."""
    chart, group = Chart(), ""
    for line in map(str.strip, text.splitlines()[1:]):
        if opened := re.fullmatch(r"subgraph (\w+) \[(.+)\]", line):
            group, chart.titles[opened[1]] = opened[1], opened[2]
        elif line == "end":
            group = ""
        elif arrow := re.fullmatch(r"(\w+) --> (\w+(?: & \w+)*)", line):
            ends = arrow[2].split(" & ")
            chart.arrows.setdefault(arrow[1], []).extend(ends)
            for name in (arrow[1], *ends):
                chart.arrows.setdefault(name, [])
            if group:
                chart.group_of.update(dict.fromkeys((arrow[1], *ends), group))
        else:
            raise ValueError(f"docs/drawing.py draws no such line: {line!r}")
    return chart


def levels(arrows: dict[str, list[str]]) -> dict[str, int]:
    """Return the length of the longest way down from each name."""
    level_of: dict[str, int] = {}

    def level(name: str, above: tuple[str, ...]) -> int:
        if name in above:
            raise ValueError(f"arrows go in a circle: {' --> '.join((*above, name))}")
        if name not in level_of:
            level_of[name] = 1 + max((level(end, (*above, name)) for end in arrows[name]), default=-1)
        return level_of[name]

    for name in arrows:
        level(name, ())
    return level_of


def ways(chart: Chart, level_of: dict[str, int]) -> list[list[Node]]:
    """Return the nodes through which each arrow goes, from above to below."""
    return [
        [(start,), *((start, end, str(row)) for row in range(level_of[start] - 1, level_of[end], -1)), (end,)]
        for start, ends in chart.arrows.items()
        for end in ends
    ]


def width(node: Node) -> int:
    """Return the width of a node in pixels."""
    return len(node[0]) * LETTER + 24 if len(node) == 1 else 2


def spread(row: list[Node], wanted: dict[Node, float]) -> dict[Node, float]:
    """Return the centers of a row's nodes, in its order: near the wanted ones, without overlap."""
    centers: dict[Node, float] = {}
    right = float("-inf")
    for node in row:
        centers[node] = max(wanted[node], right + width(node) / 2)
        right = centers[node] + width(node) / 2 + GAP
    shift = sum(wanted[node] - centers[node] for node in row) / len(row)
    return {node: center + shift for node, center in centers.items()}


def laid_out(rows: list[list[Node]], steps: list[tuple[Node, Node]]) -> dict[Node, float]:
    """Return the centers of all nodes: each row is ordered and placed by the means of the nodes it is joined to."""
    centers: dict[Node, float] = {}
    for row in rows:
        centers |= spread(row, dict.fromkeys(row, 0.0))
    joined: dict[Node, list[Node]] = {node: [] for node in centers}
    above: dict[Node, list[Node]] = {node: [] for node in centers}
    for start, end in steps:
        joined[start].append(end)
        joined[end].append(start)
        above[end].append(start)
    for turn in range(24):
        for row in rows if turn % 2 else reversed(rows):
            near = above if turn < 12 else joined
            wanted = {
                node: sum(centers[other] for other in near[node]) / len(near[node]) if near[node] else centers[node]
                for node in row
            }
            row.sort(key=lambda node: wanted[node])
            centers |= spread(row, wanted)
    left = min(center - width(node) / 2 for node, center in centers.items()) - GAP
    return {node: center - left for node, center in centers.items()}


def path(way: list[Node], centers: dict[Node, float], y: dict[Node, int]) -> str:
    """Return an arrow's path: curves between the rows, and straight lines where it passes one."""
    drawn = f"M{centers[way[0]]:.0f} {y[way[0]] + HEIGHT // 2}"
    for start, end in itertools.pairwise(way):
        above, below = y[start] + HEIGHT // 2, y[end] - HEIGHT // 2
        middle = (above + below) // 2
        drawn += f"C{centers[start]:.0f} {middle} {centers[end]:.0f} {middle} {centers[end]:.0f} {below}"
        if len(end) == 3:
            drawn += f"L{centers[end]:.0f} {below + HEIGHT}"
    return drawn


def draw(text: str) -> str:
    """Return a chart as an SVG element, whose colors are the page's (docs/site.css)."""
    chart = parse(text)
    level_of = levels(chart.arrows)
    top = max(level_of.values())
    passed = ways(chart, level_of)
    rows: list[list[Node]] = [[] for _ in range(top + 1)]
    for node in dict.fromkeys(itertools.chain.from_iterable(passed)):
        rows[level_of[node[0]] if len(node) == 1 else int(node[2])].append(node)
    centers = laid_out(rows, [step for way in passed for step in itertools.pairwise(way)])
    y = {node: (top - i) * ROW + HEIGHT for i, row in enumerate(rows) for node in row}
    lines = [f'<path d="{path(way, centers, y)}" marker-end="url(#chart-arrow)"/>' for way in passed]
    boxes = [
        f'<g class="{chart.group_of.get(name, "")}"><rect x="{centers[name,] - width((name,)) / 2:.0f}" '
        f'y="{y[name,] - HEIGHT / 2:.0f}" width="{width((name,))}" height="{HEIGHT}" rx="6"/>'
        f'<text x="{centers[name,]:.0f}" y="{y[name,] + 5:.0f}">{html.escape(name)}</text></g>'
        for name in chart.arrows
    ]
    keys = [
        f'<g class="{group}"><rect x="{GAP}" y="{HEIGHT / 2 + 30 * i:.0f}" width="16" height="16" rx="3"/>'
        f'<text class="key" x="{GAP + 24}" y="{HEIGHT / 2 + 30 * i + 13:.0f}">{html.escape(title)}</text></g>'
        for i, (group, title) in enumerate(chart.titles.items())
    ]
    right = max(center + width(node) / 2 for node, center in centers.items()) + GAP
    label = html.escape("; ".join(f"{name} to {', '.join(ends)}" for name, ends in chart.arrows.items() if ends))
    return (
        f'<svg class="chart" viewBox="0 0 {right:.0f} {top * ROW + 2 * HEIGHT}" role="img" aria-label="{label}">'
        '<defs><marker id="chart-arrow" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0 10 5 0 10z"/></marker></defs>{"".join((*lines, *boxes, *keys))}</svg>'
    )
