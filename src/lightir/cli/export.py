"""Write a model or an index in another project's format.

Formats of a model: sentence-transformers (SentenceTransformer loads the dense branch) and sparse-encoder (SparseEncoder
loads the sparse branch). Both have the model's document vectors and its model-free queries, with the adapter merged.

Formats of an index: ciff is a file of posting lists, the Common Index File Format of Anserini, PISA, JASS and Terrier.
It has counted words (--branch tokens) or learned impacts (--branch sparse). anserini is a folder of JSON lines:
Anserini's JsonVectorCollection of impacts, or its JsonDenseVectorCollection (--branch dense). With --topics, queries
are written beside it as terms.

docs/interchange.md lists what each format holds and how it was tested.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from lightir.cli.arguments import add_json, add_overwrite, add_task
from lightir.cli.terminal import Misuse, print_json, print_status
from lightir.quantities import counted

HELP = "write a model or an index in another project's format"
EXAMPLES = """
  lightir export minilm --to sentence-transformers --out minilm-st
  lightir export smollm2-135m --to sparse-encoder --out smollm2-st --dtype bfloat16
  lightir export index --to ciff --out index.ciff
  lightir export index --to anserini --branch sparse --out collection --queries queries.jsonl --topics topics.tsv
"""

CLASSES = {"sentence-transformers": "SentenceTransformer", "sparse-encoder": "SparseEncoder"}
BRANCHES = {"ciff": ("tokens", "sparse"), "anserini": ("sparse", "dense")}
FORMATS = (*CLASSES, *BRANCHES)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "source", metavar="SOURCE", help="model folder, or name of an installed model; for ciff and anserini an index"
    )
    parser.add_argument("--to", required=True, choices=FORMATS, metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument("-o", "--out", required=True, metavar="OUT", help="folder to write; for ciff the file")
    add_task(parser)
    of_models = parser.add_argument_group("models")
    of_models.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        default="float32",
        help="number format of a model's weights (default %(default)s)",
    )
    of_indexes = parser.add_argument_group("indexes")
    of_indexes.add_argument(
        "--branch",
        choices=("tokens", "sparse", "dense"),
        help="branch of the index to write: for ciff tokens or sparse (default: tokens if the index counts words), for "
        "anserini sparse or dense (default: sparse if the index has it)",
    )
    of_indexes.add_argument(
        "--texts", action="store_true", help="with anserini: write titles and texts too, as contents (default: none)"
    )
    of_indexes.add_argument(
        "--queries", metavar="FILE", help="with anserini and --topics: JSONL or TSV file of queries, or a BEIR folder"
    )
    of_indexes.add_argument(
        "--topics",
        metavar="FILE",
        help="with anserini and --queries: file to write the queries to, as lines of an id, a tab and terms, each as "
        "often as it weighs",
    )
    add_overwrite(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Export, and print what loads the result."""
    of_index = BRANCHES.get(args.to)
    if of_index is None:
        for name in ("branch", "texts", "queries", "topics"):
            if getattr(args, name):
                raise Misuse(f"--{name} requires an index and --to {' or '.join(BRANCHES)}")
        export_model(args)
        return
    if args.dtype != "float32":
        raise Misuse("--dtype requires a model")
    if args.branch is not None and args.branch not in of_index:
        raise Misuse(f"--to {args.to} has no branch {args.branch}; it has {' and '.join(of_index)}")
    if (args.queries is None) != (args.topics is None):
        raise Misuse("--queries and --topics require each other: the queries, and the file to write them to")
    if args.to == "ciff":
        export_ciff_file(args)
    else:
        export_collection(args)


