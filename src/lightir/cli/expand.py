"""Let a model say what each document can be asked (doc2query), by beam search or draws from the document's end token.

The queries go behind the document's text, so that BM25 finds it by them too; or, with --training, into a file of
training examples for a collection that has no labels, which a recipe names under `data`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from lightir.cli.arguments import CORPUS_HELP, DTYPE_AUTO, MODEL_HELP, add_device, add_fields, add_json, positive
from lightir.cli.terminal import print_json, print_json_line, say

HELP = "append generated queries to documents (needs lightir[train])"
EXAMPLES = """
  lightir expand model scifact/ -o expanded.jsonl
  lightir expand model corpus.jsonl -n 3 --draw 10 --training -o queries.jsonl
  lightir train recipes/lightretriever-tiny.yaml --set "data=[{name: queries.jsonl}]" -o own-model
  lightir expand model corpus.jsonl -o - | head
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help=f"{MODEL_HELP}; best one of the stage query_likelihood")
    parser.add_argument("corpus", nargs="+", metavar="CORPUS", help=CORPUS_HELP)
    add_fields(parser)
    parser.add_argument("-o", "--out", required=True, metavar="OUT.jsonl", help="the file to write, or - for stdout")
    parser.add_argument("--training", action="store_true", help="write training examples instead of documents")
    parser.add_argument("-n", type=positive, default=5, metavar="N", help="queries a document (default %(default)s)")
    parser.add_argument(
        "--draw",
        type=positive,
        default=0,
        metavar="K",
        help="draw each token from the K most probable: more varied queries than beam search, the default, finds",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default %(default)s)")
    parser.add_argument("--max-tokens", type=positive, default=32, metavar="N", help="of a query (default %(default)s)")
    parser.add_argument(
        "--batch-size", type=positive, default=16, metavar="N", help="documents at a time (default %(default)s)"
    )
    parser.add_argument(
        "--dtype", choices=("auto", "bf16", "fp32"), default="auto", help=f"of the weights ({DTYPE_AUTO})"
    )
    add_device(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Generate and write one JSON line a document, or a query."""
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
        say(f"{args.out}: {n_lines:,} {'training examples' if args.training else 'documents'}")


def _records(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from lightir.data import count_documents, read_documents
    from lightir.encode.expansion import GenerationOptions, expanded, generate_queries, training_records
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
            new = expanded(document, queries)
            yield {"_id": new.doc_id, "title": new.title, "text": new.text, "metadata": dict(new.metadata)}
