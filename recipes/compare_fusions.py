"""Which way of joining an index's branches is best over several collections: the figures of docs/fusion.md.

python recipes/compare_fusions.py INDEX=BEIR_FOLDER... [--split dev] [--query-encoder DIR] [--mode MODE]

Every fusion that `lightir tune` tries is measured on every collection's judged queries; collections count alike,
however many queries they have. Against the indexes' present default: the mean's difference, its 95 % bootstrap
interval, and the p of a randomisation test that flips signs query by query. The last line is five-fold: each fold's
queries are measured with what suits the other folds best.
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
from lightir.search.options import SearchOptions, fusion_text, weights_text
from lightir.search.plan import plan

SMALLEST = "{index}={data}/tiny"
CHUNK = 500
Values = list[npt.NDArray[np.float64]]
"""(n_queries,) or (n_queries, n_fusions) of each collection."""


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
    tried, values = measured[0][0], [each for _, each in measured]
    rng = np.random.default_rng(0)
    print("fusion                            mean  against the first           p  each collection")
    for i in [0, *best_of_each_method(tried, values)]:
        report(f"{fusion_text(tried[i])} {weights_text(tried[i])}", [each[:, i] for each in values], values, rng)
    report("held out, five folds", held_out(values, rng), values, rng)


def measure(
    index_folder: str, dataset_folder: str, encoder: CachedQueryEncoder | None, args: argparse.Namespace
) -> tuple[list[Fusion], npt.NDArray[np.float64]]:
    """The fusions, the present default first, and each query's nDCG@10 under each."""
    dataset = Dataset.open(dataset_folder)
    with Index.open(index_folder) as index:
        options = SearchOptions(mode=args.mode)
        now = plan(index.branches, index.contract, options)
        tried = [now.fusion, *fusion_grid(now.branches)]
        queries, qrels = list(dataset.queries(args.split)), dataset.qrels(args.split)
        return tried, fusion_values(Searcher(index, encoder), queries, qrels, tried, options=options)


def best_of_each_method(tried: list[Fusion], values: Values) -> list[int]:
    """The places of each method's best weights for the mean of the collections."""
    means = np.mean([each.mean(axis=0) for each in values], axis=0)
    best: dict[str, int] = {}
    for i, fusion in enumerate(tried[1:], 1):
        method = fusion_text(fusion)
        if method not in best or means[i] > means[best[method]]:
            best[method] = i
    return list(best.values())


def held_out(values: Values, rng: np.random.Generator) -> Values:
    """Each query's value with the fusion that is best for the mean of the other folds."""
    folds = [rng.permutation(len(each)) % FOLDS for each in values]
    found = [np.zeros(len(each)) for each in values]
    for fold in range(FOLDS):
        means = np.mean([each[of != fold].mean(axis=0) for each, of in zip(values, folds, strict=True)], axis=0)
        for each, of, out in zip(values, folds, found, strict=True):
            out[of == fold] = each[of == fold, int(np.argmax(means))]
    return found


def report(name: str, found: Values, values: Values, rng: np.random.Generator) -> None:
    """One line."""
    differences = [each - value[:, 0] for each, value in zip(found, values, strict=True)]
    observed = float(np.mean([each.mean() for each in differences]))
    flipped, resampled = np.zeros(N_RESAMPLES), np.zeros(N_RESAMPLES)
    for each in differences:
        n = len(each)
        for start in range(0, N_RESAMPLES, CHUNK):
            chunk = slice(start, start + CHUNK)
            flipped[chunk] += (rng.integers(0, 2, (CHUNK, n)) * 2 - 1) @ each / n / len(differences)
            resampled[chunk] += each[rng.integers(0, n, (CHUNK, n))].mean(axis=1) / len(differences)
    p_value = (1 + np.count_nonzero(np.abs(flipped) >= abs(observed) - 1e-12)) / (N_RESAMPLES + 1)
    low, high = np.quantile(resampled, (0.025, 0.975))
    means = [each.mean() for each in found]
    listed = "  ".join(f"{mean:.4f}" for mean in means)
    print(
        f"{name:38s} {np.mean(means):.4f}  {observed:+.4f} [{low:+.4f}, {high:+.4f}]  {p_value:.4f}  {listed}",
        flush=True,
    )


if __name__ == "__main__":
    main()
