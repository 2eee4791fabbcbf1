"""Add documents to an index while others search it, from encoded vectors or from a plain corpus.

Documents of a plain corpus are found by BM25 at once; in an index of a model's vectors they are pending until `lightir
worker` gives them theirs. With --replace a document whose title and text are there already keeps its vectors: the whole
corpus may be put in again after a few of its documents have changed. Every batch is one change: when the command is cut
off, whole batches are in, and --replace may start again.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lightir.cli.arguments import CORPUS_HELP, add_fields, add_json, positive
from lightir.cli.pipeline import shards_of
from lightir.cli.terminal import print_json, say
from lightir.contract import require_same_documents
from lightir.errors import InvalidInput

if TYPE_CHECKING:
    from lightir.index import IndexInfo, IndexWriter
    from lightir.shards import Shard

HELP = "add documents to an index, or replace them"
EXAMPLES = """
  lightir add index new.jsonl
  lightir add index vectors --replace
  lightir add index notes/ --mirror
  tail -n 100 corpus.jsonl | lightir add index -
"""
BATCH_DOCUMENTS = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("index", metavar="INDEX", help="an index folder")
    parser.add_argument(
        "corpus", nargs="+", metavar="FILES", help=f"folders that `lightir encode` wrote, or {CORPUS_HELP}"
    )
    add_fields(parser)
    parser.add_argument(
        "--replace",
        action="store_true",
        help="documents take the place of those with their ids (default: refused)",
    )
    parser.add_argument(
        "--mirror",
        action="store_true",
        help="--replace, and then delete what FILES do not hold: the index follows a folder that changes",
    )
    parser.add_argument(
        "--batch", type=positive, default=BATCH_DOCUMENTS, metavar="N", help="documents a change (default %(default)s)"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Add and say what the index holds."""
    from lightir.index import IndexWriter

    doc_ids: list[str] = []
    n_removed = 0
    shards, contract = shards_of(args.corpus, size=args.batch, fields=args.fields)
    with IndexWriter.open(args.index) as writer:
        if contract is not None:
            if writer.view.contract is None:
                raise InvalidInput(
                    f"{args.index} has no model's contract, so it takes no vectors; build it from vectors"
                )
            require_same_documents(writer.view.contract, contract, names=("the index", "the vectors"))
        replace = args.replace or args.mirror
        n_added = writer.add_shards(noted(shards, doc_ids), replace=replace, size=args.batch)
        if args.mirror:
            n_removed = remove_others(writer, doc_ids)
        info = writer.info()
    n_same = len(doc_ids) - n_added
    if args.json:
        print_json({"added": n_added, "unchanged": n_same, "removed": n_removed, **dataclasses.asdict(info)})
        return
    others = f", {n_same:,} unchanged" * bool(n_same) + f", {n_removed:,} deleted" * bool(n_removed)
    say(f"{Path(args.index)}: {n_added:,} documents put in{others}; it holds {info.documents:,}")
    say_pending(args.index, info)


def noted(shards: Iterator[Shard], doc_ids: list[str]) -> Iterator[Shard]:
    """The shards; their documents' ids are noted as they go by."""
    for shard in shards:
        doc_ids += [document.doc_id for document in shard.documents]
        yield shard


def remove_others(writer: IndexWriter, doc_ids: list[str]) -> int:
    """Delete what is not named; returns how many documents that were.

    Raises:
        InvalidInput: none is named, which is rather a wrong path than the wish to empty an index.
    """
    if not doc_ids:
        raise InvalidInput("the files hold no document, and --mirror would delete all; name others, or use delete")
    return writer.keep_only(doc_ids)


def say_pending(index: str, info: IndexInfo) -> None:
    """How many documents wait for vectors, and what to type next."""
    if info.pending:
        say(f"{info.pending:,} pending: their tokens alone find them until `lightir worker {index}` encodes them")
