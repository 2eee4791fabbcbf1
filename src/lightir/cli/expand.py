"""Generate queries that each document answers (doc2query).

By default the queries are appended to the document's text, so that BM25 also finds it by words that only the queries
contain. With --training they are written as training examples instead, for a collection without relevance labels;
name the file under `data` in a training recipe.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from lightir.cli.arguments import (
    CORPUS_HELP,
    DTYPE_AUTO,
    MODEL_HELP,
    add_corpus_options,
    add_device,
    add_json,
    positive,
)
from lightir.cli.terminal import print_json, print_json_line, print_status
from lightir.quantities import counted

HELP = "append generated queries to documents (needs lightir[train])"
EXAMPLES = """
  lightir expand model scifact/ -o expanded.jsonl
  lightir expand model corpus.jsonl -n 3 --draw 10 --training -o queries.jsonl
  lightir train recipes/lightretriever-tiny.yaml --set "data=[{name: queries.jsonl}]" -o own-model
  lightir expand model corpus.jsonl -o - | head
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "model", metavar="MODEL", help=f"generator: {MODEL_HELP}; best trained by the stage query_likelihood"
    )
    parser.add_argument("corpus", nargs="+", metavar="CORPUS", help=CORPUS_HELP)
    add_corpus_options(parser)
    parser.add_argument("-o", "--out", required=True, metavar="OUT.jsonl", help="JSONL file to write, or - for stdout")
    parser.add_argument("--training", action="store_true", help="write training examples instead of expanded documents")
    parser.add_argument(
        "-n", type=positive, default=5, metavar="N", help="number of queries per document (default %(default)s)"
    )
    parser.add_argument(
        "--draw",
        type=positive,
        default=0,
        metavar="K",
        help="sample each token from the K most probable ones, which gives more varied queries (default: beam search)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed of --draw (default %(default)s)")
    parser.add_argument(
        "--max-tokens",
        type=positive,
        default=32,
        metavar="N",
        help="maximum number of tokens per query (default %(default)s)",
    )
    parser.add_argument(
        "--batch-size",
        type=positive,
        default=16,
        metavar="N",
        help="number of documents per batch (default %(default)s)",
    )
    parser.add_argument(
        "--dtype", choices=("auto", "bf16", "fp32"), default="auto", help=f"precision of the model ({DTYPE_AUTO})"
    )
    add_device(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Generate the queries and write one JSON line per document, or per query."""
    from lightir.addresses import resolve_local
    from lightir.cli.early_checks import require_sources
    from lightir.files import check_writable

    if args.out != "-":
        check_writable(args.out)
    resolve_local(args.model)
    require_sources(args.corpus, args.fields)
    n_lines = 0
    if args.out == "-":
        for record in _records(args):
            print_json_line(record)
            n_lines += 1
    else:
        from lightir.files import atomic_file

        with atomic_file(args.out) as file:
            for record in _records(args):
                file.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
                n_lines += 1
    if args.json and args.out != "-":
        print_json({"out": args.out, "lines": n_lines})
    else:
        print_status(f"{args.out}: {counted(n_lines, 'training example' if args.training else 'document')}")


def _records(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from lightir.data import count_documents, read_documents
    from lightir.encode.expansion import GenerationOptions, expand_document, generate_queries, training_records
    from lightir.encode.likelihood_reranking import load_generator

    options = GenerationOptions(args.n, args.max_tokens, args.draw, args.seed)
    for document, queries in generate_queries(
        load_generator(args.model, dtype=args.dtype, device=args.device),
        read_documents(args.corpus, fields=args.fields),
        options=options,
        batch_size=args.batch_size,
        n_documents=count_documents(args.corpus),
    ):
        if args.training:
            yield from training_records(document, queries)
        else:
            new = expand_document(document, queries)
            yield {"_id": new.doc_id, "title": new.title, "text": new.text, "metadata": dict(new.metadata)}
