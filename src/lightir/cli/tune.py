"""Fit how an index joins its branches, on judged queries, and say how sure that is.

Methods and weights are tried on all queries. What that gives is measured on queries held out: each fold's queries are
searched with what suits the other folds best. A change is recommended only where it is significantly better than what
the index does now.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lightir.cli.arguments import add_json, add_tokens, positive
from lightir.cli.terminal import Misuse, print_json, say, table

if TYPE_CHECKING:
    from lightir.search import Searcher
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
    parser.add_argument("index", metavar="INDEX", help="an index folder")
    parser.add_argument("queries", metavar="QUERIES", help="a BEIR folder, or with --qrels a file of queries")
    parser.add_argument("--split", help="of the BEIR folder (default dev)")
    parser.add_argument("--qrels", metavar="FILE", help="judgements of a file of queries, as BEIR or TREC writes them")
    parser.add_argument("--mode", metavar="MODE", help="the branches to join, as search has them (default hybrid)")
    add_tokens(parser)
    parser.add_argument("--folds", type=positive, default=5, metavar="N", help="of the queries (default %(default)s)")
    parser.add_argument("--task", metavar="NAME", help="the query table to use (default: the encoder's first)")
    parser.add_argument(
        "--query-encoder", metavar="DIR", help="use this one (or this model's), not the one that the index carries"
    )
    parser.add_argument(
        "--exclude-same-id", action="store_true", help="drop hits whose id is the query's (ArguAna, Quora)"
    )
    parser.add_argument(
        "--write", action="store_true", help="where a change is recommended, make it the index's default"
    )
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="for searching (default %(default)s)")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Fit, measure and print."""
    from lightir.index import Index, IndexWriter
    from lightir.query import CachedQueryEncoder
    from lightir.search import Searcher
    from lightir.search.language_model import parse_smoothing

    if parse_smoothing(args.tokens) is not None and args.write:
        raise Misuse("--write makes the weights an index's default, whose words BM25 scores: leave out --tokens")
    if args.qrels is not None and args.split is not None:
        args.parser.error("--split is of a BEIR folder; --qrels goes with a file of queries")
    if args.write:
        IndexWriter.open(args.index, brief=True).close()  # what cannot be written to is known before the work
    queries, qrels = judged(args)
    encoder = CachedQueryEncoder.load(args.query_encoder) if args.query_encoder else None
    with Index.open(args.index) as index:
        searcher = Searcher(index, encoder, task=args.task, threads=args.threads)
        found = fit(searcher, queries, qrels, args)
    if args.json:
        print_json(found.to_json())
    else:
        print_found(found)
    if args.write and found.recommended:
        with IndexWriter.open(args.index, brief=True) as writer:
            writer.set_fusion(found.chosen)
        say(f"{args.index}: {found.options} is the default now")


def judged(args: argparse.Namespace) -> tuple[list[Query], Qrels]:
    """The queries and their judgements."""
    from lightir.data import Dataset, read_qrels, read_queries

    if args.qrels is not None:
        return list(read_queries(args.queries)), read_qrels(args.qrels)
    split = args.split or "dev"
    if split == "test":
        say("tuned on a test split: what is measured on it afterwards says nothing about other queries")
    dataset = Dataset.open(args.queries)
    return list(dataset.queries(split)), dataset.qrels(split)


def fit(searcher: Searcher, queries: list[Query], qrels: Qrels, args: argparse.Namespace) -> Tuning:
    """The library's answer."""
    from lightir.search import SearchOptions
    from lightir.search.fusion_tuning import tune
    from lightir.search.language_model import parse_smoothing

    smoothing = parse_smoothing(args.tokens)
    options = SearchOptions(mode=args.mode, exclude_same_id=args.exclude_same_id, smoothing=smoothing)
    return tune(searcher, queries, qrels, options=options, folds=args.folds)


def print_found(found: Tuning) -> None:
    """Each method's best, what is held out, and what to do."""
    from lightir.search.options import fusion_text, weights_text

    rows = [["fusion", "weights", "nDCG@10"]]
    rows.append([f"{fusion_text(found.default)} (now)", weights_text(found.default), f"{found.default_value:.4f}"])
    rows += [[name, weights_text(best), f"{value:.4f}"] for name, (best, value) in found.by_method.items()]
    print(f"{' + '.join(found.branches)}: {found.n_queries:,} judged queries; each method's best on all of them")
    print(table(rows))
    low, high = found.interval
    print(
        f"on queries held out ({found.folds} folds): {found.held_out_value:.4f}, {found.difference:+.4f} against now "
        f"(95 % between {low:+.4f} and {high:+.4f}, p = {found.p_value:.3g})"
    )
    print(f"take {found.options}" if found.recommended else "keep what is: the gain is not significant")
