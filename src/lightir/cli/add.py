"""Add documents to an index while others search it.

FILES is either encoded vectors or a plain corpus. The documents of a plain corpus are found by BM25 at once. In an
index that was built with a model they are pending until `lightir worker` encodes them.

Without --replace, an id that is already in the index is an error. With --replace, a document whose title and text
have not changed keeps its vectors, so after a few changes you may add the whole corpus again. Each batch is one
transaction: after an interruption the index contains whole batches, and the same command with --replace completes
them.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lightir.cli.arguments import CORPUS_HELP, add_corpus_options, add_index, add_json, positive
from lightir.cli.pipeline import CORPUS_OPTIONS_OF_VECTORS, shards_of
from lightir.cli.terminal import Misuse, print_json, print_status
from lightir.contract import require_same_documents
from lightir.errors import InvalidInput

if TYPE_CHECKING:
    from lightir.index import IndexInfo, IndexWriter
    from lightir.shards import Shard

HELP = "add documents to an index, or replace them"
EXAMPLES = """
  lightir add index new.jsonl                        add documents; an existing id is an error
  lightir add index vectors --replace                add or replace encoded documents
  lightir add index notes/ --mirror                  make the index equal to a folder of text files
  tail -n 100 corpus.jsonl | lightir add index -     read documents from stdin
"""
BATCH_DOCUMENTS = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_index(parser)
    parser.add_argument(
        "corpus", nargs="+", metavar="FILES", help=f"vectors folders written by lightir encode, or {CORPUS_HELP}"
    )
    add_corpus_options(parser)
    parser.add_argument(
        "--replace", action="store_true", help="replace documents whose ids are already in the index (default: error)"
    )
    parser.add_argument(
        "--mirror",
        action="store_true",
        help="like --replace, and also delete every document that is not in FILES",
    )
    parser.add_argument(
        "--batch",
        type=positive,
        default=BATCH_DOCUMENTS,
        metavar="N",
        help="maximum number of documents per transaction (default %(default)s)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Add the documents and print what changed."""
    from lightir.index import IndexWriter

    doc_ids: list[str] = []
    n_removed = 0
    shards, contract = shards_of(args.corpus, size=args.batch, fields=args.fields)
    if contract is not None and (args.follow_links or args.limits):
        raise Misuse(CORPUS_OPTIONS_OF_VECTORS)
    with IndexWriter.open(args.index) as writer:
        if contract is not None:
            if writer.view.contract is None:
                raise InvalidInput(
                    f"cannot add vectors to {args.index}: the index was built without a model. Build a new one with: "
                    f"lightir index {' '.join(args.corpus)} --out INDEX"
                )
            require_same_documents(writer.view.contract, contract, names=("the index", "the vectors"))
        replace = args.replace or args.mirror
        n_added = writer.add_shards(collect_ids(shards, doc_ids), replace=replace, size=args.batch)
        if args.mirror:
            n_removed = remove_others(writer, doc_ids)
        info = writer.info()
    n_same = len(doc_ids) - n_added
    if args.json:
        print_json({"added": n_added, "unchanged": n_same, "removed": n_removed, **dataclasses.asdict(info)})
        return
    others = f", {n_same:,} unchanged" * bool(n_same) + f", {n_removed:,} deleted" * bool(n_removed)
    print_status(f"{Path(args.index)}: {n_added:,} documents added{others}; {info.documents:,} in total")
    print_pending(args.index, info)


def collect_ids(shards: Iterator[Shard], doc_ids: list[str]) -> Iterator[Shard]:
    """Yield the shards and append their documents' ids to `doc_ids`."""
    for shard in shards:
        doc_ids += [document.doc_id for document in shard.documents]
        yield shard


def remove_others(writer: IndexWriter, doc_ids: list[str]) -> int:
    """Delete every other document and return the number of deleted ones.

    Raises:
        InvalidInput: no id is given. A wrong path is a likelier cause than the wish to empty an index.
    """
    if not doc_ids:
        raise InvalidInput(
            "the files contain no documents, and --mirror would delete all documents of the index. Check the paths, "
            "or use lightir delete"
        )
    return writer.keep_only(doc_ids)


def print_pending(index: str, info: IndexInfo) -> None:
    """Print the number of pending documents and the command that encodes them."""
    if info.pending:
        print_status(f"{info.pending:,} documents pending: only BM25 finds them until you run: lightir worker {index}")
