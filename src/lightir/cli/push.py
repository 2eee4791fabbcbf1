"""Push the documents and vectors of an index to Qdrant, Milvus, PostgreSQL, Elasticsearch, OpenSearch or Vespa.

The engine then holds the documents, their dense vectors and their learned sparse vectors. It is searched by model-free
queries (lightir search ADDRESS QUERY --query-encoder INDEX). BM25's words stay in the index.

Each row has a version in the engine, and a push sends only rows that the engine lacks or has in another version. So an
interrupted push continues, a second one sends nothing, and after changes of the index it sends these alone. Rows of
documents that the index no longer has are deleted with --prune.

Vespa requires a schema that is deployed before: --package writes it, as an application package for vespa deploy.

A key, or a user and password, is read from the environment variable LIGHTIR_ENGINE_KEY.
"""

from __future__ import annotations

import argparse
import dataclasses

from lightir.cli.arguments import add_index, add_json, positive
from lightir.cli.terminal import print_json, print_status
from lightir.quantities import counted

HELP = "push an index to a vector database"
EXAMPLES = """
  lightir push index qdrant://localhost:6333/docs
  lightir push index milvus://localhost:19530/docs --batch 1000
  lightir push index "postgresql://me@localhost/shop?table=docs" --index flat
  lightir push index "qdrant:///tmp/qdrant?collection=docs" --prune
  lightir push index vespa://localhost:8080/docs --package app
"""
ON_INTERRUPT = "the rows that were sent are kept; the same command continues"
ADDRESS_HELP = (
    "address of a collection: qdrant://HOST[:PORT]/COLLECTION, milvus://HOST[:PORT]/COLLECTION, "
    "postgresql://[USER@]HOST[:PORT]/DATABASE?table=TABLE, elasticsearch://HOST[:PORT]/INDEX, "
    "opensearch://HOST[:PORT]/INDEX, vespa://HOST[:PORT]/SCHEMA, or a local folder or file as in "
    "qdrant:///FOLDER?collection=NAME"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_index(parser)
    parser.add_argument("address", metavar="ADDRESS", help=ADDRESS_HELP)
    parser.add_argument(
        "--batch", type=positive, default=256, metavar="N", help="maximum number of rows per request (default 256)"
    )
    parser.add_argument(
        "--prune",
        action="store_true",
        help="delete rows of the engine whose documents are not in the index (default: keep them, and say how many)",
    )
    parser.add_argument(
        "--index",
        dest="index_kind",
        choices=("hnsw", "flat"),
        default="hnsw",
        help="dense search in the engine: hnsw (default) uses a graph and is approximate, flat scans all vectors",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="remove the collection first, with all its rows, whatever made it"
    )
    parser.add_argument(
        "--package",
        metavar="FOLDER",
        help="write the application package that Vespa has to run to a folder, and push nothing (default: push)",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Push the index and print what was sent."""
    from lightir.engines import PushOptions, open_engine, push_index
    from lightir.engines.pushing import collection_of
    from lightir.engines.vespa_package import write_package
    from lightir.index import Index

    options = PushOptions(batch=args.batch, prune=args.prune, overwrite=args.overwrite, index=args.index_kind)
    with Index.open(args.index) as index:
        if args.package is not None:
            write_package(args.package, args.address, collection_of(index.view, args.index_kind))
            print_status(f"next: vespa deploy {args.package}, then: lightir push {args.index} {args.address}")
            return
        engine = open_engine(args.address)
        try:
            report = push_index(index, engine, options)
        finally:
            engine.close()
    if args.json:
        print_json(dataclasses.asdict(report))
        return
    deleted = f", {counted(report.deleted, 'row')} deleted" * bool(report.deleted)
    print_status(f"{engine.address}: {counted(report.sent, 'row')} sent, {report.unchanged:,} unchanged{deleted}")
    if report.surplus:
        print_status(f"{counted(report.surplus, 'row')} of documents that the index lacks; --prune deletes them")
    if report.pending:
        print_status(f"{counted(report.pending, 'pending document')} left out, without vectors; see: lightir worker")
    print_status(f'next: lightir search "{engine.address}" "your question" --query-encoder {args.index}')
