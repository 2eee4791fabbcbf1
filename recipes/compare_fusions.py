"""Compare fusions on several collections: the figures of docs/fusion.md.

python recipes/compare_fusions.py INDEX=BEIR_FOLDER... [--split dev] [--query-encoder DIR] [--mode MODE]

Measures every fusion that `lightir tune` tries on every collection's queries. Collections have equal weight, whatever
their number of queries. Each line has the mean's difference from the index's present default, its 95 % bootstrap
interval, and the p of a randomization test that flips signs query by query. Two lines follow: each collection with
the fusion that is best for its own queries, which no default can reach, and a five-fold cross-validation: the queries
of each fold are measured with the fusion that is best for the other folds.
"""

from __future__ import annotations

import argparse

import numpy as np
import numpy.typing as npt

from lightir.contract import Fusion
from lightir.data import Dataset
from lightir.index import Index
from lightir.query import CachedQueryEncoder
from lightir.search import Searcher
from lightir.search.fusion_tuning import FOLDS, N_RESAMPLES, fusion_grid, fusion_values
from lightir.search.plan import plan
from lightir.search.search_options import SearchOptions, fusion_text, weights_text

SMALLEST = "{index}={data}/tiny"
CHUNK = 500
CollectionValues = list[npt.NDArray[np.float64]]
"""(n_queries,) or (n_queries, n_fusions) values of each collection."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="+", metavar="INDEX=BEIR_FOLDER")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--query-encoder", metavar="DIR")
    parser.add_argument("--mode")
    args = parser.parse_args()
    encoder = CachedQueryEncoder.load(args.query_encoder) if args.query_encoder else None
    measured = [measure(*pair.split("=", 1), encoder, args) for pair in args.collections]
    tried, values = measured[0][0], [table for _, table in measured]
    rng = np.random.default_rng(0)
    print("fusion                            mean  against the first           p  each collection")
    for i in [0, *best_of_each_method(tried, values)]:
        report(f"{fusion_text(tried[i])} {weights_text(tried[i])}", [table[:, i] for table in values], values, rng)
    report("best for each collection", [table[:, np.argmax(table.mean(axis=0))] for table in values], values, rng)
    report("held out, five folds", held_out(values, rng), values, rng)


def measure(
    index_folder: str, dataset_folder: str, encoder: CachedQueryEncoder | None, args: argparse.Namespace
) -> tuple[list[Fusion], npt.NDArray[np.float64]]:
    """Return the fusions, the present default first, and the nDCG@10 of each query with each fusion."""
    dataset = Dataset.open(dataset_folder)
    with Index.open(index_folder) as index:
        options = SearchOptions(mode=args.mode)
        now = plan(index.branches, index.contract, options)
        tried = [now.fusion, *fusion_grid(now.branches)]
        queries, qrels = list(dataset.queries(args.split)), dataset.qrels(args.split)
        return tried, fusion_values(Searcher(index, encoder), queries, qrels, tried, options=options)


def best_of_each_method(tried: list[Fusion], values: CollectionValues) -> list[int]:
    """Return the position of each method's best weights for the mean of the collections."""
    means = np.mean([table.mean(axis=0) for table in values], axis=0)
    best: dict[str, int] = {}
    for i, fusion in enumerate(tried[1:], 1):
        method = fusion_text(fusion)
        if method not in best or means[i] > means[best[method]]:
            best[method] = i
    return list(best.values())


def held_out(values: CollectionValues, rng: np.random.Generator) -> CollectionValues:
    """Return each query's value with the fusion that is best for the mean of the other folds."""
    folds = [rng.permutation(len(table)) % FOLDS for table in values]
    chosen = [np.zeros(len(table)) for table in values]
    for fold in range(FOLDS):
        means = np.mean([table[of != fold].mean(axis=0) for table, of in zip(values, folds, strict=True)], axis=0)
        for table, of, out in zip(values, folds, chosen, strict=True):
            out[of == fold] = table[of == fold, int(np.argmax(means))]
    return chosen


def report(name: str, chosen: CollectionValues, values: CollectionValues, rng: np.random.Generator) -> None:
    """Print one line."""
    differences = [mine - table[:, 0] for mine, table in zip(chosen, values, strict=True)]
    observed = float(np.mean([by_query.mean() for by_query in differences]))
    flipped, resampled = np.zeros(N_RESAMPLES), np.zeros(N_RESAMPLES)
    for by_query in differences:
        n = len(by_query)
        for start in range(0, N_RESAMPLES, CHUNK):
            chunk = slice(start, start + CHUNK)
            flipped[chunk] += (rng.integers(0, 2, (CHUNK, n)) * 2 - 1) @ by_query / n / len(differences)
            resampled[chunk] += by_query[rng.integers(0, n, (CHUNK, n))].mean(axis=1) / len(differences)
    p_value = (1 + np.count_nonzero(np.abs(flipped) >= abs(observed) - 1e-12)) / (N_RESAMPLES + 1)
    low, high = np.quantile(resampled, (0.025, 0.975))
    means = [by_query.mean() for by_query in chosen]
    listed = "  ".join(f"{mean:.4f}" for mean in means)
    print(
        f"{name:38s} {np.mean(means):.4f}  {observed:+.4f} [{low:+.4f}, {high:+.4f}]  {p_value:.4f}  {listed}",
        flush=True,
    )


if __name__ == "__main__":
    main()
