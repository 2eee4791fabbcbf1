"""Mine hard negatives: documents that rank high for a training query but are not relevant to it.

Documents are found by BM25 (or query likelihood with --tokens) unless an index of the corpus (--index) or a model
(--model) is given, for instance the model of an earlier training run. Relevant documents and their exact copies are
never taken. The options under "filters" drop more documents that may be relevant although nobody judged them; the
command prints how many documents each filter dropped.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from lightir.analysis import AUTO
from lightir.cli.arguments import (
    MODEL_HELP,
    Arguments,
    add_device,
    add_json,
    add_limits,
    add_task,
    add_threads,
    add_tokens,
    add_work,
    positive,
    search_options,
)
from lightir.cli.terminal import Misuse, print_json, print_status
from lightir.files import temporary_folder
from lightir.quantities import counted

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
    parser.add_argument("dataset", metavar="DATASET", help="BEIR folder with corpus, queries and qrels")
    parser.add_argument(
        "-o",
        "--out",
        required=True,
        metavar="FILE",
        help="JSONL file of negatives to write; recipes name it under data",
    )
    parser.add_argument("--split", default="train", help="split to take queries from (default %(default)s)")
    parser.add_argument(
        "-n", type=positive, default=30, metavar="N", help="maximum number of negatives per query (default %(default)s)"
    )
    add_limits(parser)
    add_json(parser)
    _add_search(parser.add_argument_group("search"))
    _add_filters(parser.add_argument_group("filters"))


def _add_search(group: argparse._ArgumentGroup) -> None:
    source = group.add_mutually_exclusive_group()
    source.add_argument(
        "--index", metavar="INDEX", help="index of the data set's corpus to search (default: none, BM25)"
    )
    source.add_argument("--model", metavar="MODEL", help=f"model to encode the corpus with and search: {MODEL_HELP}")
    group.add_argument(
        "--mode",
        metavar="MODE",
        help="with --index: a mode of lightir search. With --model: a mode of lightir evaluate (full: queries through "
        "the model), or bag-of-tokens, which encodes no documents (default: hybrid, or the only branch)",
    )
    add_work(group)
    add_task(group)
    group.add_argument(
        "--analyzer",
        default=AUTO,
        metavar="NAME",
        help="text analysis for BM25, as of lightir index (default %(default)s)",
    )
    add_tokens(group, overlap=False)
    add_threads(group)
    add_device(group)


def _add_filters(group: Arguments) -> None:
    group.add_argument(
        "--first-rank",
        type=positive,
        default=1,
        metavar="N",
        help="drop documents ranked before rank N (default %(default)s)",
    )
    group.add_argument(
        "--depth",
        type=positive,
        default=100,
        metavar="N",
        help="drop documents ranked after rank N (default %(default)s)",
    )
    group.add_argument(
        "--margin",
        type=float,
        metavar="SHARE",
        help="drop documents that score above this fraction of the best positive's score, e.g. 0.95 "
        "(default: no limit)",
    )
    group.add_argument(
        "--absolute-margin",
        type=float,
        metavar="X",
        help="drop documents that score above the best positive's score minus X (default: no limit)",
    )
    group.add_argument(
        "--skip-answers", action="store_true", help="drop documents that contain one of the query's answers verbatim"
    )
    group.add_argument(
        "--teacher",
        metavar="MODEL",
        help="lightir or sentence-transformers model whose scores filter too (default: none)",
    )
    group.add_argument(
        "--teacher-share",
        type=float,
        metavar="SHARE",
        help="drop documents that the teacher scores at least at this fraction of the best positive's score "
        "(default 0.95)",
    )


def run(args: argparse.Namespace) -> None:
    """Mine the negatives and print how many were kept and dropped."""
    from lightir.addresses import resolve_local
    from lightir.data import Dataset
    from lightir.files import check_new_folder
    from lightir.search.language_model import parse_smoothing
    from lightir.train.mining.miner import NegativeFilters, mine

    smoothing = parse_smoothing(args.tokens)
    if args.teacher_share is not None and args.teacher is None:
        raise Misuse("--teacher-share requires --teacher")
    if args.work and not args.model:
        raise Misuse("--work requires --model")
    if args.device != "auto" and not (args.model or args.teacher):
        raise Misuse("--device requires --model or --teacher")
    if args.model and smoothing is not None:
        raise Misuse("--tokens and --model cannot be combined; build an index of the model's vectors and use --index")
    filters = NegativeFilters(
        first_rank=args.first_rank,
        depth=args.depth,
        margin=args.margin,
        absolute_margin=args.absolute_margin,
        skip_answers=args.skip_answers,
        teacher_share=0.95 if args.teacher and args.teacher_share is None else args.teacher_share,
    )
    dataset = Dataset.open(args.dataset)
    dataset.require_split(args.split)
    for address in filter(None, (args.model, args.teacher)):
        resolve_local(address)
    check_new_folder(args.out, overwrite=True)
    with _finder(args, dataset, smoothing) as finder:
        teacher = _teacher(args.teacher, args.device)
        report = mine(
            dataset, args.split, args.out, finder=finder, n_negatives=args.n, filters=filters, teacher=teacher
        )
    if args.json:
        print_json({"negatives": args.out, **report.to_json()})
    else:
        print_status(
            f"{args.out}: {counted(report.kept, 'negative')} "
            f"for {report.with_negatives:,} of {counted(report.queries, 'query')}"
        )
        print_status("dropped: " + (", ".join(f"{n:,} {reason}" for reason, n in report.dropped.items()) or "nothing"))


@contextmanager
def _finder(args: argparse.Namespace, dataset: Dataset, smoothing: Smoothing | None) -> Iterator[Finder]:
    """Yield the searcher of --index or --model; by default a search of counted words."""
    if args.index:
        from lightir.index import Index
        from lightir.search import Searcher
        from lightir.train.mining.finders import IndexFinder

        with Index.open(args.index) as index:
            searcher = Searcher(index, task=args.task, threads=args.threads)
            yield IndexFinder(searcher, search_options(args))
    elif args.model:
        from lightir.encode.model_evaluation import SystemOptions
        from lightir.train.mining.model_finders import model_finder

        options = SystemOptions(None, args.task, args.analyzer, args.device, args.threads)
        with (
            nullcontext(args.work) if args.work else temporary_folder() as work,
            model_finder(args.model, dataset, work, mode=args.mode or "hybrid", options=options) as finder,
        ):
            yield finder
    elif args.mode not in (None, "tokens") or args.task:
        raise Misuse("--mode and --task require --index or --model; without them, BM25 is searched")
    else:
        from lightir.train.mining.finders import word_finder

        with (
            temporary_folder() as work,
            word_finder(
                dataset, Path(work), analyzer=args.analyzer, threads=args.threads, smoothing=smoothing
            ) as finder,
        ):
            yield finder


def _teacher(address: str | None, device: str) -> Teacher | None:
    if address is None:
        return None
    from lightir.train.distill.teacher import Teacher

    return Teacher.load(address, max_tokens=TEACHER_TOKENS, device=device)
