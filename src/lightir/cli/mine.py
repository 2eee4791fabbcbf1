"""Mine hard negatives: documents that rank high for a query and that are not relevant to it.

BM25 searches, or with --tokens query likelihood, unless an index of the corpus or a model is named: a shipped model, or
what an earlier training run left, whose hard negatives the next run trains on. Relevant documents and their copies are
never taken; the filters leave out more of what may be relevant without a judgement, and the counts say which of them
dropped how much.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from lightir.cli.arguments import MODEL_HELP, add_device, add_json, add_tokens, positive
from lightir.cli.terminal import Misuse, print_json, say

if TYPE_CHECKING:
    from lightir.data import Dataset
    from lightir.search.language_model import Smoothing
    from lightir.train.distill.teacher import Teacher
    from lightir.train.mining.finders import Finder

HELP = "mine hard negatives for training"
EXAMPLES = """
  lightir mine scifact/ --out scifact-negatives.jsonl
  lightir mine nfcorpus/ -n 15 --first-rank 11 --margin 0.95 --out nfcorpus-negatives.jsonl
  lightir mine scifact/ --index scifact-index --mode dense --out dense-negatives.jsonl
  lightir mine scifact/ --tokens dirichlet --out likelihood-negatives.jsonl
  lightir mine scifact/ --model models/first --work scifact-first --mode full --out second-round.jsonl
  lightir mine scifact/ --model models/sidr --mode bag-of-tokens --out sidr-negatives.jsonl
  lightir mine squadshifts/ --skip-answers --teacher minilm --teacher-share 0.9 --out squadshifts-negatives.jsonl
"""
TEACHER_TOKENS = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("dataset", metavar="DATASET", help="a BEIR folder")
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="JSONL file to write, as recipes name it")
    parser.add_argument("--split", default="train", help="whose queries (default %(default)s)")
    parser.add_argument(
        "-n", type=positive, default=30, metavar="N", help="negatives for a query (default %(default)s)"
    )
    _add_searcher(parser)
    _add_filters(parser)
    add_device(parser)
    add_json(parser)


def _add_searcher(parser: argparse.ArgumentParser) -> None:
    searcher = parser.add_mutually_exclusive_group()
    searcher.add_argument("--index", metavar="INDEX", help="search this index of the data set's corpus")
    searcher.add_argument("--model", metavar="MODEL", help=f"encode the corpus and search with it: {MODEL_HELP}")
    parser.add_argument(
        "--mode",
        metavar="MODE",
        help="with an index as search has it; with a model as evaluate has it (full: queries through the model), or "
        "bag-of-tokens, which encodes no document (default: hybrid where there are two branches)",
    )
    parser.add_argument(
        "--work", metavar="DIR", help="for a model: keep vectors, query table and index here (default: not kept)"
    )
    parser.add_argument("--task", metavar="NAME", help="the query table to use (default: the encoder's first)")
    parser.add_argument(
        "--analyzer", default="english", metavar="NAME", help="how BM25 cuts text (default %(default)s)"
    )
    add_tokens(parser)
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="for searching (default %(default)s)")


def _add_filters(parser: argparse.ArgumentParser) -> None:
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
        help="leave out what scores above this share, such as 0.95, of the best relevant document (default: no limit)",
    )
    parser.add_argument(
        "--absolute-margin",
        type=float,
        metavar="X",
        help="leave out what scores above the best relevant document's score less this (default: no limit)",
    )
    parser.add_argument(
        "--skip-answers", action="store_true", help="leave out what holds one of the query's answers, word for word"
    )
    parser.add_argument(
        "--teacher",
        metavar="MODEL",
        help="a model folder or a sentence-transformers one whose scores filter (default: none)",
    )
    parser.add_argument(
        "--teacher-share",
        type=float,
        metavar="SHARE",
        help="leave out what the teacher scores at this share of the best relevant document, or above (default 0.95)",
    )


def run(args: argparse.Namespace) -> None:
    """Mine and say what was kept and dropped."""
    from lightir.data import Dataset
    from lightir.search.language_model import parse_smoothing
    from lightir.train.mining.miner import NegativeFilters, mine

    smoothing = parse_smoothing(args.tokens)
    if args.teacher_share is not None and args.teacher is None:
        raise Misuse("--teacher-share is of a teacher's scores: name one with --teacher")
    filters = NegativeFilters(
        first_rank=args.first_rank,
        depth=args.depth,
        margin=args.margin,
        absolute_margin=args.absolute_margin,
        skip_answers=args.skip_answers,
        teacher_share=0.95 if args.teacher and args.teacher_share is None else args.teacher_share,
    )
    dataset = Dataset.open(args.dataset)
    with _finder(args, dataset, smoothing) as finder:
        report = mine(
            dataset,
            args.split,
            args.out,
            finder=finder,
            n_negatives=args.n,
            filters=filters,
            teacher=_teacher(args.teacher, args.device),
            analyzer=args.analyzer,
            smoothing=smoothing,
            threads=args.threads,
        )
    if args.json:
        print_json({"negatives": args.out, **report.to_json()})
    else:
        say(f"{args.out}: {report.kept:,} negatives for {report.with_negatives:,} of {report.queries:,} queries")
        say("dropped: " + (", ".join(f"{n:,} {reason}" for reason, n in report.dropped.items()) or "nothing"))


@contextmanager
def _finder(args: argparse.Namespace, dataset: Dataset, smoothing: Smoothing | None) -> Iterator[Finder | None]:
    """The searcher that was asked for; None for counted words alone, which `mine` searches itself."""
    if args.work and not args.model:
        raise Misuse("--work keeps what a model encodes: name it with --model")
    if args.device != "auto" and not (args.model or args.teacher):
        raise Misuse("--device is for a model that encodes: name it with --model or --teacher")
    if args.model and smoothing is not None:
        raise Misuse("--tokens is for counted words and for an --index; encode into one, and mine with that")
    if args.index:
        from lightir.index import Index
        from lightir.search import Searcher, SearchOptions
        from lightir.train.mining.finders import IndexFinder

        with Index.open(args.index) as index:
            searcher = Searcher(index, task=args.task, threads=args.threads)
            yield IndexFinder(searcher, SearchOptions(mode=args.mode, smoothing=smoothing))
    elif args.model:
        from lightir.train.mining.model_finders import model_finder

        with (
            nullcontext(args.work) if args.work else tempfile.TemporaryDirectory() as work,
            model_finder(
                args.model,
                dataset,
                Path(work),
                mode=args.mode or "hybrid",
                task=args.task,
                analyzer=args.analyzer,
                device=args.device,
                threads=args.threads,
            ) as finder,
        ):
            yield finder
    elif args.mode not in (None, "tokens") or args.task:
        raise Misuse("without --index or --model counted words are searched, which have neither modes nor tasks")
    else:
        yield None


def _teacher(address: str | None, device: str) -> Teacher | None:
    if address is None:
        return None
    from lightir.train.distill.teacher import Teacher

    return Teacher.load(address, max_tokens=TEACHER_TOKENS, device=device)
