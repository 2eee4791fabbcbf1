"""Mine hard negatives for training: documents that BM25 ranks high for a query and that are not relevant to it."""

from __future__ import annotations

import argparse

from lightir.cli.terminal import add_json, positive, print_json, say

HELP = "mine hard negatives with BM25"
EXAMPLES = """
  lightir mine scifact/ --out scifact-negatives.jsonl
  lightir mine nfcorpus/ --split train -n 15 --out nfcorpus-negatives.jsonl
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("dataset", metavar="DATASET", help="a BEIR folder")
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="JSONL file to write, as recipes name it")
    parser.add_argument("--split", default="train", help="whose queries (default %(default)s)")
    parser.add_argument(
        "-n", type=positive, default=30, metavar="N", help="negatives for a query (default %(default)s)"
    )
    parser.add_argument(
        "--first-rank", type=positive, default=1, metavar="N", help="leave out what ranks before (default %(default)s)"
    )
    parser.add_argument(
        "--depth", type=positive, default=100, metavar="N", help="last rank looked at (default %(default)s)"
    )
    parser.add_argument(
        "--margin",
        type=float,
        metavar="SHARE",
        help="leave out what scores above this share of the best relevant document",
    )
    parser.add_argument("--analyzer", default="english", metavar="NAME", help="how text is cut (default %(default)s)")
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Mine and say for how many queries."""
    from lightir.train.mining import mine

    n_queries = mine(
        args.dataset,
        args.split,
        args.out,
        n_negatives=args.n,
        first_rank=args.first_rank,
        depth=args.depth,
        margin=args.margin,
        analyzer=args.analyzer,
    )
    if args.json:
        print_json({"negatives": args.out, "queries": n_queries})
    else:
        say(f"{args.out}: negatives for {n_queries:,} queries")
