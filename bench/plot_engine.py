"""Draw what bench_engine.py printed: milliseconds of a query, an engine a bar.

lightir bench engine > docs/results/engine-100000.md
python bench/plot_engine.py docs/results/engine-100000.md docs/results/engine.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

SMALLEST = "docs/results/engine-100000.md {out}/engine.svg"
# A table's first word, the kind of query in it, and what a panel calls it.
PANELS = {
    "sparse": ("short", "learned sparse, 6 to 12 terms"),
    "BM25": ("short", "BM25, 6 to 12 terms"),
    "dense": ("", "dense, 256 wide"),
    "index": ("", "hybrid, dense + sparse"),
}
LEFT_OUT = ("scipy CSC", "numpy float32")  # no engines, and so slow that the others would be dots
APPROXIMATE = ("seismic", "faiss HNSW", "lightir hybrid, graph", "lightir hybrid, rrf, graph")
OURS, PEERS = "#c2410c", "#94a3b8"


def main() -> None:
    """A panel a table, each from zero, the fastest engine on top."""
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    tables = {title: bars(rows, PANELS[title][0]) for title, rows in read(source).items() if title in PANELS}
    tables["index"] = {name: ms for name, ms in tables["index"].items() if "hybrid" in name or "lightir" not in name}
    matplotlib.rcParams["svg.fonttype"] = "none"
    figure = Figure(figsize=(8, 1.2 + 0.27 * sum(map(len, tables.values()))), layout="constrained")
    panels = figure.subplots(len(tables), 1, height_ratios=[len(table) + 0.6 for table in tables.values()])
    for axes, (title, table) in zip(panels, tables.items(), strict=True):
        names = sorted(table, key=lambda name: -table[name])
        colors = [OURS if name.startswith("lightir") else PEERS for name in names]
        labels = [f"{name}, approximate" if name in APPROXIMATE else name for name in names]
        drawn = axes.barh(labels, [table[name] for name in names], color=colors)
        axes.bar_label(drawn, fmt="%.3g", padding=3, fontsize=8)
        axes.set_title(PANELS[title][1], loc="left", fontsize=10)
        axes.margins(x=0.12)
        axes.spines[["top", "right", "bottom"]].set_visible(False)
        axes.set_xticks([])
        axes.tick_params(labelsize=8)
    panels[-1].set_xlabel("ms of one core, p50, k = 10")
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None)


def read(source: Path) -> dict[str, list[list[str]]]:
    """The cells of each table's rows with k = 10, by the first word of its title."""
    tables: dict[str, list[list[str]]] = {}
    title = ""
    for line in source.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and title and len(cells) > 3 and cells[1] == "10":
            tables.setdefault(title, []).append(cells)
        elif " documents, " in line:
            title = line.replace(",", " ").split()[0]
    return tables


def bars(rows: list[list[str]], kind: str) -> dict[str, float]:
    """Milliseconds by engine, of one kind of query."""
    medians = {}
    for name, _, p50, *_ in rows:
        engine, _, asked = name.rpartition(", ")
        if kind and asked != kind:
            continue
        label = engine if kind else name
        if label not in LEFT_OUT:
            medians[label] = float(p50)
    return medians


if __name__ == "__main__":
    main()
