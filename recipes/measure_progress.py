"""How good a half-encoded index is: nDCG@10 against the share of documents that have their vectors.

    python recipes/measure_progress.py --out docs/results/progress \
        "scifact, MiniLM=DATA/scifact:VECTORS" "nfcorpus, MiniLM=DATA/nfcorpus:VECTORS" …

VECTORS is what `lightir encode` wrote of the data set's corpus. All documents are put in as text; then, in a random
order for each seed, they are given their vectors share by share, and the test queries are searched by every mode: by
`tokens`; by the default, `hybrid`, where pending documents are ranked by estimates; and by the named vector branches,
which do not find them. OUT.json and OUT.svg are written.
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

Values = npt.NDArray[np.float64]


def main() -> None:
    """Measure, write, plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="+", metavar="LABEL=BEIR_FOLDER:VECTORS")
    parser.add_argument("--split", default="test")
    parser.add_argument("--seeds", type=int, default=5, help="orders of encoding (default %(default)s)")
    parser.add_argument("--mode", action="append", help="in addition to the default, tokens and the vector branches")
    parser.add_argument("--out", type=Path, required=True, help="OUT, without an ending")
    args = parser.parse_args()
    curves = {}
    for text in args.collections:
        label, places = text.split("=", 1)
        dataset, vectors = map(Path, places.rsplit(":", 1))
        curves[label] = measured(dataset, vectors, args)
        print(label, json.dumps(curves[label]["mean"]), flush=True)
    settings = {"measure": MEASURE, "split": args.split, "shares": SHARES, "seeds": args.seeds}
    record = {"provenance": provenance(), **settings, "curves": curves}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    plot(curves, args.out.with_suffix(".svg"))


def measured(dataset: Path, vectors: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Mean, lowest and highest of the seeds, mode by mode, each a list over the shares; and hybrid against tokens."""
    reader = VectorsReader(vectors)
    shards = list(reader)
    values: dict[str, list[Values]] = {}
    for seed in tqdm(range(args.seeds), dataset.name, disable=None):
        with tempfile.TemporaryDirectory() as folder:
            encoder = vectors / "query-encoder"
            with IndexWriter.create(Path(folder) / "i", contract=reader.contract, query_encoder=encoder) as writer:
                for mode, curve in one_order(writer, shards, dataset, seed, args).items():
                    values.setdefault(mode, []).append(curve)
    stacked = {mode: np.array(each) for mode, each in values.items()}  # (seeds, shares, queries)
    means = {mode: each.mean(axis=2) for mode, each in stacked.items()}
    return {
        "documents": len(reader),
        "queries": stacked["hybrid"].shape[2],
        "mean": {mode: each.mean(axis=0).round(5).tolist() for mode, each in means.items()},
        "lowest": {mode: each.min(axis=0).round(5).tolist() for mode, each in means.items()},
        "highest": {mode: each.max(axis=0).round(5).tolist() for mode, each in means.items()},
        "hybrid_less_tokens": differences(stacked["hybrid"] - stacked["tokens"]),
    }


def one_order(
    writer: IndexWriter, shards: Sequence[Shard], dataset: Path, seed: int, args: argparse.Namespace
) -> dict[str, Values]:
    """(shares, queries) values, mode by mode."""
    places = [(shard, place) for shard in range(len(shards)) for place in range(len(shards[shard].documents))]
    order = np.array(places)[np.random.default_rng(seed).permutation(len(places))]
    for shard in shards:
        writer.add(shard.documents)
    found: dict[str, list[Values]] = {}
    for before, share in zip((0.0, *SHARES), SHARES, strict=False):
        now = order[round(before * len(order)) : round(share * len(order))]
        for i, shard in enumerate(shards):
            encode(writer, shard, now[now[:, 0] == i, 1])
        with Index.open(writer.folder) as index:
            vectors = "+".join(branch for branch in index.branches if branch != "tokens")
            modes = ["tokens", "hybrid", *([*(args.mode or []), vectors] if vectors else [])]
            report = evaluate_index(Searcher(index), dataset, args.split, modes=modes, measures=[MEASURE])
        for mode in modes:
            each = report.systems[mode].per_query[MEASURE]
            found.setdefault(mode, []).append(np.array([each[query] for query in sorted(each)]))
    # Vector branches find nothing, and cannot be asked, before anything is encoded.
    return {mode: np.array([np.zeros_like(c[0])] * (len(SHARES) - len(c)) + c) for mode, c in found.items()}


def encode(writer: IndexWriter, shard: Shard, at: npt.NDArray[np.int64]) -> None:
    """Give some of a shard's documents their vectors."""
    if len(at):
        dense = None if shard.dense is None else shard.dense[at]
        sparse = None if shard.sparse is None else shard.sparse.take(at)
        writer.set_vectors([shard.documents[i] for i in at], dense=dense, sparse=sparse)


def differences(values: Values) -> list[dict[str, float]]:
    """At each share the mean over queries, seeds averaged, and the p of a paired t test."""
    by_query = values.mean(axis=0)
    tested = [paired_t_test(each, np.zeros(len(each))) if each.any() else 1.0 for each in by_query]
    return [{"mean": round(float(d.mean()), 5), "p": round(p, 5)} for d, p in zip(by_query, tested, strict=True)]


def plot(curves: dict[str, Any], path: Path) -> None:
    """A panel a collection: lines of the seeds' means, a band from the lowest to the highest."""
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
