"""Measure partly encoded indexes: nDCG@10 by the share of documents that have vectors.

    python recipes/measure_progress.py --out docs/results/progress \
        "scifact, MiniLM=DATA/scifact:VECTORS" "nfcorpus, MiniLM=DATA/nfcorpus:VECTORS" …

VECTORS is the folder that `lightir encode` wrote for the data set's corpus. All documents are added as text. They then
get their vectors share by share, in a random order for each seed, and the test queries run in every mode: `tokens`; the
default `hybrid`, in which pending documents keep their lexical places; and the vector branches, which do not find them.
Writes OUT.json and OUT.svg.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from lightir.eval import paired_t_test
from lightir.index import Index, IndexWriter
from lightir.provenance import provenance
from lightir.search import Searcher
from lightir.search.index_evaluation import evaluate_index
from lightir.shards import Shard, VectorsReader

SMALLEST = "tiny={data}/tiny:{vectors} --seeds 1 --out {out}/found"
SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
MEASURE = "nDCG@10"

QueryValues = npt.NDArray[np.float64]


def main() -> None:
    """Measure, write and plot the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="+", metavar="LABEL=BEIR_FOLDER:VECTORS")
    parser.add_argument("--split", default="test")
    parser.add_argument("--seeds", type=int, default=5, help="number of random encoding orders (default %(default)s)")
    parser.add_argument("--mode", action="append", help="further mode to measure")
    parser.add_argument("--out", type=Path, required=True, help="path of the result files, without suffix")
    args = parser.parse_args()
    curves = {}
    for text in args.collections:
        label, paths = text.split("=", 1)
        dataset, vectors = map(Path, paths.rsplit(":", 1))
        curves[label] = measured(dataset, vectors, args)
        print(label, json.dumps(curves[label]["mean"]), flush=True)
    settings = {"measure": MEASURE, "split": args.split, "shares": SHARES, "seeds": args.seeds}
    record = {"provenance": provenance(), **settings, "curves": curves}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    plot(curves, args.out.with_suffix(".svg"))


def measured(dataset: Path, vectors: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Return mean, minimum and maximum over seeds for each mode and share, and the gain of hybrid over tokens."""
    reader = VectorsReader(vectors)
    shards = list(reader)
    values: dict[str, list[QueryValues]] = {}
    for seed in tqdm(range(args.seeds), dataset.name, disable=None):
        with tempfile.TemporaryDirectory() as folder:
            encoder = vectors / "query-encoder"
            with IndexWriter.create(Path(folder) / "i", contract=reader.contract, query_encoder=encoder) as writer:
                for mode, curve in one_order(writer, shards, dataset, seed, args).items():
                    values.setdefault(mode, []).append(curve)
    stacked = {mode: np.array(curves) for mode, curves in values.items()}  # (seeds, shares, queries)
    means = {mode: by_query.mean(axis=2) for mode, by_query in stacked.items()}
    return {
        "documents": len(reader),
        "queries": stacked["hybrid"].shape[2],
        "mean": {mode: by_seed.mean(axis=0).round(5).tolist() for mode, by_seed in means.items()},
        "lowest": {mode: by_seed.min(axis=0).round(5).tolist() for mode, by_seed in means.items()},
        "highest": {mode: by_seed.max(axis=0).round(5).tolist() for mode, by_seed in means.items()},
        "hybrid_less_tokens": differences(stacked["hybrid"] - stacked["tokens"]),
    }


def one_order(
    writer: IndexWriter, shards: Sequence[Shard], dataset: Path, seed: int, args: argparse.Namespace
) -> dict[str, QueryValues]:
    """Return (shares, queries) values of each mode for one encoding order."""
    rows = [(number, row) for number, shard in enumerate(shards) for row in range(len(shard.documents))]
    order = np.array(rows)[np.random.default_rng(seed).permutation(len(rows))]
    for shard in shards:
        writer.add(shard.documents)
    curves: dict[str, list[QueryValues]] = {}
    for before, share in zip((0.0, *SHARES), SHARES, strict=False):
        now = order[round(before * len(order)) : round(share * len(order))]
        for i, shard in enumerate(shards):
            encode(writer, shard, now[now[:, 0] == i, 1])
        with Index.open(writer.folder) as index:
            vectors = "+".join(branch for branch in index.branches if branch != "tokens")
            modes = ["tokens", "hybrid", *([*(args.mode or []), vectors] if vectors else [])]
            report = evaluate_index(Searcher(index), dataset, args.split, modes=modes, measures=[MEASURE])
        for mode in modes:
            by_query = report.systems[mode].per_query[MEASURE]
            curves.setdefault(mode, []).append(np.array([by_query[query] for query in sorted(by_query)]))
    # Vector branches cannot be searched before the first document is encoded; their value is 0.
    return {mode: np.array([np.zeros_like(c[0])] * (len(SHARES) - len(c)) + c) for mode, c in curves.items()}


def encode(writer: IndexWriter, shard: Shard, at: npt.NDArray[np.int64]) -> None:
    """Add the vectors of some of a shard's documents."""
    if len(at):
        dense = None if shard.dense is None else shard.dense[at]
        sparse = None if shard.sparse is None else shard.sparse.take(at)
        writer.set_vectors([shard.documents[i] for i in at], dense=dense, sparse=sparse)


def differences(values: QueryValues) -> list[dict[str, float]]:
    """Return for each share the mean difference over queries and seeds, and the p of a paired t test."""
    by_query = values.mean(axis=0)
    tested = [paired_t_test(d, np.zeros(len(d))) if d.any() else 1.0 for d in by_query]
    return [{"mean": round(float(d.mean()), 5), "p": round(p, 5)} for d, p in zip(by_query, tested, strict=True)]


def plot(curves: dict[str, Any], path: Path) -> None:
    """Plot one panel per collection: the mean over seeds, with a band from minimum to maximum."""
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(3.2 * len(curves), 3.2), layout="constrained")
    panels = figure.subplots(1, len(curves), squeeze=False)[0]
    handles: dict[str, Any] = {}
    for axes, (label, curve) in zip(panels, curves.items(), strict=True):
        percent = [100 * share for share in SHARES]
        for mode, mean in curve["mean"].items():
            name = "vector branches alone" if mode not in ("tokens", "hybrid") and "tokens" not in mode else mode
            (line,) = axes.plot(percent, mean, marker=".", label=name, color=f"C{list(curve['mean']).index(mode)}")
            axes.fill_between(percent, curve["lowest"][mode], curve["highest"][mode], alpha=0.2, color=line.get_color())
            handles[name] = line
        axes.set_title(label)
        axes.set_xlabel("documents encoded, %")
    panels[0].set_ylabel(MEASURE)
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles), frameon=False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