def export_ciff_file(args: argparse.Namespace) -> None:
    """Export an index as a CIFF file."""
    from lightir.files import check_writable
    from lightir.index import Index
    from lightir.index.exchange import export_ciff

    for name in ("texts", "queries", "topics", "task"):
        if getattr(args, name):
            raise Misuse(f"--{name} requires --to anserini")
    check_new_file(args.out, overwrite=args.overwrite)
    check_writable(args.out)
    with Index.open(args.source) as index:
        report = export_ciff(index.view, args.out, branch=args.branch)
    if args.json:
        print_json({"out": args.out, **dataclasses.asdict(report)})
        return
    print_status(
        f"{args.out}: {counted(report.documents, 'document')}, {counted(report.terms, 'term')}, "
        f"{counted(report.postings, 'posting')} ({report.branch})"
    )
    print_left_out(report.pending)


def check_new_file(out: str, *, overwrite: bool) -> None:
    """Refuse to replace a file without --overwrite."""
    from pathlib import Path

    from lightir.errors import AlreadyExists

    if not overwrite and Path(out).is_file():
        raise AlreadyExists(f"{out} exists; choose another name, or replace it (--overwrite)")


def export_collection(args: argparse.Namespace) -> None:
    """Export an index as a collection of Anserini, and queries as topics."""
    from lightir.data import read_queries
    from lightir.files import check_new_folder, check_writable
    from lightir.index import Index
    from lightir.index.exchange import export_anserini, write_topics
    from lightir.query import CachedQueryEncoder

    check_new_folder(args.out, overwrite=args.overwrite)
    if args.topics is not None:
        if args.branch == "dense":
            raise Misuse("--topics are terms; Anserini takes dense queries from its own encoders")
        check_new_file(args.topics, overwrite=args.overwrite)
        check_writable(args.topics)
    elif args.task:
        raise Misuse("--task requires --topics")
    answer: dict[str, Any] = {"out": args.out}
    with Index.open(args.source) as index:
        report = export_anserini(index.view, args.out, branch=args.branch, texts=args.texts, overwrite=args.overwrite)
    answer |= dataclasses.asdict(report)
    topics = None
    if args.topics is not None:
        encoder = CachedQueryEncoder.load(args.source)
        topics = write_topics(encoder, read_queries(args.queries), args.topics, task=args.task)
        answer["topics"] = dataclasses.asdict(topics)
    if args.json:
        print_json(answer)
        return
    kind = "JsonVectorCollection" if report.branch == "sparse" else "JsonDenseVectorCollection"
    print_status(f"{args.out}: {counted(report.documents, 'document')} as {kind} ({counted(report.files, 'file')})")
    print_left_out(report.pending)
    if topics is not None:
        left_out = f"; {counted(topics.empty, 'query')} without terms left out" * bool(topics.empty)
        print_status(f"{args.topics}: {counted(topics.queries - topics.empty, 'query')} as terms{left_out}")
        if topics.steps > 1:
            print_status(f"weights of terms are rounded to multiples of {1 / topics.steps}")


def print_left_out(n_pending: int) -> None:
    """Print the number of pending documents that were left out."""
    if n_pending:
        print_status(f"{counted(n_pending, 'pending document')} left out, without vectors; see: lightir worker")


def export_model(args: argparse.Namespace) -> None:
    """Export a model."""
    from lightir.files import check_new_folder

    check_new_folder(args.out, overwrite=args.overwrite)
    # Imports torch: only after the arguments are checked.
    from lightir.encode.exports.sentence_transformers_export import export_sentence_transformer

    exported = export_sentence_transformer(
        args.source, args.out, kind=args.to, task=args.task, dtype=args.dtype, overwrite=args.overwrite
    )
    if args.json:
        print_json({"out": str(exported.folder), "own_modules": list(exported.own_modules)})
        return
    trust = ", trust_remote_code=True" if exported.own_modules else ""
    print_status(f"written to {exported.folder}; load it with {CLASSES[args.to]}('{exported.folder}'{trust})")
    if exported.own_modules:
        print_status(
            f"lightir_modules.py in it has what sentence-transformers lacks: {', '.join(exported.own_modules)}"
        )
