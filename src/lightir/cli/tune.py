"""Fit an index's fusion (method and weights) to queries with relevance judgments.

Every method and many weights are tried. The gain is measured by cross-validation: the queries of each fold are
searched with the settings that are best for the other folds. A change is recommended only if it is significantly
better than the index's present fusion.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lightir.cli.arguments import (
    add_exclude_same_id,
    add_index,
    add_json,
    add_limits,
    add_query_encoder,
    add_task,
    add_threads,
    add_tokens,
    positive,
    search_options,
)
from lightir.cli.terminal import Misuse, format_table, print_json, print_status
from lightir.quantities import counted

if TYPE_CHECKING:
    from lightir.search.fusion_tuning import Tuning
    from lightir.types import Qrels, Query

HELP = "fit fusion weights to judged queries"
EXAMPLES = """
  lightir tune index nfcorpus/ --split dev
  lightir tune index nfcorpus/ --split dev --write
  lightir tune index nfcorpus/ --split dev --tokens dirichlet
  lightir tune index questions.jsonl --qrels judged.tsv --mode dense+sparse+tokens --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_index(parser)
    parser.add_argument(
        "queries", metavar="QUERIES", help="BEIR folder with queries and qrels, or a file of queries with --qrels"
    )
    parser.add_argument("--split", help="split of the BEIR folder to tune on (default dev)")
    parser.add_argument(
        "--qrels", metavar="FILE", help="relevance judgments for a file of queries, in BEIR or TREC format"
    )
    parser.add_argument(
        "--mode", metavar="MODE", help="branches to fuse, joined by +, e.g. dense+tokens (default hybrid)"
    )
    add_tokens(parser)
    parser.add_argument(
        "--folds", type=positive, default=5, metavar="N", help="number of cross-validation folds (default %(default)s)"
    )
    add_task(parser)
    add_query_encoder(parser)
    add_exclude_same_id(parser)
    parser.add_argument("--write", action="store_true", help="store the recommended fusion as the index's default")
    add_threads(parser)
    add_limits(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Fit the fusion, print the measures, and with --write store the recommended fusion."""
    from lightir.index import Index, IndexWriter
    from lightir.query import CachedQueryEncoder
    from lightir.search import Searcher
    from lightir.search.fusion_tuning import tune

    options = search_options(args)
    if args.write and (options.smoothing is not None or options.overlap):
        raise Misuse("--write cannot be combined with --tokens: an index's default search scores words by BM25")
    if args.qrels is not None and args.split is not None:
        args.parser.error(
            "--split and --qrels cannot be combined: --split requires a BEIR folder, --qrels a file of queries"
        )
    if args.write:
        IndexWriter.open(args.index, brief=True).close()  # fail before the work if the index cannot be written
    queries, qrels = judged(args)
    encoder = CachedQueryEncoder.load(args.query_encoder) if args.query_encoder else None
    with Index.open(args.index) as index:
        searcher = Searcher(index, encoder, task=args.task, threads=args.threads)
        tuning = tune(searcher, queries, qrels, options=options, folds=args.folds)
    if args.json:
        print_json(tuning.to_json())
    else:
        print_tuning(tuning)
    if args.write and tuning.recommended:
        with IndexWriter.open(args.index, brief=True) as writer:
            writer.set_fusion(tuning.chosen)
        print_status(f"{args.index}: default fusion is now {tuning.options}")


def judged(args: argparse.Namespace) -> tuple[list[Query], Qrels]:
    """Return the queries and their qrels."""
    from lightir.data import Dataset, read_qrels, read_queries

    if args.qrels is not None:
        return list(read_queries(args.queries)), read_qrels(args.qrels)
    split = args.split or "dev"
    if split == "test":
        print_status("warning: tuning on the test split; later measures on it will be too optimistic")
    dataset = Dataset.open(args.queries)
    return list(dataset.queries(split)), dataset.qrels(split)


def print_tuning(tuning: Tuning) -> None:
    """Print the best settings of each method, the cross-validated gain and the recommendation."""
    from lightir.search.search_options import fusion_text, weights_text

    rows = [["fusion", "weights", "nDCG@10"]]
    rows.append(
        [f"{fusion_text(tuning.default)} (current)", weights_text(tuning.default), f"{tuning.default_value:.4f}"]
    )
    rows += [[name, weights_text(best), f"{value:.4f}"] for name, (best, value) in tuning.by_method.items()]
    print(f"{' + '.join(tuning.branches)}: {counted(tuning.n_queries, 'judged query')}; best settings of each method")
    print(format_table(rows))
    low, high = tuning.interval
    print(
        f"cross-validation ({tuning.folds} folds): {tuning.held_out_value:.4f}, {tuning.difference:+.4f} against the "
        f"current fusion (95 % confidence interval {low:+.4f} to {high:+.4f}, p = {tuning.p_value:.3g})"
    )
    advice = f"use {tuning.options}" if tuning.recommended else "keep the current fusion: the gain is not significant"
    print(f"recommendation: {advice}")
