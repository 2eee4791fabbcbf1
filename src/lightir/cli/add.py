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
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightir.cli.arguments import (
    CORPUS_HELP,
    add_corpus_options,
    add_index,
    add_json,
    add_stop_with_stdin,
    add_stored_vectors,
    positive,
    require_no_corpus_options,
    skipped_json,
)
from lightir.cli.mirroring import FEW_DELETED, MAX_DELETED, content_hash, renaming, stored_ids, why_not_delete
from lightir.cli.pipeline import are_vectors, read_stored_vectors, read_vectors, shards_of, with_stored_vectors
from lightir.cli.terminal import Misuse, print_json, print_status
from lightir.contract import EXTERNAL, require_same_documents
from lightir.errors import InvalidInput
from lightir.quantities import counted

if TYPE_CHECKING:
    from lightir.index import IndexInfo
    from lightir.shards import Shard

HELP = "add documents to an index, or replace them"
EXAMPLES = """
  lightir add index new.jsonl                        add documents; an existing id is an error
  lightir add index vectors --replace                add or replace encoded documents
  lightir add index new.jsonl --vectors new.npy      add documents with vectors that were made elsewhere
  lightir add index notes/ --mirror                  make the index equal to a folder of files
  lightir add index notes/ --mirror --dry-run        print what that would change
  tail -n 100 corpus.jsonl | lightir add index -     read documents from stdin
"""
STDIN = "-"
BATCH_DOCUMENTS = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_index(parser)
    parser.add_argument(
        "corpus", nargs="+", metavar="FILES", help=f"vectors folders written by lightir encode, or {CORPUS_HELP}"
    )
    add_corpus_options(parser)
    add_stored_vectors(parser)
    parser.add_argument(
        "--replace", action="store_true", help="replace documents whose ids are already in the index (default: error)"
    )
    parser.add_argument(
        "--mirror",
        action="store_true",
        help="like --replace, and also delete every document that is not in FILES. A file that was moved or renamed "
        "keeps its vectors. Files that cannot be read keep "
        f"their documents. More than {MAX_DELETED:.0%}% of the documents, and more than {FEW_DELETED}, require --yes",
    )
    parser.add_argument("--yes", action="store_true", help="with --mirror: delete any number of documents")
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print how many documents would be added, replaced and deleted; no change",
    )
    parser.add_argument(
        "--batch",
        type=positive,
        default=BATCH_DOCUMENTS,
        metavar="N",
        help="maximum number of documents per transaction (default %(default)s)",
    )
    add_stop_with_stdin(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Add the documents and print what changed."""
    from lightir.index import IndexWriter

    if args.yes and not args.mirror:
        raise Misuse("--yes requires --mirror")
    if args.stop_with_stdin and STDIN in args.corpus:
        raise Misuse("--stop-with-stdin and documents from stdin exclude each other")
    if are_vectors(args.corpus):
        require_no_corpus_options(args)
    if args.vector_file and (args.mirror or are_vectors(args.corpus)):
        raise Misuse("--vectors requires a plain corpus, without --mirror")
    if args.dry_run:
        preview(args)
        return
    doc_ids: list[str] = []
    n_removed = 0
    with IndexWriter.open(args.index) as writer:
        if args.mirror:
            require_few_deletions(args, stored_ids(writer.view))
        shards, contract = shards_of(args.corpus, size=args.batch, fields=args.fields)
        if args.vector_file:
            documents = (document for shard in shards for document in shard.documents)
            stored = read_stored_vectors(args)
            shards = with_stored_vectors(documents, writer.view.contract, stored, size=args.batch)
        if contract is not None:
            if writer.view.contract is None:
                raise InvalidInput(
                    f"cannot add vectors to {args.index}: the index was built without a model. Build a new one with: "
                    f"lightir index {' '.join(args.corpus)} --out INDEX"
                )
            require_same_documents(writer.view.contract, contract, names=("the index", "the vectors"))
        replace = args.replace or args.mirror
        moves: dict[str, str] = {}
        if args.mirror and contract is None and STDIN not in args.corpus:
            shards = renaming(shards, writer, corpus_ids(args), moves)
        n_added = writer.add_shards(collect_ids(shards, doc_ids), replace=replace, size=args.batch)
        if args.mirror:
            n_removed = writer.keep_only([*doc_ids, *skipped_json().get("unreadable", ())])
        info = writer.info()
    n_same = len(doc_ids) - n_added
    if args.json:
        counts = {"added": n_added, "unchanged": n_same, "removed": n_removed, "renamed": len(moves)}
        changes = {**counts, "skipped": skipped_json()}
        print_json({**changes, **dataclasses.asdict(info)})
        return
    others = f", {n_same:,} unchanged" * bool(n_same) + f", {n_removed:,} deleted" * bool(n_removed)
    others += f", {len(moves):,} of them renamed" * bool(moves)
    print_status(f"{Path(args.index)}: {counted(n_added, 'document')} added{others}; {info.documents:,} in total")
    print_pending(args.index, info)


def collect_ids(shards: Iterator[Shard], doc_ids: list[str]) -> Iterator[Shard]:
    """Yield the shards and append their documents' ids to `doc_ids`."""
    for shard in shards:
        doc_ids += [document.doc_id for document in shard.documents]
        yield shard


def require_few_deletions(args: argparse.Namespace, stored: Sequence[str]) -> None:
    """Check before anything is changed that --mirror deletes few documents.

    Raises:
        InvalidInput: the files contain no documents, or more than MAX_DELETED of the documents would be deleted and
            --yes is not given.
    """
    if args.yes:
        return
    if STDIN in args.corpus:
        raise Misuse("--mirror reads its files twice, to count what it deletes; to mirror stdin give --yes")
    wanted = set(corpus_ids(args))
    if reason := why_not_delete(stored, wanted, len(wanted)):
        raise InvalidInput(
            f"{reason}; nothing was changed. Check the paths (--dry-run shows what would change), or give --yes"
        )


def corpus_ids(args: argparse.Namespace) -> Iterator[str]:
    """Yield the ids of the documents that a command names."""
    from lightir.data import read_doc_ids

    if are_vectors(args.corpus):
        return (
            document.doc_id for reader in read_vectors(args.corpus) for shard in reader for document in shard.documents
        )
    return read_doc_ids(args.corpus, fields=args.fields)


def preview(args: argparse.Namespace) -> None:
    """Print what the command would change."""
    from lightir.index import Index

    counts = dict.fromkeys(("added", "replaced", "unchanged", "removed", "renamed"), 0)
    new: Counter[bytes] = Counter()
    shards, _ = shards_of(args.corpus, size=args.batch, fields=args.fields)
    seen: set[str] = set()
    with Index.open(args.index) as index:
        for document in (document for shard in shards for document in shard.documents):
            seen.add(document.doc_id)
            stored = index.get([document.doc_id]).get(document.doc_id)
            counts["added" if stored is None else "unchanged" if stored == document else "replaced"] += 1
            if stored is None:
                new[content_hash(document)] += 1
        if args.mirror:
            kept = seen.union(skipped_json().get("unreadable", ()))
            gone = [doc_id for doc_id in index.ids() if doc_id not in kept]
            old = Counter(content_hash(index.documents([doc_id])[0]) for doc_id in gone)
            counts["renamed"] = (new & old).total()
            counts["added"] -= counts["renamed"]
            counts["removed"] = len(gone) - counts["renamed"]
    if args.json:
        print_json({"dry_run": True, **counts, "skipped": skipped_json()})
        return
    print_status(
        f"{Path(args.index)}: would add {counted(counts['added'], 'document')}, replace {counts['replaced']:,}, leave "
        f"{counts['unchanged']:,} unchanged, rename {counts['renamed']:,} and delete {counts['removed']:,}"
    )


def print_pending(index: str, info: IndexInfo) -> None:
    """Print the number of pending documents and the command that encodes them, or that adds their vectors."""
    if not info.pending:
        return
    what = f"{info.pending:,} documents and passages" if info.passages else counted(info.pending, "document")
    if info.contract is not None and info.contract["kind"] == EXTERNAL:
        print_status(
            f"{what} pending, without vectors of {info.contract['backbone']}, which lightir cannot make: only BM25 "
            f"finds them until you run: lightir add {index} CORPUS --vectors FILE --replace"
        )
    else:
        print_status(f"{what} pending: only BM25 finds them until you run: lightir worker {index}")
