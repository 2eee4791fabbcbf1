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
        "-n", type=positive, default=16, metavar="N", help="negatives for a query (default %(default)s)"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Mine and say how many there are."""
    from lightir.train.mining import mine

    counts = mine(args.dataset, args.out, split=args.split, n=args.n)
    if args.json:
        print_json(counts)
    else:
        say(f"{args.out}: {counts['negatives']:,} negatives for {counts['queries']:,} queries")
